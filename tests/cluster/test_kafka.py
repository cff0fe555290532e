"""Kafka's clients of several brokers: partitions have leaders, and groups a coordinator."""

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from pulsemark.cluster import registration
from pulsemark.testing.raw_kafka import RawKafka
from pulsemark.wire import TopicName

PARTITIONS = 8
NOT_LEADER, NOT_COORDINATOR, NOT_CONTROLLER = 6, 16, 41
SETTINGS = {"kafka_port": 0, "kafka_group_initial_rebalance_delay_ms": 0}


def started(brokers, count):
    """Brokers with a Kafka port."""
    return [brokers.start(**SETTINGS) for _ in range(count)]


def create(thread, topic, partitions=PARTITIONS):
    """Make a topic."""
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    with RawKafka.from_url(thread.kafka_url) as raw:
        answer = raw.call(
            CreateTopicsRequest, 4, topics=[wanted], timeout_ms=1, validate_only=False
        )
    assert answer.topics[0].error_code == 0


def metadata(thread, topic):
    """Brokers by number, each partition's leader, and the controller, as a broker says."""
    wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
    with RawKafka.from_url(thread.kafka_url) as raw:
        answer = raw.call(MetadataRequest, 1, topics=wanted)
    (found,) = answer.topics
    nodes = {one.node_id: (one.host, one.port) for one in answer.brokers}
    leaders = {one.partition_index: one.leader_id for one in found.partitions}
    return nodes, leaders, answer.controller_id


def thread_of(brokers, nodes, number):
    """The broker with that number."""
    url = "kafka://{}:{}".format(*nodes[number])
    return next(
        one for one in brokers.running if one.kafka_url.rpartition("/")[2] == url.rpartition("/")[2]
    )


