r"""Headers of Kafka's records as properties of Pulsar's messages, and back.

A property is text; a header's value is bytes or null. Text stays text. What is not UTF-8, null, or
text that looks like an escape, is written with one of two marks in front, so that every header
comes back as it was:

- ``base64:AAECAw==`` is the bytes 00 01 02 03;
- ``null:`` is null.

So a Pulsar producer can send binary headers too. A property that begins with ``base64:`` but goes
on with something else is text.

Order and repeated names are kept on the wire. Pulsar's own clients show properties as a map: the
last one of a name. A name that is not UTF-8 gets its wrong bytes as ``\xff``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from ...proto.pulsar_api_pb2 import KeyValue
from .record import Headers

_BASE64 = "base64:"
_NULL = "null:"


def headers_of(properties: Iterable[KeyValue]) -> Headers:
    """The headers that these properties stand for."""
    return tuple((_bytes(p.key), _unescaped(p.value)) for p in properties)


def add_properties(properties: RepeatedCompositeFieldContainer[KeyValue], headers: Headers) -> None:
    """Add the properties that stand for these headers."""
    for name, value in headers:
        properties.add(key=name.decode("utf-8", "backslashreplace"), value=_escaped(value))


def _escaped(value: bytes | None) -> str:
    if value is None:
        return _NULL
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = _BASE64
    if text.startswith(_BASE64) or text == _NULL:
        return _BASE64 + base64.b64encode(value).decode()
    return text


def _unescaped(value: str | bytes) -> bytes | None:
    text = _bytes(value)
    if text == _NULL.encode():
        return None
    if text.startswith(_BASE64.encode()):
        try:
            return base64.b64decode(text[len(_BASE64) :], validate=True)
        except binascii.Error:
            return text
    return text


def _bytes(text: str | bytes) -> bytes:
    """A string field as bytes. protobuf gives bytes for what is not UTF-8."""
    return text.encode() if isinstance(text, str) else text
