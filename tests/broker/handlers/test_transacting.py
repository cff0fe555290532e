"""Transactions are off: clients get the refusals that they get from such a Pulsar broker."""

from __future__ import annotations

import pytest

from pulsemark.client import RequestRefusedError, SendRefusedError
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import commands

T = pb.BaseCommand


@pytest.mark.parametrize(
    "body",
    [
        pb.CommandTcClientConnectRequest(request_id=77, tc_id=0),
        pb.CommandNewTxn(request_id=77, tc_id=0),
        pb.CommandAddPartitionToTxn(request_id=77, partitions=["t"]),
        pb.CommandAddSubscriptionToTxn(request_id=77),
        pb.CommandEndTxn(request_id=77),
    ],
)
def test_a_clients_command_is_refused(raw, body):
    """NotAllowedError with Pulsar's text; the connection stays open."""
    raw.write(commands.frame(body))
    with pytest.raises(RequestRefusedError) as caught:
        raw.wait_response(77)
    assert caught.value.error_name == "NotAllowedError"
    assert caught.value.message == "Transactions are not enabled."
    raw.ping()


@pytest.mark.parametrize(
    "body",
    [
        pb.CommandEndTxnOnPartition(request_id=7, topic="t"),
        pb.CommandEndTxnOnSubscription(request_id=7),
    ],
)
def test_a_brokers_command_closes_the_connection(broker, body):
    """Only brokers send these to each other."""
    with RawClient.from_url(broker.service_url) as client:
        client.write(commands.frame(body))
        client.wait_closed()


def test_a_transactional_producer_sends_outside_of_transactions(raw, topic):
    """The producer is accepted; a SEND that names a transaction gets NotAllowedError."""
    producer = raw.create_producer(topic)
    producer.close()
    number, request = producer.producer_id, raw.new_id()
    command = pb.CommandProducer(
        topic=topic, producer_id=number, request_id=request, txn_enabled=True
    )
    raw.write(commands.frame(command))
    assert raw.wait_response(request).producer_ready
    body = unbatched_message(b"x", publish_time_ms=1)
    sent = pb.CommandSend(producer_id=number, sequence_id=0, txnid_least_bits=1, txnid_most_bits=0)
    raw.write(with_body(sent, body))
    with pytest.raises(SendRefusedError, match="Transaction buffer disable!"):
        producer.receipts(1)
    assert producer.send_raw(body).entry_id == 0


def test_an_acknowledgement_in_a_transaction_is_refused(raw, topic):
    """ACK_RESPONSE has the error; the message stays unacknowledged."""
    consumer = raw.subscribe(topic, "s", earliest=True)
    sent = raw.create_producer(topic).send(b"x")
    ids = [pb.MessageIdData(ledgerId=sent.ledger_id, entryId=sent.entry_id)]
    request = raw.new_id()
    command = pb.CommandAck(
        consumer_id=consumer.consumer_id,
        ack_type=pb.CommandAck.Individual,
        message_id=ids,
        request_id=request,
        txnid_least_bits=1,
        txnid_most_bits=0,
    )
    raw.write(commands.frame(command))
    with pytest.raises(RequestRefusedError, match="support transaction ack"):
        raw.wait_response(request)
    assert consumer.get_last_message_id()[1].entry_id == -1


def test_half_of_a_transactions_id_names_no_transaction(raw, topic):
    """SEND and ACK with only one half of the id are taken as without a transaction."""
    producer = raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", earliest=True)
    body = unbatched_message(b"x", publish_time_ms=1)
    sent = pb.CommandSend(producer_id=producer.producer_id, sequence_id=0, txnid_most_bits=1)
    raw.write(with_body(sent, body))
    (receipt,) = producer.receipts(1)
    request = raw.new_id()
    command = pb.CommandAck(
        consumer_id=consumer.consumer_id,
        ack_type=pb.CommandAck.Individual,
        message_id=[pb.MessageIdData(ledgerId=receipt.ledger_id, entryId=receipt.entry_id)],
        request_id=request,
        txnid_least_bits=1,
    )
    raw.write(commands.frame(command))
    raw.wait_response(request)
    assert consumer.get_last_message_id()[1].entry_id == receipt.entry_id


def with_body(command: pb.CommandSend, body: bytes) -> bytes:
    """A SEND frame."""
    base = pb.BaseCommand(type=T.SEND, send=command).SerializeToString()
    return (
        (len(base) + 4 + len(body)).to_bytes(4, "big") + len(base).to_bytes(4, "big") + base + body
    )
