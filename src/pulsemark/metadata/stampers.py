"""The chain of a topic's stampers: who writes what into an entry's prefix, applied once.

A topic has one chain. At append the ledger asks it for the entry's prefix, with the time and the
index that the ledger has just given out; each stamper of the chain writes its own fields. Rules:

- An entry is stamped once, when it is appended. Bytes that begin with 0x0e02 are refused whatever
  the chain holds, even if it is empty: stored as they are, they would be read as the broker's
  own prefix.
- An empty chain, or an entry of no messages, gives no prefix. Readers decide per entry.
- Field numbers are fenced. A plugin says which numbers it writes: application tags (109), and
  numbers from 1000 to 18999 that no other stamper of the chain writes. A chain in which that does
  not hold cannot be made (`StamperFieldError`); a plugin that writes another number than it said
  fails the append (`StampingError`). It writes into an empty message, so that it can neither
  change nor read what others wrote; time, index and system tags are the broker's alone.
- Control entries are shown to those plugins only that ask for them.
- A failing stamper fails the append (`StampingError`), before anything is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..proto.broker_entry_pb2 import CONTROL, BrokerEntryMetadata
from .buffers import Buffer
from .builtin_stampers import STAMPERS, BrokerTimeStamper, IndexStamper
from .errors import DoubleStampError, DuplicateStamperError, StamperFieldError, StampingError
from .message import MessageHeader
from .prefix import has_prefix, pack, pack_stamp
from .prefix_fields import field_numbers
from .stamp_context import Sender, StampContext, Stamper
from .stamper_plugins import load_stampers
from .tags import APPLICATION_TAGS_FIELD, add_application_tags, application_tags

FOREIGN_FIELDS = range(1000, 19_000)
"""Numbers that third parties may give to fields of their own."""


@dataclass(frozen=True, slots=True)
class _Link:
    """One stamper of a chain, and what it said of itself when the chain was made."""

    stamper: Stamper
    fields: frozenset[int]
    stamps_control: bool
    is_built_in: bool


class StamperChain:
    """The stampers of a topic, in the order in which they write. Immutable, safe between threads.

    Args:
        stampers: none switches stamping off.
        broker_name: the broker's advertised host and port, for stampers that write it.

    Raises:
        DuplicateStamperError: two of them have one name.
        StamperFieldError: one says that it writes a field that is not its own.
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
        kinds = {type(stamper) for stamper in self._stampers}
        #: Time and index are all that it writes: `pack_stamp` makes its prefixes.
        self.is_plain_stamp = kinds == {BrokerTimeStamper, IndexStamper}

    @classmethod
    def from_names(cls, names: Iterable[str]) -> StamperChain:
        """The chain that a configuration names; raises as `load_stampers` and the class itself."""
        return cls(load_stampers(names))

    def at_broker(self, broker_name: str) -> StamperChain:
        """The same stampers, at work in the broker of this name."""
        return StamperChain(self._stampers, broker_name=broker_name)

    @property
    def names(self) -> tuple[str, ...]:
        """The stampers' names, in order."""
        return tuple(stamper.name for stamper in self._stampers)

    @property
    def stamps_time(self) -> bool:
        """Whether every prefix that it gives has the broker's time."""
        return any(type(stamper) is BrokerTimeStamper for stamper in self._stampers)

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
        """The prefix to store in front of `body`.

        Args:
            topic: the topic's full name.
            now_ms: the entry's broker time in milliseconds.
            index: the index of the entry's last message.
            message_count: messages in the entry.
            body: the producer's headers-and-payload.
            base: fields that the store itself has to say (entry kind, leader epoch); the stampers
                write on top of a copy.
            sender: who sends the entry.
            header: the body's header, where the caller may want to read it, too: it is then
                parsed once for both.

        Returns:
            b"" if the chain is empty, if the entry holds no message, or if no stamper had
            anything to write.

        Raises:
            DoubleStampError: `body` begins with a prefix already.
            StampingError: a stamper failed, or wrote a field that is not its own; or no prefix can
                hold what they wrote: it is too large, or a number is no uint64.
        """
        if has_prefix(body):
            raise DoubleStampError(topic)
        if message_count <= 0 or not self._stampers:
            return b""
        try:
            if base is None:
                if self.is_plain_stamp:
                    return pack_stamp(now_ms, index)
                context = StampContext(
                    topic, now_ms, index, message_count, body, sender, self._broker_name,
                    header=header,
                )  # fmt: skip
            else:
                context = StampContext(
                    topic, now_ms, index, message_count, body, sender, self._broker_name,
                    base.entry_kind, base.control_type, base.source_format, header,
                )  # fmt: skip
            return self._stamp(context, base)
        except StampingError:
            raise
        except ValueError as error:
            raise StampingError("+".join(self.names), topic, str(error)) from error

    def _stamp(self, context: StampContext, base: BrokerEntryMetadata | None) -> bytes:
        """Ask every stamper that wants this kind of entry, and pack what they wrote."""
        metadata = BrokerEntryMetadata()
        if base is not None:
            metadata.CopyFrom(base)
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
        raise StamperFieldError(stamper.name, fields, "is no set of field numbers") from error
    return _Link(
        stamper,
        numbers,
        bool(getattr(stamper, "stamps_control", False)),
        type(stamper) in STAMPERS,
    )


def _check_fields(links: Iterable[_Link]) -> None:
    """Raise StamperFieldError for a number that cannot be a plugin's, or is another plugin's."""
    owners: dict[int, str] = {}
    for link in links:
        if link.is_built_in:
            continue
        name = link.stamper.name
        for number in sorted(link.fields - {APPLICATION_TAGS_FIELD}):
            if number not in FOREIGN_FIELDS:
                reason = (
                    f"a plugin's are {APPLICATION_TAGS_FIELD} (application tags) and "
                    f"{FOREIGN_FIELDS.start} to {FOREIGN_FIELDS.stop - 1}"
                )
                raise StamperFieldError(name, number, reason)
            if number in owners:
                raise StamperFieldError(name, number, f"it is also {owners[number]!r}'s")
            owners[number] = name


def _stamp_foreign(link: _Link, context: StampContext, metadata: BrokerEntryMetadata) -> None:
    """Let a plugin write into an empty message, and take over what it may write."""
    written = BrokerEntryMetadata()
    link.stamper.stamp(context, written)
    strangers = sorted(field_numbers(written.SerializePartialToString()) - link.fields)
    if strangers:
        raise StamperFieldError(link.stamper.name, strangers[0], "it wrote it, and did not say so")
    tags = application_tags(written)
    if tags:
        del written.application_tags[:]
        add_application_tags(metadata, tags)
    metadata.MergeFrom(written)
