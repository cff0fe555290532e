"""RawClient: a client that sends single frames, for tests that must see or send exact bytes.

    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer("persistent://public/default/t")
        receipt = producer.send(b"hello", publish_time_ms=0)          # any publish time
        consumer = client.subscribe("persistent://public/default/t", "s", earliest=True)
        consumer.flow(10)
        frame = consumer.receive()                                    # the bytes as received

By itself it only answers PING (this can be switched off). It does no lookup before it opens a
producer, gives no permits without flow(), and does not reconnect after CLOSE_CONSUMER. Use it from
one thread only. Every wait has a timeout: the client's, or the call's own.

It is `client.BrokerConnection` with producers that make their own messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

from ..client.connection import BrokerConnection, ProducerChannel, Receipt
from ..client.errors import ClientError, WaitTimeoutError
from ..wire import Buffer
from .raw_messages import BatchMember, batched_message, unbatched_message

RawClientError = ClientError
RawTimeoutError = WaitTimeoutError


class RawClient(BrokerConnection):
    """One connection to a broker; arguments, attributes and errors are BrokerConnection's."""

    def create_producer(self, topic: str, **options: Any) -> RawProducer:
        """Open a producer; `options` as in BrokerConnection.create_producer."""
        return cast("RawProducer", super().create_producer(topic, **options))

    def _channel(self, topic: str, producer_id: int, request_id: int) -> RawProducer:
        return RawProducer(self, topic, producer_id, request_id)


class RawProducer(ProducerChannel):
    """A producer of a RawClient. `post` sends without waiting, `receipts` waits."""

    def send(self, payload: bytes | None, **message: Any) -> Receipt:
        """Send one message; arguments as in `unbatched_message`, with usual ones by default."""
        message = self._with_usual(message)
        body = unbatched_message(payload, **message)
        return self.send_raw(body, sequence_id=message["sequence_id"])

    def send_batch(self, members: Sequence[bytes | BatchMember], **message: Any) -> Receipt:
        """Send one batch; arguments as in `batched_message`, with usual ones by default."""
        message = self._with_usual(message)
        sequence_id = message["sequence_id"]
        return self.send_raw(
            batched_message(members, **message),
            sequence_id=sequence_id,
            num_messages=len(members),
            highest_sequence_id=sequence_id + max(len(members) - 1, 0),
        )

    def _with_usual(self, message: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a message with the time, the next sequence id and this name."""
        return {
            "publish_time_ms": time.time_ns() // 1_000_000,
            "sequence_id": self._next_sequence_id,
            "producer_name": self.name,
            **message,
        }

    def send_many(self, messages: Iterable[Buffer], *, window: int = 1000) -> list[Receipt]:
        """Send headers-and-payloads; all receipts in order. Raises SendRefusedError."""
        found: list[Receipt] = []
        posted = 0
        for message in messages:
            if posted - len(found) >= window:
                found += self.receipts(max(window // 2, 1))
            self.post(message)
            posted += 1
        found += self.receipts(posted - len(found))
        return found
