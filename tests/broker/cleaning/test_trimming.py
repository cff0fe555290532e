"""Retention: what is removed when, by the broker's time, by size, and at once."""

from __future__ import annotations

import pytest

from pulsemark.ledger import FolderReader
from pulsemark.testing import running_broker

from .conftest import MINUTE_MS, NAME, NAMESPACE, PATH, SMALL, Place, wait_until

HOURS = 3_600_000


def fill(place: Place, count: int = 4) -> None:
    """One message a minute."""
    for number in range(count):
        place.send(f"k{number}")
        place.clock.advance(by_ms=MINUTE_MS)


def names(place: Place) -> list[str]:
    """The keys of what is stored."""
    return [payload.decode().partition("@")[0] for payload in place.stored()]


@pytest.mark.parametrize("publish_time_ms", [1, 4_000_000_000_000])
def test_by_time_inside_the_open_ledger(place, publish_time_ms):
    """A limit is in force at once, entry by entry, and no producer's clock changes what goes."""
    for number in range(4):
        place.send(f"k{number}", publish_time_ms=publish_time_ms)
        place.clock.advance(by_ms=MINUTE_MS)
    place.retention(2)
    wait_until(lambda: names(place) == ["k2", "k3"])
    found = place.get("stats?ownFigures=true")
    assert found["cleaning"]["entriesRemoved"] == found["cleaning"]["messagesRemoved"] == 2
    assert found["cleaning"]["bytesRemoved"] > 0
    inside = place.get("internalStats?ownFigures=true")
    assert (inside["numberOfEntries"], inside["firstIndex"], inside["nextIndex"]) == (2, 2, 4)
    assert len(inside["ledgers"]) == 1


def test_by_size(place):
    """The log is cut to the retention size, however young it is."""
    for _ in range(30):
        place.producer.send(b"x" * 100_000)
    place.retention(-1, 1)
    wait_until(lambda: len(place.stored()) <= 10)
    assert len(place.stored()) == 10
    assert place.get("stats")["storageSize"] <= 1024 * 1024


def test_what_is_not_acknowledged_stays(place):
    """A durable subscription holds what it has not acknowledged, a reader does not."""
    consumer = place.client.subscribe(NAME, "s", earliest=True)
    place.client.subscribe(NAME, "reader", earliest=True, durable=False)
    fill(place)
    consumer.flow(10)
    first = consumer.receive_many(4)[0]
    place.retention(1)
    consumer.ack(first.message_id, wait=True)
    place.retention(2)  # a change begins a round
    wait_until(lambda: names(place) == ["k1", "k2", "k3"])
    place.change("POST", "subscription/s/skip_all")
    place.retention(1)
    wait_until(lambda: names(place) == ["k3"])


def test_at_once_removes_ended_segments_that_all_acknowledged(clock):
    """Without retention, the default, what is acknowledged goes when its segment has ended."""
    with running_broker(clock=clock, store_options=SMALL, retention_check_interval_ms=20) as broker:
        place = Place(broker, clock)
        consumer = place.client.subscribe(NAME, "s", earliest=True)
        fill(place, 40)
        rounds = place.broker.call(rounds_of)
        wait_until(lambda: place.broker.call(rounds_of) > rounds + 1)
        assert len(place.stored()) == 40
        consumer.flow(50)
        middle = consumer.receive_many(40)[30].message_id
        consumer.ack(middle, cumulative=True, wait=True)
        wait_until(lambda: len(place.stored()) < 40)
        rounds = place.broker.call(rounds_of)
        wait_until(lambda: place.broker.call(rounds_of) > rounds + 1)
        kept = names(place)
        assert 9 <= len(kept) < 25  # what is open, and the rest of a segment
        assert kept == [f"k{number}" for number in range(40 - len(kept), 40)]
        place.change("POST", "subscription/s/skip_all")
        rounds = place.broker.call(rounds_of)
        wait_until(lambda: place.broker.call(rounds_of) > rounds + 1)
        assert 0 < len(place.stored()) < 9  # the segment that is being written stays
        place.client.close()


async def rounds_of(running):
    """How many rounds have ended."""
    return running.services.cleaning.rounds


def test_at_once_leaves_a_topic_without_subscriptions_alone(clock):
    """No subscription acknowledged anything of it, so it stays until a limit is set."""
    with running_broker(clock=clock, store_options=SMALL, retention_check_interval_ms=20) as broker:
        place = Place(broker, clock)
        place.client.subscribe(NAME, "reader", earliest=True, durable=False)
        fill(place, 40)
        rounds = broker.call(rounds_of)
        wait_until(lambda: broker.call(rounds_of) > rounds + 1)
        assert len(place.stored()) == 40
        place.retention(3)
        wait_until(lambda: names(place) == ["k37", "k38", "k39"])
        place.client.close()


def test_over_a_restart_also_without_a_client_of_the_topic(tmp_path, clock):
    """The policy is stored; after a restart a round opens the topic that has a limit."""
    with running_broker(clock=clock, data_dir=tmp_path) as broker:
        place = Place(broker, clock)
        place.send("a", "b")
        place.retention(10)
        place.client.close()
    clock.advance(by_ms=11 * MINUTE_MS)
    with running_broker(clock=clock, data_dir=tmp_path, retention_check_interval_ms=20) as broker:
        wait_until(lambda: not FolderReader(tmp_path).log(NAME).segments())
        assert broker.call(open_names) == [NAME]


async def open_names(running):
    """The topics that are open."""
    return list(running.services.topics.open_topics)


def test_topics_without_limits_are_not_opened(tmp_path, clock):
    """A round does not open the topics of a folder for which there is nothing to do."""
    with running_broker(clock=clock, data_dir=tmp_path) as broker:
        Place(broker, clock).send("a")
    with running_broker(clock=clock, data_dir=tmp_path, retention_check_interval_ms=20) as broker:
        wait_until(lambda: broker.call(rounds_of) > 2)
        assert broker.call(open_names) == []


def test_truncate(place):
    """Everything goes at once, acknowledged or not; what comes then is delivered."""
    consumer = place.client.subscribe(NAME, "s", earliest=True)
    place.retention(-1)
    fill(place)
    place.change("DELETE", "truncate")
    assert (place.stored(), place.backlog("s")) == ([], 0)
    place.change("DELETE", "truncate")
    place.send("new")
    consumer.flow(10)
    assert consumer.receive().message_id.entry_id == 4
    assert place.get("internalStats?ownFigures=true")["firstIndex"] == 4
    missing = PATH.replace("prices", "missing")
    assert place.ask("DELETE", f"{missing}/truncate")[0] == 404
    assert place.ask("DELETE", PATH.replace("persistent", "non-persistent") + "/truncate")[0] == 412


def test_a_namespace_holds_where_the_topic_says_nothing(place):
    """The topic's policy goes before the namespace's, and the namespace's before the broker's."""
    fill(place)
    place.retention(-1)
    limits = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
    place.change("POST", f"{NAMESPACE}/retention", limits)
    assert place.get("retention?applied=true") == {
        "retentionTimeInMinutes": -1,
        "retentionSizeInMB": -1,
    }
    place.change("DELETE", "retention")
    wait_until(lambda: names(place) == ["k3"])
    assert place.get("retention?applied=true") == limits
