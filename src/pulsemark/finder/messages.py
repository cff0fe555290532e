"""Check requests, and translate between protobuf messages and the finder's dataclasses.

The server reads requests with `required`, `name_field`, `method_of` ..., which raise
InvalidFieldError with the field's name. Client and server share the translation of answers, so a
client returns the same as the finder itself.

protobuf keeps an unknown enum number, and an unset number reads as 0. Both are refused here: an
unknown search method is an error, and a missing time does not mean time 0.

The audit's report is translated in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor

from ..audit.report import Report
from ..audit.rows import AuditInputError, AuditRow, parse_tags
from ..ledger import EntryKind, EpochHistory, EpochStart, LedgerExtent, Position
from ..maintenance.expected import LogEnds
from ..metadata import ControlError, FieldValue, PrefixError, control_metadata, tags_of
from ..metadata.control import CONTROL_TYPES
from ..proto import seek_pb2 as pb
from ..proto.broker_entry_pb2 import (
    CONTROL_LEADER_CHANGE,
    CONTROL_REPLICATED_SUBSCRIPTION,
    ControlType,
)
from .errors import InvalidFieldError, SeekCallError
from .rpc import facts_of, position_of
from .search import SearchMethod

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

A = TypeVar("A", bound="DataclassInstance")
M = TypeVar("M")

MAX_NAME_BYTES = 1024
"""Longer names of topics and subscriptions are refused. Pulsar's own limits are lower."""
#: The highest epoch of a request, which Kafka's clients can carry, too. A log itself has 32 bits.
MAX_EPOCH = 2**31 - 1
_METHOD_NUMBERS = {
    SearchMethod.INDEX: pb.SEARCH_METHOD_INDEX,
    SearchMethod.PREFIXES: pb.SEARCH_METHOD_PREFIXES,
}
NumbersRequest = pb.SeekByTimeRequest | pb.SeekByIndexRequest | pb.RangeRequest
#: The fields of a request by the parts of a control entry.
_FIELDS = {"control_type": "type", "control_name": "name"}
_KNOWN: frozenset[int] = frozenset(CONTROL_TYPES.values()) - {CONTROL_REPLICATED_SUBSCRIPTION}
_METHODS: dict[int, SearchMethod] = {
    pb.SEARCH_METHOD_UNSPECIFIED: SearchMethod.INDEX,
    **{number: method for method, number in _METHOD_NUMBERS.items()},
}


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """One entry of ReadEntries' answer.

    ``body`` is None if only prefixes were asked for, ``prefix`` empty without a stamp. Times are
    unix ms; ``time_ms`` is the stamp's, or the producer's publish time (PIP-70). ``tags`` are named
    as by `metadata.tags_of`, with a plugin's fields if the server has the plugin.
    """

    position: Position
    kind: EntryKind
    first_index: int
    index: int
    message_count: int
    time_ms: int
    append_time_ms: int
    prefix: bytes
    body: bytes | None
    body_size_bytes: int
    tags: dict[str, FieldValue] = field(default_factory=dict)


def required(request: NumbersRequest, field: str) -> int:
    """A number that must be set and must not be negative.

    Negative times and indexes are refused, because other systems use them with a meaning (in Kafka,
    -1 is the end). An answer with the beginning would be the opposite of what the caller meant.
    """
    if not request.HasField(field):
        raise InvalidFieldError(field, "must be set")
    return not_negative(int(getattr(request, field)), field)


def not_negative(value: int, field: str) -> int:
    """The value; raises InvalidFieldError if it is below 0."""
    if value < 0:
        raise InvalidFieldError(field, f"must not be negative, is {value}")
    return value


def name_field(value: str, field: str) -> str:
    """A name; raises InvalidFieldError if it is empty or too long."""
    if not value:
        raise InvalidFieldError(field, "must be set")
    size_bytes = len(value.encode())
    if size_bytes > MAX_NAME_BYTES:
        raise InvalidFieldError(field, f"{size_bytes} bytes, the limit is {MAX_NAME_BYTES}")
    return value


def place(message: pb.Position, field: str) -> Position:
    """A position; raises InvalidFieldError if a number is below -1 (before the first)."""
    for part, value in (("ledger_id", message.ledger_id), ("entry_id", message.entry_id)):
        if value < -1:
            raise InvalidFieldError(f"{field}.{part}", f"must be -1 or more, is {value}")
    return position_of(message)


def method_of(number: int) -> SearchMethod:
    """The search method for its number in a request."""
    method = _METHODS.get(number)
    if method is None:
        raise InvalidFieldError("method", f"{number} is not known")
    return method


