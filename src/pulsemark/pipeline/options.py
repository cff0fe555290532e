"""The source's options, parsed once and typed; all later code uses :class:`ReadOptions`.

Case, underscores and dots in names do not matter, because Spark changes names to lower case in some
calls: ``startingTime``, ``startingtime`` and ``starting_time`` are the same option. An unknown
option is an error; it is never ignored. The parsers raise ``ValueError`` with a reason, which
:class:`Given` makes an :class:`~pulsemark.pipeline.errors.OptionError` that names the option.

A range has two ends, each given as a time or as an offset, and is half-open (``[start, end)``):

- Times are entry times (PIP-70: the broker's stamp, else the producer's publish time), in
  milliseconds since the epoch or ISO-8601 (UTC if no zone is given). A number that would be a time
  long before Pulsar existed is refused: it is probably seconds, or a date without its dashes.
- Offsets are indexes: a number, ``earliest`` or ``latest``.
- Both can be given by topic, as JSON, with the names and numbers of Spark's source for Kafka.

An entry is in a range if its last message is (that is the entry's index, PIP-70).

A read's topics are in a data folder, in BookKeeper, or with a service that is called over gRPC. Of
the service's options Spark's own redaction hides those whose names contain ``token`` in its plans
and pages. With ``tokenFile`` the token itself is not in the options at all; the file is read on
each machine that opens a connection.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from ..audit.rows import MAX_MESSAGES_PER_ENTRY, MAX_TIME_MS
from ..extras import install_command
from ..ledger import FolderReader
from ..ledger.bookkeeper.address import StoreAddress, StoreAddressError, is_store_address
from ..metadata.partition_names import partition_name, partition_of
from .columns import COLUMNS, DEFAULT_COLUMNS
from .errors import OptionError
from .filters import Where, parse_where

if TYPE_CHECKING:
    from ..finder.client import SeekClient
    from ..ledger.bookkeeper.reader import BookKeeperReader


MAX_PARTITIONS = 10_000
MAX_INDEX = 2**63 - 1
_USUAL_DELAY_MS = 15 * 60_000
"""As in Spark's source for Kafka."""


class BoundKind(Enum):
    """The way in which one end of a range is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    INDEX = "index"
    TIME = "time"
    BY_TOPIC = "by topic"


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range; ``value`` is an index, or a time in ms, by ``kind``."""

    kind: BoundKind
    value: int = 0
    option: str = field(default="", compare=False)
    """The option that gave it, for errors."""
    must_match: bool = False
    """Whether it is an error if no entry is at or after this time."""
    by_topic: Mapping[str, Bound] = field(default_factory=dict, hash=False)
    """Of `BY_TOPIC`: the bounds by full name; that of a partitioned topic is its partitions'."""

    def of(self, topic: str) -> Bound:
        """The bound in one topic. Raises OptionError if it is by topic, and not for this one."""
        if self.kind is not BoundKind.BY_TOPIC:
            return self
        found = self.by_topic.get(topic) or self.by_topic.get(partition_of(topic)[0])
        if found is None:
            reason = f"does not name {topic}; name all topics (-1 is latest, -2 earliest)"
            raise OptionError(self.option, None, reason)
        return found

    def matched(self, topic: str, index: int, next_index: int) -> int:
        """The index that was found for a time. Raises OptionError if it must match and did not."""
        if self.must_match and index >= next_index:
            reason = (
                f"no entry of {topic} is at or after it;"
                f" {STRATEGY}=latest begins at the topic's end then"
            )
            raise OptionError(self.option, str(self.value), reason)
        return index


STRATEGY = "startingOffsetsByTimestampStrategy"
EARLIEST = Bound(BoundKind.EARLIEST)
LATEST = Bound(BoundKind.LATEST)


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which topics to read: ``names`` (as given), or all topics that match ``pattern``."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def may_have(self, name: str) -> bool:
        """Whether it can select this topic, or partitions of it."""
        if self.pattern is None:
            return name in self.names or partition_of(name)[0] in self.names
        matches = re.compile(self.pattern).fullmatch
        return bool(matches(name) or matches(partition_name(name, 0)))


