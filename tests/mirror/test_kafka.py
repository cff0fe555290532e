"""A Kafka as source and target of a mirror: sets pass unopened, with their offsets, exactly once.

The Kafka is this broker's own port; with PULSEMARK_KAFKA=HOST:PORT it is that one (`make
kafka-mirror`).
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka.protocol.admin import CreateTopicsRequest, DeleteRecordsRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from pulsemark.broker import BrokerThread
from pulsemark.client import ServiceUrlError, UnreachableError
from pulsemark.kafka.client import KafkaRefusedError
from pulsemark.kafka.records import EntryRules, validate_produced
from pulsemark.ledger import LocalStore
from pulsemark.metadata import peek
from pulsemark.metadata.source_stamp import record_set_tags_of
from pulsemark.mirror import (
    EndpointError,
    MirrorRun,
    OffsetsDifferError,
    Options,
    OtherSourceError,
    Pace,
    PartitionCountError,
    Report,
    Selection,
    TargetNotEmptyError,
    TargetRefusedError,
    TopicMissingError,
    compare,
    open_carrier,
    open_source,
    open_target,
)
from pulsemark.mirror.kafka import KafkaTargetTopic
from pulsemark.proto.broker_entry_pb2 import BrokerEntryMetadata
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka
from tests.broker.kafka.test_secured_clients import make_certificates
from tests.support.secured import secured_broker, set_up, token_of

from .conftest import CLUSTER, Mirror, batch, entries_of

PEER = os.environ.get("PULSEMARK_KAFKA")
LIMIT_S = 60
numbers = itertools.count()
Seen = list[tuple[int | None, bytes | None, bytes | None]]


@pytest.fixture(scope="module")
def ours() -> Iterator[BrokerThread]:
    """A broker with a port for Kafka's clients, that accepts mirrors and shows its stamps."""
    with running_broker(
        kafka_port=0,
        mirror_sources=(CLUSTER,),
        exposing_broker_entry_metadata_to_client_enabled=True,
        kafka_group_initial_rebalance_delay_ms=0,
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """HOST:PORT of a Kafka."""
    if PEER:
        yield PEER
        return
    with running_broker(kafka_port=0, kafka_group_initial_rebalance_delay_ms=0) as broker:
        yield broker.kafka_url


@pytest.fixture
def name(ours: BrokerThread, kafka: str) -> str:
    """A topic of one partition in both."""
    made = f"orders-{time.time_ns()}"
    create(ours.kafka_url, made)
    create(kafka, made)
    return made


def create(kafka: str, name: str, partitions: int = 1, **settings: str) -> None:
    """Create a topic. Skips the test where the Kafka has no such setting."""
    config = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=[],
        configs=[config(name=key.replace("_", "."), value=text) for key, text in settings.items()],
    )
    with RawKafka.from_url(kafka) as raw:
        answer = raw.call(
            CreateTopicsRequest, 4, topics=[topic], timeout_ms=30_000, validate_only=False
        )
        if settings and answer.topics[0].error_code == 40:
            pytest.skip(f"this Kafka has no {settings}")
        assert answer.topics[0].error_code == 0
        end_s = time.monotonic() + LIMIT_S
        for number in range(partitions):
            while raw.fetch(name, 0, partition=number, version=11).error_code:
                assert time.monotonic() < end_s, "the topic has no leader"
                time.sleep(0.05)


def partition(name: str, number: int = 0) -> str:
    """A partition as the mirror names it."""
    return f"persistent://public/default/{name}-partition-{number}"


def record_set(count: int, *, codec: int = 0, magic: int = 2, first: int = 0) -> bytes:
    """Records `v<first>` and so on."""
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for number in range(first, first + count):
        now_ms = time.time_ns() // 10**6
        builder.append(timestamp=now_ms, key=b"k%d" % number, value=b"v%d" % number)
    builder.close()
    return bytes(builder.buffer())


def produce(
    kafka: str, name: str, sets: int, *, magic: int = 2, number: int = 0, first: int = 0
) -> None:
    """Send sets of three records, every other one compressed."""
    with RawKafka.from_url(kafka) as raw:
        for at in range(sets):
            sent = record_set(3, codec=at % 2, magic=magic, first=first + 3 * at)
            version = 7 if magic == 2 else 2
            answer = raw.produce(name, sent, partition=number, version=version)
            assert answer.error_code == 0


