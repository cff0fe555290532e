"""What the pipeline's tests share: topics with known contents, and one Spark session.

A `TopicWriter` appends entries of every kind to a real ledger and puts down, from what it sends,
the rows that they must become. Nothing that is under test takes part in that.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsemark.finder.server import ServerOptions, folder_server
from pulsemark.ledger import (
    EARLIEST,
    Entry,
    EntryKind,
    FolderReader,
    LocalStore,
    ManagedLedger,
    TopicStore,
)
from pulsemark.metadata import (
    BrokerTimeStamper,
    IndexStamper,
    Sender,
    StamperChain,
    payload_of,
    read_message_metadata,
    tags_of,
)
from pulsemark.pipeline.columns import COLUMNS, Column
from pulsemark.pipeline.options import ReadOptions
from pulsemark.proto.pulsar_api_pb2 import (
    CompressionType,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)
from pulsemark.testing import SettableClock
from pulsemark.testing.clock import A_TIME_MS
from pulsemark.testing.raw_messages import BatchMember, batched_message, seal, unbatched_message
from tests.support.certificates import Certificates

Row = dict[str, Any]

STAMPS = StamperChain([BrokerTimeStamper(), IndexStamper()])
NO_STAMPS = StamperChain()
TAGS = StamperChain.from_names(["broker-time", "index", "producer", "property-tags:region"])

_COMPRESSIONS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: lambda data: pa.compress(data, codec="lz4_raw", asbytes=True),
    2: zlib.compress,
    3: lambda data: pa.compress(data, codec="zstd", asbytes=True),
    4: lambda data: pa.compress(data, codec="snappy", asbytes=True),
}
_ARROW_TYPES = {
    "binary": pa.binary(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def moment(time_ms: int | None) -> datetime | None:
    """Milliseconds since the epoch as the timestamp that a row has."""
    if time_ms is None:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)


def registry_id(value: bytes | None) -> int | None:
    """The id that a registry's clients would have put in front of a value."""
    if value is None or len(value) < 5 or value[0] != 0 or value[1] >= 0x80:
        return None
    return int.from_bytes(value[1:5], "big")


def compressed(body: bytes, compression: Any) -> bytes:
    """A headers-and-payload with its payload compressed, as a client would send it."""
    if compression == 0:
        return body
    metadata, payload = read_message_metadata(body), bytes(payload_of(body))
    metadata.compression = compression
    metadata.uncompressed_size = len(payload)
    return seal(metadata.SerializeToString(), _COMPRESSIONS[compression](payload))


