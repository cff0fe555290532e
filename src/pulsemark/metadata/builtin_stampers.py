"""The built-in stampers (docs/stamps.md has their table), and finding stampers by name.

No stamper opens a payload, but for `has-keys:any`, which looks for keys in a batch. Stampers that
need the producer's header ask the context for it. The context parses the header once for all
stampers.

Control entries have no producer's header, nor have bodies in another format than Pulsar's. Fields
that come from the header are then left out, which means "not known". If a body should have a header
and the header cannot be read, the append fails.

**Plugins.** Third parties install stampers as entry points of the group `pulsemark.stampers`. Such
an entry point is a callable that returns a `Stamper`. A chain names it as `name`: then it is called
without an argument. Or it names it as `name:argument`: then it is called with that one string.
docs/stamps.md has the whole contract.

A plugin that adds its own fields to the entry metadata imports their generated code. After it is
loaded, protobuf knows those fields by name. Readers that show fields call `load_all_plugins`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from ..proto.broker_entry_pb2 import BrokerEntryMetadata, SourceFormat
from ..proto.pulsar_api_pb2 import NONE, KeyValue, MessageMetadata
from .compression import CompressionUnavailableError, DecompressionError, decompress
from .crc import Buffer
from .errors import MessageFormatError, StamperLoadError, UnknownStamperError
from .message import batch_members, compression_of, message_count_of, payload_of
from .prefix import add_application_tags
from .stamp_context import StampContext, Stamper

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

_log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "pulsemark.stampers"


class BuiltInStamper:
    """A stamper of one field, which it gets with its name."""

    __slots__ = ()
    name: ClassVar[str]
    fields: ClassVar[frozenset[int]]
    stamps_control: ClassVar[bool]

    def __init_subclass__(cls, *, name: str, field: str, stamps_control: bool = False) -> None:
        cls.name, cls.stamps_control = name, stamps_control
        cls.fields = frozenset({BrokerEntryMetadata.DESCRIPTOR.fields_by_name[field].number})


class BrokerTimeStamper(
    BuiltInStamper, name="broker-time", field="broker_timestamp", stamps_control=True
):
    """Field 1: the broker's time in milliseconds, never falling within a topic (PIP-70)."""

    __slots__ = ()

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `broker_timestamp`."""
        metadata.broker_timestamp = context.now_ms


class IndexStamper(BuiltInStamper, name="index", field="index", stamps_control=True):
    """Field 2: the index of the entry's last message (PIP-70)."""

    __slots__ = ()

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `index`."""
        metadata.index = context.index


class MessageCountStamper(
    BuiltInStamper, name="message-count", field="message_count", stamps_control=True
):
    """Field 100: how many messages the entry counts for; a control entry counts one."""

    __slots__ = ()

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `message_count`."""
        metadata.message_count = context.message_count


#: The largest batch, decompressed, that is opened; of larger ones only the header is read.
OPENED_BATCH_MAX_BYTES = 128 * 1024


class HasKeysStamper(BuiltInStamper, name="has-keys", field="has_keys"):
    """Field 106: a message of the entry has a key. If it is missing, nothing is known.

    A batch's header has a key if the client groups messages by key, or copies the first one's.
    `has-keys:any` looks into a batch, too, up to its first message with a key. If none has one, the
    field is false. A batch that is encrypted, damaged, larger than `OPENED_BATCH_MAX_BYTES` or of a
    codec that is not installed is taken by its header.
    """

    __slots__ = ("_opens_batches",)

    def __init__(self, *, opens_batches: bool = False) -> None:
        self._opens_batches = opens_batches

    @classmethod
    def parse(cls, argument: str = "") -> HasKeysStamper:
        """Parse the argument: nothing, or "any". Raises ValueError for another text."""
        if argument.strip() not in ("", "any"):
            raise ValueError("takes no argument but any: has-keys:any")
        return cls(opens_batches=bool(argument.strip()))

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `has_keys` if it is known whether there is a key."""
        if not context.is_message:
            return
        message = context.message_metadata()
        if message.HasField("partition_key") or message.HasField("ordering_key"):
            metadata.has_keys = True
        elif self._opens_batches:
            known = _has_keys_inside(message, context.body)
            if known is not None:
                metadata.has_keys = known


def _has_keys_inside(message: MessageMetadata, body: Buffer) -> bool | None:
    """Whether a message of a batch has a key; None: not known. The header has none."""
    if not message.HasField("num_messages_in_batch"):
        return False
    payload = payload_of(body)
    if message.encryption_keys or len(payload) > OPENED_BATCH_MAX_BYTES:
        return None
    try:
        plain = decompress(
            compression_of(message), payload, message.uncompressed_size, OPENED_BATCH_MAX_BYTES
        )
        headers = (each.header for each in batch_members(plain, message_count_of(message)))
        return any(
            each.HasField("partition_key") or each.HasField("ordering_key") for each in headers
        )
    except (DecompressionError, CompressionUnavailableError, MessageFormatError):
        return None


class RawSizeStamper(BuiltInStamper, name="raw-size", field="raw_size_bytes"):
    """Field 107: the payload's size before compression, in bytes.

    This is the size that the producer's header states. If the header states none, it is the
    payload's own size, provided that the payload is neither compressed nor encrypted. If neither is
    known, or if the payload is empty, the field is left out.
    """

    __slots__ = ()

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `raw_size_bytes` if it is known."""
        if context.is_message:
            size_bytes = _raw_size_bytes(context.message_metadata(), context.body)
            if size_bytes:
                metadata.raw_size_bytes = size_bytes