@dataclass(frozen=True, slots=True)
class EntryLimits:
    """The limits of one entry after decompression; a larger entry is refused."""

    max_uncompressed_bytes: int = 128 << 20
    """Pulsar allows 5 MiB before decompression."""
    max_messages_per_entry: int = MAX_MESSAGES_PER_ENTRY
    """Pulsar's clients put at most 1,000 messages into a batch by default."""
    max_properties_per_entry: int = 1 << 18
    """The properties of all its messages together."""


class DecodeMode(Enum):
    """The handling of values that cannot be decoded by their schema; Spark's words."""

    PERMISSIVE = "PERMISSIVE"
    """It is null; the column ``__error`` has the reason."""
    FAILFAST = "FAILFAST"
    """The read fails."""


LATEST_SCHEMA = "latest"
"""The value of the option `valueSchema` for each topic's newest schema."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of a read."""

    path: Path
    """The data folder; not used if there is a ``service`` or a ``store``."""
    topics: TopicSelection
    start: Bound = EARLIEST
    end: Bound = LATEST
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    limits: EntryLimits = EntryLimits()
    value_schema: str | None = None
    """The schema that values are decoded by: ``latest`` or a version; None: they are not."""
    registry_schemas: str | None = None
    """A file or folder with a schema registry's schemas, whose ids are in front of values."""
    mode: DecodeMode = DecodeMode.FAILFAST
    where: Where | None = None
    """The rows to read; None: all."""
    uncommitted: bool = False
    """Also messages of open and aborted transactions, and those after the first open one."""
    service: ServiceOptions | None = None
    """The gRPC service to read from, or"""
    store: StoreAddress | None = None
    """the store in BookKeeper; None: a folder."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options of ``spark.read.format("pulsar-ledger")``.

        Raises OptionError for one that is unknown, missing, malformed, or contradicts another.
        """
        given = Given(options)
        given.refuse(STREAM_OPTIONS, "is for readStream only")
        topics = _topics(given)
        start = _bound(given, "starting", EARLIEST, topics)
        end = _bound(given, "ending", LATEST, topics)
        if start.kind is end.kind and start.value > end.value:
            raise OptionError(end.option, str(end.value), f"is before {start.value}")
        parsed = cls.of(given, topics, start, end)
        given.refuse_unknown()
        return parsed

    @classmethod
    def of(cls, given: Given, topics: TopicSelection, start: Bound, end: Bound) -> ReadOptions:
        """The options that reads and streams share."""
        fail_on_data_loss = given.get("failOnDataLoss", boolean, True)
        usual_mode = DecodeMode.FAILFAST if fail_on_data_loss else DecodeMode.PERMISSIVE
        service = service_of(given)
        path, store = (Path(), None) if service is not None else place_of(given)
        parsed = cls(
            path=path,
            store=store,
            topics=topics,
            start=start,
            end=end,
            fail_on_data_loss=fail_on_data_loss,
            limits=_limits(given),
            mode=given.get("mode", _decode_mode, usual_mode),
            service=service,
            **given.taken(
                columns=_columns,
                min_partitions=integer(1, MAX_PARTITIONS),
                value_schema=_value_schema,
                registry_schemas=str,
                uncommitted=boolean,
                where=_where,
            ),
        )
        if parsed.value_schema is None:
            given.refuse(["mode", "registrySchemas"], "needs the option valueSchema")
        return parsed

    def select(self, existing: Iterable[str]) -> tuple[list[str], list[str]]:
        """The topics to read, sorted, and the names without a topic."""
        found, absent = select_topics(self.topics, existing)
        if self.where is not None:
            found = [name for name in found if self.where.has_topic(name)]
        return found, absent


