"""The messages of stored entries, for `pulsemark dump --payload`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import asdict

from ..metadata import Message, MessageFormatError, messages_of
from ..metadata.compression import CompressionUnavailableError, DecompressionError
from .options import escaped
from .records import Row

#: Bytes of a value that a line shows.
SHOWN_BYTES = 200


def payload_fields(row: Row) -> list[dict[str, object]] | dict[str, str]:
    """An entry's messages for JSON; what is not UTF-8 is in base64. Or why it cannot be opened."""
    found = _opened(row)
    if isinstance(found, str):
        return {"unreadable": found}
    return [_fields(row, message) for message in found]


def payload_lines(row: Row) -> Iterator[str]:
    """A line for each message of an entry: index, key, value, properties."""
    found = _opened(row)
    if isinstance(found, str):
        yield f"cannot be opened: {found}"
        return
    for message in found:
        parts = [f"{row.first_index + max(message.batch_index, 0):>10}"]
        if message.key is not None:
            parts.append(f"key={escaped(message.key)}")
        parts += [escaped(f"{name}={value}") for name, value in message.properties.items()]
        if message.is_encrypted:
            parts.append(f"encrypted, {len(message.value or b'')} bytes")
        elif message.value is None:
            parts.append("null")
        else:
            parts.append(_shown(message.value))
        yield "  ".join(parts)


def _opened(row: Row) -> list[Message] | str:
    if row.body[:4] == bytes(4):
        return "it is a record set of a Kafka client"
    try:
        return messages_of(row.body)
    except (MessageFormatError, DecompressionError, CompressionUnavailableError) as error:
        return str(error)


def _fields(row: Row, message: Message) -> dict[str, object]:
    fields = asdict(message)
    shown: dict[str, object] = {"index": row.first_index + max(message.batch_index, 0)}
    for name, value in fields.items():
        if isinstance(value, bytes):
            try:
                shown[name] = value.decode()
            except UnicodeDecodeError:
                shown[f"{name}_base64"] = base64.b64encode(value).decode()
        else:
            shown[name] = value
    return shown


def _shown(value: bytes) -> str:
    cut = value[:SHOWN_BYTES]
    text = escaped(cut.decode(errors="backslashreplace"))
    return text + (f"... ({len(value):,} bytes)" if len(value) > len(cut) else "")