def _raw_size_bytes(message: MessageMetadata, body: Buffer) -> int:
    """The payload's size before compression and encryption; 0: not known."""
    if message.uncompressed_size:
        return message.uncompressed_size
    if message.compression != NONE or message.encryption_keys:
        return 0
    return len(payload_of(body))


class TombstoneStamper(BuiltInStamper, name="tombstone", field="tombstone"):
    """Field 108: the message deletes its key, though it may have a value (KIP-87).

    A producer says so by a property with the value "true"; the policy names the property. Official
    clients put the properties of batched messages inside the payload, which no stamper opens. So
    the field is written for messages that are sent alone. Compaction and Kafka's consumers find
    the property in batches too, by the policy of that moment.
    """

    __slots__ = ("property_name",)

    def __init__(self, property_name: str) -> None:
        self.property_name = property_name

    @classmethod
    def parse(cls, argument: str = "") -> TombstoneStamper:
        """Parse the argument: a property's name. Raises ValueError if it is empty."""
        if not argument.strip():
            raise ValueError("needs the name of a property: tombstone:PROPERTY")
        return cls(argument.strip())

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `tombstone` if the message has the property; its last value counts."""
        if not context.is_message:
            return
        if says_tombstone(context.message_metadata().properties, self.property_name):
            metadata.tombstone = True


def says_tombstone(properties: Iterable[KeyValue], name: str | None) -> bool:
    """Whether the last value of the property `name` is "true"; None: there is no such property."""
    value: str | bytes = ""
    for pair in properties if name is not None else ():
        if pair.key == name:
            value = pair.value
    return value == "true"


class PropertyTagsStamper(BuiltInStamper, name="property-tags", field="application_tags"):
    """Field 109: copies properties with certain names into application tags.

    A property of the entry's own header wins over one that the producer was opened with. Official
    clients put the properties of batched messages inside the payload, which no stamper opens. So a
    batch gets only the producer's properties. A property that is not set gives no tag. If a
    property is set twice, its last value counts, as in Pulsar's clients.
    """

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    @classmethod
    def parse(cls, argument: str = "") -> PropertyTagsStamper:
        """Parse the argument: names separated by commas. Raises ValueError."""
        names = [name.strip() for name in argument.split(",")]
        if not all(names):
            raise ValueError("needs the names of properties: property-tags:NAME[,NAME...]")
        return cls(names)

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `application_tags`, in the order of their names."""
        if not context.is_message:
            return
        tags: dict[str, bytes] = {}
        if context.sender is not None:
            for name, text in context.sender.properties.items():
                if name in self._names:
                    tags[name] = _bytes(text)
        for pair in context.message_metadata().properties:
            if pair.key in self._names:
                tags[pair.key] = _bytes(pair.value)
        if tags:
            add_application_tags(metadata, tags)


def _bytes(value: str | bytes) -> bytes:
    """A property's bytes. protobuf's C parser returns a string that is not UTF-8 as bytes."""
    return value.encode() if isinstance(value, str) else value


