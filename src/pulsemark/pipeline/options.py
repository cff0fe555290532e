"""The source's options, parsed once and typed; all later code uses :class:`ReadOptions`.

Case and underscores in names do not matter, because Spark changes names to lower case in some
calls: ``startingTime``, ``startingtime`` and ``starting_time`` are the same option. An unknown
option is an error; it is never ignored. The parsers raise ``ValueError`` with a reason, which
:class:`Given` makes an :class:`~pulsemark.pipeline.errors.OptionError` that names the option.

A range has two ends, each given as a time or as an offset, and is half-open (``[start, end)``):

- Times are entry times (PIP-70: the broker's stamp, else the producer's publish time), in
  milliseconds since the epoch or ISO-8601 (UTC if no zone is given). A number that would be a time
  long before Pulsar existed is refused: it is probably seconds, or a date without its dashes.
- Offsets are indexes: a number, ``earliest`` or ``latest``.

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
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from ..extras import install_command
from ..ledger import FolderReader
from ..ledger.bookkeeper.address import StoreAddress, StoreAddressError, is_store_address
from ..metadata.partition_names import partition_of
from .columns import DEFAULT_COLUMNS, RowKind, columns_of, default_columns_of
from .errors import OptionError

if TYPE_CHECKING:
    from ..finder.client import SeekClient
    from ..ledger.bookkeeper.reader import BookKeeperReader


MAX_PARTITIONS = 10_000
DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000
"""As in Spark's source for Kafka."""
MAX_INDEX = 2**63 - 1

DEFAULT_MAX_UNCOMPRESSED_BYTES = 128 << 20
"""The largest size of one entry after decompression. As stored, Pulsar allows 5 MiB."""
DEFAULT_MAX_MESSAGES_PER_ENTRY = 1 << 18
"""Pulsar's clients put at most 1,000 messages into a batch by default."""
DEFAULT_MAX_PROPERTIES_PER_ENTRY = 1 << 18


class BoundKind(Enum):
    """How one end of a range is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    INDEX = "index"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range; ``value`` is an index, or a time in ms, by ``kind``."""

    kind: BoundKind
    value: int = 0


EARLIEST = Bound(BoundKind.EARLIEST)
LATEST = Bound(BoundKind.LATEST)


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which topics to read: ``names`` (as given), or all topics that match ``pattern``."""

    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class EntryLimits:
    """The limits of one entry after decompression; a larger entry is refused."""

    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES
    max_messages: int = DEFAULT_MAX_MESSAGES_PER_ENTRY
    max_properties: int = DEFAULT_MAX_PROPERTIES_PER_ENTRY
    """The properties of all its messages together."""


class DecodeMode(Enum):
    """What happens with a value that cannot be decoded by its schema; Spark's words."""

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
    rows: RowKind = RowKind.MESSAGES
    value_schema: str | None = None
    """The schema that values are decoded by: ``latest``, a version, or an Avro schema as JSON;
    None: they are not decoded."""
    registry_schemas: str | None = None
    """A file or folder with a schema registry's schemas, whose ids are in front of values."""
    mode: DecodeMode = DecodeMode.FAILFAST
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
        start = _bound(given, "starting", EARLIEST)
        end = _bound(given, "ending", LATEST)
        if start.kind is end.kind and start.value > end.value:
            raise OptionError(
                f"ending{_OPTION_OF[end.kind]}", str(end.value), f"is before {start.value}"
            )
        parsed = cls.of(given, start, end)
        given.refuse_unknown()
        return parsed

    @classmethod
    def of(cls, given: Given, start: Bound, end: Bound) -> ReadOptions:
        """The options that reads and streams share."""
        rows = given.get("rows", _one_of(RowKind), RowKind.MESSAGES)
        fail_on_data_loss = given.get("failOnDataLoss", boolean, True)
        usual_mode = DecodeMode.FAILFAST if fail_on_data_loss else DecodeMode.PERMISSIVE
        service = service_of(given)
        path, store = (Path(), None) if service is not None else place_of(given)
        parsed = cls(
            path=path,
            store=store,
            topics=_topics(given),
            start=start,
            end=end,
            columns=given.get("columns", partial(_columns, rows), default_columns_of(rows)),
            min_partitions=given.get("minPartitions", integer(1, MAX_PARTITIONS), None),
            fail_on_data_loss=fail_on_data_loss,
            limits=_limits(given),
            rows=rows,
            value_schema=given.get("valueSchema", _value_schema, None),
            registry_schemas=given.get("registrySchemas", str, None),
            mode=given.get("mode", _one_of(DecodeMode), usual_mode),
            service=service,
        )
        if parsed.value_schema is None:
            given.refuse(["mode", "registrySchemas"], "needs the option valueSchema")
        elif rows is RowKind.ENTRIES:
            given.refuse(["valueSchema"], "needs rows=messages: entries are not opened")
        return parsed


