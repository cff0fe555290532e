"""The audit's call: what a client gets from a broker, and the statuses of bad requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pulsemark.audit.report import Report
from pulsemark.audit.rows import AuditRow
from pulsemark.broker import BrokerThread
from pulsemark.finder import NotPossibleError, SeekClient
from pulsemark.finder.audit_messages import report_message, report_of
from pulsemark.finder.errors import InvalidFieldError
from pulsemark.ledger import TopicNotFoundError
from pulsemark.testing import RawClient, running_broker

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
