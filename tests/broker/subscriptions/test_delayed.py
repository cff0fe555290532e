"""Messages with a delivery time."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pulsar
import pytest

from pulsemark.broker.subscriptions.delayed import (
    SHARE_ENTRIES,
    DelayedEntries,
    DelayedTotal,
    deliver_at_ms,
)
from pulsemark.ledger import Position
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient, SettableClock, running_broker
from pulsemark.testing.raw_messages import unbatched_message

Shared = CommandSubscribe.Shared
FAR_MS = 4_000_000_000_000


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("properties", [None, {"k": "x" * 2000}])
@pytest.mark.parametrize(("given", "found"), [(None, 0), (0, 0), (1, 1), (FAR_MS, FAR_MS), (-5, 0)])
def test_the_time_is_read_from_the_header(checksum, properties, given, found):
    """Near the entry's beginning or after long properties, with or without checksum."""
    options = {} if given is None else {"deliver_at_time": given}
    body = unbatched_message(
        b"\x98\x01 is no tag here",
        publish_time_ms=1,
        checksum=checksum,
        properties=properties,
        **options,
    )
    assert found == deliver_at_ms(body)


def test_what_is_no_message_is_not_delayed():
    """Garbage with the tag's bytes in it."""
    assert deliver_at_ms(b"\x98\x01" * 10) == 0
    assert deliver_at_ms(b"") == 0


async def test_entries_become_due_by_the_clock_in_order():
    """The earliest first; clear() forgets them all."""
    clock = SettableClock(1000)
    due: asyncio.Queue[Any] = asyncio.Queue()
    delayed = DelayedEntries(clock, due.put_nowait, DelayedTotal(1_000))
    assert not delayed.holds_back(Position(1, 0), 1000)
    assert delayed.holds_back(Position(1, 1), 1030)
    assert delayed.holds_back(Position(1, 2), 1010)
    assert delayed.holds_back(Position(1, 3), 9999)
    clock.set(1030)
    assert [Position(1, 2), Position(1, 1)] == await due.get()
    assert len(delayed) == 1
    delayed.clear()
    assert len(delayed) == 0