STREAM_OPTIONS = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
"""The options that only a stream has."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The parsed options of a stream: what it reads, and how much of it at once."""

    read: ReadOptions
    """Its end does not count: each micro-batch has its own."""
    max_offsets: int | None = None
    """The most messages of a micro-batch; None: no limit."""
    max_bytes: int | None = None
    """The most stored bytes of a micro-batch; None: no limit."""
    min_offsets: int | None = None
    """A micro-batch waits for so many messages, but no longer than ``max_trigger_delay_ms``."""
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Read the options of ``spark.readStream.format("pulsar-ledger")``.

        A stream begins at ``latest`` by default, like Spark's stream from Kafka.

        Raises OptionError for one that is unknown, missing, malformed, or contradicts another.
        """
        given = Given(options)
        given.refuse(("endingTime", "endingOffsets"), "a stream has no end")
        count = integer(1, MAX_INDEX)
        read = ReadOptions.of(given, _bound(given, "starting", LATEST), LATEST)
        parsed = cls(
            read,
            max_offsets=given.get("maxOffsetsPerTrigger", count, None),
            max_bytes=given.get("maxBytesPerTrigger", count, None),
            min_offsets=given.get("minOffsetsPerTrigger", count, None),
            max_trigger_delay_ms=given.get(
                "maxTriggerDelay", parse_duration_ms, DEFAULT_MAX_TRIGGER_DELAY_MS
            ),
        )
        given.refuse_unknown()
        if parsed.max_offsets and parsed.min_offsets and parsed.min_offsets > parsed.max_offsets:
            raise OptionError(
                "minOffsetsPerTrigger", str(parsed.min_offsets), "exceeds maxOffsetsPerTrigger"
            )
        return parsed


def options_of_either(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read or of a stream; Spark asks for columns before it says which it wants.

    Raises:
        OptionError: the options are those of neither.
    """
    if Given(options).has(STREAM_OPTIONS):
        return StreamOptions.parse(options).read
    return ReadOptions.parse(options)


_OPTION_OF = {BoundKind.INDEX: "Offsets", BoundKind.TIME: "Time"}


def _limits(given: Given) -> EntryLimits:
    usual = EntryLimits()
    return EntryLimits(
        # Arrow's offsets allow 2 GiB, which must be enough for a batch's entries and their headers.
        given.get("maxUncompressedBytes", integer(1, 1 << 30), usual.max_uncompressed_bytes),
        given.get("maxMessagesPerEntry", integer(1, 2**31 - 1), usual.max_messages),
        given.get("maxPropertiesPerEntry", integer(0, 2**31 - 1), usual.max_properties),
    )


def _bound(given: Given, side: str, default: Bound) -> Bound:
    given.only_one(f"{side}Time", f"{side}Offsets")
    by_offset = given.get(f"{side}Offsets", _offset, default)
    time_ms = given.get(f"{side}Time", parse_time_ms, None)
    return by_offset if time_ms is None else Bound(BoundKind.TIME, time_ms)


def _offset(text: str) -> Bound:
    if text.strip().lower() == "earliest":
        return EARLIEST
    if text.strip().lower() == "latest":
        return LATEST
    try:
        return Bound(BoundKind.INDEX, integer(0, MAX_INDEX)(text))
    except ValueError:
        raise ValueError("is neither an index (0 or more), 'earliest' nor 'latest'") from None


def _topics(given: Given) -> TopicSelection:
    given.only_one("topic", "topics", "topicsPattern")
    name = given.get("topic", full_topic_name, None)
    names = given.get("topics", _topic_names, ())
    pattern = given.get("topicsPattern", parse_topics_pattern, None)
    if name is None and not names and pattern is None:
        raise OptionError("topic", None, "one of topic, topics and topicsPattern is required")
    return TopicSelection((name,) if name is not None else names, pattern)


def _topic_names(text: str) -> tuple[str, ...]:
    names = _json_list(text) if text.lstrip().startswith("[") else listed(text)
    return tuple(dict.fromkeys(full_topic_name(name) for name in names))


