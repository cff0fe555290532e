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

from .. import ledger
from ..proto import seek_pb2 as pb
from . import errors
from .search import IndexOutOfRangeError

SERVICE = pb.DESCRIPTOR.services_by_name["SeekService"]
SERVICE_NAME: str = SERVICE.full_name
DETAILS_KEY = "grpc-status-details-bin"

Metadata = tuple[tuple[str, str | bytes], ...]

_DETAILS: dict[str, type[Exception]] = {
    "invalid_field": errors.InvalidFieldError,
    "topic_not_found": ledger.TopicNotFoundError,
    "subscription_not_found": errors.SubscriptionNotFoundError,
    "cursor_busy": errors.CursorBusyError,
    "index_out_of_range": IndexOutOfRangeError,
    "damaged_entry": ledger.CorruptEntryError,
    "stale_epoch": ledger.StaleEpochError,
    "not_possible": errors.NotPossibleError,
}
"""The errors whose facts are sent: the detail's fields are their attributes and arguments."""
_CODES: dict[type[Exception], grpc.StatusCode] = {
    errors.InvalidFieldError: grpc.StatusCode.INVALID_ARGUMENT,
    ledger.TopicNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.SubscriptionNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    IndexOutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
    ledger.CorruptEntryError: grpc.StatusCode.DATA_LOSS,
    ledger.CorruptFileError: grpc.StatusCode.DATA_LOSS,
    errors.NotPossibleError: grpc.StatusCode.FAILED_PRECONDITION,
    ledger.UnsupportedVersionError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CursorBusyError: grpc.StatusCode.ABORTED,
    errors.ServerFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.StreamStalledError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ledger.StoreClosedError: grpc.StatusCode.UNAVAILABLE,
    ledger.FencedError: grpc.StatusCode.UNAVAILABLE,
    errors.ServerUnavailableError: grpc.StatusCode.UNAVAILABLE,
    FileNotFoundError: grpc.StatusCode.UNAVAILABLE,  # trimmed or deleted while it was being read
    ledger.LedgerError: grpc.StatusCode.FAILED_PRECONDITION,
}
"""The first one that an error is an instance of counts."""


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


def position_message(position: ledger.Position) -> pb.Position:
    """A position as a protobuf message."""
    return pb.Position(ledger_id=position.ledger_id, entry_id=position.entry_id)


def position_of(message: pb.Position) -> ledger.Position:
    """A position from its protobuf message."""
    return ledger.Position(message.ledger_id, message.entry_id)


def facts_of(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Attributes of an object as the fields of a message have them."""
    facts = {name: getattr(value, name) for name in names}
    return {
        name: position_message(fact) if isinstance(fact, ledger.Position) else fact
        for name, fact in facts.items()
    }


def encode(error: Exception) -> tuple[grpc.StatusCode, str, Metadata] | None:
    """Status code, text and trailers for an error; None for an error that is not expected."""
    code = _code_of(error)
    if code is None:
        return None
    text = error.details if isinstance(error, errors.SeekCallError) else str(error)
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
    kinds: dict[grpc.StatusCode, type[errors.SeekCallError]] = {
        grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
        grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
        grpc.StatusCode.UNAVAILABLE: errors.ServerUnavailableError,
        grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceededError,
    }
    return kinds.get(code, errors.SeekCallError)(code.name, text)


def _code_of(error: Exception) -> grpc.StatusCode | None:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)


def _detail_of(error: Exception) -> pb.ErrorDetail | None:
    for name, kind in _DETAILS.items():
        if isinstance(error, kind):
            described: Any = pb.ErrorDetail.DESCRIPTOR.fields_by_name[name].message_type
            return pb.ErrorDetail(**{name: facts_of(error, described.fields_by_name)})
    return None


def _error_of(trailer: bytes) -> Exception | None:
    detail = pb.ErrorDetail()
    try:
        status = pb.Status.FromString(trailer)
        if not any(packed.Unpack(detail) for packed in status.details):
            return None
    except DecodeError:
        return None
    name = detail.WhichOneof("kind")
    if name is None:
        return None
    message: Message = getattr(detail, name)
    facts = {spec.name: getattr(message, spec.name) for spec in message.DESCRIPTOR.fields}
    for fact, value in facts.items():
        if isinstance(value, pb.Position):
            facts[fact] = position_of(value)
    return _DETAILS[name](**facts)
