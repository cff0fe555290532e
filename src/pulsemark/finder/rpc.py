"""The seek service's calls by name, and its errors as status codes, for server and client.

The table of calls is read from the compiled proto file, so the two always agree. No generated gRPC
code is used, because it would require the newest grpcio.

An error is sent as a status code, a text for people, and an `ErrorDetail` for programs. The detail
is packed as in gRPC's richer error model (a `google.rpc.Status` in the trailer
`grpc-status-details-bin`), so that clients in other languages can find it. `decode` is the inverse
of `encode`: a test runs every error through both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ..ledger import (
    CorruptEntryError,
    CorruptFileError,
    FencedError,
    LedgerError,
    Position,
    StaleEpochError,
    StoreClosedError,
    TopicNotFoundError,
    UnsupportedVersionError,
)
from ..proto import seek_pb2 as pb
from .errors import (
    CursorBusyError,
    DeadlineExceededError,
    InvalidFieldError,
    NotPossibleError,
    PermissionDeniedError,
    SeekCallError,
    ServerFullError,
    ServerUnavailableError,
    StreamStalledError,
    SubscriptionNotFoundError,
    UnauthenticatedError,
)
from .search import IndexOutOfRangeError

SERVICE = pb.DESCRIPTOR.services_by_name["SeekService"]
SERVICE_NAME: str = SERVICE.full_name
DETAILS_KEY = "grpc-status-details-bin"

Metadata = tuple[tuple[str, str | bytes], ...]


def path(method: str) -> str:
    """The HTTP/2 path of a call, e.g. `/pulsemark.seek.v1.SeekService/SeekByTime`."""
    return f"/{SERVICE_NAME}/{SERVICE.methods_by_name[method].name}"


def bearer(token: str) -> str:
    """The `authorization` header for a token. Raises ValueError if no header can hold it."""
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise ValueError("token: must be printable ASCII without spaces, and not empty")
    return f"Bearer {token}"


def server_codec(method: str) -> dict[str, Callable[..., Any]]:
    """How a server reads a call's request (None if it is not protobuf) and writes responses."""
    request, response = _types(method)

    def read(data: bytes) -> Message | None:
        try:
            return request.FromString(data)
        except DecodeError:
            return None

    return {"request_deserializer": read, "response_serializer": response.SerializeToString}


def client_codec(method: str) -> dict[str, Callable[..., Any]]:
    """How a client writes a call's request and reads its responses."""
    request, response = _types(method)
    return {
        "request_serializer": request.SerializeToString,
        "response_deserializer": response.FromString,
    }


def _types(method: str) -> tuple[type[Message], type[Message]]:
    call = SERVICE.methods_by_name[method]
    return GetMessageClass(call.input_type), GetMessageClass(call.output_type)


def position_message(position: Position) -> pb.Position:
    """A position as a protobuf message."""
    return pb.Position(ledger_id=position.ledger_id, entry_id=position.entry_id)


def position_of(message: pb.Position) -> Position:
    """A position from its protobuf message."""
    return Position(message.ledger_id, message.entry_id)


def encode(error: Exception) -> tuple[grpc.StatusCode, str, Metadata] | None:
    """Status code, text and trailers for an error; None for an error that is not expected."""
    code = _code_of(error)
    if code is None:
        return None
    text = error.details if isinstance(error, SeekCallError) else str(error)
    detail = _detail_of(error)
    if detail is None:
        return code, text, ()
    status = pb.Status(code=code.value[0], message=text)
    status.details.add().Pack(detail)
    return code, text, ((DETAILS_KEY, status.SerializeToString()),)


def decode(
    code: grpc.StatusCode, text: str, trailers: Iterable[tuple[str, str | bytes]]
) -> Exception:
    """The error that `encode` got, or a SeekCallError if the trailers do not hold one."""
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes):
            error = _error_of(value)
            if error is not None:
                return error
    kinds: dict[grpc.StatusCode, type[SeekCallError]] = {
        grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
        grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
        grpc.StatusCode.UNAVAILABLE: ServerUnavailableError,
        grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    }
    return kinds.get(code, SeekCallError)(code.name, text)


