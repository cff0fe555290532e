"""Stampers: who writes what into an entry's prefix, and the chain that applies them once.

A topic has one chain. At append the ledger asks it for the entry's prefix, with the time and the
index that the ledger has just given out; each stamper of the chain writes its own fields. Rules:

- An entry is stamped once, when it is appended. Bytes that begin with 0x0e02 are refused whatever
  the chain holds, even if it is empty: stored as they are, they would be read as the broker's
  own prefix.
- An empty chain, or an entry of no messages, gives no prefix. Readers decide per entry.
- Time and index are the ledger's. A stamper may write fields 1 and 2 only with the context's
  values, so that no plugin can break the order which searches rely on.
- Control entries, the broker's own marks, are shown only to stampers that say so by an attribute
  ``stamps_control`` that is true, as the built-in ones for time and index do: a stamper made for
  producers' messages must not keep a leader's epoch from beginning.
- A failing stamper fails the append (`StampingError`), before anything is stored.

Third parties bring stampers as entry points of the group `pulsemark.stampers`: a callable that
returns a `Stamper`. It is named in a chain as `name`, then it is called without argument, or as
`name:argument`, then with that one string. Their own fields have numbers from 1000 to 18999
(see broker_entry.proto), or are application tags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..proto.broker_entry_pb2 import CONTROL, SOURCE_PULSAR, BrokerEntryMetadata
from ..proto.pulsar_api_pb2 import MessageMetadata
from .buffers import Buffer
from .errors import (
    DoubleStampError,
    DuplicateStamperError,
    StamperLoadError,
    StampingError,
    UnknownStamperError,
)
from .message import read_message_metadata
from .prefix import has_prefix, pack, pack_stamp
from .tags import add_application_tags

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINT_GROUP = "pulsemark.stampers"


@dataclass(frozen=True, slots=True)
class StampContext:
    """What a stamper may know of the entry it stamps.

    Attributes:
        topic: the topic's full name.
        now_ms: the entry's broker time, never before the topic's last, in milliseconds.
        index: the index of the entry's last message.
        message_count: messages in the entry, at least 1.
        body: the producer's headers-and-payload; not to be written to or kept.
    """

    topic: str
    now_ms: int
    index: int
    message_count: int
    body: Buffer
    _parsed: list[MessageMetadata] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def message_metadata(self) -> MessageMetadata:
        """The producer's metadata, parsed when first asked for and shared by the chain.

        Raises:
            MessageFormatError: the body is no message.
        """
        if not self._parsed:
            self._parsed.append(read_message_metadata(self.body))
        return self._parsed[0]


@runtime_checkable
class Stamper(Protocol):
    """Writes some fields of the broker entry metadata. Shared by topics and threads: no state."""

    @property
    def name(self) -> str:
        """The stamper's name; a chain holds each name once."""
        ...

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write this stamper's fields into `metadata`. On the append path: never block.

        An exception fails the append.
        """
        ...


class BrokerTimeStamper:
    """Field 1: the broker's time in milliseconds, never falling within a topic (PIP-70)."""

    __slots__ = ()
    name = "broker-time"
    stamps_control = True

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `broker_timestamp`."""
        metadata.broker_timestamp = context.now_ms


class IndexStamper:
    """Field 2: the index of the entry's last message (PIP-70)."""

    __slots__ = ()
    name = "index"
    stamps_control = True

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `index`."""
        metadata.index = context.index


class PropertyTagsStamper:
    """Field 109: lifts the producer's properties of certain names into application tags.

    Of a batch these are the properties of the batch itself, since its messages lie in the payload,
    which no stamper opens. A property that the producer did not set gives no tag; one set twice
    counts as its last value, as Pulsar's clients read it. Control entries and bodies in another
    format than Pulsar's have no properties.

    Args:
        names: the properties to lift.
    """

    __slots__ = ("_names",)
    name = "property-tags"

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    @classmethod
    def parse(cls, argument: str = "") -> PropertyTagsStamper:
        """From a configuration's text: the properties' names, separated by commas.

        Raises:
            ValueError: no name is given.
        """
        names = [name.strip() for name in argument.split(",")]
        if not all(names):
            raise ValueError("needs the names of properties: property-tags:NAME[,NAME...]")
        return cls(names)

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `application_tags`, in the order of their names."""
        if metadata.entry_kind == CONTROL or metadata.source_format != SOURCE_PULSAR:
            return
        tags: dict[str, bytes] = {}
        for pair in context.message_metadata().properties:
            if pair.key in self._names:
                # protobuf's C parser hands a string that is not UTF-8 on as bytes.
                value: str | bytes = pair.value
                tags[pair.key] = value.encode() if isinstance(value, str) else value
        if tags:
            add_application_tags(metadata, tags)


