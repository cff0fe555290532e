"""Kafka's protocol without I/O: bytes in, requests out, and answers in the order of the requests.

The codecs of requests and responses are those of kafka-python's `kafka.protocol`.
"""

from .apis import APIS, RAW_SASL, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from .connection import RECORDS_MARK, Connection, Memory, Request, decode_body, encode, splice

__all__ = [
    "APIS",
    "RAW_SASL",
    "RECORDS_MARK",
    "SASL_AUTHENTICATE",
    "SASL_HANDSHAKE",
    "Api",
    "Connection",
    "Memory",
    "Request",
    "decode_body",
    "encode",
    "splice",
]