STREAM_OPTIONS = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "subscriptionName",
    "predefinedSubscription",
    "adminUrl",
)
"""The options that only a stream has."""


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """The subscription that a stream's progress is kept in, and the broker that has it."""

    name: str
    is_predefined: bool
    """Whether it has to exist."""
    service: ServiceOptions
    """Its target is the URL of the broker's REST API."""

    @classmethod
    def of(cls, given: Given) -> SubscriptionOptions | None:
        """The options' subscription; None if they name none. Raises OptionError."""
        names = "subscriptionName", "predefinedSubscription"
        given.only_one(*names)
        name = given.get("subscriptionName", text_of, None)
        predefined = given.get("predefinedSubscription", text_of, None)
        url = given.get("adminUrl", parse_admin_url, None)
        if name is None and predefined is None:
            given.refuse(["adminUrl"], f"needs the option {' or '.join(names)}")
            return None
        if url is None:
            reason = f"is required with {names[name is None]}: http://HOST:PORT of the broker"
            raise OptionError("adminUrl", None, reason)
        service = replace(access_of(given), target=url, tls=url.startswith("https:"))
        return cls(name or predefined or "", predefined is not None, service)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The parsed options of a stream: what it reads, and how much of it at once."""

    read: ReadOptions
    """Its end does not count: each micro-batch has its own."""
    max_offsets_per_trigger: int | None = None
    """The most messages of a micro-batch; None: no limit."""
    max_bytes_per_trigger: int | None = None
    """The most stored bytes of a micro-batch; None: no limit."""
    min_offsets_per_trigger: int | None = None
    """A micro-batch waits for so many messages, but no longer than ``max_trigger_delay_ms``."""
    max_trigger_delay_ms: int = _USUAL_DELAY_MS
    subscription: SubscriptionOptions | None = None
    """Follows the query's checkpoint."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Read the options of ``spark.readStream.format("pulsar-ledger")``.

        A stream begins at ``latest`` by default, like Spark's stream from Kafka.

        Raises OptionError for one that is unknown, missing, malformed, or contradicts another.
        """
        given = Given(options)
        given.refuse([f"ending{what}" for what in BOUNDS], "a stream has no end")
        count = integer(1, MAX_INDEX)
        topics = _topics(given)
        read = ReadOptions.of(given, topics, _bound(given, "starting", LATEST, topics), LATEST)
        parsed = cls(
            read,
            max_trigger_delay_ms=given.get("maxTriggerDelay", parse_duration_ms, _USUAL_DELAY_MS),
            subscription=SubscriptionOptions.of(given),
            **given.taken(
                max_offsets_per_trigger=count,
                max_bytes_per_trigger=count,
                min_offsets_per_trigger=count,
            ),
        )
        given.refuse_unknown()
        most, least = parsed.max_offsets_per_trigger, parsed.min_offsets_per_trigger
        if most and least and least > most:
            raise OptionError("minOffsetsPerTrigger", str(least), "exceeds maxOffsetsPerTrigger")
        return parsed


def options_of_either(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read or of a stream; Spark asks for columns before it says which it wants.

    Raises OptionError: the options are those of neither.
    """
    if Given(options).has(STREAM_OPTIONS):
        return StreamOptions.parse(options).read
    return ReadOptions.parse(options)


BOUNDS = ("Time", "Offsets", "Timestamp", "OffsetsByTimestamp")
"""How the options of a range's ends end; pulsar-spark's and those of Spark's source for Kafka."""


def _limits(given: Given) -> EntryLimits:
    return EntryLimits(
        **given.taken(
            # Arrow's offsets allow 2 GiB, which must be enough for a batch's entries and headers.
            max_uncompressed_bytes=integer(1, 1 << 30),
            max_messages_per_entry=integer(1, 2**31 - 1),
            max_properties_per_entry=integer(0, 2**31 - 1),
        )
    )


def _bound(given: Given, side: str, default: Bound, topics: TopicSelection) -> Bound:
    time, offsets, stamp, by_stamp = names = [f"{side}{what}" for what in BOUNDS]
    given.only_one(*names)
    is_start = side == "starting"
    must_match = given.get(STRATEGY, _is_error, True) and is_start
    if is_start and not given.has((stamp, by_stamp)):
        given.refuse([STRATEGY], f"needs {stamp} or {by_stamp}")

    def at(value: object, option: str = by_stamp, must_match: bool = must_match) -> Bound:
        return Bound(BoundKind.TIME, parse_time_ms(str(value)), option, must_match)

    parsers = {
        time: lambda text: at(text, time, must_match=False),
        offsets: lambda text: _offset(text, offsets, is_start, topics),
        stamp: lambda text: at(text, stamp),
        by_stamp: lambda text: _by_topic(text, by_stamp, at, topics),
    }
    found = (given.get(name, parse, None) for name, parse in parsers.items())
    return next((bound for bound in list(found) if bound is not None), default)


