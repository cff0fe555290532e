"""Long requests share the time slices of the event loop with all others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from functools import partial

import pytest
from kafka.protocol.admin import CreatePartitionsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from pulsemark.broker import cooperative
from pulsemark.broker.cooperative import Turns
from pulsemark.broker.kafka import endpoint, reading
from pulsemark.broker.kafka.groups import offsets as group_offsets
from pulsemark.broker.kafka.handlers import grouping, producing
from pulsemark.broker.kafka.partitions import KafkaPartition
from pulsemark.broker.kafka.reading import Figures
from pulsemark.kafka import protocol
from pulsemark.kafka.records import Fetched, fetch, produced, validate_produced
from pulsemark.kafka.records import batch as batches
from pulsemark.kafka.records.batch import BatchFields
from pulsemark.kafka.records.convert import to_legacy
from pulsemark.kafka.records.layout import Codec, Record, Work
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka, fetch_fields, produce_fields

from .conftest import create, is_on_loop, record_set, records_of

_Produced = ProduceRequest.TopicProduceData
_Fetched = FetchRequest.FetchTopic
_Listed = ListOffsetsRequest.ListOffsetsTopic
_Committed = OffsetCommitRequest.OffsetCommitRequestTopic
COUNT = 600
MIB = 1 << 20


@pytest.fixture
def slices(monkeypatch):
    """Slices so short that each piece has one of its own; counts the pieces of each slice."""
    counts: Counter[int] = Counter()
    number = 0
    has_time = Turns.has_time

    def counted(self):
        nonlocal number
        new = self._until_s is None
        number += new
        found = has_time(self)
        counts[number] += found
        return found

    next_turn = Turns.next

    async def counted_next(self):
        nonlocal number
        await next_turn(self)
        number += 1
        counts[number] += 1

    monkeypatch.setattr(Turns, "has_time", counted)
    monkeypatch.setattr(Turns, "next", counted_next)
    monkeypatch.setattr(cooperative, "SLICE_S", 0)
    return counts


def test_a_produce_with_very_many_sets_is_stored_in_turns(raw, topic, slices):
    """One set in each turn of the loop is checked, and one appended; all are stored, in order."""
    create(raw, topic, partitions=2)
    for partition in range(2):
        raw.produce(topic, record_set([b"open"]), partition=partition)
    sets = [
        _Produced.PartitionProduceData(index=number % 2, records=record_set([b"%d" % number]))
        for number in range(COUNT)
    ]
    fields = produce_fields([], -1) | {"topic_data": [_Produced(name=topic, partition_data=sets)]}
    slices.clear()
    answer = raw.call(ProduceRequest, 7, **fields)
    found = [
        (each.index, each.error_code, each.base_offset)
        for each in answer.responses[0].partition_responses
    ]
    assert found == [(number % 2, 0, 1 + number // 2) for number in range(COUNT)]
    assert max(slices.values()) == 1
    assert len(slices) >= 3 * COUNT
    values = [value for _, value in records_of(raw.fetch(topic, 1, partition=1).records)]
    assert values == [b"%d" % number for number in range(1, COUNT, 2)]


def test_sets_are_refused_one_by_one_among_very_many(raw, topic):
    """A partition that does not exist and a damaged set do not keep the others from the log."""
    create(raw, topic)
    sets = [
        _Produced.PartitionProduceData(index=number % 3, records=record_set([b"x"]))
        for number in range(COUNT)
    ]
    sets[0].records = sets[0].records[:-1] + b"?"
    fields = produce_fields([], -1) | {"topic_data": [_Produced(name=topic, partition_data=sets)]}
    answer = raw.call(ProduceRequest, 7, **fields)
    codes = [each.error_code for each in answer.responses[0].partition_responses]
    assert codes == [2, 3, 3] + [0, 3, 3] * (COUNT // 3 - 1)
    assert len(records_of(raw.fetch(topic, 0).records)) == COUNT // 3 - 1


def test_a_client_that_leaves_in_the_middle_of_very_many_sets_leaves_nothing(
    kafka_broker, raw, topic, monkeypatch
):
    """What was appended is counted, and the memory of publishes is given back."""
    create(raw, topic)
    raw.produce(topic, record_set([b"open"]))
    monkeypatch.setattr(cooperative, "SLICE_S", 0)
    sets = [_Produced.PartitionProduceData(index=0, records=record_set([b"x"]))] * 5_000
    fields = produce_fields([], -1) | {"topic_data": [_Produced(name=topic, partition_data=sets)]}
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        client.send(ProduceRequest, 7, **fields)
        while raw.fetch(topic, 0).high_watermark < 10:
            pass
    monkeypatch.undo()
    kafka = kafka_broker.broker.kafka
    for _ in range(1_000):
        raw.produce(topic, record_set([b"later"]))
        if not kafka.services.budget.bytes_in_flight and len(kafka.sessions) == 1:
            break
    assert kafka.services.budget.bytes_in_flight == 0
    assert [each.publishing_bytes for each in kafka.sessions] == [0]


def test_clients_that_fetch_much_take_turns(kafka_broker, raw, topic, slices, monkeypatch):
    """Each turn of the loop has one piece of one of them; a piece is one read of a megabyte."""
    create(raw, topic)
    for number in range(6):
        raw.produce(topic, record_set([b"%d" % number * 700_000]))
    monkeypatch.setattr(reading, "STORED_READ_S", 60.0)
    reads = []
    read = KafkaPartition.read

    def spied(self, offset, max_bytes):
        reads.append(max_bytes)
        return read(self, offset, max_bytes)

    monkeypatch.setattr(KafkaPartition, "read", spied)
    clients = [RawKafka.from_url(kafka_broker.kafka_url) for _ in range(4)]
    slices.clear()
    asked = [(topic, 0, 0, 1 << 23, -1)]
    for client in clients:
        client.send(FetchRequest, 11, **fetch_fields(asked, 0, 1, 1 << 23))
    for client in clients:
        part = client.receive(FetchRequest, 11)[1].responses[0].partitions[0]
        assert [offset for offset, _ in records_of(part.records)] == list(range(6))
        client.close()
    assert max(reads) <= reading.PIECE_BYTES
    assert max(slices.values()) == 1
    assert len(slices) >= 4 * 6


def test_entries_that_come_while_a_fetch_reads_in_turns_are_not_missed(
    kafka_broker, raw, topic, slices
):
    """A fetch that waits for more bytes than there are looks again before it begins to wait."""
    create(raw, topic, partitions=50)
    for partition in range(50):
        raw.produce(topic, record_set([b"a"]), partition=partition)
    asked = [(topic, partition, 0, 1 << 20, -1) for partition in range(50)]
    size = len(record_set([b"a"])) * 51
    fields = fetch_fields(asked, 60_000, size, 1 << 20)
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        sent = client.send(FetchRequest, 11, **fields)
        raw.produce(topic, record_set([b"b"]))
        assert client.receive(FetchRequest, 11)[0] == sent


def _fetch_many(raw, topic):
    parts = [
        _Fetched.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1)
        for n in range(COUNT)
    ]
    fields = fetch_fields([], 0, 1, 1) | {"topics": [_Fetched(topic=topic, partitions=parts)]}
    answer = raw.call(FetchRequest, 4, **fields)
    return [part.error_code for part in answer.responses[0].partitions]


def _list_many(raw, topic):
    wanted = [_Listed.ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(COUNT)]
    topics = [_Listed(name=topic, partitions=wanted)]
    answer = raw.call(ListOffsetsRequest, 1, replica_id=-1, topics=topics)
    return [part.error_code for part in answer.topics[0].partitions]


def _describe_many(raw, _topic):
    names = [MetadataRequest.MetadataRequestTopic(name=f"no-{n}") for n in range(COUNT)]
    answer = raw.call(MetadataRequest, 4, topics=names, allow_auto_topic_creation=False)
    return [each.error_code for each in answer.topics]


def _commit_many(raw, topic):
    answer = raw.call(OffsetCommitRequest, 2, **commit_fields(topic, range(COUNT)))
    return [part.error_code for part in answer.topics[0].partitions]


def _delete_many_topics(raw, topic):
    names = [f"{topic}-{n}" for n in range(COUNT)]
    answer = raw.call(DeleteTopicsRequest, 1, topic_names=names, timeout_ms=1)
    return [each.error_code for each in answer.responses]


def _add_to_many(raw, topic):
    wanted = CreatePartitionsRequest.CreatePartitionsTopic
    topics = [wanted(name=f"{topic}-{n}", count=2, assignments=None) for n in range(COUNT)]
    answer = raw.call(CreatePartitionsRequest, 0, topics=topics, timeout_ms=1, validate_only=False)
    return [each.error_code for each in answer.results]


@pytest.mark.parametrize(
    "ask",
    [_fetch_many, _list_many, _describe_many, _commit_many, _delete_many_topics, _add_to_many],
)
def test_very_many_partitions_that_do_not_exist_are_answered_in_turns(
    raw, topic, slices, monkeypatch, ask
):
    """Looking them up takes turns; decoding the request and encoding the answer take a thread."""
    on_loop = []
    for module, name in ((endpoint, "decode_body"), (endpoint, "encode")):
        work = getattr(module, name)

        def spied(*args, work=work):
            on_loop.append(is_on_loop())
            return work(*args)

        monkeypatch.setattr(module, name, spied)
    monkeypatch.setattr(protocol, "DECODED_AT_ONCE_BYTES", 1_000)
    assert ask(raw, topic) == [3] * COUNT
    assert max(slices.values()) == 1
    assert len(slices) >= COUNT
    assert on_loop == [False, False]


def commit_fields(topic, indexes):
    """An OffsetCommit of some partitions."""
    parts = [
        _Committed.OffsetCommitRequestPartition(
            partition_index=n, committed_offset=n, committed_metadata=""
        )
        for n in indexes
    ]
    topics = [_Committed(name=topic, partitions=parts)]
    ids = {"group_id": f"g-{topic}", "generation_id_or_member_epoch": -1, "member_id": ""}
    return ids | {"retention_time_ms": -1, "topics": topics}


def fetch_committed(raw, topic, indexes):
    """The committed offsets of some partitions; None: of all that have one."""
    asked = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = None if indexes is None else [asked(name=topic, partition_indexes=list(indexes))]
    answer = raw.call(OffsetFetchRequest, 2, group_id=f"g-{topic}", topics=topics)
    return {
        part.partition_index: part.committed_offset
        for each in answer.topics
        for part in each.partitions
    }


def test_offsets_of_very_many_partitions_are_committed_together(raw, topic, monkeypatch):
    """In turns; what is above the limit of one commit is refused as a whole, with 28."""
    count = 1_000
    create(raw, topic, partitions=count)
    answer = raw.call(OffsetCommitRequest, 2, **commit_fields(topic, range(count)))
    assert {part.error_code for part in answer.topics[0].partitions} == {0}
    expected = {n: n for n in range(count)}
    assert fetch_committed(raw, topic, None) == expected
    assert fetch_committed(raw, topic, range(count + 5)) == expected | dict.fromkeys(
        range(count, count + 5), -1
    )
    monkeypatch.setattr(group_offsets, "MAX_OFFSETS_PER_COMMIT", 700)
    for asked in (701, 700):
        fields = commit_fields(topic, range(asked)) | {"group_id": f"g-{topic}-other"}
        answer = raw.call(OffsetCommitRequest, 2, **fields)
        codes = {part.error_code for part in answer.topics[0].partitions}
        assert codes == ({28} if asked > 700 else {0})


def test_a_commit_counts_though_its_client_is_gone(kafka_broker, raw, topic):
    """Clients commit as they close, and wait for no answer."""
    create(raw, topic, partitions=1_000)
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        client.send(OffsetCommitRequest, 2, **commit_fields(topic, range(1_000)))
    until_s = time.monotonic() + 30
    while fetch_committed(raw, topic, None) != {n: n for n in range(1_000)}:
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.fixture
def conversions(monkeypatch):
    """How many conversions ran at the same time, one number for each."""
    running: list[int] = []
    most: list[int] = []
    convert = fetch

    def counted(*args):
        if is_on_loop():
            return convert(*args)
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        made = convert(*args)
        running.pop()
        return made

    monkeypatch.setattr(reading, "fetch", counted)
    return most


def _fetch_as_old_clients(broker, topic, offsets):
    """A client for each offset asks at the same time; the values that each one gets."""
    clients = [RawKafka.from_url(broker.kafka_url) for _ in offsets]
    for client, offset in zip(clients, offsets, strict=True):
        asked = [(topic, 0, offset, 1, -1)]
        client.send(FetchRequest, 3, **fetch_fields(asked, 60_000, 1, 1))
    found = []
    for client in clients:
        part = client.receive(FetchRequest, 3)[1].responses[0].partitions[0]
        found.append([value for _, value in records_of(part.records)])
        client.close()
    return found


def test_large_sets_are_converted_for_a_few_clients_at_a_time(kafka_broker, raw, made, conversions):
    """However many old clients read them: what a conversion takes is counted by no other limit."""
    values = [b"%d" % number for number in range(2_000)]
    count = 3 * endpoint.LARGE_SETS_AT_ONCE
    for _ in range(count):
        assert raw.produce(made, record_set(values)).error_code == 0
    offsets = [number * len(values) for number in range(count)]
    assert _fetch_as_old_clients(kafka_broker, made, offsets) == [values] * count
    assert len(conversions) == count
    assert max(conversions) <= endpoint.LARGE_SETS_AT_ONCE


@pytest.mark.parametrize("codec", [0, 1])
def test_clients_that_read_the_same_large_set_share_one_conversion(
    kafka_broker, raw, made, conversions, codec
):
    """Twenty old clients cost what one costs, wherever in a compressed set they begin."""
    values = [b"%d" % number * 8 for number in range(20_000)]
    assert raw.produce(made, record_set(values, codec=codec)).error_code == 0
    offsets = range(20) if codec else [0] * 20
    assert _fetch_as_old_clients(kafka_broker, made, offsets) == [values] * 20
    assert len(conversions) == 1
    assert kafka_broker.broker.services.output.reserved_bytes == 0


def test_conversions_that_nobody_asks_for_are_forgotten():
    """What is too much at once, and what was not asked for lately."""

    async def play():
        now_s = 0.0

        async def run(make):
            return make()

        kept = reading.Conversions(Figures(), run, lambda: now_s)
        large = Fetched((), reading.KEPT_BYTES // 2 + 1, Work())
        calls = []

        def make(name):
            calls.append(name)
            return large

        async def ask(name):
            return (await kept.result(name, partial(make, name))).result()

        assert await ask("a") is await ask("a") is large
        await ask("b")
        await ask("a")
        assert calls == ["a", "b", "a"]
        now_s += 2 * reading.KEPT_S
        kept.drop_unused()
        await ask("a")
        assert calls == ["a", "b", "a", "a"]

    asyncio.run(play())


def test_large_requests_of_many_clients_are_decoded_a_few_at_a_time(
    kafka_broker, topic, monkeypatch
):
    """A decoded request takes a hundred times its size; those that wait are only bytes."""
    limit = endpoint.LARGE_AT_ONCE
    inside: list[object] = []
    most: list[int] = []

    async def counted(self, request):
        inside.append(request)
        most.append(len(inside))
        for _ in range(20):
            await asyncio.sleep(0)
        try:
            await handle(self, request)
        finally:
            inside.remove(request)

    handle = endpoint.KafkaSession.handle_large_now
    monkeypatch.setattr(endpoint.KafkaSession, "handle_large_now", counted)
    monkeypatch.setattr(protocol, "DECODED_AT_ONCE_BYTES", 1_000)
    clients = [RawKafka.from_url(kafka_broker.kafka_url) for _ in range(3 * limit)]
    for client in clients:
        client.send(OffsetCommitRequest, 2, **commit_fields(topic, range(COUNT)))
    for client in clients:
        answer = client.receive(OffsetCommitRequest, 2)[1]
        assert len(answer.topics[0].partitions) == COUNT
        client.close()
    assert 1 <= max(most) <= limit
    assert len(most) == len(clients)


def test_a_large_request_has_its_place_to_its_end(kafka_broker, raw, topic, monkeypatch):
    """Also a commit whose client is gone: else many clients that go would have all decoded."""
    inside, may_end = [], threading.Event()
    checked = grouping.checked_offsets

    async def slow(session, request, **since):
        inside.append(request)
        await asyncio.to_thread(may_end.wait, 30)
        return await checked(session, request, **since)

    monkeypatch.setattr(grouping, "checked_offsets", slow)
    monkeypatch.setattr(protocol, "DECODED_AT_ONCE_BYTES", 1_000)
    sessions = kafka_broker.broker.services.kafka_sessions
    for number in range(3 * endpoint.LARGE_AT_ONCE):
        with RawKafka.from_url(kafka_broker.kafka_url) as client:
            client.send(OffsetCommitRequest, 2, **commit_fields(topic, range(COUNT)))
            until_s = time.monotonic() + 30
            while len(inside) <= min(number, endpoint.LARGE_AT_ONCE - 1):
                assert time.monotonic() < until_s
                time.sleep(0.001)
    while len(sessions) > 1:
        assert time.monotonic() < until_s
        time.sleep(0.001)
    assert len(inside) == endpoint.LARGE_AT_ONCE
    may_end.set()
    raw.call(OffsetCommitRequest, 2, **commit_fields(topic, range(COUNT)))


def test_a_few_sets_are_stored_at_once(raw, made, slices):
    """Ordinary requests wait for no turn."""
    raw.produce(made, record_set([b"open"]))
    turns = []
    for offset in range(1, 6):
        slices.clear()
        assert raw.produce(made, record_set([b"x"])).base_offset == offset
        turns.append(len(slices))
    # What clients of the tests before this one left behind may still take some.
    assert 0 in turns
    assert producing.AT_ONCE_PARTS >= 100


def _equal(count, codec=0, magic=2, value=b"v", numbered=True):
    """A set of equal records. If they are not numbered, a compressed one is very small."""
    records = [Record(n if numbered else 0, 1, b"k", value) for n in range(count)]
    if magic == 2:
        return batches.build(records, BatchFields(codec, last_offset_delta=count - 1), Work())
    return to_legacy(records, magic, codec, Work())


@pytest.mark.parametrize(
    ("sets", "version"),
    [
        ([_equal(100_000, Codec.ZSTD, numbered=False)], 7),
        ([_equal(3_000, Codec.GZIP)], 7),
        ([_equal(20_000, Codec.GZIP, 0)], 2),
        ([_equal(20_000, Codec.GZIP, 1)] * 5, 2),
        ([_equal(1, Codec.ZSTD, value=bytes(3_000_000))], 7),
        ([_equal(10_000)] * 5, 7),
        ([_equal(4_000, magic=0)] * 3, 2),
    ],
    ids=["zstd", "gzip", "magic-0", "magic-1", "one-large-record", "plain", "plain-magic-0"],
)
def test_a_set_is_checked_by_what_is_in_it_not_by_its_size(raw, made, monkeypatch, sets, version):
    """However small it is as sent, many records or bytes after decompression take a thread."""
    raw.produce(made, record_set([b"open"]))
    sizes = []
    for module, name in ((produced, "scan_records"), (produced, "scan_messages")):
        scan = getattr(module, name)

        def spied(data, *args, scan=scan):
            found = scan(data, *args)
            if is_on_loop():
                sizes.append((found.count, len(data)))
            return found

        monkeypatch.setattr(module, name, spied)
    data = _Produced.PartitionProduceData
    parts = [data(index=0, records=each) for each in sets]
    assert all(len(each) < 128 * 1024 for each in sets)
    fields = produce_fields([], -1) | {"topic_data": [_Produced(name=made, partition_data=parts)]}
    answer = raw.call(ProduceRequest, version, **fields)
    assert {part.error_code for part in answer.responses[0].partition_responses} == {0}
    assert not sizes


def test_small_sets_that_are_much_together_are_checked_in_turns(raw, made, slices):
    """One request's sets are one piece of work each."""
    raw.produce(made, record_set([b"open"]))
    data = _Produced.PartitionProduceData
    parts = [data(index=0, records=_equal(1_900)) for _ in range(100)]
    fields = produce_fields([], -1) | {"topic_data": [_Produced(name=made, partition_data=parts)]}
    slices.clear()
    answer = raw.call(ProduceRequest, 7, **fields)
    assert {part.error_code for part in answer.responses[0].partition_responses} == {0}
    assert max(slices.values()) == 1
    assert len(slices) >= 100


