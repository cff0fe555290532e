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

from typing import Any, cast

from ..client.connection import BrokerConnection
from ..client.errors import ClientError, ConnectionLostError, WaitTimeoutError
from ..client.link import Link
from .raw_handles import (
    RawConsumer,
    RawMessage,
    RawProducer,
    Receipt,
    RequestRefusedError,
    SendRefusedError,
)

__all__ = [
    "ConnectionLostError",
    "RawClient",
    "RawClientError",
    "RawConsumer",
    "RawMessage",
    "RawProducer",
    "RawTimeoutError",
    "Receipt",
    "RequestRefusedError",
    "SendRefusedError",
]

RawClientError = ClientError
RawTimeoutError = WaitTimeoutError


class RawClient(BrokerConnection):
    """One connection to a broker; arguments, attributes and errors are BrokerConnection's."""

    def create_producer(self, topic: str, **options: Any) -> RawProducer:
        """Open a producer; `options` as in BrokerConnection.create_producer."""
        return cast("RawProducer", super().create_producer(topic, **options))

    def _channel(self, link: Link, topic: str, producer_id: int, request_id: int) -> RawProducer:
        return RawProducer(self, link, topic, producer_id, request_id)
