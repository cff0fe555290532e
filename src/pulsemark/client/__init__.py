"""A client for whole entries: publishes and reads producers' bytes as they are.

    RawProducer        publishes entries that the caller has made
    RawReader          reads a topic's entries, from a position to the end
    Pace               a rate limit
    Service            the brokers behind a URL, and the connections to them
    BrokerConnection   one connection: requests, producers, consumers
    AdminClient        the admin interface over HTTP

Applications use Pulsar's official clients. This one is for programs that move entries without
opening them, such as `pulsemark mirror`, and for tests.
"""

from .admin import AdminClient
from .connection import BrokerConnection, ProducerChannel, RawConsumer, RawMessage, Receipt
from .errors import (
    AdminError,
    ClientError,
    ConnectionLostError,
    EntryRefusedError,
    RequestRefusedError,
    SendRefusedError,
    ServiceUrlError,
    UnreachableError,
    WaitTimeoutError,
)
from .raw_producer import Pace, RateLimit, RawProducer
from .raw_reader import RawEntry, RawReader
from .service import Service

__all__ = [
    "AdminClient",
    "AdminError",
    "BrokerConnection",
    "ClientError",
    "ConnectionLostError",
    "EntryRefusedError",
    "Pace",
    "ProducerChannel",
    "RateLimit",
    "RawConsumer",
    "RawEntry",
    "RawMessage",
    "RawProducer",
    "RawReader",
    "Receipt",
    "RequestRefusedError",
    "SendRefusedError",
    "Service",
    "ServiceUrlError",
    "UnreachableError",
    "WaitTimeoutError",
]
