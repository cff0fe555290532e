"""One part of a replay: from its place in the checkpoint to its end.

If the connection to the target is lost, or the target refuses for a while, the part is opened again
and goes on where the target is (see `target`), for as long as the options allow.

A message names its schema by the topic's version number, in bytes that do not change. So before the
first entry with a version goes, all versions up to it are registered in the target, in their order,
and the numbers that the target gives are compared. If one differs, its consumers would decode with
another schema: then the replay stops.

Spark runs the parts in its workers and, on a cluster, repeats those that fail. A repeated task goes
on where the checkpoint and the target are.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...client import (
    ConnectionLostError,
    Pace,
    RateLimit,
    RequestRefusedError,
    SendRefusedError,
    Service,
    UnreachableError,
    WaitTimeoutError,
)
from ...ledger import FolderReader, TopicLog
from ...metadata import MessageFormatError, read_message_metadata
from ..errors import ReplayError
from ..options import ReadOptions
from ..plan import Slice, entry_of
from ..tasks import spare_the_collector
from ..values.value_form import schema_key, stored_schemas
from .checkpoint import Checkpoint, Part, Progress
from .function import ReplayFunction, unpacked
from .options import ReplayOptions
from .outgoing import Outgoing, mapped_entries, untouched_entries
from .target import COME_AGAIN, TargetTopic, service_of

__all__ = ["Paces", "PartReplay", "SchemaCarrier"]

SAVE_S = 1.0
"""How often the progress is stored."""
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 5.0
_ATTEND_S = 0.25
"""How often receipts are looked for, and PINGs answered, while the rate limit holds."""
_LOST = (ConnectionLostError, UnreachableError, WaitTimeoutError)

_log = logging.getLogger(__name__)


class Paces:
    """The rate limits of one task: its share of messages and of bytes in a second."""

    def __init__(
        self,
        options: ReplayOptions,
        tasks: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = (
            (options.messages_per_s, True),
            (options.bytes_per_s, False),
        )
        self._paces = [
            Pace(RateLimit(rate / tasks, is_messages=is_messages), clock)
            for rate, is_messages in limits
            if rate is not None
        ]

    def wait_s(self) -> float:
        """Seconds until the next entry may go; 0: now."""
        return max((pace.wait_s() for pace in self._paces), default=0.0)

    def spend(self, entry: Outgoing) -> None:
        """An entry goes."""
        for pace in self._paces:
            pace.spend(len(entry.body), entry.message_count)


@dataclass(slots=True)
class PartReplay:
    """The replay of one part."""

    read: ReadOptions
    options: ReplayOptions
    checkpoint: Checkpoint
    number: int
    part: Part
    producer_name: str
    paces: Paces
    function: ReplayFunction | None
    lost: Collection[int] = ()
    """Ledgers that the driver found to be lost."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _progress: Progress = field(init=False)
    _saved: Progress | None = None
    _saved_s: float = 0.0

    def run(self) -> Progress:
        """Replay to the end of the part.

        Raises ReplayError (also if the target was away for too long), DataLossError, DecodeError,
        OptionError (the checkpoint).
        """
        self._progress = self.checkpoint.progress(self.number, self.part)
        lost_s, delay_s = None, BACKOFF_MIN_S
        while not self._progress.done:
            before = self._progress.next_index
            try:
                self._go_on()
            except _LOST as error:
                lost: Exception = error
            except (RequestRefusedError, SendRefusedError) as error:
                if error.error not in COME_AGAIN:
                    reason = f"the target {self.part.target_topic} refuses: {error}"
                    raise ReplayError(self.part.topic, reason) from error
                lost = error
            else:
                break
            if self._progress.next_index > before or lost_s is None:
                lost_s, delay_s = self.clock(), BACKOFF_MIN_S
            if self.clock() - lost_s >= self.options.reconnect_s:
                waited = f"{self.options.reconnect_s:g} s"
                reason = f"the target {self.part.target_topic} did not take it for {waited}: {lost}"
                raise ReplayError(self.part.topic, reason) from lost
            _log.warning(
                "%s: the connection to the target was lost; the replay tries again: %s",
                self.part.topic,
                lost,
            )
            self.sleep(delay_s)
            delay_s = min(2 * delay_s, BACKOFF_MAX_S)
        return self._progress

    def _go_on(self) -> None:
        """Replay over one connection; what is acknowledged is kept, also if this raises."""
        with service_of(self.options) as service, FolderReader(self.read.path) as reader:
            log = self._log(reader)
            target = TargetTopic(
                service, self.part, self.producer_name, self._progress, self.options
            )
            try:
                target.note_beginning()
                self._save(target)
                schemas = SchemaCarrier(self.read.path, self.part, service)
                self._publish(target, log, schemas)
                target.flush()
                target.progress = target.progress.with_fields(
                    done=True, next_index=self.part.end_index
                )
                target.close()
            finally:
                self._save(target)

    def _log(self, reader: FolderReader) -> TopicLog:
        log = reader.logs([self.part.topic], lost=self.lost).get(self.part.topic)
        if log is None:
            raise ReplayError(self.part.topic, "was deleted in the source")
        if log.topic_id != self.part.log_id:
            raise ReplayError(self.part.topic, "was deleted in the source and created again")
        return log

    def _publish(self, target: TargetTopic, log: TopicLog, schemas: SchemaCarrier) -> None:
        target.check_deduplication()
        for entry in target.pass_over_stored(self._entries(log, target.progress.next_index)):
            self._wait(target)
            if self.function is None:
                schemas.carry(entry.body)
            target.publish(entry)
            self.paces.spend(entry)
            target.settle()
            if self.clock() - self._saved_s >= SAVE_S:
                self._save(target)
            target.check_deduplication()

    def _entries(self, log: TopicLog, next_index: int) -> Iterator[Outgoing]:
        end_index = self.part.end_index
        if next_index >= end_index:
            return iter(())
        start, _ = entry_of(log, next_index)
        end, end_first_index = entry_of(log, end_index)
        if end_first_index < end_index < log.next_index:
            end = log.next_position(end)
        part = Slice(self.part.topic, start, end, next_index, end_index)
        fails = self.read.fail_on_data_loss
        if self.function is None:
            return untouched_entries(log, part, fail_on_data_loss=fails)
        return mapped_entries(
            log,
            part,
            self.function,
            self.read.limits,
            producer_name=self.producer_name,
            fail_on_data_loss=fails,
        )

    def _wait(self, target: TargetTopic) -> None:
        while (wait_s := self.paces.wait_s()) > 0:
            self.sleep(min(wait_s, _ATTEND_S))
            target.settle()
            if self.clock() - self._saved_s >= SAVE_S:
                self._save(target)

    def _save(self, target: TargetTopic) -> None:
        self._progress = target.progress
        if target.progress != self._saved:
            self.checkpoint.save(self.number, target.progress)
            self._saved = target.progress
        self._saved_s = self.clock()