def method_number(method: SearchMethod) -> pb.SearchMethod:
    """The number of a search method in a request."""
    return _METHOD_NUMBERS[method]


def prefixes_only(number: int) -> bool:
    """Whether a ReadEntries request is for prefixes without bodies."""
    if number not in pb.Content.values():
        raise InvalidFieldError("content", f"{number} is not known")
    return number == pb.CONTENT_PREFIXES


def int64(time_ms: int) -> int:
    """A time, limited to int64: producers choose any uint64, and later ones are equal."""
    return min(time_ms, 2**63 - 1)


def message_of(kind: Callable[..., M], value: Any, **given: Any) -> M:
    """A dataclass as a protobuf message, whose other fields have the same names; None is unset."""
    described: Descriptor = kind.DESCRIPTOR  # type: ignore[attr-defined]
    facts = facts_of(value, described.fields_by_name.keys() - given.keys())
    if "time_ms" in facts:
        facts["time_ms"] = int64(facts["time_ms"])
    return kind(**given, **facts)


def answer_of(kind: type[A], message: Any, **given: Any) -> A:
    """The dataclass in such a message; of an optional field that is unset, None."""
    names = {spec.name for spec in fields(kind)} - given.keys()
    for spec in message.DESCRIPTOR.fields:
        if spec.name in names:
            fact = getattr(message, spec.name)
            if isinstance(fact, pb.Position):
                fact = position_of(fact)
            elif spec.has_presence and not message.HasField(spec.name):
                fact = None
            given[spec.name] = fact
    return kind(**given)


def tag_messages(prefix: bytes) -> list[pb.Tag]:
    """An entry's tags as protobuf messages; an empty list if the prefix cannot be read."""
    try:
        tags = tags_of(prefix)
    except PrefixError:
        return []
    return [_tag_message(name, value) for name, value in tags.items()]


def _tag_message(name: str, value: FieldValue) -> pb.Tag:
    match value:
        case bool():
            return pb.Tag(name=name, flag=value)
        case str():
            return pb.Tag(name=name, text=value)
        case bytes():
            return pb.Tag(name=name, data=value)
        case float():
            return pb.Tag(name=name, real=value)
    return pb.Tag(name=name, number=value) if value >= 0 else pb.Tag(name=name, negative=value)


def tags_from(tags: Iterable[pb.Tag]) -> dict[str, FieldValue]:
    """The tags by name; a tag without a value is left out."""
    found = {}
    for tag in tags:
        kind = tag.WhichOneof("value")
        if kind is not None:
            found[tag.name] = getattr(tag, kind)
    return found


class EntryAssembler:
    """Joins the pieces of ReadEntries' responses. Raises SeekCallError if a piece is missing."""

    __slots__ = ("_body", "_head", "_prefixes_only")

    def __init__(self, *, prefixes_only: bool) -> None:
        self._prefixes_only = prefixes_only
        self._head: pb.EntryPiece | None = None
        self._body = bytearray()

    @property
    def incomplete(self) -> bool:
        """Whether the pieces so far end in the middle of an entry."""
        return self._head is not None

    def add(self, piece: pb.EntryPiece) -> RemoteEntry | None:
        """Add the next piece. Returns the entry if this was its last piece, else None."""
        if self._prefixes_only:
            return _remote_entry(piece, None)
        if self._head is None and len(piece.body) == piece.body_size_bytes:
            return _remote_entry(piece, piece.body)
        if self._head is None:
            self._head = piece
            self._body = bytearray()
        head = self._head
        if piece.position != head.position or piece.body_offset_bytes != len(self._body):
            raise SeekCallError(
                "INTERNAL",
                f"piece {position_of(piece.position)}+{piece.body_offset_bytes} does not follow "
                f"{position_of(head.position)}+{len(self._body)}",
            )
        self._body += piece.body
        if len(self._body) < head.body_size_bytes:
            return None
        self._head = None
        return _remote_entry(head, bytes(self._body))


def _remote_entry(head: pb.EntryPiece, body: bytes | None) -> RemoteEntry:
    return RemoteEntry(
        position=position_of(head.position),
        kind=EntryKind(head.kind),
        first_index=head.first_index,
        index=head.index,
        message_count=head.message_count,
        time_ms=head.time_ms,
        append_time_ms=head.append_time_ms,
        prefix=head.prefix,
        body=body,
        body_size_bytes=head.body_size_bytes,
        tags=tags_from(head.tags),
    )


