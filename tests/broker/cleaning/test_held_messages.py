"""Messages that are given up while consumers hold them."""

from __future__ import annotations

import pytest

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import SettableClock, running_broker

from .conftest import NAME, Place, wait_until

SUBSCRIPTION = "subscription/s"


@pytest.mark.parametrize(
    "sub_type",
    [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared],
    ids=["shared", "keyed"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{SUBSCRIPTION}/expireMessages/30"),
        ("POST", "messageTTL?messageTTL=30"),
        ("DELETE", "truncate"),
        ("POST", f"{SUBSCRIPTION}/skip_all"),
        ("POST", f"{SUBSCRIPTION}/skip/6"),
    ],
)
@pytest.mark.parametrize("limit", ["consumer", "subscription"])
def test_given_up_messages_do_not_block_their_holder(
    clock: SettableClock, sub_type: pb.CommandSubscribe.SubType, method: str, path: str, limit: str
) -> None:
    """A consumer with all the unacknowledged messages it may have gets new ones after that."""
    settings = {f"max_unacked_messages_per_{limit}": 6}
    with running_broker(clock=clock, **settings) as broker:
        place = Place(broker, clock)
        consumer = place.client.subscribe(NAME, "s", sub_type=sub_type, earliest=True)
        consumer.flow(100)
        place.send(*"abcdef")
        held = consumer.receive_many(6)
        clock.advance(by_ms=60_000)
        place.change(method, path)
        wait_until(lambda: place.backlog("s") == 0)
        place.send("new")
        assert b"new@" in bytes(consumer.receive(5).headers_and_payload)
        found = place.get("stats")["subscriptions"]["s"]
        assert found["unackedMessages"] == 1
        consumer.ack(*(message.message_id for message in held))
        assert place.get("stats")["subscriptions"]["s"]["unackedMessages"] == 1
        place.client.close()