def record_set(value, producer=None):
    """A record set of one record; `producer`: its id, epoch and sequence number."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    if producer is not None:
        builder.set_producer_state(*producer, False)
    builder.append(timestamp=1, key=b"k", value=value)
    builder.close()
    return bytes(builder.buffer())


def produced(thread, topic, index, data):
    """Error code and offset of a Produce."""
    part = ProduceRequest.TopicProduceData.PartitionProduceData(index=index, records=data)
    with RawKafka.from_url(thread.kafka_url) as raw:
        answer = raw.call(
            ProduceRequest,
            7,
            transactional_id=None,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[part])],
        )
    (found,) = answer.responses[0].partition_responses
    return found.error_code, found.base_offset


def fetched(thread, topic, index):
    """The error code of a Fetch."""
    part = FetchRequest.FetchTopic.FetchPartition(
        partition=index, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=-1
    )
    with RawKafka.from_url(thread.kafka_url) as raw:
        answer = raw.call(
            FetchRequest,
            4,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=0,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])],
        )
    return answer.responses[0].partitions[0].error_code


def coordinator(thread):
    """Error code and number of a FindCoordinator."""
    with RawKafka.from_url(thread.kafka_url) as raw:
        answer = raw.call(FindCoordinatorRequest, 1, key="g", key_type=0)
    return answer.error_code, answer.node_id


def test_each_partition_has_its_leader(brokers, eventually):
    """All brokers name the same brokers, leaders and coordinator; partitions are spread, and a
    leader takes what is produced to it; another broker says that it is not the leader.
    """
    first, second = started(brokers, 2)
    create(first, "t")
    for index in range(PARTITIONS):
        nodes, leaders, _ = metadata(first, "t")
        leader = thread_of(brokers, nodes, leaders[index])
        assert produced(leader, "t", index, record_set(b"v")) == (0, 0)
    answers = [metadata(thread, "t") for thread in (first, second)]
    assert answers[0] == answers[1]
    nodes, leaders, controller = answers[0]
    assert sorted(nodes) == [1, 2]
    assert set(leaders.values()) == {1, 2}
    eventually(lambda: coordinator(first) == coordinator(second) == (0, controller), "one for all")
    for index, number in leaders.items():
        other = thread_of(brokers, nodes, 3 - number)
        assert produced(other, "t", index, record_set(b"v"))[0] == NOT_LEADER
        assert fetched(other, "t", index) == NOT_LEADER
        assert fetched(thread_of(brokers, nodes, number), "t", index) == 0


def test_a_broker_that_has_gone_is_named_for_a_while(brokers, rest, monkeypatch):
    """All brokers name it, also one that was not asked before it went, and one that started after.

    Clients that miss a broker in one answer may never find a coordinator on it again (librdkafka
    2.10 and newer), so one that is back soon is never missing.
    """
    first, second = started(brokers, 2)
    create(first, "t")
    second.close()
    (third,) = started(brokers, 1)
    assert len(rest(first, "GET", "/admin/v2/brokers")[1]) == 2
    assert sorted(metadata(first, "t")[0]) == sorted(metadata(third, "t")[0]) == [1, 2, 3]
    monkeypatch.setattr(registration, "GONE_NAMED_S", 0)
    assert sorted(metadata(first, "t")[0]) == sorted(metadata(third, "t")[0]) == [1, 3]


def test_groups_have_one_coordinator(brokers, eventually):
    """Another broker refuses requests about groups, and the deletion of topics, so that offsets
    are in one place, and go with a deleted topic.
    """
    first, second = started(brokers, 2)
    create(first, "t")

    def offsets_code(thread):
        with RawKafka.from_url(thread.kafka_url) as raw:
            return raw.call(OffsetFetchRequest, 5, group_id="g", topics=None).error_code

    def deleted(thread):
        with RawKafka.from_url(thread.kafka_url) as raw:
            answer = raw.call(DeleteTopicsRequest, 1, topic_names=["t"], timeout_ms=1)
        return answer.responses[0].error_code

    _, number = eventually(lambda: (found := coordinator(first))[0] == 0 and found, "found")
    nodes, _, _ = metadata(first, "t")
    mine = thread_of(brokers, nodes, number)
    other = second if mine is first else first
    eventually(lambda: offsets_code(mine) == 0, "the log of offsets is read")
    assert offsets_code(other) == NOT_COORDINATOR
    assert deleted(other) == NOT_CONTROLLER
    eventually(lambda: set(metadata(first, "t")[1].values()) != {-1}, "leaders")
    assert deleted(mine) == 0


def offsets_of(thread, topic, index):
    """The end of a partition, and the end of each epoch up to the third."""
    with RawKafka.from_url(thread.kafka_url) as raw:
        part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=index, timestamp=-1
        )
        wanted = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])]
        end = raw.call(ListOffsetsRequest, 1, replica_id=-1, topics=wanted)
        ends = []
        for epoch in range(3):
            part = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
                partition=index, current_leader_epoch=-1, leader_epoch=epoch
            )
            wanted = [
                OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[part])
            ]
            answer = raw.call(OffsetForLeaderEpochRequest, 2, topics=wanted)
            (found,) = answer.topics[0].partitions
            assert found.error_code == 0
            ends.append((found.leader_epoch, found.end_offset))
    return end.topics[0].partitions[0].offset, ends


def test_a_takeover_begins_an_epoch(brokers):
    """After each takeover a partition has one epoch more, whose begin OffsetForLeaderEpoch tells;
    an idempotent producer's batch that was stored before is not stored again.
    """
    first, second = started(brokers, 2)
    create(first, "t", 1)
    ends = []
    for number in range(3):
        nodes, leaders, _ = metadata(first, "t")
        leader = thread_of(brokers, nodes, leaders[0])
        code, offset = produced(leader, "t", 0, record_set(b"v", (7, 0, number)))
        assert (code, offset) == (0, 2 * number)  # a control record is before each but the first
        ends.append(offset + 1)
        bundle = leader.call(lambda _, one=leader: _bundle(one))
        leader.call(lambda _, one=leader, bundle=bundle: one.member.ownership.give(bundle))
        other = second if leader is first else first
        other.call(lambda _, one=other, bundle=bundle: one.member.ownership.take(bundle))
        code, offset = produced(other, "t", 0, record_set(b"v", (7, 0, number)))
        assert (code, offset) == (0, 2 * number)
        if number == 2:
            end, epochs = offsets_of(other, "t", 0)
    assert epochs == [(0, ends[0]), (1, ends[1]), (2, ends[2])]
    assert end == 2 * 3


async def _bundle(thread):
    return thread.member.bundle_of(TopicName.parse("persistent://public/default/t-partition-0"))


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_group_goes_on_at_another_broker(brokers, is_orderly):
    """A broker ends, or loses its session: an idempotent producer and a consumer of a group, of
    confluent-kafka, go on at the other broker, with offsets that were committed; nothing is lost
    or stored twice.
    """
    threads = started(brokers, 2)
    create(threads[0], "t")
    servers = ",".join(one.kafka_url.rpartition("/")[2] for one in threads)
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    config = {
        "bootstrap.servers": servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 500,
    }
    consumer = Consumer(config)
    consumer.subscribe(["t"])
    sent = [f"{number}" for number in range(80)]
    failures = []

    def send(values):
        for value in values:
            producer.produce(
                "t",
                value,
                partition=int(value) % PARTITIONS,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(60) == 0

    send(sent[:40])
    got = [_polled(consumer) for _ in range(40)]
    _commit(consumer)
    ended = threads[0]
    if is_orderly:
        ended.close()
        brokers.running.remove(ended)
    else:
        ended.call(lambda _: _expired(ended))
    send(sent[40:])
    consumer.close()
    consumer = Consumer(config)
    consumer.subscribe(["t"])
    got += [_polled(consumer) for _ in range(40)]
    assert sorted(got) == sorted(sent)
    assert failures == []
    for index in range(PARTITIONS):
        low, high = consumer.get_watermark_offsets(TopicPartition("t", index), timeout=30)
        assert low == 0
        assert high >= 10
    consumer.close()


async def _expired(thread):
    thread.member.session.expire()


def _polled(consumer):
    for _ in range(60):
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None, message.error()
            return message.value().decode()
    pytest.fail("nothing within 60 s")


def _commit(consumer):
    for _ in range(20):
        try:
            consumer.commit(asynchronous=False)
        except KafkaException:
            continue
        return
    pytest.fail("not committed")