def _offset(text: str, option: str, is_start: bool, topics: TopicSelection) -> Bound:
    if text.strip().lower() == "earliest":
        return EARLIEST
    if text.strip().lower() == "latest":
        return LATEST
    if text.lstrip().startswith("{"):
        return _by_topic(text, option, partial(_offset_in_json, is_start), topics)
    try:
        return Bound(BoundKind.INDEX, integer(0, MAX_INDEX)(text), option)
    except ValueError:
        reason = "is neither an index (0 or more), 'earliest', 'latest' nor JSON by topic"
        raise ValueError(reason) from None


def _offset_in_json(is_start: bool, value: object) -> Bound:
    if value == -1 or (value == -2 and is_start):
        return LATEST if value == -1 else EARLIEST
    if type(value) is int and 0 <= value <= MAX_INDEX:
        return Bound(BoundKind.INDEX, value)
    words = "-1 (latest) or -2 (earliest)" if is_start else "or -1 (latest)"
    raise ValueError(f"{value!r} is neither an index, {words}")


def _by_topic(
    text: str, option: str, bound_of: Callable[[object], Bound], topics: TopicSelection
) -> Bound:
    """Bounds by topic: ``{"orders": 7, "prices": {"0": 3, "1": 9}}``, with partitions if wanted."""
    try:
        given = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    example = 'is not JSON by topic, such as {"orders": 7, "prices": {"0": 3, "1": 9}}'
    if not _is_object(given):
        raise ValueError(example)
    found: dict[str, Bound] = {}
    for short, value in given:
        try:
            topic = full_topic_name(short)
        except ValueError as error:
            raise ValueError(f"{short!r} {error}") from None
        parts = value if isinstance(value, list) else [(None, value)]
        if not _is_object(parts):
            raise ValueError(example)
        for number, part in parts:
            name = topic if number is None else partition_name(topic, integer(0, 2**31 - 1)(number))
            if name in found:
                raise ValueError(f"names {name} twice")
            if not topics.may_have(name):
                raise ValueError(f"names {name}, which is not read")
            found[name] = bound_of(part)
    return Bound(BoundKind.BY_TOPIC, option=option, by_topic=found)


def _is_object(value: object) -> bool:
    """Whether it is a JSON object with members, as pairs: repeated names are kept."""
    return isinstance(value, list) and bool(value) and all(type(each) is tuple for each in value)


def _topics(given: Given) -> TopicSelection:
    given.only_one("topic", "topics", "topicsPattern")
    name = given.get("topic", full_topic_name, None)
    names = given.get("topics", _topic_names, ())
    pattern = given.get("topicsPattern", parse_topics_pattern, None)
    if name is None and not names and pattern is None:
        raise OptionError("topic", None, "one of topic, topics and topicsPattern is required")
    return TopicSelection((name,) if name is not None else names, pattern)


def _topic_names(text: str) -> tuple[str, ...]:
    names = listed(text) if not text.lstrip().startswith("[") else None
    if names is None:
        try:
            names = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("begins with [ but is not a JSON list of names") from None
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError("is not a JSON list of at least one name")
    return tuple(dict.fromkeys(map(full_topic_name, names)))


def _is_error(text: str) -> bool:
    """Parse what happens if no entry is at or after a starting timestamp; Spark's words."""
    if text.strip().lower() not in ("error", "latest"):
        raise ValueError("is not one of error, latest")
    return text.strip().lower() == "error"


def _decode_mode(text: str) -> DecodeMode:
    try:
        return DecodeMode(text.strip().upper())
    except ValueError:
        raise ValueError(f"is not one of {', '.join(each.value for each in DecodeMode)}") from None


def _value_schema(text: str) -> str:
    """``latest``, or a version's number."""
    stripped = text.strip().lower()
    if stripped != LATEST_SCHEMA and not re.fullmatch("[0-9]{1,9}", stripped):
        raise ValueError("is neither 'latest' nor a version's number")
    return stripped


def _columns(text: str) -> tuple[str, ...]:
    names = listed(text)
    folded = {name.lower(): name for name in COLUMNS}
    for name in names:
        if name.lower() not in folded:
            raise ValueError(f"{name!r} is not a column; the columns are {', '.join(COLUMNS)}")
    columns = tuple(folded[name.lower()] for name in names)
    if len(set(columns)) < len(columns):
        raise ValueError("names a column twice")
    return columns