class TopicWriter:
    """Appends to one topic; `rows` are what a reader must see, in order."""

    def __init__(self, store: TopicStore, clock: SettableClock, name: str, partition: int) -> None:
        self.ledger: ManagedLedger = store.open_topic(name)
        self.ledger.stampers = STAMPS
        self.name = name
        self.rows: list[Row] = []
        self._clock = clock
        self._partition = partition

    def single(
        self,
        value: bytes | None,
        *,
        key: str | None = None,
        base64_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        publish_time_ms: int | None = None,
        compression: int = 0,
        checksum: bool = True,
        **metadata: Any,
    ) -> None:
        """One message with an entry of its own; value None is a null message."""
        publish = self._clock.now_ms() - 7 if publish_time_ms is None else publish_time_ms
        if base64_key is not None:
            key = base64.b64encode(base64_key).decode()
            metadata["partition_key_b64_encoded"] = True
        body = unbatched_message(
            value,
            publish_time_ms=publish,
            key=key,
            properties=properties,
            event_time_ms=event_time_ms,
            checksum=checksum,
            **metadata,
        )
        message = {
            "value": value,
            "__key": base64_key if base64_key is not None else key and key.encode(),
            "__eventTime": moment(event_time_ms),
            "__messageProperties": dict(properties or {}),
            "__chunkUuid": metadata.get("uuid"),
            "__chunkId": metadata.get("chunk_id"),
            "__chunkCount": metadata.get("num_chunks_from_msg"),
        }
        self._append(compressed(body, compression), publish, [message])

    def batch(
        self,
        members: Sequence[BatchMember],
        *,
        compression: int = 0,
        publish_time_ms: int | None = None,
        **metadata: Any,
    ) -> None:
        """A batch."""
        publish = self._clock.now_ms() - 7 if publish_time_ms is None else publish_time_ms
        body = batched_message(members, publish_time_ms=publish, **metadata)
        messages = [
            {
                "value": member.payload,
                "__key": member.key and member.key.encode(),
                "__eventTime": moment(member.event_time_ms),
                "__messageProperties": dict(member.properties or {}),
            }
            for member in members
        ]
        self._append(compressed(body, compression), publish, messages)

    def encrypted(self, cipher_text: bytes, count: int) -> None:
        """An encrypted entry of `count` messages, which no test can open."""
        publish = self._clock.now_ms()
        header = MessageMetadata(
            producer_name="secret",
            sequence_id=1,
            publish_time=publish,
            compression=CompressionType.LZ4,
            uncompressed_size=max(1000, 10 * count),
            encryption_algo="AES",
            num_messages_in_batch=count if count > 1 else None,
        )
        header.encryption_keys.add(key="k", value=b"v")
        messages = [{"value": cipher_text if n == 0 else None} for n in range(count)]
        body = seal(header.SerializeToString(), cipher_text)
        self._append(body, publish, messages, encrypted=True)

    def control(self) -> None:
        """An entry of the broker's own: it takes an index, and no reader sees it."""
        self.raw(b"control", kind=EntryKind.CONTROL)

    def raw(self, body: bytes, *, count: int = 1, kind: EntryKind = EntryKind.DATA) -> None:
        """An entry of any bytes, for which no rows are put down."""
        self.ledger.append(body, message_count=count, kind=kind).commit.wait(10)

    def _append(
        self, body: bytes, publish_ms: int, messages: Sequence[Row], *, encrypted: bool = False
    ) -> None:
        done = self.ledger.append(body, message_count=len(messages))
        done.commit.wait(10)
        stamped = len(self.ledger.stampers.names) > 0
        header = read_message_metadata(body)
        for place, message in enumerate(messages):
            known: Row = {
                "__producerName": header.producer_name,
                "__sequenceId": header.sequence_id,
                "__topic": self.name,
                "__messageId": self._id(done.position, place, len(messages)),
                "__publishTime": moment(publish_ms),
                "__index": done.index - len(messages) + 1 + place,
                "__brokerPublishTime": moment(done.time_ms) if stamped else None,
                "__ledgerId": done.position.ledger_id,
                "__entryId": done.position.entry_id,
                "__batchIndex": place if len(messages) > 1 else -1,
                "__encrypted": encrypted,
                "__messageProperties": {},
                "__tags": {},
            }
            known["__schemaId"] = registry_id(message["value"])
            self.rows.append({**dict.fromkeys(COLUMNS), **known, **message})

    def _id(self, position: tuple[int, int], place: int, count: int) -> bytes:
        message_id = MessageIdData(ledgerId=position[0], entryId=position[1])
        if self._partition >= 0:
            message_id.partition = self._partition
        if count > 1:
            message_id.batch_index, message_id.batch_size = place, count
        return message_id.SerializeToString()


class Folder:
    """A data folder being written, with a clock that stands still until it is moved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = SettableClock(A_TIME_MS)
        self.store = LocalStore.open(path, clock=self.clock)

    def in_process(self, results_before_kill: int | None = None) -> Any:
        """Something that runs a job's tasks without a JVM."""
        return InProcess(results_before_kill)

    def topic(self, name: str, *, partition: int = -1) -> TopicWriter:
        """A writer for a topic in public/default."""
        suffix = f"-partition-{partition}" if partition >= 0 else ""
        full_name = f"persistent://public/default/{name}{suffix}"
        return TopicWriter(self.store, self.clock, full_name, partition)


class InProcess:
    """The calls of a SparkSession that a job makes; its tasks run here, one after another."""

    def __init__(self, results_before_kill: int | None = None) -> None:
        self._left = results_before_kill
        self._source: Any = None
        self._options: dict[str, str] = {}
        self.read = self.dataSource = self

    def register(self, source: Any) -> None:
        """Keep the source for `load`."""
        self._source = source

    def format(self, name: str) -> InProcess:
        """The registered source, by its name."""
        assert name == self._source.name()
        return self

    def option(self, name: str, value: str) -> InProcess:
        """The work."""
        self._options = {name.lower(): value}
        return self

    def load(self) -> InProcess:
        """Nothing runs yet."""
        return self

    def collect(self) -> list[tuple[str]]:
        """Run the tasks through pickle, as Spark does, and die where the test wants it."""
        reader = self._source(self._options).reader(None)
        rows: list[tuple[str]] = []
        if self._left == 0:
            raise KeyboardInterrupt
        partitions = reader.partitions()
        self.tasks = len(partitions)
        for partition in partitions:
            sent = pickle.loads(pickle.dumps((reader, partition)))
            for row in sent[0].read(sent[1]):
                rows.append(row)
                if self._left == len(rows):
                    raise KeyboardInterrupt
        return rows


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """An empty data folder, open for writing; closed at the end."""
    opened = Folder(tmp_path / "data")
    yield opened
    opened.store.close()


