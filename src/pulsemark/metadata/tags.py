"""Application tags: names with bytes in the prefix, for readers that do not open the payload.

A topic's policy names properties of messages and producers. At an append,
`builtin_stampers.PropertyTagsStamper` copies their values into the prefix. Third parties' stampers
may add others. The rules are those of field 109 in broker_entry.proto: each name has at most one
tag, and tags are written in the order of their names.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..proto.broker_entry_pb2 import BrokerEntryMetadata
from .errors import PrefixError
from .prefix import PREFIX_HEADER_SIZE_BYTES

APPLICATION_TAGS_FIELD = BrokerEntryMetadata.APPLICATION_TAGS_FIELD_NUMBER


def application_tags(metadata: BrokerEntryMetadata | None) -> dict[str, bytes]:
    """The entry's application tags by name; empty if it has none.

    Raises:
        PrefixError: a tag has no key or no value, or a key is not UTF-8 or occurs twice.
    """
    tags: dict[str, bytes] = {}
    if metadata is None:
        return tags
    for tag in metadata.application_tags:
        if not (tag.HasField("key") and tag.HasField("value")):
            raise PrefixError("an application tag lacks key or value", PREFIX_HEADER_SIZE_BYTES)
        # protobuf's C parser returns a string that is not UTF-8 as bytes.
        if not isinstance(tag.key, str):
            raise PrefixError("an application tag's key is not UTF-8", PREFIX_HEADER_SIZE_BYTES)
        if tag.key in tags:
            raise PrefixError(f"application tag {tag.key!r} occurs twice", PREFIX_HEADER_SIZE_BYTES)
        tags[tag.key] = tag.value
    return tags


def add_application_tags(metadata: BrokerEntryMetadata, tags: Mapping[str, bytes]) -> None:
    """Add tags to those of `metadata`. A name that it already has gets the new value.

    Raises:
        PrefixError: as `application_tags`, for the tags that `metadata` already has.
    """
    merged = application_tags(metadata) | dict(tags)
    del metadata.application_tags[:]
    for name in sorted(merged):
        metadata.application_tags.add(key=name, value=merged[name])