def test_large_sets_of_many_clients_are_checked_a_few_at_a_time(
    kafka_broker, raw, made, monkeypatch
):
    """A set may have 64 MiB after decompression, and a client may leave while it is checked."""
    running: list[int] = []
    most: list[int] = []
    check = validate_produced

    def counted(*args, **options):
        if is_on_loop():
            return check(*args, **options)
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        try:
            return check(*args, **options)
        finally:
            running.pop()

    monkeypatch.setattr(producing, "validate_produced", counted)
    large = _equal(1, Codec.GZIP, value=bytes(3_000_000))
    clients = [RawKafka.from_url(kafka_broker.kafka_url) for _ in range(12)]
    for client in clients:
        client.send(ProduceRequest, 7, **produce_fields([(made, 0, large)], -1))
    for client in clients[::2]:
        client.close()
    for client in clients[1::2]:
        part = client.receive(ProduceRequest, 7)[1].responses[0].partition_responses[0]
        assert part.error_code == 0
        client.close()
    assert max(most) <= endpoint.CHECKED_AT_ONCE + endpoint.LARGE_SETS_AT_ONCE
    kafka = kafka_broker.broker.kafka
    for _ in range(1_000):
        raw.fetch(made, 0, max_bytes=1)
        if not kafka.services.budget.bytes_in_flight and len(kafka.sessions) == 1:
            break
    assert kafka.services.budget.bytes_in_flight == 0


