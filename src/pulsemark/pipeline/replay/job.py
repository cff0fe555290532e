"""The driver's part of a replay: fix the plan, let the workers publish, sum up.

The plan is fixed when a replay begins, and stored in the checkpoint: which messages of which topics
go where. A replay that goes on has the same plan, also if the folder has grown. A topic is
published by one task in its order; topics are divided among the tasks by their messages.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Unpack

from ...client import ClientError, RequestRefusedError
from ...ledger import FolderReader
from ...proto import pulsar_api_pb2 as pb
from ..arguments import Range, check_folder, checked_options, option_texts
from ..errors import DataLossError, JobFailedError, OptionError, ReplayError
from ..marks import loss_since, mark_of
from ..options import Bound, BoundKind, ReadOptions
from ..plan import Selected, entry_of, report, selected, slice_of
from ..session import require_spark
from ..slices import Slice, divided
from .checkpoint import Checkpoint, Part, Progress, ReplayPlan
from .options import ReplayOptions, service_of, settings_of, shared_by, target_topic_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...ledger import TopicLog


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The result for one topic, over this run and those before it."""

    topic: str
    target_topic: str
    first_index: int
    end_index: int
    messages: int
    """Messages published."""
    entries: int
    size_bytes: int
    deduplicates: bool | None
    """Whether the target topic deduplicates; None: nothing was published."""

    @classmethod
    def of(cls, part: Part, progress: Progress) -> TopicResult:
        """The result for a part of the plan."""
        known = asdict(part) | asdict(progress)
        return cls(**{field.name: known[field.name] for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The results of a replay."""

    topics: tuple[TopicResult, ...]

    @property
    def messages(self) -> int:
        """Messages of all topics."""
        return sum(topic.messages for topic in self.topics)


def replay(
    spark: SparkSession,
    path: str | os.PathLike[str],
    options: ReplayOptions,
    checkpoint: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    fail_on_data_loss: bool = True,
    **bounds: Unpack[Range],
) -> ReplayResult:
    """Publish a range of a folder's messages again. Returns when the target has all of them.

    Args:
        spark: the Spark session; its workers see the folder and the checkpoint under these paths.
        path: the data folder. A broker may be writing to it.
        options: where the entries go, and how.
        checkpoint: a folder that remembers how far the replay came; a new one is a new replay.
        topics: names; all topics by default.
        fail_on_data_loss: False: messages that are missing are logged and left out.
        bounds: which messages are replayed, see `Range`.

    Raises:
        MissingExtraError: pyspark, pyarrow or numpy is not installed.
        OptionError: an argument is malformed, or the checkpoint is of another replay.
        ForeignFolderError, UnsupportedVersionError: the path is not a data folder of this version.
        TopicNotFoundError: a named topic does not exist.
        ReplayError: a range that begins or ends inside an entry.
        DataLossError: messages of the range are missing, or a topic's log is not the one that the
            replay began with.
        JobFailedError: the target cannot be reached.
    """
    require_spark()
    options = options.checked()
    texts = option_texts(path, topics, fail_on_data_loss=fail_on_data_loss, **bounds)
    read = checked_options(texts)
    check_folder("checkpoint", checkpoint)
    names = [topics] if isinstance(topics, str) else topics
    settings = settings_of(path, names, texts, options)
    place = Checkpoint(checkpoint)
    with place.lock():
        with FolderReader(read.path) as reader:
            found = selected(reader, read)
            for error in found.lost_topics():
                report(error, read.fail_on_data_loss)
            plan = _plan(place, settings, found, read, options)
            left = _left(plan, found, place, read)
        lost = found.expected.lost_ledgers
        return replayed(spark, read, plan, left, lost, place, options)


def _left(
    plan: ReplayPlan, found: Selected, place: Checkpoint, read: ReadOptions
) -> dict[int, int]:
    """The parts that are not done, by number, and how many messages each has left.

    Raises DataLossError: a log is not the one that the plan was made for, or messages are lost
    (see ``fail_on_data_loss``).
    """
    left = {}
    for number, part in enumerate(plan.parts):
        progress = place.progress(number, part)
        if progress.done:
            continue
        log = found.logs.get(part.topic)
        if log is None or log.topic_id != part.log_id:
            if read.fail_on_data_loss:
                left[number] = 0  # its task names the topic, after the others are done
                continue
            reason = "the topic was deleted in the source"
            report(DataLossError(part.topic, progress.next_index, part.end_index, reason), False)
            continue
        other = loss_since(log, part.end_index, part.mark, found.expected)
        if other is not None:
            error = DataLossError(part.topic, progress.next_index, part.end_index, other)
            report(error, read.fail_on_data_loss)
        start, end = (Bound(BoundKind.INDEX, n) for n in (progress.next_index, part.end_index))
        rest = slice_of(log, replace(read, start=start, end=end), found.expected)
        left[number] = rest.message_count
    return left


def _plan(
    place: Checkpoint,
    settings: dict[str, object],
    found: Selected,
    read: ReadOptions,
    options: ReplayOptions,
) -> ReplayPlan:
    """The plan in the checkpoint, or a new one."""
    known = place.load()
    if known is not None:
        for name in {**known.settings, **settings}:
            before, value = known.settings.get(name), settings.get(name)
            if before != value:
                reason = f"is of a replay with {name} = {before!r}, not {value!r}"
                raise OptionError("checkpoint", str(place.path), reason)
        return known
    plan = ReplayPlan.new(settings, _parts(found, read, options))
    check_targets(plan, options)
    place.begin(plan)
    return plan


def _parts(topics: Selected, read: ReadOptions, options: ReplayOptions) -> tuple[Part, ...]:
    parts = []
    for log in topics.logs.values():
        part = slice_of(log, read, topics.expected)
        if part.message_count:
            _check_whole_entries(log, part)
        target = target_topic_of(log.name, options)
        mark = mark_of(log, part.end_index)
        parts.append(Part(log.name, target, log.topic_id, part.first_index, part.end_index, mark))
    return tuple(parts)


def _check_whole_entries(log: TopicLog, part: Slice) -> None:
    """Raises ReplayError for a range that begins or ends inside an entry."""
    bounds = {"startingOffsets": part.first_index, "endingOffsets": part.end_index}
    for name, bound in bounds.items():
        _, first_index = entry_of(log, bound)
        if first_index < bound:
            reason = f"is inside an entry, and entries go as a whole: take {first_index}"
            raise ReplayError(log.name, f"{name} {bound} {reason}")


def check_targets(plan: ReplayPlan, options: ReplayOptions) -> None:
    """Check that the target answers, and that no target is the name of a partitioned topic."""
    try:
        with service_of(options) as service:
            for topic in sorted({part.target_topic for part in plan.parts}):
                try:
                    partitions = service.first().partitions(topic, create=False)
                except RequestRefusedError as error:
                    if error.error in (pb.AuthenticationError, pb.AuthorizationError):
                        raise
                    partitions = 0  # it does not exist yet, or the producer's opening says why
                if partitions:
                    reason = f"has {partitions} partitions; name one, such as {topic}-partition-0"
                    raise OptionError("targetTopic", topic, reason)
            if not plan.parts:
                service.first()
    except (ClientError, OSError) as error:
        raise JobFailedError(f"{options.service_url}: {error}") from error


def replayed(
    spark: SparkSession,
    read: ReadOptions,
    plan: ReplayPlan,
    left: dict[int, int],
    lost: frozenset[int],
    place: Checkpoint,
    options: ReplayOptions,
) -> ReplayResult:
    """Replay what is left of a plan. Returns the results of all its parts."""
    progress = {n: place.progress(n, part) for n, part in enumerate(plan.parts)}
    if left:
        from ..workers import results_of
        from .stream import PartReplay, replay_parts

        shares = divided(left, spark.sparkContext.defaultParallelism)
        share_of = shared_by(len(shares), options)

        def task(n: int) -> PartReplay:
            return PartReplay(read, share_of, place, n, plan.parts[n], plan.producer_name(n), lost)

        tasks = [[task(n) for n in share] for share in shares]
        progress |= dict(results_of(spark, replay_parts, tasks))
    return ReplayResult(
        tuple(TopicResult.of(part, progress[n]) for n, part in enumerate(plan.parts))
    )
