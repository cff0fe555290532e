"""Requests checked, answers translated, pieces put together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.audit.report import Report
from pulsemark.audit.rows import AuditRow
from pulsemark.broker import BrokerThread
from pulsemark.finder import (
    Found,
    IndexPlace,
    IndexRange,
    NotPossibleError,
    SearchMethod,
    SeekClient,
    messages,
)
from pulsemark.finder.errors import InvalidFieldError, SeekCallError
from pulsemark.finder.messages import EntryAssembler, report_message, report_of
from pulsemark.ledger import EARLIEST, LATEST, EntryKind, Position, TopicNotFoundError
from pulsemark.proto import seek_pb2 as pb
from pulsemark.testing import RawClient, running_broker

int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
positions = st.builds(Position, int64, int64)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.SeekByTimeRequest(), "time_ms"),
        (pb.SeekByTimeRequest(time_ms=-1), "time_ms"),
        (pb.SeekByIndexRequest(), "index"),
        (pb.SeekByIndexRequest(index=-(2**63)), "index"),
        (pb.RangeRequest(to_ms=1), "from_ms"),
        (pb.RangeRequest(from_ms=1), "to_ms"),
    ],
)
def test_a_missing_or_negative_number_is_refused_by_name(
    request_: messages.NumbersRequest, field: str
) -> None:
    """A missing time is not time 0, and -1 is not an end."""
    with pytest.raises(InvalidFieldError) as caught:
        messages.required(request_, field)
    assert caught.value.field == field
    assert str(caught.value).startswith(field + ": ")


def test_zero_is_a_number_like_others() -> None:
    """A missing value differs from the value 0."""
    assert messages.required(pb.SeekByTimeRequest(time_ms=0), "time_ms") == 0


@pytest.mark.parametrize("name", ["", "x" * 1025, "ü" * 513])
def test_names_are_neither_empty_nor_endless(name: str) -> None:
    """Lengths are counted in bytes."""
    with pytest.raises(InvalidFieldError, match=r"^topic: "):
        messages.name_field(name, "topic")
    assert messages.name_field("ü" * 512, "topic") == "ü" * 512


def test_positions_may_be_the_sentinels_but_not_below() -> None:
    """(-1, -1) is the earliest; nothing stands before it."""
    for position in (EARLIEST, LATEST, Position(5, -1)):
        message = pb.Position(ledger_id=position.ledger_id, entry_id=position.entry_id)
        assert messages.place(message, "start") == position
    with pytest.raises(InvalidFieldError, match=r"^start\.ledger_id: "):
        messages.place(pb.Position(ledger_id=-2), "start")
    with pytest.raises(InvalidFieldError, match=r"^end\.entry_id: "):
        messages.place(pb.Position(entry_id=-(2**63)), "end")


def test_roads_and_contents_of_a_newer_client_are_refused() -> None:
    """Protobuf hands on numbers it does not know; an unset one means the default."""
    assert messages.method_of(0) is SearchMethod.INDEX
    assert [messages.method_of(messages.method_number(method)) for method in SearchMethod] == list(
        SearchMethod
    )
    assert [messages.prefixes_only(number) for number in (0, 1, 2)] == [False, False, True]
    with pytest.raises(InvalidFieldError, match=r"^method: 7"):
        messages.method_of(7)
    with pytest.raises(InvalidFieldError, match=r"^content: 7"):
        messages.prefixes_only(7)


founds = st.builds(Found, positions, int64, int64, int32, int64, st.booleans(), int64, int64)
index_places = st.builds(IndexPlace, positions, int32, int64, int64, int32, int64, int64, int64)
ranges = st.builds(IndexRange, int64, int64, int64, positions, positions, int64, int64)


@given(founds, index_places, ranges)
def test_answers_survive_the_wire(found: Found, place: IndexPlace, range_: IndexRange) -> None:
    """A client returns exactly what the finder returned, field by field."""
    wire = messages.message_of(pb.SeekByTimeResponse, found).SerializeToString()
    assert messages.answer_of(Found, pb.SeekByTimeResponse.FromString(wire)) == found
    wire = messages.message_of(pb.SeekByIndexResponse, place).SerializeToString()
    assert messages.answer_of(IndexPlace, pb.SeekByIndexResponse.FromString(wire)) == place
    wire = messages.message_of(pb.RangeResponse, range_).SerializeToString()
    assert messages.answer_of(IndexRange, pb.RangeResponse.FromString(wire)) == range_


def piece(body: bytes, offset: int = 0, size: int | None = None, entry: int = 1) -> pb.EntryPiece:
    """A piece of entry (1, entry)."""
    position = pb.Position(ledger_id=1, entry_id=entry)
    size_bytes = len(body) if size is None else size
    message = pb.EntryPiece(
        position=position, body=body, body_offset_bytes=offset, body_size_bytes=size_bytes
    )
    if offset == 0:
        message.prefix, message.index, message.message_count = b"stamp", 7, 2
        message.first_index, message.time_ms, message.append_time_ms = 6, 1000, 1001
        message.kind = pb.ENTRY_KIND_CONTROL
    return message


@given(st.binary(max_size=64), st.lists(st.integers(1, 63), unique=True))
def test_pieces_cut_anywhere_give_the_body_again(body: bytes, cuts: list[int]) -> None:
    """However an entry was cut, it comes out once, whole, with the first piece's facts."""
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    assembler = EntryAssembler(prefixes_only=False)
    spans = list(pairwise(edges))
    outcomes = [assembler.add(piece(body[a:b], a, len(body))) for a, b in spans]
    assert outcomes[:-1] == [None] * (len(spans) - 1)
    entry = outcomes[-1]
    assert entry is not None
    assert (entry.body, entry.body_size_bytes, entry.prefix) == (body, len(body), b"stamp")
    assert (entry.first_index, entry.index, entry.message_count) == (6, 7, 2)
    assert (entry.time_ms, entry.append_time_ms, entry.kind) == (1000, 1001, EntryKind.CONTROL)
    assert not assembler.incomplete


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(piece(b"cd", 3, 6), id="a hole"),
        pytest.param(piece(b"cd", 1, 6), id="an overlap"),
        pytest.param(piece(b"cd", 2, 6, entry=2), id="another entry"),
    ],
)
def test_pieces_that_do_not_follow_are_refused(second: pb.EntryPiece) -> None:
    """A body with a hole is never handed on."""
    assembler = EntryAssembler(prefixes_only=False)
    assert assembler.add(piece(b"ab", 0, 6)) is None
    assert assembler.incomplete
    with pytest.raises(SeekCallError, match="does not follow"):
        assembler.add(second)


