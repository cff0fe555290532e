"""Frames of Pulsar's transactions (PIP-31), and a client that sends them over one connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pulsemark.client.connection import ProducerChannel, RawConsumer
from pulsemark.metadata import payload_of
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import MessageId, commands

T = pb.BaseCommand
#: Where clients find the coordinator that they use.
COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
TransactionId = dict[str, Any]
"""The fields that name a transaction in a command."""


def id_of(begun: Any) -> TransactionId:
    """The id that the answer to NEW_TXN has."""
    return {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}


def begin(request_id: int, timeout_ms: int) -> bytes:
    """NEW_TXN."""
    body = pb.CommandNewTxn(request_id=request_id, txn_ttl_millis=timeout_ms, tc_id=0)
    return commands.frame(body)


def add(request_id: int, txn: TransactionId, topics: Sequence[str]) -> bytes:
    """ADD_PARTITION_TO_TXN."""
    body = pb.CommandAddPartitionToTxn(request_id=request_id, partitions=topics, **txn)
    return commands.frame(body)


def add_subscription(request_id: int, txn: TransactionId, topic: str, subscription: str) -> bytes:
    """ADD_SUBSCRIPTION_TO_TXN. Pulsar wants it before an acknowledgement."""
    one = pb.Subscription(topic=topic, subscription=subscription)
    body = pb.CommandAddSubscriptionToTxn(request_id=request_id, subscription=[one], **txn)
    return commands.frame(body)


def end(request_id: int, txn: TransactionId, *, committed: bool) -> bytes:
    """END_TXN."""
    action = pb.COMMIT if committed else pb.ABORT
    body = pb.CommandEndTxn(request_id=request_id, txn_action=action, **txn)
    return commands.frame(body)


def send(
    producer_id: int, sequence_id: int, payload: bytes, txn: TransactionId, *, time_ms: int = 1
) -> bytes:
    """SEND with a message in a transaction. Pulsar wants the id in the message, too."""
    message = unbatched_message(payload, publish_time_ms=time_ms, sequence_id=sequence_id, **txn)
    command = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **txn)
    base = T(type=T.SEND, send=command).SerializeToString()
    size = len(base) + 4 + len(message)
    return size.to_bytes(4, "big") + len(base).to_bytes(4, "big") + base + message


def ack(
    request_id: int,
    consumer_id: int,
    message_ids: Sequence[MessageId],
    txn: TransactionId,
    *,
    up_to: bool = False,
) -> bytes:
    """ACK in a transaction."""
    body = pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=pb.CommandAck.Cumulative if up_to else pb.CommandAck.Individual,
        message_id=[each.to_data() for each in message_ids],
        request_id=request_id,
        **txn,
    )
    return commands.frame(body)


class TransactionClient:
    """A client that uses transactions, over one connection: `raw`, a BrokerConnection."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def connect(self) -> None:
        """Find the coordinator. Pulsar wants to be asked for it before any transaction."""
        self.raw.lookup(COORDINATOR)
        body = pb.CommandTcClientConnectRequest
        self.raw.request(lambda request_id: commands.frame(body(request_id=request_id, tc_id=0)))

    def begin(self, timeout_ms: int = 60_000) -> TransactionId:
        """The id of a new transaction."""
        return id_of(self.raw.request(lambda request_id: begin(request_id, timeout_ms)))

    def add(self, txn: TransactionId, *topics: str) -> None:
        """It will send to these topics."""
        self.raw.request(lambda request_id: add(request_id, txn, topics))

    def add_subscription(self, txn: TransactionId, topic: str, subscription: str) -> None:
        """It will acknowledge messages of this subscription."""
        self.raw.request(lambda request_id: add_subscription(request_id, txn, topic, subscription))

    def end(self, txn: TransactionId, *, committed: bool) -> None:
        """Commit it, or abort it."""
        self.raw.request(lambda request_id: end(request_id, txn, committed=committed))

    def send(
        self, producer: ProducerChannel, body: bytes, txn: TransactionId, *, sequence_id: int = 0
    ) -> MessageId:
        """Send a message in a transaction; its id."""
        self.raw.write(send(producer.producer_id, sequence_id, body, txn))
        (receipt,) = producer.receipts(1)
        return MessageId(receipt.ledger_id, receipt.entry_id)

    def ack(
        self, consumer: RawConsumer, message_id: MessageId, txn: TransactionId, *,
        up_to: bool = False,
    ) -> None:  # fmt: skip
        """Acknowledge in a transaction."""
        number = consumer.consumer_id
        self.raw.request(lambda request_id: ack(request_id, number, [message_id], txn, up_to=up_to))


def received(consumer: RawConsumer) -> list[bytes]:
    """The payloads that are there."""
    return [bytes(payload_of(message.headers_and_payload)) for message in consumer.drain()]
