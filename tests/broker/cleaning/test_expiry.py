"""Expiry of unacknowledged messages: by the broker's time, by policy and when asked for."""

from __future__ import annotations

from typing import Any

import pytest

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import SettableClock, running_broker
from pulsemark.wire import MessageId

from .conftest import NAME, NAMESPACE, Place, wait_until

HOUR_MS = 3_600_000


def fill(place: Place, **message) -> None:
    """Three old messages and two new ones."""
    place.send("a", "b", "c", **message)
    place.clock.advance(by_ms=60_000)
    place.send("d", "e", **message)


@pytest.mark.parametrize("level", ["topic", "namespace"])
def test_a_policy_is_in_force_at_once(place, level):
    """Setting messageTTL expires what is too old for every subscription, without a round."""
    for name in ("one", "two"):
        place.client.subscribe(NAME, name, earliest=True)
    fill(place)
    if level == "topic":
        place.change("POST", "messageTTL?messageTTL=30")
    else:
        place.change("POST", f"{NAMESPACE}/messageTTL", 30)
    wait_until(lambda: place.backlog("one") == place.backlog("two") == 2)
    found = place.get("stats")["subscriptions"]["one"]
    assert found["totalMsgExpired"] == 3
    assert found["lastExpireTimestamp"] == place.clock.now_ms()
    assert len(place.stored()) == 5


@pytest.mark.parametrize("producer_ahead_ms", [-HOUR_MS, 0, HOUR_MS])
@pytest.mark.parametrize("stampers", [("broker-time", "index"), ()])
def test_a_producers_clock_decides_nothing(clock, stampers, producer_ahead_ms):
    """Messages expire by when the broker took them, stamped or not, whatever the producer says."""
    with running_broker(clock=clock, stampers=stampers) as broker:
        place = Place(broker, clock)
        place.client.subscribe(NAME, "s", earliest=True)
        for _ in range(2):
            place.send("a", "b", publish_time_ms=clock.now_ms() + producer_ahead_ms)
            clock.advance(by_ms=60_000)
        place.change("POST", "messageTTL?messageTTL=90")
        wait_until(lambda: place.backlog("s") == 2)
        place.client.close()


def test_a_round_comes_by_itself(clock):
    """Without any request, expiry is looked after each messageExpiryCheckInterval."""
    settings = {"message_expiry_check_interval_ms": 20, "default_message_ttl_s": 30}
    with running_broker(clock=clock, **settings) as broker:
        place = Place(broker, clock)
        place.client.subscribe(NAME, "s", earliest=True)
        place.send("a", "b")
        assert place.backlog("s") == 2
        clock.advance(by_ms=31_000)
        wait_until(lambda: place.backlog("s") == 0)
        place.client.close()


def test_expired_is_kept_over_a_restart(tmp_path, clock):
    """The policy is stored, and so is the place of a subscription whose messages expired."""
    with running_broker(clock=clock, data_dir=tmp_path) as broker:
        place = Place(broker, clock)
        place.client.subscribe(NAME, "s", earliest=True)
        fill(place)
        place.change("POST", "messageTTL?messageTTL=30")
        wait_until(lambda: place.backlog("s") == 2)
        place.client.close()
    with running_broker(
        clock=clock, data_dir=tmp_path, message_expiry_check_interval_ms=20
    ) as broker:
        place = Place(broker, clock)
        assert place.get("messageTTL") == 30
        assert place.backlog("s") == 2
        clock.advance(by_ms=31_000)
        wait_until(lambda: place.backlog("s") == 0)
        place.client.close()


def test_waiting_messages_are_not_sent_again(place):
    """A Shared consumer that gives back what has expired does not get it again."""
    consumer = place.client.subscribe(NAME, "s", sub_type=pb.CommandSubscribe.Shared, earliest=True)
    fill(place)
    consumer.flow(3)
    consumer.receive_many(3)
    place.change("POST", "subscription/s/expireMessages/30")
    consumer.redeliver()
    consumer.flow(3)
    assert [m.message_id.entry_id for m in consumer.receive_many(2)] == [3, 4]


