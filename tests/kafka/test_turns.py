"""Long requests share the time slices of the event loop with all others."""

from __future__ import annotations

from collections import Counter

import pytest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from pulsemark.broker import long_work
from pulsemark.broker.long_work import Turns
from pulsemark.kafka import answering, publishing, reading, session
from pulsemark.kafka.partitions import KafkaPartition
from pulsemark.kafka.wire import connection
from pulsemark.testing.raw_kafka import RawKafka, fetch_fields, produce_fields

from .conftest import create, is_on_loop, record_set, records_of

_Produced = ProduceRequest.TopicProduceData
_Fetched = FetchRequest.FetchTopic
_Listed = ListOffsetsRequest.ListOffsetsTopic
COUNT = 600


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
    monkeypatch.setattr(long_work, "SLICE_S", 0)
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
    monkeypatch.setattr(long_work, "SLICE_S", 0)
    sets = [_Produced.PartitionProduceData(index=0, records=record_set([b"x"]))] * 5_000
    fields = produce_fields([], -1) | {"topic_data": [_Produced(name=topic, partition_data=sets)]}
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        client.send(ProduceRequest, 7, **fields)
        while raw.fetch(topic, 0).high_watermark < 10:
            pass
    monkeypatch.undo()
    kafka = kafka_broker.broker.services.kafka
    for _ in range(1_000):
        raw.produce(topic, record_set([b"later"]))
        if not kafka.ports.budget.bytes_in_flight and len(kafka.sessions) == 1:
            break
    assert kafka.ports.budget.bytes_in_flight == 0
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
    kafka_broker, raw, made, slices
):
    """A fetch that waits for more bytes than there are looks again before it begins to wait."""
    raw.produce(made, record_set([b"a"]))
    asked = [(made, 0, 0, 1 << 20, -1)] * 50
    size = len(record_set([b"a"])) * 75
    fields = fetch_fields(asked, 60_000, size, 1 << 20)
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        sent = client.send(FetchRequest, 11, **fields)
        raw.produce(made, record_set([b"b"]))
        assert client.receive(FetchRequest, 11)[0] == sent


@pytest.mark.parametrize("request_type", [FetchRequest, ListOffsetsRequest, MetadataRequest])
def test_very_many_partitions_that_do_not_exist_are_answered_in_turns(
    raw, topic, slices, monkeypatch, request_type
):
    """Looking them up takes turns; decoding the request and encoding the answer take a thread."""
    on_loop = []
    for module, name in ((session, "decode_body"), (answering, "encode")):
        work = getattr(module, name)

        def spied(*args, work=work):
            on_loop.append(is_on_loop())
            return work(*args)

        monkeypatch.setattr(module, name, spied)
    monkeypatch.setattr(connection, "DECODED_AT_ONCE_BYTES", 1_000)
    if request_type is FetchRequest:
        parts = [
            _Fetched.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1)
            for n in range(COUNT)
        ]
        fields = fetch_fields([], 0, 1, 1) | {"topics": [_Fetched(topic=topic, partitions=parts)]}
        answer = raw.call(FetchRequest, 4, **fields)
        codes = [part.error_code for part in answer.responses[0].partitions]
    elif request_type is ListOffsetsRequest:
        wanted = [
            _Listed.ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(COUNT)
        ]
        topics = [_Listed(name=topic, partitions=wanted)]
        answer = raw.call(ListOffsetsRequest, 1, replica_id=-1, topics=topics)
        codes = [part.error_code for part in answer.topics[0].partitions]
    else:
        names = [MetadataRequest.MetadataRequestTopic(name=f"no-{n}") for n in range(COUNT)]
        answer = raw.call(MetadataRequest, 4, topics=names, allow_auto_topic_creation=False)
        codes = [each.error_code for each in answer.topics]
    assert codes == [3] * COUNT
    assert max(slices.values()) == 1
    assert len(slices) >= COUNT
    assert on_loop == [False, False]


def test_a_few_sets_are_stored_at_once(raw, made, slices):
    """Ordinary requests wait for no turn."""
    raw.produce(made, record_set([b"open"]))
    slices.clear()
    assert raw.produce(made, record_set([b"x"])).base_offset == 1
    assert not slices
    assert publishing.AT_ONCE_PARTS >= 100
