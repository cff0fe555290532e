"""The state that a follower of a data folder needs beside the entries.

A follower (`pulsemark follow`) reads entries and epochs with the usual calls, and repeats one more
call for a `StoreState`: topics, values, subscriptions. Its parts are read in this order: positions
and counts that must not be ahead of the entries (`LATE_KINDS`, subscriptions), then each topic's
end, then what entries may need (`EARLY_KINDS`: schemas, policies). A follower stores them in the
opposite order, with the entries up to those ends in between. So it never has one without the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..ledger import EARLIEST, Position, TopicLog
from ..ledger.store import CLEANER_PROPERTY_KIND, VIEW_PROPERTY_KIND, VIEW_TOPIC_PREFIX
from ..ledger.topic_store import INTERNAL_TOPIC_PREFIX
from ..proto import seek_pb2 as pb
from ..proto.cursor_pb2 import CursorRecord
from .errors import NotPossibleError
from .messages import answer_of, message_of

GROUPS_LOG = INTERNAL_TOPIC_PREFIX + "kafka-groups"
"""The log of the offsets that Kafka's groups committed; it is followed as a topic."""
EARLY_KINDS = (
    "tenant", "namespace", "dynamic-setting", "topic-policy", "topic-epoch", "partitioned-topic",
    "deleted-partitioned-topic", "schema", "schema-facts", "schema-ids", "schema-subject",
)  # fmt: skip
"""Kinds of the catalog's values that are stored before the entries."""
BY_ID_KINDS = (VIEW_PROPERTY_KIND, CLEANER_PROPERTY_KIND)
"""Those of `LATE_KINDS` whose keys are ids of topics."""
LATE_KINDS = (
    "deduplication", "mirrors", "kafka-log-start", "kafka", "terminated-topic", *BY_ID_KINDS,
)  # fmt: skip
"""Those that say how far something has come in the log: stored after the entries."""
VERSIONS = 1, 2
"""The oldest and the newest version of following that this pulsemark speaks (KIP-31's ApiVersion).

Source and follower use the newest one that both speak, so either may be upgraded first, and a
refusal says which side is too old. 1: the messages name no version. 2: they do. What a follower
would misunderstand, such as a kind of values that has to be translated, gets the next number; a
version is no longer spoken when no release in use needs it.
"""
_PIECE_BYTES = 1 << 20

Values = dict[tuple[str, str], bytes]
Cursors = dict[tuple[str, str], bytes]


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic and its end. ``end`` None: it cannot be opened now, or, at a broker of an earlier
    version, is not in use.
    """

    topic_id: int
    first: Position = EARLIEST
    end: Position | None = None
    next_index: int = 0
    entry_count: int = 0
    append_time_ms: int = 0
    """The broker time of its last entry."""

    @classmethod
    def of(cls, topic_id: int, log: TopicLog) -> TopicState:
        """The state of an open topic."""
        runs = log.segments()
        end = runs[-1].position(runs[-1].entry_count) if runs else log.end_position
        return cls(
            topic_id,
            runs[0].position(runs[0].cut_rows) if runs else end,
            end,
            runs[-1].next_index if runs else log.next_index,
            sum(run.entry_count - run.cut_rows for run in runs),
            runs[-1].append_time_max_ms if runs else 0,
        )


@dataclass(slots=True)
class StoreState:
    """The state of a data folder at one moment, without entries."""

    next_ledger_id: int
    """All given ledger ids are lower."""
    topics: dict[str, TopicState] = field(default_factory=dict)
    values: Values | None = field(default_factory=dict)
    """By kind and key. None: unchanged since the follower's digest."""
    cursors: Cursors = field(default_factory=dict)
    """A `CursorRecord` by topic and subscription."""
    digest: bytes = b""


def agreed_version(follower: tuple[int, int], source: tuple[int, int]) -> int:
    """The newest common version; 0 in a range means 1. Raises NotPossibleError."""
    (oldest, newest), (source_oldest, source_newest) = follower, source
    version = min(max(newest, 1), max(source_newest, 1))
    if version >= max(oldest, source_oldest):
        return version
    too_old = "follower" if newest < source_oldest else "source"
    raise NotPossibleError(
        f"the follower speaks the versions {max(oldest, 1)} to {max(newest, 1)} of following, the "
        f"source {max(source_oldest, 1)} to {max(source_newest, 1)}: upgrade the {too_old} first"
    )


