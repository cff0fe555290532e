"""The fields of a prefix beyond time and index: find them, name them, select them for clients.

Readers that show fields use the best name that is known. Fields of Pulsar and of this project have
the name in the registry (broker_entry.proto). A third party's field has its full name if its plugin
is installed, else its number. Plugins are imported when the first unknown field is found.

Selecting fields works on the encoded bytes, so a third party's fields need no plugin for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.unknown_fields import UnknownFieldSet

from ..proto.broker_entry_pb2 import BrokerEntryMetadata
from .builtin_stampers import load_all_plugins
from .crc import Buffer
from .errors import PrefixError
from .prefix import (
    APPLICATION_TAGS_FIELD,
    PREFIX_HEADER_SIZE_BYTES,
    application_tags,
    pack_encoded,
    pack_for_client,
    pack_stamp,
    peek,
)
from .protobuf_fields import GROUPS_DEPTH_MAX, MalformedError, fields_of

FieldValue: TypeAlias = str | int | float | bool | bytes
"""A field's value. UTF-8 text is str; other text and unknown messages are bytes."""

PULSAR_FIELDS = (1, 2)
"""The fields of PIP-70, which clients that ask for entry metadata always get (PIP-90)."""

_TIME_AND_INDEX = frozenset(PULSAR_FIELDS)


def field_number_of(name: str) -> int | None:
    """The number of a field, from its name in the registry or its digits; None if unknown."""
    if name.isascii() and name.isdigit():
        return int(name) if 0 < int(name) < 2**29 else None
    field = BrokerEntryMetadata.DESCRIPTOR.fields_by_name.get(name)
    return None if field is None else field.number


def field_numbers(encoded: bytes) -> frozenset[int]:
    """The numbers of all fields of encoded metadata. Raises PrefixError if it is malformed."""
    return frozenset(number for number, _, _ in _fields(encoded))


def client_prefix(prefix: Buffer, delivered: AbstractSet[int] = frozenset()) -> bytes:
    """The prefix for clients that ask for it (PIP-90): time, index and the fields `delivered`.

    b"" if the entry's prefix has none of these. Raises PrefixError.
    """
    if not delivered:
        return pack_for_client(peek(prefix))
    encoded = bytes(prefix[PREFIX_HEADER_SIZE_BYTES:])
    kept = [
        encoded[start:end]
        for number, start, end in _fields(encoded)
        if number in _TIME_AND_INDEX or number in delivered
    ]
    return pack_encoded(b"".join(kept)) if kept else b""


def prefix_fields(prefix: Buffer) -> dict[str, FieldValue | dict[str, FieldValue]]:
    """Every field of a prefix by name, in the order of the numbers; {} if there is no prefix.

    `application_tags` is a dictionary itself. An enum's value is shown by its name.

    Raises PrefixError: the prefix, or an application tag in it, is not well formed.
    """
    metadata = peek(prefix)
    if metadata is not None and len(UnknownFieldSet(metadata)):
        load_all_plugins()  # which names them
        metadata = peek(prefix)
    shown: dict[str, FieldValue | dict[str, FieldValue]] = {}
    if metadata is None:
        return shown
    for field, value in metadata.ListFields():
        if field.number == APPLICATION_TAGS_FIELD:
            shown[field.name] = {
                name: _text_or_bytes(tag) for name, tag in application_tags(metadata).items()
            }
        else:
            shown[field.full_name if field.is_extension else field.name] = _value(field, value)
    return shown | _unknown(metadata)


def tags_of(prefix: Buffer) -> dict[str, FieldValue]:
    """All tags of an entry by name: every field of its prefix except time and index.

    The result mixes application tags, system tags (such as `producer_name`) and the fields of third
    parties. An application tag with the name of one of the others is left out, so that a client
    cannot forge with a property what the broker states about an entry.

    Raises PrefixError as `prefix_fields`.
    """
    tags: dict[str, FieldValue] = {}
    metadata = peek(prefix)
    if metadata is None or prefix == pack_stamp(metadata.broker_timestamp, metadata.index):
        # Nearly every entry has only time and index.
        return tags
    fields = prefix_fields(prefix)
    for name, value in fields.items():
        if isinstance(value, dict):
            reserved = BrokerEntryMetadata.DESCRIPTOR.fields_by_name
            tags |= {k: v for k, v in value.items() if k not in reserved and k not in fields}
        elif name not in ("broker_timestamp", "index"):
            tags[name] = value
    return tags


def printable(value: FieldValue) -> str | int | float | bool:
    """The value in a form that JSON can hold: bytes become hexadecimal text."""
    return value.hex() if isinstance(value, bytes) else value


def _value(field: FieldDescriptor, value: Any) -> FieldValue:
    """A known field's value; repeated fields and messages are shown as protobuf text."""
    is_repeated = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if is_repeated or field.message_type is not None:
        values = value if is_repeated else [value]
        return "; ".join(
            text_format.MessageToString(one, as_one_line=True)
            if field.message_type is not None
            else str(_scalar(field, one))
            for one in values
        )
    return _scalar(field, value)


def _scalar(field: FieldDescriptor, value: Any) -> FieldValue:
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else str(named.name)
    known: FieldValue = value
    return known


def _unknown(metadata: BrokerEntryMetadata) -> dict[str, FieldValue]:
    """Fields without a known name, by their numbers."""
    found: dict[str, list[FieldValue]] = {}
    unknown = UnknownFieldSet(metadata)
    for place in range(len(unknown)):
        one = unknown[place]
        data = one.data
        if isinstance(data, bytes):
            value: FieldValue = _text_or_bytes(data)
        else:
            value = data if isinstance(data, int) else "a group"
        found.setdefault(str(one.field_number), []).append(value)
    return {
        number: values[0] if len(values) == 1 else "; ".join(str(printable(v)) for v in values)
        for number, values in sorted(found.items(), key=lambda item: int(item[0]))
    }


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _fields(encoded: bytes) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of every top-level field. Raises PrefixError."""
    start = 0
    try:
        for number, _, _, _, end in fields_of(encoded, GROUPS_DEPTH_MAX):
            yield number, start, end
            start = end
    except MalformedError as error:
        at = PREFIX_HEADER_SIZE_BYTES + start
        raise PrefixError("not a BrokerEntryMetadata protobuf", at) from error
