"""Errors as status codes and back."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.finder import IndexOutOfRangeError, rpc
from pulsemark.finder.errors import (
    CursorBusyError,
    DeadlineExceededError,
    InvalidFieldError,
    NotPossibleError,
    PermissionDeniedError,
    SeekCallError,
    ServerUnavailableError,
    SubscriptionNotFoundError,
    UnauthenticatedError,
)
from pulsemark.ledger import (
    CorruptEntryError,
    Position,
    StaleEpochError,
    StoreClosedError,
    TopicNotFoundError,
)
from pulsemark.proto import seek_pb2 as pb

TOPIC = "persistent://public/default/orders"
ERRORS = [
    (InvalidFieldError("time_ms", "must be set"), grpc.StatusCode.INVALID_ARGUMENT),
    (TopicNotFoundError(TOPIC), grpc.StatusCode.NOT_FOUND),
    (SubscriptionNotFoundError(TOPIC, "audit"), grpc.StatusCode.NOT_FOUND),
    (IndexOutOfRangeError(90, 10, 20), grpc.StatusCode.OUT_OF_RANGE),
    (
        CorruptEntryError(TOPIC, Position(3, 4), Position(3, 5), "checksum"),
        grpc.StatusCode.DATA_LOSS,
    ),
    (NotPossibleError("no broker here"), grpc.StatusCode.FAILED_PRECONDITION),
    (CursorBusyError(TOPIC, "audit"), grpc.StatusCode.ABORTED),
    (StaleEpochError(TOPIC, 3, 4), grpc.StatusCode.FAILED_PRECONDITION),
]


def facts(error: Exception) -> dict[str, object]:
    """Everything an error carries as attributes."""
    return vars(error)


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_has_its_code_and_comes_back_whole(
    error: Exception, code: grpc.StatusCode
) -> None:
    """What the server raises is what the client raises: class, text and facts."""
    encoded = rpc.encode(error)
    assert encoded is not None
    assert encoded[0] is code
    back = rpc.decode(*encoded)
    assert type(back) is type(error)
    assert str(back) == str(error) == encoded[1]
    assert facts(back) == facts(error)


@given(st.text(), st.text(), st.integers(-(2**63), 2**63 - 1))
def test_any_text_and_number_survive(field: str, reason: str, index: int) -> None:
    """Facts are carried in fields, so no content can break them."""
    encoded = rpc.encode(InvalidFieldError(field, reason))
    assert encoded is not None
    assert facts(rpc.decode(*encoded)) == {"field": field, "reason": reason}
    encoded = rpc.encode(IndexOutOfRangeError(index, -index - 1, index))
    assert encoded is not None
    assert facts(rpc.decode(*encoded)) == facts(IndexOutOfRangeError(index, -index - 1, index))


def test_details_have_the_layout_of_google_rpc_status() -> None:
    """The trailer is byte for byte what gRPC's richer error model prescribes."""
    encoded = rpc.encode(NotPossibleError("no"))
    assert encoded is not None
    [(key, trailer)] = encoded[2]
    url = b"type.googleapis.com/pulsemark.seek.v1.ErrorDetail"
    detail = bytes([0x32, 4, 0x0A, 2]) + b"no"  # field 6, its field 1
    packed = bytes([0x0A, len(url)]) + url + bytes([0x12, len(detail)]) + detail
    assert key == "grpc-status-details-bin"
    assert trailer == bytes([0x08, 9, 0x12, 2]) + b"no" + bytes([0x1A, len(packed)]) + packed


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, UnauthenticatedError),
        (grpc.StatusCode.PERMISSION_DENIED, PermissionDeniedError),
        (grpc.StatusCode.UNAVAILABLE, ServerUnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError),
        (grpc.StatusCode.INTERNAL, SeekCallError),
    ],
)
def test_a_bare_status_becomes_a_call_error(
    code: grpc.StatusCode, kind: type[SeekCallError]
) -> None:
    """Without details the code alone decides the error."""
    error = rpc.decode(code, "why", ())
    assert type(error) is kind
    assert isinstance(error, SeekCallError)
    assert (error.code, error.details) == (code.name, "why")


def test_call_errors_are_the_usual_python_errors_too() -> None:
    """Code that knows only Python's own errors can still catch them."""
    assert issubclass(DeadlineExceededError, TimeoutError)
    assert issubclass(ServerUnavailableError, ConnectionError)


@given(st.binary())
def test_broken_details_are_no_details(trailer: bytes) -> None:
    """Whatever bytes a peer puts into the trailer, the status code still counts."""
    error = rpc.decode(grpc.StatusCode.NOT_FOUND, "gone", ((rpc.DETAILS_KEY, trailer),))
    assert isinstance(error, SeekCallError)
    assert error.code == "NOT_FOUND"


def test_unknown_details_are_no_details() -> None:
    """A detail of a newer service is passed over."""
    status = pb.Status(code=5, message="gone")
    status.details.add().Pack(pb.Position(ledger_id=1))
    trailers = (("other", "x"), (rpc.DETAILS_KEY, status.SerializeToString()))
    error = rpc.decode(grpc.StatusCode.NOT_FOUND, "gone", trailers)
    assert type(error) is SeekCallError


def test_a_closed_store_means_try_again() -> None:
    """UNAVAILABLE is what gRPC clients retry."""
    encoded = rpc.encode(StoreClosedError(TOPIC))
    assert encoded is not None
    assert encoded[0] is grpc.StatusCode.UNAVAILABLE


def test_an_unforeseen_error_has_no_code() -> None:
    """Errors of the program itself are not dressed up as answers."""
    assert rpc.encode(KeyError("bug")) is None


def test_every_call_of_the_proto_file_has_a_path() -> None:
    """Paths come from the descriptor and look as HTTP/2 wants them."""
    names = [method.name for method in rpc.SERVICE.methods]
    assert names == [
        "SeekByTime", "SeekByIndex", "Range", "ReadEntries", "ResetCursor",
        "AppendControl", "Epochs", "FollowState", "Audit",
    ]  # fmt: skip
    assert rpc.path("Range") == "/pulsemark.seek.v1.SeekService/Range"