_VERSION_SIZE_BYTES = 8


class SchemaCarrier:
    """The schemas of one topic, whose versions are registered when an entry needs them."""

    def __init__(self, folder: Path, part: Part, service: Service) -> None:
        self._folder = folder
        self._part = part
        self._service = service
        self._carried = -1

    def carry(self, body: bytes) -> None:
        """Bring the schema that an entry names, and those before it. Raises ReplayError."""
        try:
            version = read_message_metadata(body).schema_version
        except MessageFormatError:
            return
        if len(version) != _VERSION_SIZE_BYTES:
            return  # bytes that name no version are left as they are
        wanted = int.from_bytes(version, "big", signed=True)
        if wanted > self._carried:
            self._register(wanted)

    def _register(self, wanted: int) -> None:
        topic = self._part.topic
        schemas = stored_schemas(self._folder, [topic]).get(schema_key(topic), [])
        for number in range(self._carried + 1, wanted + 1):
            if number >= len(schemas):
                raise self._error(number, "the source's catalog does not have it")
            connection = self._service.connection(self._part.target_topic)
            try:
                given = connection.register_schema(self._part.target_topic, schemas[number])
            except RequestRefusedError as error:
                raise self._error(number, f"the target does not take it: {error}") from error
            if int.from_bytes(given, "big") != number:
                reason = f"it has the number {int.from_bytes(given, 'big')} in the target"
                raise self._error(number, reason)
            self._carried = number

    def _error(self, number: int, reason: str) -> ReplayError:
        return ReplayError(self._part.topic, f"schema version {number}: {reason}")


REPLAY_FORMAT = "pulsemark-replay"
PLAN_OPTION = "replayPlan"
TOKEN_OPTION = "replayToken"  # noqa: S105
"""An option of its own: Spark does not show options with such names."""


@dataclass(frozen=True)
class PartsPartition(InputPartition):
    """One task: the numbers of its parts."""

    numbers: tuple[int, ...]


class ReplaySource(DataSource):
    """``spark.read.format("pulsemark-replay")``: replays the parts of a plan."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return REPLAY_FORMAT

    def schema(self) -> str:
        """The number of a part, and its `Progress` as JSON."""
        return "number int, progress string"

    def reader(self, schema: StructType) -> ReplayReader:
        """The reader."""
        options = dict(self.options)
        plan = json.loads(options.pop(PLAN_OPTION.lower()))
        plan["options"]["token"] = options.pop(TOKEN_OPTION.lower(), None)
        return ReplayReader(ReadOptions.parse(options), plan)


class ReplayReader(DataSourceReader):
    """One partition for each task of the plan."""

    def __init__(self, read: ReadOptions, plan: dict[str, Any]) -> None:
        self._read = read
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        """The tasks, as they were planned."""
        return [PartsPartition(tuple(numbers)) for numbers in self._plan["tasks"]]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        """Replay the parts of one task, one after another."""
        assert isinstance(partition, PartsPartition), "the partitions are our own"
        spare_the_collector()
        plan = self._plan
        options = ReplayOptions(**plan["options"])
        function = None if plan["function"] is None else unpacked(plan["function"])
        paces = Paces(options, len(plan["tasks"]))
        for number in partition.numbers:
            replay = PartReplay(
                self._read,
                options,
                Checkpoint(plan["checkpoint"]),
                number,
                Part.from_json(plan["parts"][number]),
                plan["names"][number],
                paces,
                function,
                frozenset(plan["lost"]),
            )
            yield number, json.dumps(asdict(replay.run()))
