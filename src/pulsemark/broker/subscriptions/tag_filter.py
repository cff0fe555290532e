"""Delivery filtered by tags: which entries a subscription gets, by the tags of their stamps.

The subscription's property `pulsemark.filter` says it::

    region=eu,us;tier=gold      region is eu or us, and tier is gold

Conditions are separated by semicolons, and all of them must hold. Each has a tag's name and the
values that it may have, separated by commas; spaces around them do not count. A tag is named and
shown as by `metadata.tags_of`: application tags, system tags such as `producer_name`, and those of
plugins. An entry without the tag does not match.

Only the stamp is read, never the producer's bytes, and a whole entry is sent or skipped: a batch
has the tags of its entry. A skipped entry is acknowledged for the subscription.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ledger import Entry
from ...metadata import PrefixError, printable, tags_of
from ...proto.pulsar_api_pb2 import ServerError
from ...records import record
from ..errors import RefusedError

FILTER_PROPERTY = "pulsemark.filter"


class InvalidFilterError(RefusedError):
    """A subscription's filter that cannot be used (`text`, `reason`)."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(ServerError.NotAllowedError, f"{FILTER_PROPERTY}={text!r}: {reason}")
        self.text = text
        self.reason = reason


@record
class TagFilter:
    """The conditions of one subscription, and the messages that were looked at."""

    wanted: dict[str, frozenset[str]]
    accepted_messages: int = 0
    rejected_messages: int = 0

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> TagFilter | None:
        """The filter in a subscription's properties; None: it gets all entries.

        Raises:
            InvalidFilterError: a condition has no name or no value, or two have the same name.
        """
        text = properties.get(FILTER_PROPERTY)
        if text is None:
            return None
        if not isinstance(text, str):
            raise InvalidFilterError(repr(text), "it is not UTF-8")
        wanted: dict[str, frozenset[str]] = {}
        for condition in text.split(";"):
            name, equals, values = condition.partition("=")
            name, known = name.strip(), [value.strip() for value in values.split(",")]
            if not (name and equals and all(known)):
                raise InvalidFilterError(text, f"{condition!r} is not of the form NAME=VALUE,...")
            if name in wanted:
                raise InvalidFilterError(text, f"it names the tag {name!r} twice")
            wanted[name] = frozenset(known)
        return cls(wanted)

    def accepts(self, entry: Entry) -> bool:
        """Whether the subscription gets an entry; it is counted.

        An entry whose stamp cannot be read is sent: nobody knows that it is not wanted.
        """
        try:
            tags = tags_of(entry.prefix)
        except PrefixError:
            is_wanted = True
        else:
            is_wanted = all(
                name in tags and str(printable(tags[name])) in values
                for name, values in self.wanted.items()
            )
        if is_wanted:
            self.accepted_messages += entry.message_count
        else:
            self.rejected_messages += entry.message_count
        return is_wanted


def message_counts(tag_filter: TagFilter | None) -> tuple[int, int, int, int]:
    """Messages that were looked at, let through, taken away, and put off (which no filter does)."""
    if tag_filter is None:
        return 0, 0, 0, 0
    accepted, rejected = tag_filter.accepted_messages, tag_filter.rejected_messages
    return accepted + rejected, accepted, rejected, 0