def _code_of(error: Exception) -> grpc.StatusCode | None:
    match error:
        case InvalidFieldError():
            return grpc.StatusCode.INVALID_ARGUMENT
        case TopicNotFoundError() | SubscriptionNotFoundError():
            return grpc.StatusCode.NOT_FOUND
        case PermissionDeniedError():
            return grpc.StatusCode.PERMISSION_DENIED
        case IndexOutOfRangeError():
            return grpc.StatusCode.OUT_OF_RANGE
        case CorruptEntryError() | CorruptFileError():
            return grpc.StatusCode.DATA_LOSS
        case NotPossibleError() | UnsupportedVersionError():
            return grpc.StatusCode.FAILED_PRECONDITION
        case CursorBusyError():
            return grpc.StatusCode.ABORTED
        case ServerFullError() | StreamStalledError():
            return grpc.StatusCode.RESOURCE_EXHAUSTED
        case StoreClosedError() | FencedError() | ServerUnavailableError():
            return grpc.StatusCode.UNAVAILABLE
        case FileNotFoundError():  # trimmed or deleted while it was being read
            return grpc.StatusCode.UNAVAILABLE
        case LedgerError():
            return grpc.StatusCode.FAILED_PRECONDITION
    return None


def _detail_of(error: Exception) -> pb.ErrorDetail | None:
    kind = pb.ErrorDetail
    match error:
        case InvalidFieldError(field=field, reason=reason):
            return kind(invalid_field=kind.InvalidField(field=field, reason=reason))
        case TopicNotFoundError(topic=topic):
            return kind(topic_not_found=kind.TopicNotFound(topic=topic))
        case SubscriptionNotFoundError(topic=topic, subscription=name):
            return kind(
                subscription_not_found=kind.SubscriptionNotFound(topic=topic, subscription=name)
            )
        case CursorBusyError(topic=topic, subscription=name):
            return kind(cursor_busy=kind.CursorBusy(topic=topic, subscription=name))
        case IndexOutOfRangeError():
            out_of_range = kind.IndexOutOfRange(
                index=error.index, first_index=error.first_index, next_index=error.next_index
            )
            return kind(index_out_of_range=out_of_range)
        case CorruptEntryError():
            damaged = kind.DamagedEntry(
                topic=error.topic,
                position=position_message(error.position),
                next_position=position_message(error.next_position),
                reason=error.reason,
            )
            return kind(damaged_entry=damaged)
        case StaleEpochError():
            stale = kind.StaleEpoch(topic=error.topic, epoch=error.epoch, current=error.current)
            return kind(stale_epoch=stale)
        case NotPossibleError(reason=reason):
            return kind(not_possible=kind.NotPossible(reason=reason))
    return None


def _error_of(trailer: bytes) -> Exception | None:
    detail = pb.ErrorDetail()
    try:
        status = pb.Status.FromString(trailer)
        if not any(packed.Unpack(detail) for packed in status.details):
            return None
    except DecodeError:
        return None
    match detail.WhichOneof("kind"):
        case "invalid_field":
            return InvalidFieldError(detail.invalid_field.field, detail.invalid_field.reason)
        case "topic_not_found":
            return TopicNotFoundError(detail.topic_not_found.topic)
        case "subscription_not_found":
            absent = detail.subscription_not_found
            return SubscriptionNotFoundError(absent.topic, absent.subscription)
        case "cursor_busy":
            return CursorBusyError(detail.cursor_busy.topic, detail.cursor_busy.subscription)
        case "index_out_of_range":
            beyond = detail.index_out_of_range
            return IndexOutOfRangeError(beyond.index, beyond.first_index, beyond.next_index)
        case "damaged_entry":
            damaged = detail.damaged_entry
            return CorruptEntryError(
                damaged.topic,
                position_of(damaged.position),
                position_of(damaged.next_position),
                damaged.reason,
            )
        case "stale_epoch":
            stale = detail.stale_epoch
            return StaleEpochError(stale.topic, stale.epoch, stale.current)
        case "not_possible":
            return NotPossibleError(detail.not_possible.reason)
    return None
