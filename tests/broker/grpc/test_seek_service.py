"""The seek service inside a broker."""

from __future__ import annotations

import pytest

from pulsemark.finder import SeekClient, SubscriptionNotFoundError
from pulsemark.ledger import LocalStore, Position, TopicNotFoundError
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.maintenance.expected import LogEnds
from pulsemark.testing import RawClient, SettableClock, running_broker

START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def clock():
    """The clock of this module's broker."""
    return SettableClock(START_MS)


@pytest.fixture(scope="module")
def broker(clock):
    """A broker with a gRPC port."""
    with running_broker(clock=clock, grpc_port=0, http_port=None) as running:
        yield running


@pytest.fixture
def seek(broker):
    """A client of the seek service."""
    with SeekClient(broker.grpc_url) as client:
        yield client


@pytest.fixture
def ids(raw, clock, topic):
    """Five entries, a second apart."""
    producer = raw.create_producer(topic)
    found = []
    for n in range(5):
        clock.set(START_MS + 1000 * n)
        receipt = producer.send(b"x")
        found.append(Position(receipt.ledger_id, receipt.entry_id))
    return found


def test_searches_see_the_brokers_topics(seek, topic, ids):
    """By time and by index, also with short names; missing topics are not created."""
    assert ids[2] == seek.by_time(topic, START_MS + 1500).position
    assert ids[3] == seek.by_index(topic.rpartition("/")[2], 3).position
    with pytest.raises(TopicNotFoundError):
        seek.by_time("persistent://public/default/absent", 0)


def test_a_cursor_is_reset_with_everything_that_entails(seek, raw, topic, ids):
    """Consumers are closed, and start at the new position after they reconnect."""
    consumer = raw.subscribe(topic, "s")
    seek.reset_cursor(topic, "s", position=ids[3])
    raw.ping()
    assert consumer.is_closed
    consumer.resubscribe()
    consumer.flow(10)
    assert [m.message_id.entry_id for m in consumer.receive_many(2)] == [3, 4]
    with pytest.raises(SubscriptionNotFoundError):
        seek.reset_cursor(topic, "nix", position=ids[3])


def test_a_lost_first_ledger_is_named(tmp_path):
    """A running broker says which file is missing before a topic's first message."""
    with LocalStore.open(tmp_path) as store:
        for name in ("lost", "trimmed"):
            ledger = store.open_topic(f"persistent://public/default/{name}")
            for _ in range(3):
                ledger.append(b"x").commit.wait(10)
                ledger.roll()
            first, second, _ = ledger.segments()
            if name == "trimmed":
                ledger.trim(second.position(0))
            else:
                lost = as_segment(first).path
    lost.unlink()
    with (
        running_broker(data_dir=tmp_path, grpc_port=0, http_port=None) as broker,
        SeekClient(broker.grpc_url) as client,
    ):
        found = client.ends("persistent://public/default/lost")
        assert found.next_index == 3
        assert lost.name in (found.lost_before or "")
        assert found.lost_after is None
        assert client.ends("persistent://public/default/trimmed") == LogEnds(3)


def test_it_ends_with_the_broker():
    """Closing the broker closes the service; a second broker gets the port."""
    with running_broker(grpc_port=0, http_port=None) as first:
        port = int(first.grpc_url.rpartition(":")[2])
        with RawClient.from_url(first.service_url) as client:
            client.create_producer("persistent://public/default/t").send(b"x")
    with running_broker(grpc_port=port, http_port=None) as second:
        assert second.grpc_url.endswith(f":{port}")
