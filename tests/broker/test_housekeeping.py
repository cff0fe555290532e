"""What the broker does by itself, with its timer."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pulsemark.broker.topics.topic import Topic
from pulsemark.ledger.cursors.cursor import Cursor
from pulsemark.testing import RawClient, running_broker

TOPICS = 30


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait for a bounded time."""
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def test_topics_on_which_nothing_happens_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of housekeeping store one cursor that changed, and look at none of the others."""
    persisted: list[str] = []
    persist = Cursor.persist

    def counting(cursor: Cursor) -> object:
        persisted.append(cursor.name)
        return persist(cursor)

    looked_at: list[Topic] = []
    monkeypatch.setattr(Topic, "update_rates", lambda topic, _: looked_at.append(topic))
    with (
        running_broker(handshake_timeout_ms=200) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        consumers = [
            client.subscribe(f"persistent://public/default/t{n}", f"s{n}") for n in range(TOPICS)
        ]
        producer = client.create_producer("persistent://public/default/t7")
        producer.send(b"x")
        monkeypatch.setattr(Cursor, "persist", counting)
        consumers[7].flow(1)
        message = consumers[7].receive()
        consumers[7].ack(message.message_id, wait=False)
        wait_for(lambda: bool(persisted), "the changed cursor was not stored")
        # Some twenty rounds more: nothing else has changed.
        time.sleep(1.0)
        assert persisted == ["s7"]
        assert not looked_at


def test_a_cursor_that_could_not_be_stored_is_stored_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor stays among the changed ones until it is written."""
    tried: list[str] = []
    persist = Cursor.persist

    def failing(cursor: Cursor) -> object:
        tried.append(cursor.name)
        if len(tried) < 3:
            raise RuntimeError("a fault of our own")
        return persist(cursor)

    with (
        running_broker(handshake_timeout_ms=200) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        consumer = client.subscribe("persistent://public/default/t", "s")
        client.create_producer("persistent://public/default/t").send(b"x")
        consumer.flow(1)
        message = consumer.receive()
        monkeypatch.setattr(Cursor, "persist", failing)
        consumer.ack(message.message_id, wait=False)
        wait_for(lambda: len(tried) >= 3, "it was not tried again")
        time.sleep(0.5)
        assert len(tried) == 3