def transactions(kafka: str, name: str, ends: str) -> None:
    """Send a transaction of three records for each letter: c commits, a aborts."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka, "transactional.id": name, "compression.type": "gzip"}
    )
    producer.init_transactions(LIMIT_S)
    for at, end in enumerate(ends):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(name, key=b"%d" % number, value=b"%s %d" % (end.encode(), at))
        producer.flush(LIMIT_S)
        finish = producer.commit_transaction if end == "c" else producer.abort_transaction
        finish(LIMIT_S)


def seen(kafka: str, name: str, number: int = 0, level: str = "read_committed") -> Seen:
    """Offset, key and value of what a consumer gets."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": f"g{next(numbers)}",
            "isolation.level": level,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(name, number, 0)])
        found: Seen = []
        while True:
            message = consumer.poll(LIMIT_S)
            assert message is not None, f"no end of {name} within {LIMIT_S} s"
            if message.error():
                return found
            found.append((message.offset(), message.key(), message.value()))


def url(kafka: str) -> str:
    """A Kafka as an endpoint."""
    return f"kafka://{kafka}"


def is_equal(source: object, target: object, name: str, number: int = 0, **more: Any) -> bool:
    """What --verify says."""
    options = Options(source_cluster=CLUSTER, **more)
    return compare(str(source), str(target), partition(name, number), options).is_equal


def test_kafka_to_broker_keeps_bytes_and_offsets(
    mirror: Mirror, ours: BrokerThread, kafka: str, name: str
):
    """No set is opened; a second run brings what is new, and nothing twice."""
    produce(kafka, name, 4)
    first = mirror(url(kafka), ours.service_url, name)
    assert (first.entries, first.report.sum().messages) == (4, 12)
    assert first.report.headers_parsed == first.report.payloads_opened == 0
    assert mirror(url(kafka), ours.service_url, name).entries == 0
    produce(kafka, name, 2, first=12)
    assert mirror(url(kafka), ours.service_url, name).entries == 2
    assert seen(ours.kafka_url, name) == seen(kafka, name)
    assert len(seen(kafka, name)) == 18
    assert is_equal(url(kafka), ours.service_url, name)
    produce(kafka, name, 1, first=18)
    assert not is_equal(url(kafka), ours.service_url, name)


def test_kafka_to_folder_all_partitions(mirror: Mirror, kafka: str, tmp_path: Path):
    """Each partition is a topic of its own; positions, index and offset are one number."""
    topic = f"many-{time.time_ns()}"
    create(kafka, topic, 3)
    for number in range(3):
        produce(kafka, topic, number + 1, number=number)
    run = mirror(url(kafka), tmp_path / "copy", topic)
    assert (run.entries, run.report.sum().gaps) == (6, 0)
    full = f"persistent://public/default/{topic}"
    with LocalStore.open(tmp_path / "copy") as store:
        assert store.catalog.get("partitioned-topic", full) == b"3"
    for number in range(3):
        copies = entries_of(tmp_path / "copy", partition(topic, number))
        stamps = [stamp for each in copies if (stamp := peek(each.prefix)) is not None]
        assert [each.source_index for each in stamps] == [2 + 3 * at for at in range(number + 1)]
        assert all(each.source_entry_id == each.source_index == each.index for each in stamps)
        assert is_equal(url(kafka), tmp_path / "copy", topic, number)


@pytest.mark.parametrize(("magic", "version"), [(0, "0.9.0"), (1, "0.10.2")])
def test_sets_of_old_brokers_stay_as_they_are(
    mirror: Mirror, ours: BrokerThread, kafka: str, magic: int, version: str
):
    """Magic 0 and 1, plain and compressed, pass unopened to a folder or broker; a Kafka gets them
    packed again as magic 2, if that is allowed.
    """
    topic = f"old-{time.time_ns()}"
    create(kafka, topic, message_format_version=version)
    produce(kafka, topic, 4, magic=magic)
    with RawKafka.from_url(kafka) as raw:
        if bytes(raw.fetch(topic, 0).records)[16] != magic:
            pytest.skip("this Kafka stores magic 2 whatever the setting says")
    create(ours.kafka_url, topic)
    run = mirror(url(kafka), ours.service_url, topic)
    assert (run.report.sum().messages, run.report.payloads_opened) == (12, 0)
    assert seen(ours.kafka_url, topic) == seen(kafka, topic)
    copies = entries_of(ours.data_dir, partition(topic))
    tags = [record_set_tags_of(peek(each.prefix)) for each in copies]
    assert {each.source_format for each in tags if each} == {magic + 1}
    assert is_equal(url(kafka), ours.service_url, topic)
    with running_broker(kafka_port=0) as other:
        create(other.kafka_url, topic)
        with pytest.raises(OffsetsDifferError, match="packed again"):
            mirror(url(kafka), url(other.kafka_url), topic)
        run = mirror(url(kafka), url(other.kafka_url), topic, renumber=True)
        assert run.report.payloads_opened > 0
        assert mirror(url(kafka), url(other.kafka_url), topic, renumber=True).entries == 0
        assert seen(other.kafka_url, topic) == seen(kafka, topic)
        assert is_equal(url(kafka), url(other.kafka_url), topic, renumber=True)