class ProducerStamper(BuiltInStamper, name="producer", field="producer_name"):
    """Field 110: the producer's name, as the connection has it.

    Only the broker knows this name for certain, because a client can write any name into a header.
    If an entry comes without a connection (a program that appends to a ledger itself), the name in
    its header is used.
    """

    __slots__ = ()

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `producer_name`."""
        if context.sender is not None:
            metadata.producer_name = context.sender.producer_name
        elif context.is_message:
            metadata.producer_name = context.message_metadata().producer_name


#: The offset of the time in the header of a Kafka record set.
_SET_TIME_AT = {SourceFormat.SOURCE_KAFKA_MAGIC_1: 18, SourceFormat.SOURCE_KAFKA_MAGIC_2: 35}


class SendTimeStamper(BuiltInStamper, name="send-time", field="send_time_ms"):
    """Field 111: when the entry was sent, by the producer's clock, in milliseconds.

    It is the publish time of a message in Pulsar's format. Of a Kafka record set it is the time in
    its first header: the latest of its records, or the first one's if the set is not compressed
    and of magic 1. Magic 0 has no times, so the field is left out, as for a time below 1.
    """

    __slots__ = ()

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `send_time_ms`."""
        if context.is_message:
            metadata.send_time_ms = context.message_metadata().publish_time
        elif context.source_format in _SET_TIME_AT:
            at = _SET_TIME_AT[context.source_format]
            time_ms = int.from_bytes(context.body[at : at + 8], "big", signed=True)
            if time_ms > 0:
                metadata.send_time_ms = time_ms


class BrokerStamper(BuiltInStamper, name="broker", field="broker_name", stamps_control=True):
    """Field 112: the broker's name. A ledger that is used without a broker leaves it out."""

    __slots__ = ()

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write `broker_name`."""
        if context.broker_name:
            metadata.broker_name = context.broker_name


STAMPERS: tuple[type, ...] = (
    BrokerTimeStamper,
    IndexStamper,
    MessageCountStamper,
    HasKeysStamper,
    RawSizeStamper,
    TombstoneStamper,
    PropertyTagsStamper,
    ProducerStamper,
    SendTimeStamper,
    BrokerStamper,
)
"""All built-in stampers. A stamper that takes an argument has a class method `parse`."""
BUILT_IN: dict[str, Callable[..., Stamper]] = {
    str(kind.__dict__["name"]): getattr(kind, "parse", kind) for kind in STAMPERS
}


def load_stampers(names: Iterable[str]) -> list[Stamper]:
    """The stampers with these names (`name` or `name:argument`), in this order.

    Raises:
        UnknownStamperError: a stamper is neither built in nor installed.
        StamperLoadError: a stamper is installed but cannot be imported, refuses its argument, is
            not a `Stamper`, or has a built-in name; or two packages have a stamper with this name.
    """
    return [_load(name) for name in names]


@cache
def load_all_plugins() -> None:
    """Import every installed plugin, so that their fields are known by name. This call blocks.

    A plugin that cannot be imported is logged and skipped: its fields are shown by their numbers.
    """
    for plugin in _installed_plugins():
        try:
            plugin.load()
        except Exception as error:  # noqa: BLE001 - a third party's package may raise anything
            _log.warning(
                "stamper plugin %s cannot be imported, so its fields are shown by number: %s",
                plugin.value,
                error,
            )


def _load(spec: str) -> Stamper:
    name, colon, argument = spec.partition(":")
    is_built_in = name in BUILT_IN
    factory = BUILT_IN[name] if is_built_in else _installed_factory(name)
    try:
        stamper = factory(argument) if colon else factory()
    except Exception as error:
        raise StamperLoadError(spec, f"{type(error).__name__}: {error}") from error
    if not isinstance(stamper, Stamper):
        raise StamperLoadError(spec, f"{type(stamper).__name__} has no name or no stamp()")
    if not is_built_in and stamper.name in BUILT_IN:
        raise StamperLoadError(spec, f"its name is {stamper.name!r}, which is a built-in stamper")
    return stamper


def _installed_factory(name: str) -> Callable[..., Stamper]:
    """The only entry point with that name, loaded."""
    plugins = _installed_plugins()
    found = plugins.select(name=name)
    if not found:
        raise UnknownStamperError(name, tuple(sorted({*BUILT_IN, *plugins.names})))
    if len(found) > 1:
        offers = ", ".join(sorted(plugin.value for plugin in found))
        raise StamperLoadError(name, f"several packages have a stamper with this name: {offers}")
    (plugin,) = found
    try:
        factory: Callable[..., Stamper] = plugin.load()
    except Exception as error:
        raise StamperLoadError(name, f"{type(error).__name__}: {error}") from error
    return factory


def _installed_plugins() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINT_GROUP)