def fill(topic: TopicWriter, clock: SettableClock, *, rounds: int = 1) -> None:
    """Entries of every kind: all compressions, single and batched, stamped and not, and control."""
    for number in range(rounds):
        for compression in range(5):
            clock.advance(by_ms=400)
            topic.ledger.stampers = NO_STAMPS if compression == 2 else STAMPS
            topic.single(b"single %d" % number, key=f"k{number}", compression=compression)
            topic.single(
                b"x" * 300,
                properties={"a": "1", "é": "ü", "": ""},
                event_time_ms=clock.now_ms() - 50,
                compression=compression,
            )
            topic.batch(
                [
                    BatchMember(payload=b"m%d" % place, key=f"b{place}" if place % 3 else None)
                    for place in range(7)
                ],
                compression=compression,
            )
            topic.control()
        topic.batch(
            [
                BatchMember(payload=None, key="gone"),
                BatchMember(payload=b"", properties={"p": "q", "r": "s"}, event_time_ms=5),
                BatchMember(payload=b"z" * 20_000, key="k" * 200),
                BatchMember(payload=b"y" * 200),
            ],
            compression=number % 5,
        )
        topic.single(None, key="tombstone")
        topic.single(b"", base64_key=b"\x00\xff\xfe")
        topic.single(b"old client", checksum=False)
        topic.encrypted(b"\x13\x37" * 50, 1)
        topic.encrypted(b"\x00" * 64, 3)
        for chunk in range(2):
            topic.single(b"part", uuid="u-1", chunk_id=chunk, num_chunks_from_msg=2)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The schema that Spark would ask for."""
    return pa.schema([pa.field(name, _ARROW_TYPES[COLUMNS[name].ddl]) for name in names])


def plain(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows out of Arrow in the form of the ones that were put down."""
    return [
        {
            name: dict(value)
            if name in ("__messageProperties", "__tags") and value is not None
            else value
            for name, value in row.items()
        }
        for row in rows
    ]