def _where(text: str) -> Where:
    return parse_where(text, full_topic_name, parse_time_ms)


def full_topic_name(name: str) -> str:
    """``x`` and ``tenant/namespace/x`` written out: ``persistent://tenant/namespace/x``.

    Blanks at the ends are a part of the name, as in Pulsar. Raises ValueError for what is neither
    a local, a short nor a full name.
    """
    domain, separator, rest = name.partition("://")
    if not separator:
        domain, rest = "persistent", domain
    if "/" not in rest and not separator:
        rest = f"public/default/{rest}"
    if domain != "persistent" or len(rest.split("/")) != 3 or not all(rest.split("/")):
        raise ValueError("is not a topic's name (x, tenant/namespace/x or persistent://...)")
    return f"{domain}://{rest}"


_LEADING_FLAGS = re.compile(r"\(\?([a-zA-Z]+)\)")


def parse_topics_pattern(text: str) -> str:
    """A regular expression for full topic names, completed in the same way as topic names.

    Flags at the beginning, as in ``(?i)x``, apply to the part that the user wrote.

    Raises ValueError: the expression does not compile.
    """
    pattern = text
    if "://" not in text:
        prefix = "persistent://" if "/" in text else "persistent://public/default/"
        leading = _LEADING_FLAGS.match(text)
        flags, rest = (leading[1], text[leading.end() :]) if leading else ("", text)
        # With the flag x, a comment at the end would include the bracket.
        pattern = f"{prefix}(?{flags}:{rest}{chr(10) if 'x' in flags else ''})"
    for each in (text, pattern):
        try:
            re.compile(each)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"is not a regular expression: {error}") from error
    return pattern


def select_topics(
    selection: TopicSelection, existing: Iterable[str]
) -> tuple[list[str], list[str]]:
    """The existing topics that are selected, sorted, and the names without a topic.

    A name also means the partitions of a partitioned topic (``x-partition-0`` ...).
    """
    existing = sorted(existing)
    if selection.pattern is not None:
        matches = re.compile(selection.pattern).fullmatch
        return [name for name in existing if matches(name)], []
    by_name: dict[str, list[str]] = {}
    for topic in existing:
        by_name.setdefault(topic, []).append(topic)
        base, index = partition_of(topic)
        if index >= 0:
            by_name.setdefault(base, []).append(topic)
    found = {topic for name in selection.names for topic in by_name.get(name, ())}
    return sorted(found), [name for name in selection.names if name not in by_name]


TopicsReader: TypeAlias = "FolderReader | BookKeeperReader"


def place_of(given: Given) -> tuple[Path, StoreAddress | None]:
    """The data folder, or the address of a store in BookKeeper. Raises OptionError."""
    place = given.required("path", _parse_place)
    if isinstance(place, Path):
        return place, None
    given.refuse(("valueSchema",), "needs a folder: schemas are not read from a store")
    given.refuse(("maxBytesPerTrigger",), "needs a folder: a store does not tell sizes")
    return Path(str(place)), place  # in errors of jobs that read folders only


def _parse_place(text: str) -> Path | StoreAddress:
    if not is_store_address(text.strip()):
        return parse_path(text)
    try:
        return StoreAddress.parse(text.strip())
    except StoreAddressError as error:
        raise ValueError(error.reason) from error


def opened(path: Path, store: StoreAddress | None) -> TopicsReader:
    """A reader of a place; close it after use. Raises ForeignFolderError, CatalogError."""
    return FolderReader(path) if store is None else opened_store(store)


def opened_store(store: StoreAddress) -> BookKeeperReader:
    """A reader of a store in BookKeeper. Raises CatalogError, OptionError."""
    try:
        from ..ledger.bookkeeper.reader import BookKeeperReader
    except ImportError as error:
        reason = f"needs {install_command('bookkeeper')}: {error}"
        raise OptionError("path", str(store), reason) from error
    return BookKeeperReader.open(str(store))


