"""Facts about commands, from protobuf's descriptors: names, bodies, and which fields are text.

protobuf's C parser does not check the strings of proto2 messages. It returns a string that is not
UTF-8 as `bytes` (the pure Python parser raises UnicodeDecodeError). So a string field whose value
is not `str` is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ..proto.pulsar_api_pb2 import BaseCommand

# Every type number that Pulsar has defined, with its name.
TYPE_NAMES: dict[int, str] = {number: name for name, number in BaseCommand.Type.items()}

# The field of BaseCommand that holds the body of a type. Types without a body here are left out.
BODY_FIELDS: dict[int, str] = {
    field.number: field.name
    for field in BaseCommand.DESCRIPTOR.fields
    if field.number in TYPE_NAMES and field.message_type is not None
}


def _find_types_with_text() -> frozenset[str]:
    """Full names of the message types that hold a string, directly or in a nested message."""
    found: set[str] = set()
    seen: set[str] = set()

    def visit(descriptor: Any) -> bool:
        if descriptor.full_name not in seen:
            seen.add(descriptor.full_name)
            inner = [
                field.type == FieldDescriptor.TYPE_STRING
                or (field.message_type is not None and visit(field.message_type))
                for field in descriptor.fields
            ]
            if any(inner):
                found.add(descriptor.full_name)
        return descriptor.full_name in found

    visit(BaseCommand.DESCRIPTOR)
    return frozenset(found)


_TEXT = frozenset({str})
_TYPES_WITH_TEXT = _find_types_with_text()
TYPES_WITH_TEXT_IN_BODY: frozenset[int] = frozenset(
    field.number
    for field in BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None and field.message_type.full_name in _TYPES_WITH_TEXT
)


def find_long_list(message: Message, most: int) -> tuple[str, int] | None:
    """The path and length of the first list with more than `most` texts or properties."""
    for field, value in message.ListFields():
        inner = field.message_type
        if inner is None and field.type != FieldDescriptor.TYPE_STRING:
            continue
        if inner is not None and inner.full_name not in _TYPES_WITH_TEXT:
            continue
        if isinstance(value, Message):
            found = find_long_list(value, most)
            if found is not None:
                return f"{field.name}.{found[0]}", found[1]
        elif not isinstance(value, (str, bytes)) and len(value) > most:
            return field.name, len(value)
    return None


def find_invalid_text(message: Message) -> str | None:
    """The path of the first string in `message` that is not UTF-8, None if all are."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            values = (value,) if isinstance(value, (str, bytes)) else value
            if not _TEXT.issuperset(map(type, values)):
                return field.name
        elif field.message_type is not None and field.message_type.full_name in _TYPES_WITH_TEXT:
            inners = (value,) if isinstance(value, Message) else value
            texts_of = _getter_of_texts(field.message_type)
            if texts_of and _TEXT.issuperset(map(type, chain.from_iterable(map(texts_of, inners)))):
                continue  # a command can have 170,000 properties: no function runs for each
            for inner in inners:
                path = find_invalid_text(inner)
                if path is not None:
                    return f"{field.name}.{path}"
    return None


@cache
def _getter_of_texts(kind: Descriptor) -> Callable[[Any], tuple[Any, ...]] | None:
    """A function that reads all strings of a message; None if the message has none."""
    if any(each.message_type is not None for each in kind.fields):
        return None
    names = [each.name for each in kind.fields if each.type == FieldDescriptor.TYPE_STRING]
    # With a single name, attrgetter would return no tuple.
    return attrgetter(*names, names[0]) if names else None


def read_unknown_type(command: BaseCommand) -> int | None:
    """The type number in a command whose `type` is not in our enum, or None."""
    unknown: Any = UnknownFieldSet(command)  # a sequence, though the stubs do not say so
    numbers: list[int] = [
        field.data for field in unknown if field.field_number == 1 and isinstance(field.data, int)
    ]
    return numbers[-1] if numbers else None