def test_asked_for_by_age(place):
    """As Pulsar: 409 where nothing has expired, 204 where something has, all at a negative age."""
    assert place.ask("POST", "subscription/s/expireMessages/1")[0] == 404
    assert place.ask("POST", "all_subscription/expireMessages/1") == (204, None)
    place.client.subscribe(NAME, "s", earliest=True)
    place.client.subscribe(NAME, "t", earliest=True)
    fill(place)
    for age in ("3600", "60", "0"):
        status, answer = place.ask("POST", f"subscription/s/expireMessages/{age}")
        assert status == 409
        assert answer["reason"].startswith(
            f"Expire message by timestamp not issued on topic {NAME}"
        )
    for age in ("x", "1.5", "99999999999"):
        assert place.ask("POST", f"subscription/s/expireMessages/{age}")[0] == 404
    place.change("POST", "subscription/s/expireMessages/59")
    assert (place.backlog("s"), place.backlog("t")) == (2, 5)
    # Nothing more for s, which is what the answer says; t goes on.
    assert place.ask("POST", "all_subscription/expireMessages/59")[0] == 409
    assert (place.backlog("s"), place.backlog("t")) == (2, 2)
    place.change("POST", "subscription/s/expireMessages/-1")
    assert place.backlog("s") == 0


def test_asked_for_by_position(place):
    """Up to and with a message id; 409 past the end, 412 for another partition, 400 for no id."""
    place.client.subscribe(NAME, "s", earliest=True)
    fill(place)
    path = "subscription/s/expireMessages"
    ledger_id = place.get("lastMessageId")["ledgerId"]
    assert place.ask("POST", path, {"ledgerId": ledger_id, "entryId": 5})[0] == 409
    wrong = {"ledgerId": ledger_id, "entryId": 1, "partitionIndex": 3}
    assert place.ask("POST", path, wrong)[0] == 412
    bad: list[Any] = [[], 5, {"ledgerId": "a"}, {"ledgerId": 1 << 70}]
    for body in bad:
        assert place.ask("POST", path, body)[0] == 400
    place.change("POST", path, {})
    place.change("POST", path, "earliest")
    assert place.backlog("s") == 5
    place.change("POST", path, {"ledgerId": ledger_id, "entryId": 1})
    assert place.backlog("s") == 3


def test_partitions(place):
    """By age all partitions are asked; by position a partitioned topic is refused."""
    path = "/admin/v2/persistent/public/default/parts"
    place.change("PUT", f"{path}/partitions", 2)
    assert place.ask("POST", f"{path}/subscription/s/expireMessages/1")[0] == 404
    for index in range(2):
        name = f"persistent://public/default/parts-partition-{index}"
        place.client.subscribe(name, "s", earliest=True)
        place.client.create_producer(name).send(b"x")
    place.clock.advance(by_ms=2_000)
    assert place.ask("POST", f"{path}/subscription/s/expireMessages", {})[0] == 405
    place.change("POST", f"{path}/subscription/s/expireMessages/1")
    for index in range(2):
        found = place.get(f"{path}-partition-{index}/stats")["subscriptions"]["s"]
        assert (found["msgBacklog"], found["totalMsgExpired"]) == (0, 1)


def test_compacted_reading_does_not_expire(place):
    """Who reads each key's latest message gets it, however old it is."""
    place.send("a", "b", "a")
    place.compact()
    reading = place.client.subscribe(NAME, "s", earliest=True, read_compacted=True)
    place.client.subscribe(NAME, "other", earliest=True)
    place.clock.advance(by_ms=HOUR_MS)
    place.change("POST", "messageTTL?messageTTL=1")
    wait_until(lambda: place.backlog("other") == 0)
    reading.flow(10)
    assert [m.message_id.entry_id for m in reading.receive_many(2)] == [1, 2]


def test_clock_set_back(clock: SettableClock):
    """A clock that goes back expires nothing early; stamps do not fall."""
    with running_broker(clock=clock) as broker:
        place = Place(broker, clock)
        place.client.subscribe(NAME, "s", earliest=True)
        place.send("a")
        clock.advance(by_ms=-HOUR_MS)
        place.send("b")
        place.change("POST", "messageTTL?messageTTL=30")
        clock.advance(by_ms=HOUR_MS)
        assert place.ask("POST", "subscription/s/expireMessages/30")[0] == 409
        assert place.backlog("s") == 2
        assert place.client.subscribe(NAME, "t", earliest=True).get_last_message_id()[
            0
        ] != MessageId(-1, -1)
        place.client.close()
