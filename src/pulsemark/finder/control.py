"""Control entries and epochs over gRPC: requests, answers, and their protobuf messages.

Used by server and client. The server does not append by itself: a broker passes a function that
does. The broker's rules for control entries are in `metadata.control`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from ..ledger import EpochHistory, EpochStart, Position
from ..metadata import ControlError, control_metadata
from ..metadata.control import CONTROL_TYPES
from ..proto import seek_pb2 as pb
from ..proto.broker_entry_pb2 import (
    CONTROL_LEADER_CHANGE,
    CONTROL_REPLICATED_SUBSCRIPTION,
    ControlType,
)
from .errors import InvalidFieldError
from .rpc import position_message, position_of

__all__ = [
    "AppendControl",
    "ControlAppended",
    "ControlRequest",
    "appended_message",
    "appended_of",
    "control_request",
    "history_message",
    "history_of",
    "request_message",
]

#: The highest epoch of a request, which Kafka's clients can carry, too. A log itself has 32 bits.
MAX_EPOCH = 2**31 - 1
#: The fields of a request by the parts of a control entry.
_FIELDS = {"control_type": "type", "control_name": "name"}
_KNOWN: frozenset[int] = frozenset(CONTROL_TYPES.values()) - {CONTROL_REPLICATED_SUBSCRIPTION}


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
    """Where a control entry was stored; `epoch` is the leader epoch that it belongs to."""

    position: Position
    index: int
    time_ms: int
    epoch: int


AppendControl = Callable[[str, ControlRequest], Awaitable[ControlAppended]]
"""Appends to a topic, by its full name, durably. Raises TopicNotFoundError, NotPossibleError,
StaleEpochError, LedgerError."""


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


def appended_message(appended: ControlAppended) -> pb.AppendControlResponse:
    """AppendControl's answer."""
    return pb.AppendControlResponse(
        position=position_message(appended.position),
        index=appended.index,
        time_ms=appended.time_ms,
        epoch=appended.epoch,
    )


def appended_of(message: pb.AppendControlResponse) -> ControlAppended:
    """AppendControl's answer, as the broker gave it."""
    position = position_of(message.position)
    return ControlAppended(position, message.index, message.time_ms, message.epoch)


def history_message(history: EpochHistory) -> pb.EpochsResponse:
    """Epochs' answer."""
    message = pb.EpochsResponse(next_index=history.next_index)
    for start in history.starts:
        message.epochs.add(
            epoch=start.epoch,
            first_index=start.first_index,
            position=position_message(start.position),
            leader=start.leader,
        )
    return message


def history_of(message: pb.EpochsResponse) -> EpochHistory:
    """Epochs' answer, as `TopicLog.epoch_history` returns it."""
    starts = (
        EpochStart(each.epoch, each.first_index, position_of(each.position), each.leader)
        for each in message.epochs
    )
    return EpochHistory(tuple(starts), message.next_index)
