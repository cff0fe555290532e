"""Producers' refusals in Pulsar's words, and producers that come back or wait."""

from __future__ import annotations

import pytest

from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import ProducerAccessMode
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import commands

Shared = ProducerAccessMode.Shared
Exclusive = ProducerAccessMode.Exclusive
WaitForExclusive = ProducerAccessMode.WaitForExclusive
Fencing = ProducerAccessMode.ExclusiveWithFencing
GOOD = unbatched_message(b"x", publish_time_ms=1)
JAVA = "org.apache.pulsar.broker.service.BrokerServiceException$"


@pytest.fixture
def other(broker):
    """A second connection."""
    with RawClient.from_url(broker.service_url) as connection:
        yield connection


def refusal(client, topic, **options):
    """The error's name and text of a producer that is refused."""
    with pytest.raises(RequestRefusedError) as caught:
        client.create_producer(topic, **options)
    return caught.value.error_name, caught.value.message


def test_refusals_name_the_owner(raw, other, topic):
    """Exclusive, Shared and a taken name: code, exception and text as Pulsar sends them."""
    owner = raw.create_producer(topic, producer_name="a", access_mode=Exclusive)
    owned = "Topic has an existing exclusive producer: a"
    assert refusal(other, topic) == ("ProducerBusy", f"{JAVA}ProducerBusyException: {owned}")
    fenced = f"{JAVA}ProducerFencedException: "
    assert refusal(other, topic, access_mode=Exclusive) == ("ProducerFenced", fenced + owned)
    owner.close()
    raw.create_producer(topic, producer_name="a")
    text = "Topic has existing shared producers"
    assert refusal(other, topic, access_mode=Exclusive) == ("ProducerFenced", fenced + text)
    taken = f"{JAVA}NamingException: Producer with name 'a' is already connected to topic '{topic}'"
    assert refusal(raw, topic, producer_name="a") == ("ProducerBusy", taken)


def test_an_old_epoch_is_named_with_the_topics(raw, other, topic):
    """The owner that returns after another one was there learns both epochs."""
    raw.create_producer(topic, access_mode=Exclusive).close()
    raw.create_producer(topic, access_mode=Exclusive).close()
    code, text = refusal(other, topic, access_mode=Exclusive, topic_epoch=0)
    assert code == "ProducerFenced"
    assert text.endswith("Topic epoch has already moved. Current epoch: 1, Producer epoch: 0")


def test_fencing_with_an_old_epoch_fences_the_owner_and_is_refused(broker, other, topic):
    """As in Pulsar the owner loses its connection at its next SEND, and may come back."""
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer(topic, access_mode=Fencing).close()
        owner = client.create_producer(topic, access_mode=Exclusive)
        code, _ = refusal(other, topic, access_mode=Fencing, topic_epoch=0)
        assert code == "ProducerFenced"
        owner.post(GOOD)
        client.wait_closed()
    again = other.create_producer(topic, access_mode=Exclusive, topic_epoch=1)
    assert again.send_raw(GOOD).entry_id == 0


def test_the_owner_that_returns_together_with_an_older_one_may_try_again(raw, topic):
    """Two producers of one connection that was closed: the older one fences in vain."""
    raw.create_producer(topic, access_mode=Exclusive).close()
    raw.create_producer(topic, access_mode=Exclusive).close()
    requests = {epoch: raw.new_id() for epoch in (1, 0)}
    raw.write(
        *(
            commands.producer(topic, 10 + epoch, number, access_mode=Fencing, topic_epoch=epoch)
            for epoch, number in requests.items()
        )
    )
    refused = []
    for number in requests.values():
        with pytest.raises(RequestRefusedError) as caught:
            raw.wait_response(number)
        refused.append(caught.value.error_name)
    assert refused == ["ServiceNotReady", "ProducerFenced"]
    assert raw.create_producer(topic, access_mode=Fencing, topic_epoch=1).send_raw(GOOD)


def test_waiting_producers_may_have_one_name_and_an_old_epoch(raw, other, topic):
    """Both wait; the stale one is fenced when its turn comes, and the next one takes over."""
    raw.create_producer(topic, access_mode=Exclusive).close()
    owner = raw.create_producer(topic, access_mode=Exclusive)
    stale = other.create_producer(
        topic, producer_name="same", access_mode=WaitForExclusive, topic_epoch=0
    )
    fresh = raw.create_producer(topic, producer_name="same", access_mode=WaitForExclusive)
    assert not stale.is_ready
    assert not fresh.is_ready
    owner.close()
    with pytest.raises(RequestRefusedError, match="Fenced out"):
        stale.wait_success()
    fresh.wait_success()
    assert fresh.topic_epoch == 2
    assert fresh.send_raw(GOOD).entry_id == 0


def test_the_same_id_again_gets_the_same_producer_without_an_epoch(raw, topic):
    """A producer that still waits is refused instead."""
    owner = raw.create_producer(topic, producer_name="a", access_mode=Exclusive)
    answer = raw.request(lambda request: commands.producer(topic, owner.producer_id, request))
    assert answer.producer_name == "a"
    assert not answer.HasField("topic_epoch")
    waiting = raw.create_producer(topic, access_mode=WaitForExclusive)
    with pytest.raises(RequestRefusedError, match="already present on the connection"):
        raw.request(lambda request: commands.producer(topic, waiting.producer_id, request))


def test_an_empty_name_is_a_name(raw, topic):
    """Only a producer without a name gets a generated one."""
    assert raw.create_producer(topic, producer_name="").name == ""
    assert raw.create_producer(topic).name


@pytest.mark.parametrize("body", [b"", b"\x0e", b"\x0e\x01", b"\x0e\x01\0\0\0"])
def test_a_send_that_ends_within_its_checksum_closes_the_connection(broker, topic, body):
    """Such bytes are not stored; a few other bytes are."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        assert producer.send_raw(b"few").entry_id == 0
        producer.post(body)
        client.wait_closed()
    with RawClient.from_url(broker.service_url) as client:
        assert client.create_producer(topic).send_raw(GOOD).entry_id == 1


def test_a_highest_sequence_id_below_the_first_one_does_not_count(raw, topic):
    """The receipt says -1, as for a SEND without one."""
    producer = raw.create_producer(topic)
    for sequence_id, highest, expected in ((5, 7, 7), (9, 2, -1), (0, 0, 0), (3, None, -1)):
        receipt = producer.send_raw(GOOD, sequence_id=sequence_id, highest_sequence_id=highest)
        assert receipt.highest_sequence_id == expected, (sequence_id, highest)