def _json_list(text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("begins with [ but is not a JSON list of names") from None
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("is not a JSON list of at least one name")
    return list(names)


_Member = TypeVar("_Member", bound=Enum)


def _one_of(kind: type[_Member]) -> Callable[[str], _Member]:
    """A parser of an enumeration's values, in any case."""
    by_value = {str(member.value).lower(): member for member in kind}

    def parse(text: str) -> _Member:
        member = by_value.get(text.strip().lower())
        if member is None:
            raise ValueError(f"is not one of {', '.join(str(each.value) for each in kind)}")
        return member

    return parse


def _value_schema(text: str) -> str:
    """``latest``, a version's number, or a definition as JSON; returned without outer blanks."""
    stripped = text.strip()
    if stripped.lower() == LATEST_SCHEMA:
        return LATEST_SCHEMA
    if re.fullmatch("[0-9]{1,9}", stripped):
        return str(int(stripped))
    if not stripped.startswith("{"):
        raise ValueError("is neither 'latest', a version's number nor an Avro schema in JSON")
    try:
        json.loads(stripped)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    return stripped


def _columns(rows: RowKind, text: str) -> tuple[str, ...]:
    names = listed(text)
    known = columns_of(rows)
    folded = {name.lower(): name for name in known}
    for name in names:
        if name.lower() not in folded:
            raise ValueError(f"{name!r} is not a column; the columns are {', '.join(known)}")
    columns = tuple(folded[name.lower()] for name in names)
    if len(set(columns)) < len(columns):
        raise ValueError("names a column twice")
    return columns


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

    Raises:
        ValueError: the expression does not compile.
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
    """The data folder, or the address of a store in BookKeeper.

    The option ``path`` takes both; ``store`` only an address.

    Raises:
        OptionError: none of the two is given, or both, or what is given is malformed.
    """
    given.only_one("path", "store")
    store = given.get("store", _parse_store, None)
    if store is None:
        place = given.required("path", _parse_place)
        if isinstance(place, Path):
            return place, None
        store = place
    given.refuse(("valueSchema",), "needs a folder: schemas are not read from a store")
    given.refuse(("maxBytesPerTrigger",), "needs a folder: a store does not tell sizes")
    return Path(str(store)), store  # in errors of jobs that read folders only


def _parse_place(text: str) -> Path | StoreAddress:
    return _parse_store(text.strip()) if is_store_address(text.strip()) else parse_path(text)


def _parse_store(text: str) -> StoreAddress:
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
        raise OptionError("store", str(store), reason) from error
    return BookKeeperReader.open(str(store))


_NEED_A_SERVICE = ("token", "tokenFile", "tlsCa", "tlsCertificate", "tlsKey", "tlsServerName")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """A seek service and how to call it."""

    target: str
    """host:port"""
    tls: bool = False
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def client(self) -> SeekClient:
        """A client; close it after use.

        Raises:
            OptionError: the token or a file of TLS cannot be used.
        """
        from ..finder.client import ClientTls, SeekClient

        tls = None
        try:
            if self.tls:
                tls = ClientTls(
                    ca=self.ca,
                    certificate=self.certificate,
                    key=self.key,
                    server_name=self.server_name,
                )
            token = self.token
            if self.token_file is not None:
                token = self.token_file.read_text(encoding="utf-8").strip()
            return SeekClient(self.target, token=token, tls=tls)
        except (OSError, ValueError) as error:
            raise OptionError("grpcUrl", self.target, f"cannot be called: {error}") from error


def service_of(given: Given) -> ServiceOptions | None:
    """The service that the options name; None if the read is of a folder.

    Raises:
        OptionError: an option is malformed, or needs another one.
    """
    service = given.get("grpcUrl", _parse_url, None)
    given.only_one("token", "tokenFile")
    parsed = ServiceOptions(
        "" if service is None else service[0],
        tls=service is not None and service[1],
        token=given.get("token", _text, None),
        token_file=given.get("tokenFile", Path, None),
        ca=given.get("tlsCa", Path, None),
        certificate=given.get("tlsCertificate", Path, None),
        key=given.get("tlsKey", Path, None),
        server_name=given.get("tlsServerName", _text, None),
    )
    if service is None:
        given.refuse(_NEED_A_SERVICE, "needs the option grpcUrl")
        return None
    given.refuse(("path", "store"), "excludes grpcUrl: a read is of a folder or of a service")
    given.refuse(("topicsPattern",), "needs a folder: a service does not list its topics")
    given.refuse(("valueSchema",), "needs a folder: a service does not have the schemas")
    given.refuse(("maxBytesPerTrigger",), "needs a folder: a service does not tell sizes")
    if not parsed.tls:
        given.refuse(_NEED_A_SERVICE[2:], "needs a URL with grpcs://")
    return parsed


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


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text.strip()


MAX_TIME_MS = 253_402_300_800_000
"""The end of the year 9999, where Spark's timestamps end."""

_MIN_TIME_NUMBER = 100_000_000_000
"""As milliseconds in the year 1973; as seconds in the year 5138."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_T = TypeVar("_T")
_D = TypeVar("_D")


class Given:
    """The options as the user gave them, looked up without regard to case and underscores."""

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
                hint = f"; did you mean {known[near[0]]}?" if near else ""
                raise OptionError(name, value, f"is not an option of this source{hint}")


def _key(name: str) -> str:
    return name.replace("_", "").lower()


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

    Raises:
        ValueError: the text is no such duration.
    """
    found = re.fullmatch(r"\s*([0-9]{1,12})\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNIT_MS:
        raise ValueError("is not a duration like 500ms, 90s, 15m, 1h or 1d")
    return int(found[1]) * _UNIT_MS[found[2]]


def parse_time_ms(text: str) -> int:
    """Milliseconds since the epoch, from such a number or from ISO-8601 (UTC by default).

    Raises:
        ValueError: the text is neither, the time is outside the years 1970 to 9999, or the number
            is so small that it is probably not milliseconds.
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

    Raises:
        ValueError: empty, or a URI of another scheme.
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