def test_a_first_piece_must_begin_at_the_beginning() -> None:
    """A stream that begins in the middle of an entry is refused."""
    with pytest.raises(SeekCallError, match="does not follow"):
        EntryAssembler(prefixes_only=False).add(piece(b"cd", 2, 6))


def test_prefixes_alone_need_no_body() -> None:
    """With prefixes only, an entry is complete without its bytes, and says how many there are."""
    entry = EntryAssembler(prefixes_only=True).add(piece(b"", 0, 6))
    assert entry is not None
    assert (entry.body, entry.body_size_bytes, entry.prefix) == (None, 6, b"stamp")


# -- The audit's call: what a client gets from a broker, and the statuses of bad requests


NAME = "persistent://public/default/orders"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """A broker with two producers' messages."""
    settings: dict[str, Any] = {"audit_enabled": True, "storage": "memory", "grpc_port": 0}
    settings["stampers"] = ("broker-time", "index", "producer")
    with running_broker(**settings) as running, RawClient.from_url(running.service_url) as client:
        for name in ("a", "b"):
            client.create_producer(NAME, producer_name=name).send_batch([b"x", b"y", b"z"])
        yield running


def test_a_report_goes_through_its_message() -> None:
    """Every field, set and unset."""
    rows = [
        AuditRow(tier="broker", bucket_start_ms=0, bucket_end_ms=5, tags={"a": None}, count=1),
        AuditRow(
            tier="broker",
            bucket_start_ms=5,
            bucket_end_ms=10,
            tags={"a": "", "b": "x"},
            is_rest=True,
            host="h",
            count=2,
            doubtful_count=3,
            control_count=4,
            bytes=5,
            min_index=0,
            max_index=6,
            missing=0,
            missing_before=-1,
            missing_after=7,
            out_of_order=8,
        ),
    ]
    made = Report(
        topic="t",
        bucket_ms=5,
        tags=("a", "b"),
        counted_from_index=1,
        next_index=2,
        log_first_index=3,
        left=4,
        uncounted=5,
        dropped_rows=6,
        dropped_messages=7,
        kept_from_ms=8,
        recounts=9,
        missing=10,
        rows=rows,
    )
    assert report_of("t", report_message(made)) == made


def test_a_broker_answers_with_its_rows(broker: BrokerThread) -> None:
    """By tags, without tags, and for a time range; short names are taken."""
    with SeekClient(broker.grpc_url) as seek:
        rows = seek.audit("orders", ["producer"]).rows
        assert {row.tags["producer_name"]: row.count for row in rows} == {"a": 3, "b": 3}
        (row,) = seek.audit(NAME).rows
        assert (row.count, row.min_index, row.max_index, row.missing) == (6, 0, 5, 0)
        assert seek.audit(NAME, to_ms=1000).rows == []


def test_bad_requests_have_their_errors(broker: BrokerThread) -> None:
    """A tag that is not counted by, a bad name, a negative time, a topic that is not there."""
    with SeekClient(broker.grpc_url) as seek:
        for by in (["service"], [""]):
            with pytest.raises(InvalidFieldError, match=r"by|tag"):
                seek.audit(NAME, by)
        with pytest.raises(InvalidFieldError, match="from_ms"):
            seek.audit(NAME, from_ms=-1)
        with pytest.raises(TopicNotFoundError):
            seek.audit("unknown")


def test_a_broker_without_an_audit_says_so() -> None:
    """FAILED_PRECONDITION, for any topic."""
    with (
        running_broker(storage="memory", grpc_port=0) as broker,
        SeekClient(broker.grpc_url) as seek,
        pytest.raises(NotPossibleError, match="pulsemarkAuditEnabled"),
    ):
        seek.audit(NAME)


def test_a_server_without_a_broker_says_so(serve: Any, topics: Any) -> None:
    """It only reads."""
    with SeekClient(serve(topics).target) as seek, pytest.raises(NotPossibleError, match="broker"):
        seek.audit(NAME)