_NEED_A_SERVICE = ("token", "tokenFile", "tlsCa", "tlsCertificate", "tlsKey", "tlsServerName")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """A seek service, or a broker's REST API, and how to call it."""

    target: str
    """host:port, or a URL"""
    tls: bool = False
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_server_name: str | None = None

    def client(self) -> SeekClient:
        """A client; close it after use.

        Raises OptionError: the token or a file of TLS cannot be used.
        """
        from ..finder.client import ClientTls, SeekClient

        tls = None
        try:
            if self.tls:
                tls = ClientTls(
                    ca=self.tls_ca,
                    certificate=self.tls_certificate,
                    key=self.tls_key,
                    server_name=self.tls_server_name,
                )
            return SeekClient(self.target, token=self.token_text(), tls=tls)
        except (OSError, ValueError) as error:
            raise OptionError("grpcUrl", self.target, f"cannot be called: {error}") from error

    def token_text(self) -> str | None:
        """The token. Raises OSError, ValueError."""
        if self.token_file is None:
            return self.token
        return self.token_file.read_text(encoding="utf-8").strip()


def service_of(given: Given) -> ServiceOptions | None:
    """The service that the options name; None if the read is of a folder.

    Raises OptionError: an option is malformed, or needs another one.
    """
    service = given.get("grpcUrl", _parse_url, None)
    access = access_of(given)
    if service is None:
        if not given.has(["adminUrl"]):
            given.refuse(_NEED_A_SERVICE, "needs the option grpcUrl")
        return None
    given.refuse(("path",), "excludes grpcUrl: a read is of a folder or of a service")
    given.refuse(("topicsPattern",), "needs a folder: a service does not list its topics")
    given.refuse(("valueSchema",), "needs a folder: a service does not have the schemas")
    given.refuse(("maxBytesPerTrigger",), "needs a folder: a service does not tell sizes")
    if not service[1] and not given.has(["adminUrl"]):
        given.refuse(_NEED_A_SERVICE[2:], "needs a URL with grpcs://")
    return replace(access, target=service[0], tls=service[1])


def access_of(given: Given) -> ServiceOptions:
    """How a service is called, without its target. Raises OptionError."""
    given.only_one("token", "tokenFile")
    access = given.taken(
        token=text_of,
        token_file=Path,
        tls_ca=Path,
        tls_certificate=Path,
        tls_key=Path,
        tls_server_name=text_of,
    )
    return ServiceOptions("", **access)


def parse_admin_url(text: str) -> str:
    """The URL of a broker's REST API. Raises ValueError."""
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ValueError("is not of the form http://HOST:PORT")
    return text.strip().rstrip("/")


def _parse_url(text: str) -> tuple[str, bool]:
    uri = urlsplit(text.strip())
    try:
        port = uri.port
    except ValueError:
        port = None
    plain = not uri.path.strip("/") and not uri.query and uri.username is None
    if uri.scheme not in ("grpc", "grpcs") or not uri.hostname or port is None or not plain:
        raise ValueError("is not grpc://HOST:PORT or grpcs://HOST:PORT")
    return uri.netloc, uri.scheme == "grpcs"


def text_of(text: str) -> str:
    """A text without the blanks around it, which is not empty."""
    if not text.strip():
        raise ValueError("is empty")
    return text.strip()


