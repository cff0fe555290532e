"""The chain of a topic's stampers, which writes an entry's prefix.

A topic has one chain. At an append the ledger assigns the entry's time and index, and asks the
chain for the prefix. Each stamper of the chain writes its own fields; docs/stamps.md has the rules
for plugins' fields. A plugin writes into an empty message. If a stamper fails, the append fails
(`StampingError`), before anything is stored.

An entry is stamped once, when it is appended. Bytes that begin with 0x0e02 are always refused, even
by an empty chain: if they were stored, readers would take them for the broker's own prefix. An
empty chain gives no prefix, nor does an entry without messages.

**A list of stampers as one line of text**, for command lines and configuration files:

    broker-time,index                            two stampers
    broker-time,index,property-tags:region,app   three; what follows the colon is one argument
    property-tags:region,app;index               an argument ends at a semicolon
    (empty)                                      no stampers: stamps are off

An argument may contain commas. So a comma separates stampers only before the first colon, and a
semicolon always separates them. `StamperChain.from_names` checks whether the names are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..proto.broker_entry_pb2 import CONTROL, BrokerEntryMetadata
from ..records import record
from .builtin_stampers import (
    STAMPERS,
    BrokerTimeStamper,
    IndexStamper,
    TombstoneStamper,
    load_stampers,
)
from .crc import Buffer
from .errors import DoubleStampError, DuplicateStamperError, StamperFieldError, StampingError
from .message import MessageHeader
from .prefix import (
    APPLICATION_TAGS_FIELD,
    add_application_tags,
    application_tags,
    has_prefix,
    pack,
    pack_stamp,
)
from .prefix_fields import field_numbers
from .stamp_context import Sender, StampContext, Stamper

FOREIGN_FIELDS = range(1000, 19_000)
"""Numbers that third parties may use for their own fields."""


@record(frozen=True)
class _Link:
    """One stamper of a chain, with its attributes as they were when the chain was made."""

    stamper: Stamper
    fields: frozenset[int]
    stamps_control: bool
    is_built_in: bool


class StamperChain:
    """The stampers of a topic, in the order in which they write. Immutable, safe between threads.

    Without stampers nothing is stamped. `broker_name`: the broker's advertised host and port.
    Raises DuplicateStamperError, and StamperFieldError for a declared field that is not its own.
    """

    __slots__ = ("_broker_name", "_control_links", "_links", "_stampers", "is_plain_stamp")

    def __init__(self, stampers: Sequence[Stamper] = (), *, broker_name: str = "") -> None:
        self._stampers = tuple(stampers)
        self._broker_name = broker_name
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise DuplicateStamperError(name)
            seen.add(name)
        self._links = tuple(map(_link, self._stampers))
        _check_fields(self._links)
        self._control_links = tuple(link for link in self._links if link.stamps_control)
        kinds: set[type] = {type(stamper) for stamper in self._stampers}
        #: The chain writes only time and index, so `pack_stamp` can make its prefixes.
        self.is_plain_stamp = kinds == {BrokerTimeStamper, IndexStamper}

    @classmethod
    def from_names(cls, names: Iterable[str] | str) -> StamperChain:
        """The chain of a configuration or a line. Raises as `load_stampers` and the class."""
        return cls(load_stampers(split_stamper_names(names) if isinstance(names, str) else names))

    def at_broker(self, broker_name: str) -> StamperChain:
        """The same stampers, with this broker name."""
        return StamperChain(self._stampers, broker_name=broker_name)

    @property
    def names(self) -> tuple[str, ...]:
        """The stampers' names, in order."""
        return tuple(stamper.name for stamper in self._stampers)

    @property
    def stamps_time(self) -> bool:
        """Whether every prefix of this chain has the broker's time."""
        return any(type(stamper) is BrokerTimeStamper for stamper in self._stampers)

    @property
    def tombstone_property(self) -> str | None:
        """The property by which Pulsar's producers delete a key; None: no stamper has one."""
        found = (s.property_name for s in self._stampers if isinstance(s, TombstoneStamper))
        return next(found, None)

    def __bool__(self) -> bool:
        return bool(self._stampers)

    def __repr__(self) -> str:
        return f"StamperChain({list(self.names)})"

    def prefix(
        self,
        topic: str,
        now_ms: int,
        index: int,
        message_count: int,
        body: Buffer,
        *,
        base: BrokerEntryMetadata | None = None,
        sender: Sender | None = None,
        header: MessageHeader | None = None,
    ) -> bytes:
        """The prefix to store in front of `body`; b"" without messages, stampers or fields.

        `index` is that of the last message, `base` has the fields that the store itself sets, and
        `header` is the body's, if the caller reads it too: so it is parsed only once.

        Raises DoubleStampError: `body` already begins with a prefix; StampingError: a stamper
        failed or wrote a field that is not its own, the prefix is too large, or a number no uint64.
        """
        if has_prefix(body):
            raise DoubleStampError(topic)
        if message_count <= 0 or not self._stampers:
            return b""
        try:
            if base is None and self.is_plain_stamp:
                return pack_stamp(now_ms, index)
            metadata = BrokerEntryMetadata()
            if base is not None:
                metadata.CopyFrom(base)
            context = StampContext(
                topic, now_ms, index, message_count, body, sender, self._broker_name,
                metadata.entry_kind, metadata.control_type, metadata.source_format, header,
            )  # fmt: skip
            return self._stamp(context, metadata)
        except StampingError:
            raise
        except ValueError as error:
            raise StampingError("+".join(self.names), topic, str(error)) from error

    def _stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> bytes:
        """Call every stamper that stamps this kind of entry, and pack the fields they wrote."""
        links = self._control_links if context.kind == CONTROL else self._links
        for link in links:
            try:
                if link.is_built_in:
                    link.stamper.stamp(context, metadata)
                else:
                    _stamp_foreign(link, context, metadata)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise StampingError(link.stamper.name, context.topic, reason) from error
        return pack(metadata) if metadata.ByteSize() else b""


