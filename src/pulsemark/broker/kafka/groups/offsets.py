"""The coordinator's log: committed offsets and transactions, in memory and in a log of their own.

Each OffsetCommit is one entry of the log, so that its offsets are stored together or not at all. It
shares the group commit with all topics, and is shown once it is durable. An entry is JSON::

    {"group": "g", "type": "consumer", "offsets": [[topic, partition, offset, epoch, text, ms]]}
    {"group": "g", "dropped": [[topic, partition], ...]}      these offsets were removed, also
                                                              those of open transactions
    {"group": "g", "dropped": null}                           all offsets of the group
    {"transaction": "t", "state": "Ongoing", ...}             the state of a `Transaction`
    {"transaction": "t", "state": null}                       this transactional id is forgotten
    {"transaction": "t", "group": "g", ...}                   offsets that its commit commits

The last entry about an offset counts. When the log has many more entries than there are offsets,
all offsets are written once more and the entries before that are removed. A crash in between only
leaves entries that say the same twice. What is committed while the last entries before that become
durable waits a moment, so that it comes after what is written once more.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from ....kafka.errors import Code, KafkaError
from ....kafka.records import NO_PRODUCER, Producer
from ....ledger import Appended, Entry, LedgerError, ManagedLedger, Position
from ....ledger.position import EARLIEST
from ....ledger.topic_log import read_on

log = logging.getLogger(__name__)

#: The log is rewritten once it has so many entries more than there are offsets, or so many bytes
#: more than it had after the last time: the state of a large transaction takes many.
REWRITE_AT_LEAST, REWRITE_AT_LEAST_BYTES = 10_000, 64 * 1024 * 1024
OFFSETS_PER_ENTRY = 500
#: The most offsets of a commit, stored in one step. Kafka's limit, a batch's size, is similar.
MAX_OFFSETS_PER_COMMIT = 20_000

Partition = tuple[str, int]
"""A topic's name and a partition's number."""


class Committed(NamedTuple):
    """A committed offset, as the client gave it."""

    offset: int
    leader_epoch: int
    metadata: str
    time_ms: int


class State(Enum):
    """The state of a transactional id, by Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_decided(self) -> bool:
        """Whether the transaction's end is decided, and not yet in every partition."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def completed(self) -> State:
        """The state that follows a decided one."""
        is_commit = self is State.PREPARE_COMMIT
        return State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id, and its last transaction (`transactions`)."""

    name: str
    """The transactional id."""
    producer: Producer
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[Partition] = frozenset()
    groups: frozenset[str] = frozenset()
    marked: Producer = NO_PRODUCER
    """The producer whose id and epoch the transaction's entries have; not a fenced one."""
    started_ms: int = -1
    updated_ms: int = -1
    last_epoch: int = -1
    """The epoch of a producer that may ask again for the present epoch; -1: none."""
    ended: Producer = NO_PRODUCER
    """The producer that got the present epoch by ending a transaction: its answer may be lost."""
    number: int = 0
    """Counts the transactions of the transactional id, so that no id is used again."""

    @property
    def id(self) -> str:
        """The transaction's id, as control entries have it."""
        return self.marked.transaction(self.number)

    def record(self) -> dict[str, Any]:
        """The transaction's entry in the log."""
        return {
            "transaction": self.name,
            "state": self.state.value,
            "producer": self.producer,
            "timeout_ms": self.timeout_ms,
            "partitions": sorted(self.partitions),
            "groups": sorted(self.groups),
            "marked": self.marked,
            "started_ms": self.started_ms,
            "updated_ms": self.updated_ms,
            "last_epoch": self.last_epoch,
            "ended": self.ended,
            "number": self.number,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Transaction:
        """Parse an entry; those of version 1.0.0 have neither `ended` nor `number`."""
        return cls(
            record["transaction"],
            Producer(*record["producer"]),
            record["timeout_ms"],
            State(record["state"]),
            frozenset((topic, index) for topic, index in record["partitions"]),
            frozenset(record["groups"]),
            Producer(*record["marked"]),
            record["started_ms"],
            record["updated_ms"],
            record["last_epoch"],
            Producer(*record.get("ended", NO_PRODUCER)),
            record.get("number", -1),
        )


class Offsets:
    """The committed offsets of all groups."""

    def __init__(
        self,
        ledger: ManagedLedger | None,
        run_blocking: Callable[..., Awaitable[Any]],
        max_offsets: int,
    ) -> None:
        """`ledger`: the log; None: another broker owns it, and there are no offsets here."""
        self._log = ledger
        self._run_blocking = run_blocking
        self._max_offsets = max_offsets
        self._by_group: dict[str, dict[Partition, Committed]] = {}
        self._groups_of: dict[str, set[str]] = {}
        """The groups that have offsets of a topic."""
        self.types: dict[str, str] = {}
        """The protocol type of each group that has offsets."""
        self.count = 0
        self.transactions: dict[str, Transaction] = {}
        """By transactional id."""
        self._uncommitted: dict[str, dict[str, dict[str, Any]]] = {}
        """By transactional id and group: the record of the offsets that its commit commits."""
        self._uncommitted_count = 0
        self._entries = 0
        self.size_bytes = self._kept_bytes = 0
        """Of all entries, and of those after the last time that the log was rewritten."""
        self._is_rewriting = False
        self._pending = 0
        """Entries that are not known to be durable."""
        self._all_settled: asyncio.Future[None] | None = None
        """Done when there is no such entry; the entries that come meanwhile are held."""
        self._held: list[tuple[dict[str, Any], asyncio.Future[None]]] = []

    @property
    def _ledger(self) -> ManagedLedger:
        assert self._log is not None, "requests about groups are refused without the log"
        return self._log

    # -- reading --------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the log. Blocks. Raises LedgerError, OSError."""
        lost = partial(log.error, "committed offsets of one entry are lost: %s")
        for entry in chain.from_iterable(read_on(self._ledger, EARLIEST, lost)):
            self._entries += 1
            self.size_bytes += len(entry.body)
            self._take_stored(entry)
        self._ledger.recent.reader_left()

    def _take_stored(self, entry: Entry) -> None:
        try:
            self._take(json.loads(bytes(entry.body)))
        except (ValueError, KeyError, TypeError) as error:
            log.error("committed offsets of entry %s cannot be read: %s", entry.position, error)

    def groups(self) -> list[str]:
        """The groups that have committed offsets."""
        return list(self._by_group)

    def of_group(self, group: str) -> Mapping[Partition, Committed]:
        """The committed offsets of a group."""
        return self._by_group.get(group, {})

    def unstable_of(self, group: str) -> set[Partition]:
        """The partitions with an offset that an open transaction has committed."""
        records = (groups.get(group) for groups in self._uncommitted.values())
        return {(row[0], row[1]) for record in records if record for row in record["offsets"]}

    # -- changing -------------------------------------------------------------------------------
    # Each returns a future that is done when the change is durable and shown, or has failed with
    # LedgerError.

    def commit(
        self,
        group: str,
        kind: str,
        offsets: Mapping[Partition, Committed],
        transaction: str | None = None,
    ) -> asyncio.Future[None]:
        """Store offsets of a group.

        Those of a ``transaction``, a transactional id, are shown when it is committed. Raises
        KafkaError above the limits of offsets: then nothing was stored.
        """
        if len(offsets) > MAX_OFFSETS_PER_COMMIT:
            raise KafkaError(
                Code.INVALID_COMMIT_OFFSET_SIZE,
                f"{len(offsets)} offsets in one commit; the limit is {MAX_OFFSETS_PER_COMMIT}",
            )
        known = self._by_group.get(group, {})
        new = sum(partition not in known for partition in offsets)
        if transaction is not None:
            new += self._uncommitted_count
        if new and self.count + new > self._max_offsets:
            raise KafkaError(
                Code.INVALID_COMMIT_OFFSET_SIZE,
                f"{self.count} offsets are committed, and the limit is {self._max_offsets}: "
                "raise max_kafka_committed_offsets or delete groups",
            )
        record = _record(group, kind, offsets.items())
        return self._append(
            record if transaction is None else {"transaction": transaction, **record}
        )

    def store_transaction(self, new: Transaction) -> asyncio.Future[None]:
        """Store the state of a transactional id."""
        return self._append(new.record())

    def forget_transaction(self, name: str) -> asyncio.Future[None]:
        """Forget a transactional id."""
        return self._append({"transaction": name, "state": None})

    def drop(self, group: str, partitions: Iterable[Partition] | None) -> asyncio.Future[None]:
        """Remove offsets of a group, or all of them."""
        dropped = None if partitions is None else [list(partition) for partition in partitions]
        return self._append({"group": group, "dropped": dropped})

    async def drop_topic(self, topic: str) -> None:
        """Remove all offsets of a deleted topic; durable on return. Raises LedgerError."""
        of_topic = defaultdict[str, set[Partition]](set)
        for group in self._groups_of.get(topic, ()):
            of_topic[group] = {at for at in self._by_group[group] if at[0] == topic}
        for groups in self._uncommitted.values():
            for group, record in groups.items():
                places = {(row[0], row[1]) for row in record["offsets"]}
                of_topic[group] |= {at for at in places if at[0] == topic}
        await asyncio.gather(*(self.drop(group, at) for group, at in of_topic.items() if at))

    def _append(
        self, record: dict[str, Any], done: asyncio.Future[None] | None = None
    ) -> asyncio.Future[None]:
        done = done or asyncio.get_running_loop().create_future()
        if self._all_settled is not None:
            self._held.append((record, done))
            return done
        try:
            appended = self._write(record)
        except LedgerError as error:
            _settle(done, error)
            return done
        self._pending += 1

        def settled(_: BaseException | None) -> None:
            error = appended.error
            if error is None:
                self._take(record)
            self._pending -= 1
            if not self._pending and self._all_settled is not None:
                _settle(self._all_settled, None)
            _settle(done, error)

        appended.commit.add_done_callback(settled)
        return done

    def _write(self, record: dict[str, Any]) -> Appended:
        body = json.dumps(record, separators=(",", ":")).encode()
        appended = self._ledger.append(body, message_count=0)
        self._entries += 1
        self.size_bytes += len(body)
        return appended

    def _take(self, record: dict[str, Any]) -> None:
        """Apply an entry of the log."""
        if "transaction" in record:
            self._take_of_transaction(record["transaction"], record)
            return
        group = record["group"]
        if "dropped" in record:
            self._forget(group, record["dropped"])
            return
        offsets = self._by_group.setdefault(group, {})
        before = len(offsets)
        for topic, partition, *committed in record["offsets"]:
            offsets[topic, partition] = Committed(*committed)
            self._groups_of.setdefault(topic, set()).add(group)
        self.count += len(offsets) - before
        self.types[group] = record["type"]

    def _take_of_transaction(self, name: str, record: dict[str, Any]) -> None:
        if "group" in record:
            groups = self._uncommitted.setdefault(name, {})
            known = groups.get(record["group"], {"offsets": ()})
            rows = {(row[0], row[1]): row for row in (*known["offsets"], *record["offsets"])}
            groups[record["group"]] = {**record, "offsets": list(rows.values())}
            self._uncommitted_count += len(rows) - len(known["offsets"])
            return
        if record["state"] is None:
            self.transactions.pop(name, None)
        else:
            self.transactions[name] = Transaction.of(record)
        if record["state"] != State.ONGOING.value:
            for offsets in self._uncommitted.pop(name, {}).values():
                self._uncommitted_count -= len(offsets["offsets"])
                if record["state"] == State.PREPARE_COMMIT.value:
                    self._take({key: offsets[key] for key in ("group", "type", "offsets")})

    def _forget(self, group: str, dropped: list[list[Any]] | None) -> None:
        self._forget_uncommitted(group, dropped)
        offsets = self._by_group.get(group)
        if offsets is None:
            return
        before, topics = len(offsets), {topic for topic, _ in offsets}
        if dropped is None:
            offsets.clear()
        else:
            for topic, partition in dropped:
                offsets.pop((topic, partition), None)
        self.count -= before - len(offsets)
        for topic in topics - {topic for topic, _ in offsets}:
            self._groups_of[topic].discard(group)
            if not self._groups_of[topic]:
                del self._groups_of[topic]
        if not offsets:
            del self._by_group[group]
            self.types.pop(group, None)

    def _forget_uncommitted(self, group: str, dropped: list[list[Any]] | None) -> None:
        """Drop uncommitted offsets of open transactions, too, as in Kafka 4."""
        gone = {(topic, partition) for topic, partition in dropped or ()}
        for groups in self._uncommitted.values():
            if (record := groups.pop(group, None)) is None:
                continue
            rows = record["offsets"] if dropped is not None else ()
            left = [row for row in rows if (row[0], row[1]) not in gone]
            self._uncommitted_count -= len(record["offsets"]) - len(left)
            if left:
                groups[group] = {**record, "offsets": left}

    # -- keeping the log short ------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether the log should be rewritten."""
        needed = self.count + len(self.transactions) + sum(map(len, self._uncommitted.values()))
        has_many = self._entries > 2 * needed + REWRITE_AT_LEAST
        is_large = self.size_bytes > 2 * self._kept_bytes + REWRITE_AT_LEAST_BYTES
        return not self._is_rewriting and (has_many or is_large)

    async def rewrite(self) -> None:
        """Write all offsets once more, remove the older entries. Raises LedgerError, OSError."""
        self._is_rewriting = True
        try:
            before, written = await self._write_all_again()
            await self._run_blocking(self._truncate, before, written)
        finally:
            self._is_rewriting = False

    async def _write_all_again(self) -> tuple[Position, list[Appended]]:
        """Write all offsets once more. Return the first position, and the appends."""
        self._all_settled = asyncio.get_running_loop().create_future()
        try:
            if self._pending:
                await self._all_settled
            # No wait from here on: what is shown is what the log says before this place.
            before, self._entries, self.size_bytes = self._ledger.end_position, 0, 0
            written = []
            for group, offsets in self._by_group.items():
                items = tuple(offsets.items())
                for start in range(0, len(items), OFFSETS_PER_ENTRY):
                    part = items[start : start + OFFSETS_PER_ENTRY]
                    written.append(self._write(_record(group, self.types[group], part)))
            written += [self._write(each.record()) for each in self.transactions.values()]
            for groups in self._uncommitted.values():
                written += [self._write(record) for record in groups.values()]
            self._kept_bytes = self.size_bytes
            return (written[0].position if written else before), written
        finally:
            self._all_settled = None
            held, self._held = self._held, []
            for record, done in held:
                self._append(record, done)

    def _truncate(self, before: Position, written: list[Appended]) -> None:
        """Remove older entries, when all that was written is durable. Blocks."""
        written.append(self._write({"group": "", "dropped": []}))
        for each in written:
            each.commit.wait()
        self._ledger.truncate_head(before)


def _record(
    group: str, kind: str, offsets: Iterable[tuple[Partition, Committed]]
) -> dict[str, Any]:
    rows = [[*partition, *committed] for partition, committed in offsets]
    return {"group": group, "type": kind, "offsets": rows}


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    """Complete a future, if it is not done, with an error or without."""
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