def tags_of_request(request: pb.AuditRequest) -> tuple[str, ...]:
    """The full names of the tags to divide by. Raises InvalidFieldError."""
    try:
        return parse_tags(request.by)
    except AuditInputError as error:
        raise InvalidFieldError("by", str(error)) from error


def optional_time(request: pb.AuditRequest, field: str) -> int | None:
    """A time that may be unset. Raises InvalidFieldError if it is negative."""
    return not_negative(getattr(request, field), field) if request.HasField(field) else None


def report_message(report: Report) -> pb.AuditResponse:
    """A report as the answer of a call."""
    return message_of(pb.AuditResponse, report, rows=[_row_message(row) for row in report.rows])


def _row_message(row: AuditRow) -> pb.AuditRow:
    tags = [pb.AuditTag(name=name, value=value) for name, value in row.tags.items()]
    return message_of(pb.AuditRow, row, tags=tags)


def report_of(topic: str, answer: pb.AuditResponse) -> Report:
    """The report of an answer."""
    rows = [_row_of(message) for message in answer.rows]
    return answer_of(Report, answer, topic=topic, tags=tuple(answer.tags), rows=rows)


def _row_of(message: pb.AuditRow) -> AuditRow:
    tags = {tag.name: tag.value if tag.HasField("value") else None for tag in message.tags}
    return answer_of(AuditRow, message, tags=tags, host=message.host or None)


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A control entry to append; `epoch` None: the next one, or for other types any."""

    control_type: ControlType
    name: str = ""
    tags: Mapping[str, bytes] = field(default_factory=dict)
    epoch: int | None = None

    @property
    def is_leader_change(self) -> bool:
        """Whether it begins a leader epoch."""
        return self.control_type == CONTROL_LEADER_CHANGE


@dataclass(frozen=True, slots=True)
class ControlAppended:
    """The position of a stored control entry; `epoch` is the leader epoch that it belongs to."""

    position: Position
    index: int
    time_ms: int
    epoch: int


def control_request(message: pb.AppendControlRequest) -> ControlRequest:
    """The request, checked. Raises InvalidFieldError."""
    epoch = message.epoch if message.HasField("epoch") else None
    control_type = cast("ControlType", message.type)
    return _checked(ControlRequest(control_type, message.name, dict(message.tags), epoch))


def request_message(topic: str, request: ControlRequest) -> pb.AppendControlRequest:
    """The request as a protobuf message. Raises InvalidFieldError."""
    _checked(request)
    number = cast("pb.ControlType", request.control_type)  # the numbers are the same
    message = pb.AppendControlRequest(topic=topic, type=number, name=request.name)
    message.tags.update(request.tags)
    if request.epoch is not None:
        message.epoch = request.epoch
    return message


def _checked(request: ControlRequest) -> ControlRequest:
    """The request itself. Raises InvalidFieldError with the field's name."""
    control_type, epoch = request.control_type, request.epoch
    if control_type not in _KNOWN:
        names = [name for name, number in CONTROL_TYPES.items() if number in _KNOWN]
        raise InvalidFieldError("type", f"{control_type} is not one of {', '.join(names)}")
    if epoch is not None and not 0 <= epoch <= MAX_EPOCH:
        raise InvalidFieldError("epoch", f"must be from 0 to {MAX_EPOCH}, is {epoch}")
    try:
        control_metadata(control_type, request.name, request.tags)
    except ControlError as error:
        name = _FIELDS.get(error.field, "tags")
        raise InvalidFieldError(name, f"{ascii(error.value)[:80]}: {error.reason}") from error
    return request


def history_message(
    history: EpochHistory, ends: LogEnds, ledgers: Sequence[LedgerExtent] = ()
) -> pb.EpochsResponse:
    """Epochs' answer."""
    return message_of(
        pb.EpochsResponse,
        ends,
        next_index=history.next_index,
        epochs=[message_of(pb.EpochStart, each) for each in history.starts],
        ledgers=[message_of(pb.LedgerExtent, each) for each in ledgers],
    )


def history_of(message: pb.EpochsResponse) -> EpochHistory:
    """Epochs' answer, as `TopicLog.epoch_history` returns it."""
    starts = tuple(answer_of(EpochStart, each) for each in message.epochs)
    return EpochHistory(starts, message.next_index)


def ends_of_answer(message: pb.EpochsResponse) -> LogEnds:
    """Epochs' answer, as `TopicSource.ends` returns it."""
    lost_before, lost_after = message.lost_before or None, message.lost_after or None
    return answer_of(LogEnds, message, lost_before=lost_before, lost_after=lost_after)
