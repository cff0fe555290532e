"""Two tiers with an official client: what it did not count, and what it got twice, is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from pulsemark.audit import ConsumerAudit, compare
from pulsemark.audit.report import Report
from pulsemark.broker import BrokerThread
from pulsemark.finder import MessageStamps, SeekClient
from pulsemark.testing import SettableClock, running_broker

from .conftest import NAME, SETTINGS, ask

START_MS = 1_700_000_000_000
RECEIVE_MS = 20_000


@pytest.fixture
def clock() -> SettableClock:
    """Long before now, so that producers' clocks are wrong by years."""
    return SettableClock(START_MS)


@pytest.fixture
def broker(clock: SettableClock) -> Iterator[BrokerThread]:
    """A broker with twelve messages: batches of one producer, single messages of another."""
    with running_broker(storage="memory", grpc_port=0, clock=clock, **SETTINGS) as running:
        client = pulsar.Client(running.service_url, logger=pulsar.ConsoleLogger(ERROR))
        try:
            batching = client.create_producer(NAME, producer_name="batches")
            single = client.create_producer(NAME, producer_name="one", batching_enabled=False)
            for number in range(8):
                batching.send_async(b"b%d" % number, lambda *_: None)
            batching.flush()
            clock.advance(by_ms=60_000)
            for number in range(4):
                single.send(b"s%d" % number)
        finally:
            client.close()
        yield running


ERROR = pulsar.LoggerLevel.Error


def receive(
    broker: BrokerThread, clock: SettableClock, *, left_out: bytes, again: bytes, **options: Any
) -> None:
    """Receive all; one message is not counted, and one is rejected once."""
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(ERROR))
    try:
        consumer = client.subscribe(
            NAME,
            "shop",
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=50,
        )
        with ConsumerAudit(
            broker.http_url, tier="shop", tags="producer", clock=clock, **options
        ) as audit:
            seen: set[bytes] = set()
            while len(seen) < 12 or again in seen:
                message = consumer.receive(RECEIVE_MS)
                if message.data() != left_out:
                    audit.received(message)
                if message.data() == again:
                    again = b""
                    seen.discard(message.data())
                    consumer.negative_acknowledge(message)
                    continue
                seen.add(message.data())
                consumer.acknowledge(message)
    finally:
        client.close()


def compared(broker: BrokerThread) -> dict[str | None, tuple[int, int, int]]:
    """By producer: lost, doubled, late."""
    status, found = ask(broker, path="/admin/v2/persistent/public/default/orders/audit?tier=all")
    assert status == 200
    from pulsemark.audit.rows import AuditRow

    rows = [AuditRow(**row) for row in found.pop("rows")]
    tags = tuple(found.pop("tags"))
    ours = Report(tags=tags, rows=[row for row in rows if row.tier == "broker"], **found)
    theirs = [row for row in rows if row.tier != "broker"]
    sums: dict[str | None, tuple[int, int, int]] = {}
    for each in compare(ours, theirs, ended_before_ms=START_MS + 600_000):
        name = each.tags["producer_name"]
        lost, doubled, late = sums.get(name, (0, 0, 0))
        sums[name] = lost + each.lost, doubled + each.doubled, late + each.late
    return sums


def test_stamps_put_both_tiers_into_the_same_buckets(
    broker: BrokerThread, clock: SettableClock
) -> None:
    """One single message is lost, one of a batch is doubled, and nothing else differs."""
    with SeekClient(broker.grpc_url) as seek:
        stamps = MessageStamps(seek)
        receive(broker, clock, left_out=b"s2", again=b"s1", stamps=stamps)
    assert compared(broker) == {"batches": (0, 0, 0), "one": (1, 1, 0)}


def test_what_is_received_late_is_counted_as_late(
    broker: BrokerThread, clock: SettableClock
) -> None:
    """By the broker's time of the entry and the consumer's clock."""
    clock.advance(by_ms=30_000)
    with SeekClient(broker.grpc_url) as seek:
        stamps = MessageStamps(seek)
        receive(broker, clock, left_out=b"", again=b"", stamps=stamps, late_after_ms=60_000)
    assert compared(broker) == {"batches": (0, 0, 8), "one": (0, 0, 0)}


def test_without_stamps_a_wrong_clock_moves_messages(
    broker: BrokerThread, clock: SettableClock
) -> None:
    """They are lost in the broker's bucket and too many in another: docs/audit.md says so."""
    receive(broker, clock, left_out=b"", again=b"")
    _, found = ask(broker, path="/admin/v2/persistent/public/default/orders/audit?tier=shop")
    assert sum(row["count"] for row in found["rows"]) == 12
    assert {row["tags"]["producer_name"] for row in found["rows"]} == {"batches", "one"}
    assert not {row["bucket_start_ms"] for row in found["rows"]} & {START_MS // 60_000 * 60_000}