def test_aborted_transactions_and_markers_are_holes(
    mirror: Mirror, ours: BrokerThread, kafka: str, name: str
):
    """A copy has only what was committed, at its offsets; also for readers of what is not."""
    transactions(kafka, name, "caac")
    produce(kafka, name, 1)
    run = mirror(url(kafka), ours.service_url, name)
    assert run.report.sum().gaps == 0
    committed = seen(kafka, name)
    # The last marker may come after the last set.
    assert [offset for offset, _, _ in committed[:6]] == [0, 1, 2, 12, 13, 14]
    assert len(committed) == 9
    for level in ("read_committed", "read_uncommitted"):
        assert seen(ours.kafka_url, name, level=level) == committed
    assert mirror(url(kafka), ours.service_url, name).entries == 0
    assert is_equal(url(kafka), ours.service_url, name)


def test_an_open_transaction_ends_what_is_mirrored(
    mirror: Mirror, ours: BrokerThread, kafka: str, name: str
):
    """Nothing from its first record on goes over before it has ended."""
    produce(kafka, name, 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka, "transactional.id": name})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(name, b"open")
    producer.flush(LIMIT_S)
    produce(kafka, name, 1, first=3)
    assert mirror(url(kafka), ours.service_url, name).entries == 1
    producer.commit_transaction(LIMIT_S)
    mirror(url(kafka), ours.service_url, name)
    assert seen(ours.kafka_url, name) == seen(kafka, name)
    assert len(seen(kafka, name)) == 7