_MIN_TIME_NUMBER = 100_000_000_000
"""As milliseconds in the year 1973; as seconds in the year 5138."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_T = TypeVar("_T")
_D = TypeVar("_D")


class Given:
    """The options as the user gave them, looked up without regard to case, underscores and dots."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._by_key: dict[str, tuple[str, str]] = {}
        for name, value in options.items():
            key = _key(name)
            if key in self._by_key and self._by_key[key][1] != value:
                raise OptionError(name, value, f"also given as {self._by_key[key][0]}")
            self._by_key[key] = (name, value)
        self._known: list[str] = []

    def get(self, name: str, parse: Callable[[str], _T], default: _D) -> _T | _D:
        """The parsed value of an option, or ``default`` if it was not given.

        ``parse`` raises ``ValueError`` with a reason, which becomes an :class:`OptionError`.
        """
        self._known.append(name)
        found = self._by_key.get(_key(name))
        if found is None:
            return default
        try:
            return parse(found[1])
        except ValueError as error:
            raise OptionError(name, found[1], str(error)) from error

    def taken(self, **parsers: Callable[[str], Any]) -> dict[str, Any]:
        """Some of the given options, parsed, by the names of their fields."""
        found = {name: self.get(camel(name), parse, None) for name, parse in parsers.items()}
        return {name: value for name, value in found.items() if value is not None}

    def required(self, name: str, parse: Callable[[str], _T]) -> _T:
        """The parsed value of an option that must be given."""
        value = self.get(name, parse, None)
        if value is None:
            raise OptionError(name, None, "is required")
        return value

    def has(self, names: Collection[str]) -> bool:
        """Whether one of these options was given."""
        return any(_key(name) in self._by_key for name in names)

    def only_one(self, *names: str) -> None:
        """Refuse more than one of several options that exclude each other."""
        given = [name for name in names if _key(name) in self._by_key]
        if len(given) > 1:
            raise OptionError(given[1], self._by_key[_key(given[1])][1], f"excludes {given[0]}")

    def refuse(self, names: Collection[str], reason: str) -> None:
        """Refuse options that this kind of read does not have."""
        for name in names:
            found = self._by_key.get(_key(name))
            if found is not None:
                raise OptionError(name, found[1], reason)

    def refuse_unknown(self) -> None:
        """Refuse options that no call has asked for."""
        known = {_key(name): name for name in self._known}
        for key, (name, value) in self._by_key.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = (
                    f"did you mean {known[near[0]]}?"
                    if near
                    else f"there are {', '.join(known.values())}"
                )
                raise OptionError(name, value, f"is not an option; {hint}")


def camel(name: str) -> str:
    """An option's name of a field's: minPartitions for min_partitions."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _key(name: str) -> str:
    return name.replace("_", "").replace(".", "").lower()


def listed(text: str) -> list[str]:
    """Names with commas between them, without the blanks around them."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError("must be a list separated by commas, without empty names")
    return names


def boolean(text: str) -> bool:
    """``true`` or ``false``, in any case."""
    folded = text.strip().lower()
    if folded not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return folded == "true"


def integer(minimum: int, maximum: int) -> Callable[[str], int]:
    """A parser of whole numbers in ``[minimum, maximum]``."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text):
            raise ValueError("is not a whole number")
        number = int(text)
        if not minimum <= number <= maximum:
            raise ValueError(f"is not between {minimum} and {maximum}")
        return number

    return parse


_UNIT_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """Milliseconds, from a number with one of Spark's units (``90s``, ``15m``), or without (ms).

    Raises ValueError: the text is no such duration.
    """
    found = re.fullmatch(r"\s*([0-9]{1,12})\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNIT_MS:
        raise ValueError("is not a duration like 500ms, 90s, 15m, 1h or 1d")
    return int(found[1]) * _UNIT_MS[found[2]]


def parse_time_ms(text: str) -> int:
    """Milliseconds since the epoch, from such a number or from ISO-8601 (UTC by default).

    Raises ValueError: the text is neither, the time is outside the years 1970 to 9999, or the
    number is so small that it is probably not milliseconds.
    """
    if re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
        time_ms = integer(0, MAX_TIME_MS)(text)
        if 0 < time_ms < _MIN_TIME_NUMBER:
            moment = _EPOCH + timedelta(milliseconds=time_ms)
            raise ValueError(
                f"as milliseconds since the epoch is {moment:%Y-%m-%dT%H:%MZ}; for unix seconds add"
                " three digits, and write a date with dashes (2026-03-01)"
            )
        return time_ms
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("is neither milliseconds since the epoch nor ISO-8601") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # A time between two milliseconds is rounded up, because no entry's time is between them.
    time_ms = -((_EPOCH - moment) // timedelta(milliseconds=1))
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise ValueError("is not between the years 1970 and 9999")
    return time_ms


def parse_path(text: str) -> Path:
    """The data folder, from a path or a ``file:`` URI.

    Raises ValueError: empty, or a URI of another scheme.
    """
    if not text.strip() or "\0" in text:
        raise ValueError("is not a path")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", text)
    if scheme is None:
        return Path(text).absolute()
    uri = urlsplit(text)
    if uri.scheme != "file" or uri.netloc not in ("", "localhost"):
        raise ValueError("is not on this machine's file system; use a path or a file: URI")
    return Path(unquote(uri.path)).absolute()
