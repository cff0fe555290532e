"""Access modes, names and epochs (PIP-68)."""

from __future__ import annotations

import contextlib
import threading

import pulsar
import pytest

from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import BaseCommand, ProducerAccessMode
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_client import RawTimeoutError
from pulsemark.testing.raw_messages import unbatched_message

Shared = ProducerAccessMode.Shared
Exclusive = ProducerAccessMode.Exclusive
WaitForExclusive = ProducerAccessMode.WaitForExclusive
Fencing = ProducerAccessMode.ExclusiveWithFencing
GOOD = unbatched_message(b"x", publish_time_ms=1)


@pytest.fixture
def other(broker):
    """A second connection."""
    with RawClient.from_url(broker.service_url) as connection:
        yield connection


@pytest.mark.parametrize(
    ("holder", "newcomer", "error"),
    [
        (Shared, Exclusive, "ProducerFenced"),
        (Exclusive, Shared, "ProducerBusy"),
        (Exclusive, Exclusive, "ProducerFenced"),
    ],
)
def test_whom_a_holder_keeps_out(raw, other, topic, holder, newcomer, error):
    """The refusals of the table in the module's docstring; the present producer stays."""
    first = raw.create_producer(topic, access_mode=holder)
    with pytest.raises(RequestRefusedError) as caught:
        other.create_producer(topic, access_mode=newcomer)
    assert error == caught.value.error_name
    assert first.send_raw(GOOD).entry_id == 0


def test_fencing_takes_the_topic_from_shared_producers_too(broker, other, topic):
    """As in Pulsar 4.0.8: the newcomer owns the topic, the old ones lose their connection."""
    with RawClient.from_url(broker.service_url) as client:
        old = client.create_producer(topic)
        new = other.create_producer(topic, access_mode=Fencing)
        assert new.topic_epoch == 0
        assert new.send_raw(GOOD).entry_id == 0
        old.post(GOOD)
        client.wait_closed()


def test_shared_producers_share(raw, other, topic):
    """Any number of Shared producers; they have no topic epoch."""
    producers = [client.create_producer(topic) for client in (raw, other, raw)]
    assert [producer.topic_epoch for producer in producers] == [None] * 3
    assert {0, 1, 2} == {producer.send_raw(GOOD).entry_id for producer in producers}


def test_each_exclusive_owner_gets_the_next_epoch(raw, other, topic):
    """Epochs count the owners from 0."""
    epochs = []
    for client in (raw, other, raw):
        producer = client.create_producer(topic, access_mode=Exclusive)
        epochs.append(producer.topic_epoch)
        producer.close()
    assert epochs == [0, 1, 2]


