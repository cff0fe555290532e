"""A client of Pulsar's transactions that sends single commands."""

from __future__ import annotations

from typing import Any

from pulsemark.client.connection import RawConsumer
from pulsemark.metadata import payload_of
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient
from pulsemark.testing.raw_client import RawProducer
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import MessageId, commands

T = pb.BaseCommand


class TransactionClient:
    """A client that uses transactions, over one connection."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw

    def _ask(self, kind: int, body: Any, **fields: Any) -> Any:
        return self.raw.request(
            lambda request_id: commands.frame(kind, body(request_id=request_id, **fields))
        )

    def begin(self, timeout_ms: int = 60_000) -> Any:
        """The id of a new transaction."""
        begun = self._ask(T.NEW_TXN, pb.CommandNewTxn, txn_ttl_millis=timeout_ms, tc_id=0)
        return {
            "txnid_most_bits": begun.txnid_most_bits,
            "txnid_least_bits": begun.txnid_least_bits,
        }

    def add(self, txn: Any, *topics: str) -> None:
        """It will send to these topics."""
        self._ask(T.ADD_PARTITION_TO_TXN, pb.CommandAddPartitionToTxn, partitions=topics, **txn)

    def end(self, txn: Any, *, committed: bool) -> None:
        """Commit it, or abort it."""
        action = pb.COMMIT if committed else pb.ABORT
        self._ask(T.END_TXN, pb.CommandEndTxn, txn_action=action, **txn)

    def send(self, producer: RawProducer, body: bytes, txn: Any) -> MessageId:
        """Send a message in a transaction; its id."""
        message = unbatched_message(body, publish_time_ms=1)
        command = pb.CommandSend(producer_id=producer.producer_id, sequence_id=0, **txn)
        base = T(type=T.SEND, send=command).SerializeToString()
        size = len(base) + 4 + len(message)
        self.raw.write(size.to_bytes(4, "big"), len(base).to_bytes(4, "big"), base, message)
        (receipt,) = producer.receipts(1)
        return MessageId(receipt.ledger_id, receipt.entry_id)

    def ack(
        self,
        consumer: RawConsumer,
        message_id: MessageId,
        txn: Any,
        *,
        up_to: bool = False,
    ) -> None:
        """Acknowledge in a transaction."""
        kind = pb.CommandAck.Cumulative if up_to else pb.CommandAck.Individual
        self._ask(
            T.ACK,
            pb.CommandAck,
            consumer_id=consumer.consumer_id,
            ack_type=kind,
            message_id=[message_id.to_data()],
            **txn,
        )


def received(consumer: RawConsumer) -> list[bytes]:
    """The payloads that are there."""
    return [bytes(payload_of(message.headers_and_payload)) for message in consumer.drain()]