def test_pulsar_consumers_pass_over_holes(
    mirror: Mirror, ours: BrokerThread, kafka: str, name: str
):
    """A hole is no message for them, however large it is."""
    import pulsar

    produce(kafka, name, 1)
    transactions(kafka, name, "a")
    produce(kafka, name, 1, first=3)
    mirror(url(kafka), ours.service_url, name)
    client = pulsar.Client(ours.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with closing(client):
        reader = client.create_reader(partition(name), pulsar.MessageId.earliest)
        got = [reader.read_next(LIMIT_S * 1000).data() for _ in range(6)]
        assert got == [b"v%d" % number for number in range(6)]
        assert not reader.has_message_available()


def test_to_kafka_from_a_broker_a_folder_and_a_kafka(
    mirror: Mirror, ours: BrokerThread, kafka: str, name: str
):
    """Offsets are equal, and whichever way the next run takes, it goes on where the target is."""
    sources = (ours.service_url, url(ours.kafka_url), ours.data_dir)
    for at, source in enumerate(sources):
        produce(ours.kafka_url, name, 2, first=6 * at)
        assert mirror(source, url(kafka), name).entries == 2
        assert mirror(source, url(kafka), name).entries == 0
        assert seen(kafka, name) == seen(ours.kafka_url, name)
    assert len(seen(kafka, name)) == 18
    for source in sources:
        assert is_equal(source, url(kafka), name)
    produce(ours.kafka_url, name, 1, first=18)
    assert not any(is_equal(source, url(kafka), name) for source in sources)


def test_a_hole_ends_a_mirror_to_a_kafka(mirror: Mirror, ours: BrokerThread, kafka: str, name: str):
    """What is before it is copied. With renumber later offsets are lower; nothing comes twice."""
    produce(ours.kafka_url, name, 2)
    transactions(ours.kafka_url, name, "ac")
    produce(ours.kafka_url, name, 1, first=6)
    for _ in range(2):
        with pytest.raises(OffsetsDifferError) as caught:
            mirror(url(ours.kafka_url), url(kafka), name)
        assert (caught.value.offset, len(seen(kafka, name))) == (10, 6)
    for source in (url(ours.kafka_url), ours.data_dir, ours.service_url):
        mirror(source, url(kafka), name, renumber=True)
        produce(ours.kafka_url, name, 1)
    mirror(ours.service_url, url(kafka), name, renumber=True)
    assert [offset for offset, _, _ in seen(kafka, name)] == list(range(21))
    copied, there = seen(kafka, name), seen(ours.kafka_url, name)
    assert [each[1:] for each in copied] == [each[1:] for each in there]
    for source in (url(ours.kafka_url), ours.data_dir, ours.service_url):
        assert is_equal(source, url(kafka), name, renumber=True)


def target_topic(kafka: str, name: str) -> KafkaTargetTopic:
    """A Kafka's partition, open for a mirror."""
    opened = open_target(url(kafka), Options(source_cluster=CLUSTER)).open(partition(name))
    assert isinstance(opened, KafkaTargetTopic)
    return opened


def wait_stored(topic: KafkaTargetTopic) -> None:
    """Wait until one more entry is known to be stored."""
    end_s = time.monotonic() + LIMIT_S
    while not topic.stored():
        assert time.monotonic() < end_s, f"no answer within {LIMIT_S} s"
        time.sleep(0.01)


def test_what_a_killed_mirror_had_sent_is_not_doubled(ours: BrokerThread, kafka: str, name: str):
    """Its sets reach the broker after the next mirror has looked: each is stored once."""
    produce(ours.kafka_url, name, 6)
    source = open_source(url(ours.kafka_url), Options(source_cluster=CLUSTER))
    killed, following = target_topic(kafka, name), target_topic(kafka, name)
    reader = source.open(partition(name), killed.resume)
    entries: list[Any] = []
    while len(entries) < 6:
        entries += reader.take(10, 1 << 20)

    def put(to: KafkaTargetTopic, entry: Any) -> None:
        to.put(entry)
        wait_stored(to)

    put(killed, entries[0])
    for entry in entries[:2]:  # the first is there already, the second not
        put(following, entry)
    for entry in entries[1:4]:  # and the other way round
        put(killed, entry)
    for entry in entries[2:]:
        put(following, entry)
    assert seen(kafka, name) == seen(ours.kafka_url, name)
    assert target_topic(kafka, name).resume.sequence_id == 17


def test_another_writer_in_the_target_is_noticed(
    mirror: Mirror, ours: BrokerThread, kafka: str, name: str
):
    """While a mirror runs, and when it begins again; with --append it goes on at the end."""
    produce(ours.kafka_url, name, 3)
    topic = target_topic(kafka, name)
    source = open_source(url(ours.kafka_url), Options(source_cluster=CLUSTER))
    reader = source.open(partition(name), topic.resume)
    entries: list[Any] = []
    while len(entries) < 3:
        entries += reader.take(10, 1 << 20)
    produce(kafka, name, 1)
    topic.put(entries[0])
    with pytest.raises(OffsetsDifferError, match="others write there"):
        wait_stored(topic)
    produce(kafka, name, 1)
    with pytest.raises(TargetNotEmptyError, match="goes on at offset 9 of the source, and leaves"):
        mirror(url(ours.kafka_url), url(kafka), name)
    produce(ours.kafka_url, name, 1)
    assert mirror(url(ours.kafka_url), url(kafka), name, append=True).entries == 1
    with pytest.raises(TargetNotEmptyError):
        mirror(url(ours.kafka_url), url(kafka), name, source_cluster="east")


@pytest.mark.parametrize(("removed_before", "copied"), [(6, [5, 8]), (4, [2, 5, 8])])
def test_records_that_were_removed_are_a_gap(
    mirror: Mirror,
    ours: BrokerThread,
    kafka: str,
    name: str,
    tmp_path: Path,
    removed_before: int,
    copied: list[int],
):
    """It is reported once, and keeps its offsets. A set that was removed in part goes whole."""
    produce(kafka, name, 3)
    removed = DeleteRecordsRequest.DeleteRecordsTopic
    part = removed.DeleteRecordsPartition(partition_index=0, offset=removed_before)
    with RawKafka.from_url(kafka) as raw:
        asked = [removed(name=name, partitions=[part])]
        raw.call(DeleteRecordsRequest, 1, topics=asked, timeout_ms=30_000)
    run = mirror(url(kafka), tmp_path / "copy", name)
    missing = f"indexes 0 to {removed_before - 1} are missing"
    assert run.lines == [f"gap: {partition(name)}: {missing}"]
    copies = entries_of(tmp_path / "copy", partition(name))
    assert [each.index for each in copies] == copied
    stamps = [stamp for each in copies if (stamp := peek(each.prefix)) is not None]
    assert [each.source_index for each in stamps] == copied
    again = mirror(url(kafka), tmp_path / "copy", name)
    assert (again.entries, again.lines) == (0, [])
    assert is_equal(url(kafka), tmp_path / "copy", name)
    with pytest.raises(OffsetsDifferError):
        mirror(url(kafka), url(ours.kafka_url), name)


def test_a_source_that_ends_earlier_is_another_one(
    mirror: Mirror, ours: BrokerThread, kafka: str, name: str, tmp_path: Path
):
    """As for other sources; and the numbers of partitions must fit."""
    produce(kafka, name, 2)
    mirror(url(kafka), tmp_path / "copy", name)
    with pytest.raises(OtherSourceError, match="the source ends at 0"):
        mirror(url(ours.kafka_url), tmp_path / "copy", name)
    with pytest.raises(TopicMissingError):
        mirror(url(kafka), tmp_path / "copy", f"{name}-absent")
    create(kafka, f"{name}-many", 3)
    create(ours.kafka_url, f"{name}-many", 2)
    for target in (ours.service_url, url(ours.kafka_url)):
        with pytest.raises(PartitionCountError):
            mirror(url(kafka), target, f"{name}-many")


def test_a_kafka_takes_record_sets_alone(mirror: Mirror, kafka: str, name: str, tmp_path: Path):
    """What is before a message of Pulsar's is copied; a broker must show its indexes."""
    body, count = batch(b"a", b"b")
    made = validate_produced(record_set(3), 7, EntryRules())
    assert made is not None
    with LocalStore.open(tmp_path / "data") as store:
        ledger = store.open_topic(partition(name))
        base = BrokerEntryMetadata(message_count=3, source_format=made.source_format)
        ledger.append(bytes(made.stored), message_count=3, base=base).commit.wait()
        ledger.append(body, message_count=count).commit.wait()
        store.catalog.put("partitioned-topic", f"persistent://public/default/{name}", b"1")
    with pytest.raises(TargetRefusedError, match="no record set"):
        mirror(tmp_path / "data", url(kafka), name)
    assert len(seen(kafka, name)) == 3
    with (
        running_broker(data_dir=tmp_path / "data") as source,
        pytest.raises(TargetRefusedError, match="does not show its indexes"),
    ):
        mirror(source.service_url, url(kafka), name)


def test_addresses():
    """What is not one is refused before anything is connected."""
    for wrong in ("kafka://", "kafka://host:port", "kafka://host:1/topic"):
        with pytest.raises(ServiceUrlError):
            open_source(wrong, Options())
    target = open_target("kafka://a:1,b", Options())
    with pytest.raises(EndpointError, match="on each side"):
        open_carrier("folder", target, Options())


def test_sasl_and_tls(mirror: Mirror, tmp_path: Path):
    """PLAIN for a user of the URL, OAUTHBEARER for a token alone, with and without TLS; what is
    wrong is refused.
    """
    make_certificates(tmp_path)
    settings = {
        "kafka_tls_port": 0,
        "tls_certificate_file": str(tmp_path / "broker.pem"),
        "tls_key_file": str(tmp_path / "broker.key"),
    }
    password = f"token:{token_of('both')}"
    topic, trusted = "acme/ns/orders", {"trusted_certificates": str(tmp_path / "ca.pem")}
    with secured_broker(settings, kafka_port=0, kafka_namespace="acme/ns") as broker:
        set_up(broker)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.kafka_url,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "both",
                "sasl.password": password,
            }
        )
        producer.produce("orders", b"x")
        assert producer.flush(LIMIT_S) == 0
        plain, over_tls = broker.kafka_url, broker.kafka_url_tls
        for source, secret in (
            (f"kafka://both@{plain}", password),
            (f"kafka://{plain}", token_of("reader")),
            (f"kafka+ssl://both@{over_tls}", password),
            (f"kafka+ssl://{over_tls}", token_of("reader")),
        ):
            folder = tmp_path / str(next(numbers))
            assert mirror(source, folder, topic, source_token=secret, **trusted).entries == 1
        with pytest.raises(KafkaRefusedError, match="SaslAuthenticationFailed"):
            mirror(f"kafka://both@{plain}", tmp_path / "no", topic, source_token="token:wrong")
        with pytest.raises(UnreachableError, match="certificate"):
            mirror(f"kafka+ssl://both@{over_tls}", tmp_path / "no", topic, source_token=password)


def test_a_mirror_that_follows(ours: BrokerThread, kafka: str, name: str):
    """It brings what comes, through a broker that answers nothing for a while in between."""
    lines: list[str] = []
    report = Report(lines.append)
    options = Options(source_cluster=CLUSTER)
    sent = 0

    def is_stopped() -> bool:
        nonlocal sent
        if report.sum().entries == sent and sent < 5:
            produce(kafka, name, 1, first=3 * sent)
            sent += 1
        return report.sum().entries == 5

    MirrorRun(
        open_source(url(kafka), options),
        open_target(ours.service_url, options),
        Selection((name,)),
        Pace(None),
        report,
        is_stopped=is_stopped,
    ).run()
    assert seen(ours.kafka_url, name) == seen(kafka, name)
    assert lines == []