def test_epochs_survive_a_restart(tmp_path, topic):
    """The epoch is durable before its owner gets it."""
    epochs = []
    for _ in range(2):
        with (
            running_broker(data_dir=tmp_path / "data", http_port=None) as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            epochs.append(client.create_producer(topic, access_mode=Exclusive).topic_epoch)
    assert epochs == [0, 1]


def test_a_waiting_producer_is_let_in_when_the_holder_goes(raw, other, topic):
    """First ready=False without epoch, then on the same request ready=True with one."""
    holder = raw.create_producer(topic, access_mode=Exclusive)
    waiting = other.create_producer(topic, access_mode=WaitForExclusive)
    assert (waiting.is_ready, waiting.topic_epoch) == (False, None)
    with pytest.raises(RequestRefusedError, match="ProducerBusy"):
        raw.create_producer(topic)
    holder.close()
    waiting.wait_success()
    assert (waiting.is_ready, waiting.topic_epoch) == (True, 1)
    assert waiting.send_raw(GOOD).entry_id == 0


def test_a_waiting_producer_outlives_its_predecessor_in_the_queue(raw, other, topic):
    """A producer that stops waiting is skipped."""
    holder = raw.create_producer(topic, access_mode=Exclusive)
    gives_up = raw.create_producer(topic, access_mode=WaitForExclusive)
    waiting = other.create_producer(topic, access_mode=WaitForExclusive)
    gives_up.close()
    holder.close()
    waiting.wait_success()
    assert waiting.is_ready


def test_a_waiting_producer_may_not_send(broker, raw, topic):
    """A SEND of a waiting producer closes the connection."""
    raw.create_producer(topic, access_mode=Exclusive)
    with RawClient.from_url(broker.service_url) as client:
        waiting = client.create_producer(topic, access_mode=WaitForExclusive)
        waiting.post(GOOD)
        client.wait_closed()


def test_fencing_takes_over_and_the_old_owner_is_closed_at_its_next_send(broker, other, topic):
    """The old owner is closed at its next SEND, and refused with its old epoch."""
    with RawClient.from_url(broker.service_url) as client:
        old = client.create_producer(topic, access_mode=Exclusive)
        new = other.create_producer(topic, access_mode=Fencing)
        assert (old.topic_epoch, new.topic_epoch) == (0, 1)
        client.ping()
        assert not old.is_closed
        old.post(GOOD)
        client.wait_closed()
    assert new.send_raw(GOOD).entry_id == 0
    new.close()
    with pytest.raises(RequestRefusedError, match="ProducerFenced"):
        other.create_producer(topic, access_mode=Exclusive, topic_epoch=0)
    back = other.create_producer(topic, access_mode=Exclusive, topic_epoch=1)
    assert back.topic_epoch == 1


def test_fencing_notifies_waiting_producers(raw, other, topic):
    """A queued producer's request ends with ProducerFenced."""
    raw.create_producer(topic, access_mode=Exclusive)
    waiting = raw.create_producer(topic, access_mode=WaitForExclusive)
    other.create_producer(topic, access_mode=Fencing)
    with pytest.raises(RequestRefusedError, match="ProducerFenced"):
        waiting.wait_success()


def test_a_name_in_use_is_refused_while_its_holder_lives(raw, other, topic):
    """The holder answers the broker's PING and keeps its name."""
    raw.create_producer(topic, producer_name="p")
    stop = threading.Event()

    def answer_pings():
        while not stop.is_set():
            with contextlib.suppress(RawTimeoutError):
                raw.wait_unsolicited(BaseCommand.PONG, timeout_s=0.02)

    thread = threading.Thread(target=answer_pings)
    thread.start()
    try:
        with pytest.raises(RequestRefusedError, match="ProducerBusy"):
            other.create_producer(topic, producer_name="p")
    finally:
        stop.set()
        thread.join()


def test_a_name_is_free_once_its_holder_is_found_dead(topic):
    """A holder that stays silent is closed, and the new producer gets the name."""
    with (
        running_broker(http_port=None, connection_liveness_check_timeout_ms=200) as broker,
        RawClient.from_url(broker.service_url, answers_pings=False) as dead,
        RawClient.from_url(broker.service_url) as other,
    ):
        dead.create_producer(topic, producer_name="p")
        assert other.create_producer(topic, producer_name="p").name == "p"
        dead.wait_closed()


def test_a_higher_epoch_on_the_same_connection_takes_its_own_place(raw, topic):
    """A client can reopen its producer on the same connection."""
    first = raw.create_producer(topic, producer_name="p", epoch=0)
    again = raw.create_producer(topic, producer_name="p", producer_id=first.producer_id, epoch=1)
    assert again.send_raw(GOOD).entry_id == 0


def test_the_official_clients_modes(client, topic):
    """Exclusive fences a second one out; fencing takes over and the old one learns it."""
    mode = pulsar.ProducerAccessMode
    first = client.create_producer(topic, producer_name="p1", access_mode=mode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, producer_name="p2", access_mode=mode.Exclusive)
    client.create_producer(topic, producer_name="p3", access_mode=mode.ExclusiveWithFencing)
    with pytest.raises(pulsar.ProducerFenced):
        first.send(b"x")
