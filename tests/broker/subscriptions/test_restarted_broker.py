"""A restart of the broker while consumers hold, have acknowledged and have given back messages."""

from __future__ import annotations

import pytest

from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient, running_broker
from pulsemark.wire import MessageId

INDIVIDUAL = (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)
TYPES = (CommandSubscribe.Exclusive, CommandSubscribe.Failover, *INDIVIDUAL)


@pytest.mark.parametrize("sub_type", TYPES)
def test_what_was_not_acknowledged_comes_again_as_if_new(tmp_path, topic, sub_type, drain_of):
    """Acknowledged ones do not come; redelivery counts start at 0; properties are kept."""

    def subscribe(client):
        consumer = client.subscribe(
            topic,
            "s",
            sub_type=sub_type,
            earliest=True,
            consumer_name="c",
            subscription_properties={"who": "first"},
        )
        consumer.flow(100)
        return consumer

    options = {
        "data_dir": tmp_path / "data",
        "http_port": None,
        "active_consumer_failover_delay_ms": 0,
    }
    with (
        running_broker(**options) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        ids = [MessageId(*producer.send(b"x", key=f"k{n}")[1:3]) for n in range(6)]
        consumer = subscribe(client)
        consumer.receive_many(6)
        consumer.ack(ids[1], ids[4], ids[0])
        consumer.redeliver(ids[2])
        counts = {one.command.redelivery_count for one in drain_of(broker, consumer)}
        assert counts <= ({1} if sub_type in INDIVIDUAL else {0})
    with (
        running_broker(**options) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        came = drain_of(broker, subscribe(client))
        assert [one.message_id.entry_id for one in came] == [2, 3, 5]
        assert not any(one.command.HasField("redelivery_count") for one in came)
        name = str(topic)
        properties = broker.call(lambda running: _properties(running, name))
        assert properties == {"who": "first"}


async def _properties(running, name):
    return running.services.topics.open_topics[name].subscriptions["s"].properties


@pytest.fixture
def drain_of():
    """All messages that a consumer of a broker has got, after the broker has nothing more."""

    def drained(broker, consumer):
        found = []
        for _ in range(5):
            consumer.get_last_message_id()
            broker.call(_nothing)
            found += consumer.arrived()
        return found

    return drained


async def _nothing(_):
    """A turn of the broker's loop."""