def test_a_closing_broker_checks_no_more_sets():
    """Those that were taken and wait for their check are refused, and their client sends again."""
    entered, go_on = threading.Event(), threading.Event()
    check = validate_produced

    def held(*args, **options):
        if not is_on_loop():
            entered.set()
            assert go_on.wait(60)
        return check(*args, **options)

    with (
        running_broker(kafka_port=0, http_port=None) as broker,
        pytest.MonkeyPatch.context() as patch,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        create(client, "t")
        patch.setattr(producing, "validate_produced", held)
        data = _Produced.PartitionProduceData
        parts = [data(index=0, records=_equal(10_000)) for _ in range(3)]
        topic_data = [_Produced(name="t", partition_data=parts)]
        fields = produce_fields([], -1) | {"topic_data": topic_data}
        client.send(ProduceRequest, 7, **fields)
        assert entered.wait(60)
        kafka = broker.broker.kafka
        assert kafka is not None
        kafka.stop_reading()
        go_on.set()
        answer = client.receive(ProduceRequest, 7)[1].responses[0]
        assert [part.error_code for part in answer.partition_responses] == [0, 6, 6]


def test_clients_that_fetch_at_once_and_read_nothing_share_one_limit(monkeypatch):
    """What they read together stays within the memory for unsent data; others are served."""
    limit_bytes, set_bytes = 8 * MIB, 500_000
    with running_broker(kafka_port=0, http_port=None, max_unsent_bytes=limit_bytes) as broker:
        output = broker.broker.services.output
        sizes = []
        read = KafkaPartition.read

        def spied(self, offset, max_bytes):
            sizes.append(output.total_bytes + output.reserved_bytes)
            return read(self, offset, max_bytes)

        monkeypatch.setattr(KafkaPartition, "read", spied)
        with RawKafka.from_url(broker.kafka_url) as raw:
            create(raw, "t")
            for _ in range(20):
                assert raw.produce("t", record_set([bytes(set_bytes)])).error_code == 0
            fields = fetch_fields([("t", 0, 0, 16 * MIB, -1)], 0, 1, 16 * MIB)
            clients = [RawKafka.from_url(broker.kafka_url) for _ in range(40)]
            for client in clients:
                client.send(FetchRequest, 11, **fields)
            for _ in range(20):
                assert raw.fetch("t", 0, max_bytes=1).records
            # One entry is sent whole, whatever was reserved for it.
            assert max(sizes) <= limit_bytes + 2 * set_bytes
            for client in clients:
                client.close()
            for _ in range(1_000):
                assert raw.fetch("t", 0, max_bytes=1).records
                if not output.reserved_bytes:
                    break
            assert output.reserved_bytes == 0