def test_shared_subscriptions_wait_and_others_do_not(topic, drain_of):
    """A delayed message lets later ones pass on Shared; Exclusive gets everything in order."""
    clock = SettableClock(1_700_000_000_000)
    with (
        running_broker(http_port=None, clock=clock) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        shared = client.subscribe(topic, "shared", sub_type=Shared)
        exclusive = client.subscribe(topic, "exclusive")
        shared.flow(10)
        exclusive.flow(10)
        producer.send(b"later", deliver_at_time=clock.now_ms() + 200)
        producer.send(b"now")
        assert shared.receive().message_id.entry_id == 1
        assert [m.message_id.entry_id for m in exclusive.receive_many(2)] == [0, 1]
        assert drain_of(broker)(shared) == []
        clock.advance(by_ms=200)
        late = shared.receive()
        assert (late.message_id.entry_id, late.command.HasField("redelivery_count")) == (0, False)


def test_a_delayed_message_survives_its_consumer_and_a_restart(tmp_path, topic):
    """Nothing is stored about the waiting: it is met again from the cursor."""
    clock = SettableClock(1_700_000_000_000)
    for generation in range(2):
        with (
            running_broker(data_dir=tmp_path / "data", http_port=None, clock=clock) as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            consumer = client.subscribe(topic, "s", sub_type=Shared, earliest=True)
            consumer.flow(10)
            if generation:
                clock.advance(by_ms=10_000)
                assert consumer.receive().message_id.entry_id == 0
            else:
                client.create_producer(topic).send(b"x", deliver_at_time=clock.now_ms() + 10_000)
                client.ping()


def test_the_number_of_waiting_entries_is_limited(topic, drain_of):
    """Above the limit nothing new is read; dispatch continues when some entries are due."""
    clock = SettableClock(1_700_000_000_000)
    with (
        running_broker(
            http_port=None, clock=clock, max_delayed_entries_per_subscription=3
        ) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        consumer = client.subscribe(topic, "s", sub_type=Shared)
        consumer.flow(1)
        producer = client.create_producer(topic)
        for _ in range(3):
            producer.send(b"later", deliver_at_time=clock.now_ms() + 500)
        producer.send(b"now")
        assert drain_of(broker)(consumer) == []
        clock.advance(by_ms=500)
        consumer.flow(10)
        assert {0, 1, 2, 3} == {m.message_id.entry_id for m in consumer.receive_many(4)}


def test_the_official_clients_deliver_after(client, topic):
    """deliver_after of the official producer, seen by its consumer."""
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    started = time.monotonic()
    producer.send(b"x", deliver_after=timedelta(milliseconds=300))
    consumer.receive(5000)
    assert time.monotonic() - started >= 0.29


def test_the_limit_of_waiting_entries_is_looked_at_all_along(topic):
    """A topic full of delayed messages: reading ahead ends near the limit, the rest comes later."""
    clock = SettableClock(1_700_000_000_000)
    with (
        running_broker(
            http_port=None, clock=clock, max_delayed_entries_per_subscription=50
        ) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        later: dict[str, Any] = {"deliver_at_time": clock.now_ms() + 60_000}
        producer.send_many([unbatched_message(b"x", publish_time_ms=1, **later)] * 1000)
        consumer = client.subscribe(topic, "s", sub_type=Shared, earliest=True)
        consumer.flow(2000)
        client.ping()

        async def waiting(running):
            subscription = running.services.topics.open_topics[topic].subscriptions["s"]
            return len(subscription.dispatcher.delayed)

        assert 50 <= broker.call(waiting) <= 250
        clock.advance(by_ms=60_000)
        assert len(consumer.receive_many(1000)) == 1000


async def test_what_is_due_at_once_is_handed_over_in_parts(monkeypatch):
    """10 entries become due together: others have a turn after each 4."""
    monkeypatch.setattr("pulsemark.broker.subscriptions.delayed.MAX_DUE_AT_ONCE", 4)
    clock = SettableClock(1000)
    due: asyncio.Queue[Any] = asyncio.Queue()
    delayed = DelayedEntries(clock, due.put_nowait, DelayedTotal(1_000))
    for n in range(10):
        delayed.holds_back(Position(1, n), 1010)
    clock.set(1010)
    parts = [await due.get() for _ in range(3)]
    assert [len(part) for part in parts] == [4, 4, 2]
    assert sorted(p for part in parts for p in part) == [Position(1, n) for n in range(10)]


async def test_what_is_given_up_waits_no_more():
    """The set alone says what waits: positions that left it do not become due."""
    clock = SettableClock(1000)
    due: asyncio.Queue[Any] = asyncio.Queue()
    total = DelayedTotal(1_000)
    delayed = DelayedEntries(clock, due.put_nowait, total)
    for n in range(200):
        delayed.holds_back(Position(1, n), 1010 + n % 3)
    delayed.discard_up_to(Position(1, 189))
    delayed.discard(Position(1, 195))
    assert len(delayed) == total.count == 9
    assert len(delayed._heap) < 100
    clock.set(2000)
    assert sorted(await due.get()) == [Position(1, n) for n in range(190, 200) if n != 195]
    assert len(delayed) == total.count == 0


async def test_above_the_brokers_limit_each_subscription_has_a_share():
    """A full broker takes no more, but the first entries of each; the others are told of room."""
    clock, total = SettableClock(1000), DelayedTotal(3 * SHARE_ENTRIES)
    told: list[str] = []
    first, second = (
        DelayedEntries(clock, lambda _: None, total, partial(told.append, name))
        for name in ("first", "second")
    )
    taken = 0
    while first.may_take_more(1_000_000):
        first.holds_back(Position(1, taken), 5_000)
        taken += 1
    assert taken == 3 * SHARE_ENTRIES
    for n in range(SHARE_ENTRIES):
        assert second.may_take_more(1_000_000)
        second.holds_back(Position(1, n), 5_000)
    assert not second.may_take_more(1_000_000)
    assert not told
    first.discard_up_to(Position(1, SHARE_ENTRIES))
    assert sorted(told) == ["first", "second"]
    assert second.may_take_more(1_000_000)
    for one in (first, second):
        one.close()
    assert total.count == 0


def test_a_full_broker_delivers_the_rest_later(topic, drain_of):
    """Entries beyond the broker's limit stay in the log, and are read when others are due."""
    clock = SettableClock(1_700_000_000_000)
    with (
        running_broker(http_port=None, clock=clock, max_delayed_entries=SHARE_ENTRIES) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        later: dict[str, Any] = {"deliver_at_time": clock.now_ms() + 60_000}
        producer.send_many([unbatched_message(b"x", publish_time_ms=1, **later)] * 1000)
        consumers = [
            client.subscribe(topic, name, sub_type=Shared, earliest=True) for name in ("a", "b")
        ]
        for consumer in consumers:
            consumer.flow(2000)
            assert drain_of(broker)(consumer) == []

        async def waiting(running):
            found = running.services.topics.open_topics[topic]
            return [len(one.dispatcher.delayed) for one in found.subscriptions.values()]

        assert max(broker.call(waiting)) <= 200 + SHARE_ENTRIES
        clock.advance(by_ms=60_000)
        for consumer in consumers:
            assert len(consumer.receive_many(1000)) == 1000