def _link(stamper: Stamper) -> _Link:
    fields = getattr(stamper, "fields", None)
    try:
        numbers = frozenset({APPLICATION_TAGS_FIELD} if fields is None else map(int, fields))
    except (TypeError, ValueError) as error:
        raise StamperFieldError(stamper.name, fields, "not a set of field numbers") from error
    return _Link(
        stamper, numbers, bool(getattr(stamper, "stamps_control", False)), type(stamper) in STAMPERS
    )


def _check_fields(links: Iterable[_Link]) -> None:
    """Raise StamperFieldError for a number that no plugin may use, or that another plugin uses."""
    owners: dict[int, str] = {}
    for link in links:
        if link.is_built_in:
            continue
        name = link.stamper.name
        for number in sorted(link.fields - {APPLICATION_TAGS_FIELD}):
            if number not in FOREIGN_FIELDS:
                reason = (
                    f"a plugin may write {APPLICATION_TAGS_FIELD} (application tags) and "
                    f"{FOREIGN_FIELDS.start} to {FOREIGN_FIELDS.stop - 1}"
                )
                raise StamperFieldError(name, number, reason)
            if number in owners:
                reason = f"stamper {owners[number]!r} writes it too"
                raise StamperFieldError(name, number, reason)
            owners[number] = name


def _stamp_foreign(link: _Link, context: StampContext, metadata: BrokerEntryMetadata) -> None:
    """Let a plugin write into an empty message, check its fields, and merge them."""
    written = BrokerEntryMetadata()
    link.stamper.stamp(context, written)
    undeclared = sorted(field_numbers(written.SerializePartialToString()) - link.fields)
    if undeclared:
        reason = "the stamper wrote it without declaring it"
        raise StamperFieldError(link.stamper.name, undeclared[0], reason)
    tags = application_tags(written)
    if tags:
        del written.application_tags[:]
        add_application_tags(metadata, tags)
    metadata.MergeFrom(written)


def split_stamper_names(text: str) -> tuple[str, ...]:
    """The names in a line, each `name` or `name:argument`, in their order; without empty ones."""
    names: list[str] = []
    for group in text.split(";"):
        head, colon, argument = group.partition(":")
        *before, last = head.split(",")
        names += [*before, f"{last}{colon}{argument}"]
    return tuple(name.strip() for name in names if name.strip())


def join_stamper_names(names: Iterable[str]) -> str:
    """The line for these names. An argument that contains a semicolon cannot be written so."""
    line = ""
    for name in names:
        separator = "" if not line else ";" if ":" in line.rpartition(";")[2] else ","
        line += f"{separator}{name}"
    return line