class StamperChain:
    """The stampers of a topic, in the order in which they write. Immutable, safe between threads.

    Args:
        stampers: none switches stamping off.

    Raises:
        DuplicateStamperError: two of them have one name.
    """

    __slots__ = ("_is_plain_stamp", "_stampers")

    def __init__(self, stampers: Sequence[Stamper] = ()) -> None:
        self._stampers = tuple(stampers)
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise DuplicateStamperError(name)
            seen.add(name)
        kinds = {type(stamper) for stamper in self._stampers}
        self._is_plain_stamp = kinds == {BrokerTimeStamper, IndexStamper}

    @classmethod
    def from_names(cls, names: Iterable[str]) -> StamperChain:
        """The chain that a configuration names; raises as `load_stampers` and the class itself."""
        return cls(load_stampers(names))

    @property
    def names(self) -> tuple[str, ...]:
        """The stampers' names, in order."""
        return tuple(stamper.name for stamper in self._stampers)

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
    ) -> bytes:
        """The prefix to store in front of `body`.

        Args:
            topic: the topic's full name.
            now_ms: the entry's broker time in milliseconds (see `clock.next_stamp_ms`).
            index: the index of the entry's last message.
            message_count: messages in the entry.
            body: the producer's headers-and-payload.
            base: fields that the store itself has to say (entry kind, leader epoch); the stampers
                write on top of a copy.

        Returns:
            b"" if the chain is empty, if the entry holds no message, or if no stamper had
            anything to write.

        Raises:
            DoubleStampError: `body` begins with a prefix already.
            StampingError: a stamper failed, or gave a time or index of its own; or no prefix can
                hold what they wrote: it is too large, or a number is no uint64.
        """
        if has_prefix(body):
            raise DoubleStampError(topic)
        if message_count <= 0 or not self._stampers:
            return b""
        try:
            if self._is_plain_stamp and base is None:
                return pack_stamp(now_ms, index)
            context = StampContext(topic, now_ms, index, message_count, body)
            return self._stamp(context, base)
        except StampingError:
            raise
        except ValueError as error:
            raise StampingError("+".join(self.names), topic, str(error)) from error

    def _stamp(self, context: StampContext, base: BrokerEntryMetadata | None) -> bytes:
        """Ask every stamper, and pack what they wrote."""
        metadata = BrokerEntryMetadata()
        if base is not None:
            metadata.CopyFrom(base)
        is_control = metadata.entry_kind == CONTROL
        for stamper in self._stampers:
            if not is_control or getattr(stamper, "stamps_control", False):
                _apply(stamper, context, metadata)
        return pack(metadata) if metadata.ByteSize() else b""


def _apply(stamper: Stamper, context: StampContext, metadata: BrokerEntryMetadata) -> None:
    """Let one stamper write, and see that it kept to its own fields."""
    try:
        stamper.stamp(context, metadata)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise StampingError(stamper.name, context.topic, reason) from error
    if metadata.HasField("broker_timestamp") and metadata.broker_timestamp != context.now_ms:
        raise StampingError(stamper.name, context.topic, "it wrote a broker time of its own")
    if metadata.HasField("index") and metadata.index != context.index:
        raise StampingError(stamper.name, context.topic, "it wrote an index of its own")


_BUILT_IN: dict[str, Callable[..., Stamper]] = {
    BrokerTimeStamper.name: BrokerTimeStamper,
    IndexStamper.name: IndexStamper,
    PropertyTagsStamper.name: PropertyTagsStamper.parse,
}


def load_stampers(names: Iterable[str]) -> list[Stamper]:
    """The stampers of these names, in this order. Built-in names cannot be taken by a plugin.

    Args:
        names: each `name` or `name:argument`; built in are broker-time, index and
            property-tags:NAME[,NAME...].

    Raises:
        UnknownStamperError: neither built in nor installed.
        StamperLoadError: installed, but it cannot be imported, refuses its argument, is no
            stamper, or two packages offer it.
    """
    return [_load(name) for name in names]


def _load(spec: str) -> Stamper:
    name, colon, argument = spec.partition(":")
    factory = _BUILT_IN.get(name) or _installed_factory(name)
    try:
        stamper = factory(argument) if colon else factory()
    except Exception as error:
        raise StamperLoadError(spec, f"{type(error).__name__}: {error}") from error
    if not isinstance(stamper, Stamper):
        raise StamperLoadError(spec, f"{type(stamper).__name__} has no name or no stamp()")
    return stamper


def _installed_factory(name: str) -> Callable[..., Stamper]:
    """The one entry point of that name, loaded."""
    plugins = _installed_plugins()
    found = plugins.select(name=name)
    if not found:
        raise UnknownStamperError(name, sorted({*_BUILT_IN, *plugins.names}))
    if len(found) > 1:
        offers = ", ".join(sorted(plugin.value for plugin in found))
        raise StamperLoadError(name, f"several packages offer it: {offers}")
    (plugin,) = found
    try:
        factory: Callable[..., Stamper] = plugin.load()
    except Exception as error:
        raise StamperLoadError(name, f"{type(error).__name__}: {error}") from error
    return factory


def _installed_plugins() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINT_GROUP)