def is_followed(name: str) -> bool:
    """Whether a follower keeps this topic of the catalog."""
    return "://" in name or name == GROUPS_LOG or name.startswith(VIEW_TOPIC_PREFIX)


def state_of(
    topics: Callable[[], Mapping[str, int]],
    logs: Callable[[], Mapping[str, TopicLog]],
    values: Callable[[str], Iterable[tuple[str, bytes]]],
    cursors: Callable[[], Iterable[CursorRecord]],
    next_ledger_id: Callable[[], int],
) -> StoreState:
    """The state, each part read in its turn. ``values`` gives the keys and values of a kind."""
    late = {(kind, key): value for kind in LATE_KINDS for key, value in values(kind)}
    records = list(cursors())
    ids, opened = topics(), logs()
    state = StoreState(0)
    for name, topic_id in ids.items():
        if is_followed(name):
            log = opened.get(name)
            of_topic = TopicState(topic_id) if log is None else TopicState.of(topic_id, log)
            state.topics[name] = of_topic
    names = {each.topic_id: name for name, each in state.topics.items()}
    for record in records:
        name_of = names.get(record.topic_id)
        if name_of is not None:
            content = record.SerializeToString(deterministic=True)
            state.cursors[name_of, record.subscription] = content
    early = {(kind, key): value for kind in EARLY_KINDS for key, value in values(kind)}
    state.values = early | late
    digest = hashlib.sha256()
    for place in sorted(state.values):
        digest.update(repr((place, state.values[place])).encode())
    state.digest = digest.digest()
    state.next_ledger_id = next_ledger_id()
    return state


def state_messages(
    state: StoreState, known_digest: bytes, version: int
) -> Iterator[pb.FollowStateResponse]:
    """The answer in messages of about 1 MiB; without the values that the follower has."""
    message = pb.FollowStateResponse(
        next_ledger_id=state.next_ledger_id, digest=state.digest, version=version
    )
    size_bytes = 0
    for name, part, more_bytes in _parts(state, known_digest):
        if size_bytes + more_bytes > _PIECE_BYTES and size_bytes:
            yield message
            message, size_bytes = pb.FollowStateResponse(), 0
        getattr(message, name).append(part)
        size_bytes += more_bytes
    yield message


def _parts(state: StoreState, known_digest: bytes) -> Iterator[tuple[str, object, int]]:
    """The elements of the answer's lists: the list's name, the element, about how many bytes."""
    for name, each in state.topics.items():
        if each.end is None:
            topic = pb.FollowedTopic(name=name, topic_id=each.topic_id)
        else:
            topic = message_of(pb.FollowedTopic, each, name=name)
        yield "topics", topic, len(name) + 64
    for (topic_name, name), record in state.cursors.items():
        cursor = pb.FollowedCursor(topic=topic_name, subscription=name, record=record)
        yield "cursors", cursor, len(topic_name) + len(name) + len(record)
    if known_digest != state.digest:
        for (kind, key), value in (state.values or {}).items():
            found = pb.FollowedValue(kind=kind, key=key, value=value)
            yield "values", found, len(key) + len(value)


def state_of_answer(answer: Iterable[pb.FollowStateResponse], known_digest: bytes) -> StoreState:
    """Join the messages of a state. Raises NotPossibleError for an unknown version."""
    state, values = StoreState(0), Values()
    for number, message in enumerate(answer):
        if not number:
            agreed_version(VERSIONS, (message.version, message.version))
        for topic in message.topics:
            has_end = topic.HasField("end")
            found = answer_of(TopicState, topic) if has_end else TopicState(topic.topic_id)
            state.topics[topic.name] = found
        for each in message.values:
            values[each.kind, each.key] = each.value
        for cursor in message.cursors:
            state.cursors[cursor.topic, cursor.subscription] = cursor.record
        state.digest = message.digest or state.digest
        state.next_ledger_id = max(state.next_ledger_id, message.next_ledger_id)
    state.values = None if state.digest == known_digest else values
    return state