def only(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Some columns of rows."""
    return [{name: row[name] for name in names} for row in rows]


def spark_schema(names: Sequence[str], columns: Mapping[str, Column] = COLUMNS) -> Any:
    """The schema as Spark hands it to a source; made without a JVM."""
    from pyspark.sql import types

    by_ddl = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "timestamp": types.TimestampType(),
        "bigint": types.LongType(),
        "int": types.IntegerType(),
        "boolean": types.BooleanType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    }
    return types.StructType([types.StructField(name, by_ddl[columns[name].ddl]) for name in names])


def rows_of(path: Path | str | None, **options: object) -> list[Row]:
    """What the source reads with these options, planned and read in this process."""
    from pyspark.sql.types import StructField, StructType

    from pulsemark.pipeline.source import LedgerReader, form_of_values

    given = {} if path is None else {"path": str(path)}
    parsed = ReadOptions.parse({**given, **{k: str(v) for k, v in options.items()}})
    values = form_of_values(parsed)
    schema = spark_schema(parsed.columns)
    if values is not None:
        decoded = StructField("value", values.spark_type())
        schema = StructType([decoded if f.name == "value" else f for f in schema.fields])
    reader = LedgerReader(parsed, schema, values)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return plain([row for batch in batches for row in batch.to_pylist()])


def mixed_folder(path: Path) -> list[str]:
    """A closed folder of five topics with all that can be in one; returns their names.

    It has all compressions, batches and single messages, stamped and not, tags, control entries,
    encrypted messages and chunks, producers with wrong clocks, several ledgers, a trimmed head, two
    crashes (the files of an open store, as a kill leaves them), and partitions.
    """
    names: list[str] = []
    for life in range(3):
        folder = Folder(path / "data" if life == 2 else path / f"life-{life}")
        folder.clock.advance(by_ms=3_600_000 * life)
        topics = [folder.topic("a"), folder.topic("b"), folder.topic("trimmed")]
        topics += [folder.topic("parts", partition=number) for number in range(2)]
        names = [topic.name for topic in topics]
        for topic in topics:
            fill(topic, folder.clock)
            topic.ledger.roll()
            topic.ledger.stampers = TAGS
            sender = Sender("till", {"region": f"life {life}"})
            body = batched_message([BatchMember(payload=b"tagged")] * 2, publish_time_ms=9)
            topic.ledger.append(body, message_count=2, sender=sender).commit.wait(10)
            topic.ledger.stampers = STAMPS
            topic.single(b"ahead", publish_time_ms=folder.clock.now_ms() + 10**9)
            topic.ledger.stampers = NO_STAMPS
            topic.single(b"behind", publish_time_ms=1_000)
            topic.single(b"far ahead", publish_time_ms=folder.clock.now_ms() + 10**8)
        trimmed = topics[2].ledger
        entries = trimmed.read(EARLIEST, max_entries=1000)
        trimmed.trim(entries[len(entries) // 3 + 1].position)
        if life < 2:
            following = path / "data" if life == 1 else path / f"life-{life + 1}"
            shutil.copytree(folder.path, following)
        folder.store.close()
    return names


def _stored(path: Path, topic: str) -> Iterator[Entry]:
    with FolderReader(path) as reader:
        log = reader.log(topic)
        position = EARLIEST
        while entries := log.read(position, max_entries=100):
            yield from (entry for entry in entries if entry.kind == EntryKind.DATA)
            position = log.next_position(entries[-1].position)


def entries_by_hand(path: Path, topic: str) -> list[Row]:
    """What the entries of a topic are like, by the ledger's reader."""
    rows = []
    for entry in _stored(path, topic):
        header = read_message_metadata(entry.body)
        rows.append(
            {
                "count": entry.message_count,
                "is_stamped": bool(entry.prefix),
                "is_encrypted": len(header.encryption_keys) > 0,
                "compression": CompressionType.Name(header.compression),
                "tags": {name: str(tag) for name, tag in tags_of(entry.prefix).items()},
            }
        )
    return rows


def messages_by_hand(path: Path, topic: str) -> list[Row]:
    """Value, key, event time, properties and index of each message, by plain Python."""
    rows = []
    for entry in _stored(path, topic):
        header = read_message_metadata(entry.body)
        payload = bytes(payload_of(entry.body))
        single = not header.HasField("num_messages_in_batch")
        sealed = len(header.encryption_keys) > 0
        if header.compression and not sealed:
            payload = _OPENED[header.compression](payload, header.uncompressed_size)
        at = 0
        for place in range(entry.message_count):
            meta: Any = header
            value: bytes | None = payload if place == 0 else None
            if not single and not sealed:
                size = int.from_bytes(payload[at : at + 4], "big")
                meta = SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
                at += 4 + size
                value = payload[at : at + meta.payload_size]
                at += meta.payload_size
            key = meta.partition_key.encode() if meta.HasField("partition_key") else None
            if key is not None and meta.partition_key_b64_encoded:
                key = base64.b64decode(key)
            rows.append(
                {
                    "value": None if meta.null_value else value,
                    "__key": key,
                    "__eventTime": moment(meta.event_time or None),
                    "__messageProperties": {p.key: p.value for p in meta.properties},
                    "__index": entry.first_index + place,
                    "__ledgerId": entry.position[0],
                    "__entryId": entry.position[1],
                }
            )
    return rows


_OPENED: dict[int, Callable[[bytes, int], bytes]] = {
    1: lambda data, size: pa.decompress(data, size, codec="lz4_raw", asbytes=True),
    2: lambda data, _: zlib.decompress(data),
    3: lambda data, size: pa.decompress(data, size, codec="zstd", asbytes=True),
    4: lambda data, size: pa.decompress(data, size, codec="snappy", asbytes=True),
}


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The mixed folder and its topics, for tests that only read it."""
    path = tmp_path_factory.mktemp("mixed")
    names = mixed_folder(path)
    return path / "data", names


@pytest.fixture(scope="session")
def tools() -> Any:
    """The functions above, for the test modules, which cannot import this one."""
    return type("Tools", (), {name: staticmethod(globals()[name]) for name in _TOOLS})


@contextmanager
def serving(path: Path, options: ServerOptions | None = None) -> Iterator[str]:
    """A seek service over a folder, on a loop of its own; yields its target."""
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    targets: list[str] = []

    async def serve() -> None:
        async with folder_server(path, options) as server:
            targets.append(server.target)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30), "the service did not start"
        yield targets[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def make_certificate(folder: Path) -> None:
    """A certificate of an authority and of a server in one, ``ca.pem``, and its key ``key.pem``."""
    hosts = "subjectAltName=DNS:seek.test,IP:127.0.0.1"
    Certificates(folder).self_signed("ca", "key.pem", "ca.pem", hosts)


_TOOLS = (
    "InProcess",
    "TopicWriter",
    "Folder",
    "arrow_schema",
    "compressed",
    "fill",
    "moment",
    "entries_by_hand",
    "messages_by_hand",
    "mixed_folder",
    "make_certificate",
    "only",
    "plain",
    "rows_of",
    "serving",
    "spark_schema",
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Spark session of a run. Tests that use it are in SPARK_MODULES of
    tests/conftest.py only, which one worker of a parallel run takes: a session costs some ten
    seconds.
    """
    from pulsemark.pipeline import local_session
    from pulsemark.pipeline.session import BRIEF_SETTINGS

    conf = {
        **BRIEF_SETTINGS,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    session = local_session("pulsemark tests", cores=2, conf=conf)
    yield session
    session.stop()
