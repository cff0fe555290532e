"""Transactions by their requests: what readers get, which codes are answered, what survives."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from kafka.protocol.admin import (
    DeleteTopicsRequest,
    DescribeTransactionsRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka.record.memory_records import MemoryRecords

from pulsemark.broker.kafka.groups import offsets as offsets_module
from pulsemark.broker.kafka.groups import transactions as coordinator
from pulsemark.broker.kafka.topics import CHECK
from pulsemark.kafka.errors import Code, KafkaError
from pulsemark.kafka.messages import ConsumerGroupHeartbeatRequest
from pulsemark.ledger import MemoryFolder
from pulsemark.testing import SettableClock, running_broker
from pulsemark.testing.raw_kafka import RawKafka, fetch_fields, produce_fields

from ..conftest import ledger_of, record_set, records_of

MINUTE_MS = 60_000


class Producer:
    """A producer with a transactional id, request by request."""

    def __init__(self, raw: RawKafka, name: str) -> None:
        self.raw, self.name = raw, name
        self.producer_id, self.epoch, self.sequences = -1, -1, dict[Any, int]()

    def init(self, *, claims: bool = False, timeout_ms: int = MINUTE_MS) -> Any:
        """InitProducerId; its code."""
        answer = self.raw.call(
            InitProducerIdRequest, 4, transactional_id=self.name, transaction_timeout_ms=timeout_ms,
            producer_id=self.producer_id if claims else -1,
            producer_epoch=self.epoch if claims else -1,
        )  # fmt: skip
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer.error_code

    def add(self, topic: str, *partitions: int, version: int = 3) -> dict[int, int]:
        """AddPartitionsToTxn; the code of each partition."""
        topics = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                name=topic, partitions=list(partitions or (0,))
            )
        ]
        answer = self.raw.call(
            AddPartitionsToTxnRequest, version, v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id, v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )  # fmt: skip
        (found,) = answer.results_by_topic_v3_and_below
        return {e.partition_index: e.partition_error_code for e in found.results_by_partition}

    def send(
        self, topic: str, *values: bytes, named: bool = True, version: int = 7, index: int = 0
    ) -> Any:
        """Produce; its code. From version 12 on, it adds the partition."""
        sequence = self.sequences.get((topic, index), 0)
        state = (self.producer_id, self.epoch, sequence)
        records = record_set(values, producer=state, transactional=True)
        fields = produce_fields([(topic, index, records)], -1)
        fields["transactional_id"] = self.name if named else None
        answer = self.raw.call(ProduceRequest, version, **fields)
        code = answer.responses[0].partition_responses[0].error_code
        if not code:
            self.sequences[topic, index] = sequence + len(values)
        return code

    def end(self, *, commits: bool, version: int = 3) -> Any:
        """EndTxn; its code. From version 5 on, it gives the next epoch."""
        answer = self.raw.call(
            EndTxnRequest, version, transactional_id=self.name, producer_id=self.producer_id,
            producer_epoch=self.epoch, committed=commits,
        )  # fmt: skip
        if version >= 5 and not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer.error_code

    def add_group(self, group: str) -> Any:
        """AddOffsetsToTxn; its code."""
        return self.raw.call(
            AddOffsetsToTxnRequest, 3, transactional_id=self.name, producer_id=self.producer_id,
            producer_epoch=self.epoch, group_id=group,
        ).error_code  # fmt: skip

    def commit_offset(
        self, group: str, topic: str, offset: int, version: int = 3, member: str = ""
    ) -> Any:
        """TxnOffsetCommit of partition 0; its code. From version 5 on, it adds the group."""
        of = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        answer = self.raw.call(
            TxnOffsetCommitRequest, version, transactional_id=self.name, group_id=group,
            producer_id=self.producer_id, producer_epoch=self.epoch, generation_id=-1,
            member_id=member, group_instance_id=None,
            topics=[of(name=topic, partitions=[of.TxnOffsetCommitRequestPartition(
                partition_index=0, committed_offset=offset, committed_leader_epoch=-1,
                committed_metadata="")])],
        )  # fmt: skip
        return answer.topics[0].partitions[0].error_code

    def state(self) -> Any:
        """DescribeTransactions."""
        answer = self.raw.call(DescribeTransactionsRequest, 0, transactional_ids=[self.name])
        return answer.transaction_states[0]


@pytest.fixture
def producer(raw, topic) -> Producer:
    """A producer that was given its first epoch."""
    made = Producer(raw, f"id-{topic}")
    assert made.init() == 0
    assert made.epoch == 0
    return made


def fetch(raw: RawKafka, topic: str, offset: int = 0, *, committed: bool = True) -> Any:
    """What one partition has, for a reader of committed records or of all."""
    fields = fetch_fields([(topic, 0, offset, 1 << 20, -1)], 0, 1, 1 << 20)
    answer = raw.call(FetchRequest, 11, **fields | {"isolation_level": int(committed)})
    return answer.responses[0].partitions[0]


def end_offset(raw: RawKafka, topic: str, *, committed: bool, time_ms: int = -1) -> Any:
    """ListOffsets: the end of what a reader may read, or the first offset of a time."""
    of = ListOffsetsRequest.ListOffsetsTopic
    asked = of.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=time_ms)
    answer = raw.call(
        ListOffsetsRequest, 5, replica_id=-1, isolation_level=int(committed),
        topics=[of(name=topic, partitions=[asked])],
    )  # fmt: skip
    return answer.topics[0].partitions[0].offset


def offset_of(raw: RawKafka, group: str, topic: str, *, stable: bool) -> tuple[int, int]:
    """OffsetFetch of partition 0: code and offset."""
    of = OffsetFetchRequest.OffsetFetchRequestTopic
    answer = raw.call(
        OffsetFetchRequest, 7, group_id=group, require_stable=stable,
        topics=[of(name=topic, partition_indexes=[0])],
    )  # fmt: skip
    found = answer.topics[0].partitions[0]
    return found.error_code, found.committed_offset


def test_readers_of_committed_records_stop_at_the_last_stable_offset(raw, made, producer):
    """Others get all; both get the high watermark. A commit shows the records of the open one."""
    raw.produce(made, record_set([b"before"]))
    assert producer.add(made) == {0: 0}
    assert producer.send(made, b"a", b"b") == 0
    raw.produce(made, record_set([b"between"]))
    got = fetch(raw, made)
    assert (got.high_watermark, got.last_stable_offset, got.aborted_transactions) == (4, 1, [])
    assert records_of(got.records) == [(0, b"before")]
    assert fetch(raw, made, 1).records == b""
    everything = fetch(raw, made, committed=False)
    assert (everything.last_stable_offset, everything.aborted_transactions) == (1, None)
    assert len(records_of(everything.records)) == 4
    assert end_offset(raw, made, committed=True) == 1
    assert end_offset(raw, made, committed=False) == 4
    assert end_offset(raw, made, committed=True, time_ms=0) == 0
    assert producer.end(commits=True) == 0
    got = fetch(raw, made, 1)
    assert (got.high_watermark, got.last_stable_offset) == (5, 5)
    assert [value for _, value in records_of(got.records)][:3] == [b"a", b"b", b"between"]


def test_an_aborted_transaction_is_listed_with_its_first_offset(raw, made, producer):
    """Its records come, and its end as a control batch of its producer; clients skip both."""
    producer.add(made)
    producer.send(made, b"a", b"b")
    assert producer.end(commits=False) == 0
    producer.add(made)
    producer.send(made, b"c")
    assert producer.end(commits=True) == 0
    got = fetch(raw, made)
    assert [(a.producer_id, a.first_offset) for a in got.aborted_transactions] == [
        (producer.producer_id, 0)
    ]
    batches = MemoryRecords(got.records)
    seen = []
    while (batch := batches.next_batch()) is not None:
        seen.append((batch.base_offset, batch.is_transactional, batch.is_control_batch))
        assert batch.producer_id == producer.producer_id
    assert seen == [
        (0, True, False), (2, True, True), (3, True, False), (4, True, True)
    ]  # fmt: skip
    assert fetch(raw, made, 3).aborted_transactions == []


def test_a_later_producer_fences_the_one_before_it(raw, made, producer):
    """Its transaction is aborted, and what it sends is refused; by version with another code."""
    producer.add(made)
    producer.send(made, b"zombie")
    heir = Producer(raw, producer.name)
    while (code := heir.init()) == 51:
        pass
    assert code == 0
    assert heir.producer_id == producer.producer_id
    assert heir.epoch > producer.epoch
    assert producer.send(made, b"zombie again") == 47
    assert producer.add(made) == {0: 90}
    assert producer.add(made, version=1) == {0: 47}
    assert producer.end(commits=True) == 90
    assert producer.end(commits=True, version=1) == 47
    assert producer.init(claims=True) == 90
    heir.add(made)
    assert heir.send(made, b"heir") == 0
    assert heir.end(commits=True) == 0
    assert [each.first_offset for each in fetch(raw, made).aborted_transactions] == [0]


def test_a_producer_may_ask_for_its_next_epoch(raw, made, producer):
    """Also again, if the answer was lost (KIP-360); not with an epoch that others had since."""
    producer.add(made)
    producer.send(made, b"x")
    assert producer.init(claims=True) == 51
    lost = producer.epoch
    while (code := producer.init(claims=True)) == 51:
        pass
    assert code == 0
    assert producer.epoch > lost
    again = producer.epoch
    producer.epoch = lost
    assert (producer.init(claims=True), producer.epoch) == (0, again)
    assert Producer(raw, producer.name).init() == 0
    assert producer.init(claims=True) == 90


def test_only_partitions_of_an_open_transaction_take_its_batches(raw, made, producer):
    """Of no transaction, of another partition, of no transactional id, of another producer id."""
    assert producer.send(made, b"x") == 48
    assert producer.add_group("g") == 0
    assert producer.send(made, b"x") == 48
    assert producer.add(made) == {0: 0}
    assert producer.send(made, b"x", named=False) == 53
    stranger = Producer(raw, "nobody")
    stranger.producer_id, stranger.epoch = producer.producer_id, producer.epoch
    assert stranger.send(made, b"x") == 49
    assert stranger.add(made) == {0: 49}
    assert stranger.end(commits=True) == 49
    assert producer.end(commits=True) == 0
    assert producer.send(made, b"late") == 48
    assert fetch(raw, made, committed=False).high_watermark == 0


def check_lost_end(
    producer: Producer, topic: str, before: tuple[int, int], *, late_code: int
) -> None:
    """Who did not get the answer to its commit can send nothing, but asks for its state again."""
    after = producer.producer_id, producer.epoch
    for ask in (
        partial(producer.end, commits=True, version=5),
        partial(producer.init, claims=True),
    ):
        producer.producer_id, producer.epoch = before
        assert producer.send(topic, b"late", version=12) == late_code
        assert ask() == 0
        assert (producer.producer_id, producer.epoch) == after


def test_what_is_sent_adds_its_partition_or_group(raw, made, producer):
    """And each end begins an epoch, so that nothing that comes late begins a transaction."""
    group = "g" + made
    assert producer.end(commits=True, version=5) == 48
    assert producer.send(made, b"a", b"b", version=12) == 0
    assert producer.commit_offset(group, made, 2, version=5) == 0
    assert producer.state().topics[0].topic == made
    before = producer.producer_id, producer.epoch
    assert producer.end(commits=True, version=5) == 0
    after = producer.producer_id, producer.epoch
    assert after == (before[0], before[1] + 1)
    assert offset_of(raw, group, made, stable=True) == (0, 2)

    producer.producer_id, producer.epoch = before
    assert producer.commit_offset(group, made, 1, version=5) == 47
    assert producer.end(commits=False, version=5) == 48
    producer.producer_id, producer.epoch = after
    check_lost_end(producer, made, before, late_code=47)

    assert producer.send(made, b"c", version=12) == 0
    producer.epoch -= 1
    assert producer.end(commits=True, version=5) == 90, "not an answer to the open one"
    producer.epoch += 1
    assert producer.end(commits=False, version=5) == 0
    assert producer.end(commits=False, version=5) == 0, "one without partitions"
    assert producer.epoch == after[1] + 2
    got = fetch(raw, made)
    assert [each.first_offset for each in got.aborted_transactions] == [3]
    assert got.last_stable_offset == got.high_watermark == 5


def test_a_refused_batch_adds_nothing_and_has_the_code_of_its_version(raw, made, producer):
    """Older clients try again while a transaction is being ended; of 4.x know that they may not."""
    assert [producer.send(made, b"x", version=each) for each in (10, 11)] == [48, 120]
    producer.epoch += 1
    assert producer.send(made, b"x", version=12) == 47
    producer.epoch -= 1
    stranger = Producer(raw, "nobody")
    stranger.producer_id, stranger.epoch = producer.producer_id, producer.epoch
    assert stranger.send(made, b"x", version=12) == 49
    assert producer.state().transaction_state == "Empty"


def test_after_the_last_epoch_comes_another_id():
    """By an end, by a new producer and by one that was fenced; never two with one id and epoch."""
    with kafka_of(MemoryFolder()) as (running, raw):
        made = make(raw, "orders")

        def at(epoch: int) -> Producer:
            producer = Producer(raw, f"t{epoch}")
            assert producer.init() == 0

            async def jump(broker: Any) -> None:
                known = broker.kafka.offsets.transactions
                state = known[producer.name]
                given = state.producer._replace(epoch=epoch)
                known[producer.name] = dataclasses.replace(state, producer=given)

            running.call(jump)
            producer.epoch = epoch
            return producer

        one = at(coordinator.MAX_EPOCH - 1)
        first = one.producer_id, one.epoch
        assert one.send(made, b"a", version=12) == 0
        assert one.end(commits=True, version=5) == 0
        second = one.producer_id, one.epoch
        assert second[0] != first[0]
        assert second[1] == 0
        check_lost_end(one, made, first, late_code=49)
        assert one.send(made, b"b", version=12) == 0
        assert one.end(commits=True, version=5) == 0

        other = at(coordinator.MAX_EPOCH - 2)
        assert other.send(made, b"c", version=12) == 0
        zombie = other.producer_id, other.epoch
        heir = Producer(raw, other.name)
        until(lambda: heir.init() == 0)
        assert heir.producer_id != zombie[0] or heir.epoch > zombie[1]
        for commits in (True, False):
            assert other.end(commits=commits, version=5) in (49, 90)
        assert other.send(made, b"late", version=12) in (47, 49)
        assert fetch(raw, made).last_stable_offset == fetch(raw, made).high_watermark


def test_refusals_have_kafkas_codes(raw, made, producer, caplog):
    """All partitions or none; ends that do not fit; time-outs that nobody may have."""
    assert producer.add(made, 0, 7) == {0: 55, 7: 3}
    assert producer.state().transaction_state == "Empty"
    assert producer.end(commits=True) == 48
    assert producer.end(commits=False) == 48
    producer.add(made)
    assert producer.end(commits=True) == 0
    assert producer.end(commits=True) == 0
    assert producer.end(commits=False) == 48
    for timeout_ms in (0, -1, 15 * MINUTE_MS + 1):
        assert Producer(raw, "t").init(timeout_ms=timeout_ms) == 50
    with caplog.at_level("INFO"):
        assert Producer(raw, "").init() == 42
    assert "INVALID_REQUEST" in caplog.text
    assert producer.commit_offset("g", made, 1) == 48
    assert producer.commit_offset("", made, 1) == 24
    assert Producer(raw, "").state().error_code == 42
    half = raw.call(
        InitProducerIdRequest, 4, transactional_id=producer.name, transaction_timeout_ms=1_000,
        producer_id=producer.producer_id, producer_epoch=-1,
    )  # fmt: skip
    assert half.error_code == 42
    answer = raw.call(DescribeTransactionsRequest, 0, transactional_ids=["none"])
    assert answer.transaction_states[0].error_code == 105


def test_offsets_of_a_transaction_count_once_it_is_committed(raw, made, producer):
    """Until then a client that wants stable offsets gets 88; an abort forgets them."""
    for offset, commits, then in ((5, False, -1), (7, True, 7), (9, False, 7)):
        before = offset_of(raw, "g" + made, made, stable=False)
        assert producer.add_group("g" + made) == 0
        assert producer.commit_offset("g" + made, made, offset) == 0
        assert offset_of(raw, "g" + made, made, stable=False) == before
        assert offset_of(raw, "g" + made, made, stable=True) == (88, -1)
        assert producer.end(commits=commits) == 0
        assert offset_of(raw, "g" + made, made, stable=True) == (0, then)


def test_a_transactions_offsets_leave_the_groups_type(raw, made, producer):
    """A group of the consumer protocol whose only offsets are a transaction's is listed as one."""
    group = f"g-{made}"
    beat = {
        "group_id": group, "member_id": "m", "instance_id": None, "rack_id": None,
        "rebalance_timeout_ms": 30_000, "subscribed_topic_names": [made],
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    assert raw.call(ConsumerGroupHeartbeatRequest, 1, **beat, member_epoch=0).error_code == 0
    assert producer.add_group(group) == 0
    assert producer.commit_offset(group, made, 7) == 0
    assert producer.end(commits=True) == 0
    assert raw.call(ConsumerGroupHeartbeatRequest, 1, **beat, member_epoch=-1).error_code == 0
    listed = raw.call(ListGroupsRequest, 4, states_filter=[]).groups
    assert [each.protocol_type for each in listed if each.group_id == group] == ["consumer"]


def test_offsets_of_a_deleted_topic_are_not_committed_later():
    """Else a topic that is made again would be read from the middle. Other offsets count."""
    folder = MemoryFolder()
    with kafka_of(folder) as (_, raw):
        producer = Producer(raw, "t")
        producer.init()
        producer.add_group("g")
        for topic in ("deleted", "kept"):
            assert producer.commit_offset("g", make(raw, topic), 3) == 0
        deleted = raw.call(DeleteTopicsRequest, 1, topic_names=["deleted"], timeout_ms=5_000)
        assert deleted.responses[0].error_code == 0
        assert offset_of(raw, "g", make(raw, "deleted"), stable=True) == (0, -1)
        assert offset_of(raw, "g", "kept", stable=True) == (88, -1)
        assert producer.end(commits=True) == 0
        assert offset_of(raw, "g", "kept", stable=True) == (0, 3)
        assert offset_of(raw, "g", "deleted", stable=True) == (0, -1)
    with kafka_of(folder) as (_, raw):
        assert offset_of(raw, "g", make(raw, "kept"), stable=True) == (0, 3)
        assert offset_of(raw, "g", make(raw, "deleted"), stable=True) == (0, -1)


def test_transactions_are_listed_by_state_id_and_age(raw, made, producer):
    """An open one with its partitions; filters leave the others out."""
    producer.add(made)
    state = producer.state()
    assert (state.error_code, state.transaction_state, state.producer_id, state.producer_epoch) == (
        0, "Ongoing", producer.producer_id, 0,
    )  # fmt: skip
    assert [(each.topic, each.partitions) for each in state.topics] == [(made, [0])]

    def listed(**filters: Any) -> list[str]:
        fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
        answer = raw.call(ListTransactionsRequest, 1, **fields)
        return [each.transactional_id for each in answer.transaction_states]

    assert producer.name in listed()
    assert listed(producer_id_filters=[producer.producer_id]) == [producer.name]
    assert producer.name in listed(state_filters=["Ongoing"])
    assert producer.name not in listed(state_filters=["Empty", "nonsense"])
    assert producer.name not in listed(duration_filter=10 * MINUTE_MS)
    producer.end(commits=True)
    assert producer.state().transaction_state == "CompleteCommit"


@contextmanager
def kafka_of(folder: MemoryFolder, **settings: Any) -> Iterator[tuple[Any, RawKafka]]:
    """A broker in memory, which goes on where the last one of the folder ended, and a client."""
    with (
        running_broker(storage="memory", memory=folder, kafka_port=0, **settings) as running,
        RawKafka.from_url(running.kafka_url) as raw,
    ):
        yield running, raw


def make(raw: RawKafka, topic: str) -> str:
    """Create a topic."""
    raw.call(MetadataRequest, 1, topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    return topic


def until(check: Callable[[], bool]) -> None:
    """Ask again and again until it is so."""
    deadline_s = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline_s, "it never became so"
        time.sleep(0.01)


@pytest.mark.parametrize("commits", [True, False])
def test_a_decided_transaction_ends_after_a_restart(monkeypatch, commits):
    """Also if no control entry was written before; its offsets count with the decision."""
    folder = MemoryFolder()
    with kafka_of(folder) as (_, raw):
        producer = Producer(raw, "t")
        producer.init()
        made = make(raw, "orders")
        producer.add(made)
        producer.send(made, b"x")
        producer.add_group("g")
        producer.commit_offset("g", made, 3)
        monkeypatch.setattr(coordinator, "WAIT_S", 0.0)
        with monkeypatch.context() as stuck:
            stuck.setattr(
                coordinator.TransactionCoordinator, "write_ends", lambda *_: asyncio.sleep(3_600)
            )
            assert producer.end(commits=commits) == 0
            assert fetch(raw, made).last_stable_offset == 0
            assert producer.add(made) == {0: 51}
            assert producer.end(commits=commits) == 51
            assert producer.end(commits=not commits) == 48
            running_state = producer.state()
            assert running_state.transaction_state.startswith("Prepare")
    with kafka_of(folder) as (_, raw):
        again = Producer(raw, "t")
        until(lambda: again.state().transaction_state.startswith("Complete"))
        got = fetch(raw, made)
        assert got.last_stable_offset == got.high_watermark
        assert len(got.aborted_transactions) == (0 if commits else 1)
        assert offset_of(raw, "g", made, stable=True) == (0, 3 if commits else -1)


def test_an_open_transaction_goes_on_after_a_restart():
    """With its partitions, its offsets and its producer."""
    folder = MemoryFolder()
    with kafka_of(folder) as (_, raw):
        producer = Producer(raw, "t")
        producer.init()
        made = make(raw, "orders")
        producer.add(made)
        producer.send(made, b"a")
        producer.add_group("g")
        producer.commit_offset("g", made, 3)
    with kafka_of(folder) as (running, raw):
        producer.raw = raw
        make(raw, made)
        assert fetch(raw, made).last_stable_offset == 0
        assert offset_of(raw, "g", made, stable=True) == (88, -1)
        assert producer.send(made, b"b") == 0
        assert producer.end(commits=True) == 0
        got = fetch(raw, made)
        assert [value for _, value in records_of(got.records)][:1] == [b"a"]
        assert ledger_of(running, made).transactions.aborted == []
        assert offset_of(raw, "g", made, stable=True) == (0, 3)


def test_a_transaction_that_takes_too_long_is_aborted():
    """Its producer is fenced, and may go on with its next epoch. A step back of the clock holds
    nothing open.
    """
    clock = SettableClock(1_700_000_000_000)
    with kafka_of(MemoryFolder(), clock=clock) as (_, raw):
        producer = Producer(raw, "t")
        producer.init(timeout_ms=5_000)
        made = make(raw, "orders")
        producer.add(made)
        producer.send(made, b"x")
        clock.advance(by_ms=-3_600_000)
        until(lambda: producer.state().transaction_start_time_ms == clock.now_ms())
        clock.advance(by_ms=4_999)
        assert producer.state().transaction_state == "Ongoing"
        clock.advance(by_ms=1)
        until(lambda: producer.state().transaction_state == "CompleteAbort")
        assert producer.send(made, b"y") == 47
        assert producer.end(commits=True) == 90
        assert producer.init(claims=True) == 0
        producer.add(made)
        assert producer.send(made, b"z") == 0


def test_limits_are_kept():
    """Of transactional ids, and of partitions and groups of a transaction."""
    limits = {"max_kafka_transactional_ids": 1, "max_kafka_transaction_partitions": 2}
    with kafka_of(MemoryFolder(), kafka_default_partitions=3, **limits) as (_, raw):
        producer = Producer(raw, "t")
        assert producer.init() == 0
        assert Producer(raw, "u").init() == 15
        made = make(raw, "orders")
        assert producer.add(made, 0, 1) == {0: 0, 1: 0}
        assert producer.add(made, 2) == {2: 44}
        assert producer.add_group("g") == 44
        assert producer.end(commits=True) == 0
        assert producer.add_group("g" * 250) == 0
        assert producer.add_group("h") == 44
        assert producer.commit_offset("h", made, 1, version=5) == 44


def test_ids_beyond_the_limit_are_refused_until_others_are_forgotten():
    """Whatever their number; an id that is not used for seven days makes room."""
    clock = SettableClock(1_700_000_000_000)
    limits = {"max_kafka_transactional_ids": 20}
    with kafka_of(MemoryFolder(), clock=clock, **limits) as (running, raw):
        codes = [Producer(raw, f"t{number}").init() for number in range(500)]
        assert codes == 20 * [0] + 480 * [15]
        clock.advance(by_ms=coordinator.EXPIRES_MS + 1)
        until(lambda: not running.broker.kafka.offsets.transactions)
        assert [Producer(raw, f"u{number}").init() for number in range(21)] == 20 * [0] + [15]


def test_a_group_may_have_the_longest_name_of_the_protocol(raw, made, producer):
    """As with Kafka; AddOffsetsToTxn has the transactional id beside it."""
    group = "g" * 32_767
    assert producer.add_group(group) == 0
    assert producer.commit_offset(group, made, 3) == 0
    assert producer.end(commits=True) == 0
    assert offset_of(raw, group, made, stable=True) == (0, 3)


def test_an_id_of_hostile_length_is_kept_or_ends_its_connection():
    """A request that names one has at most 4 KiB."""
    with kafka_of(MemoryFolder()) as (running, raw):
        made = make(raw, "orders")
        long = Producer(raw, "\u20ac" * 1_300)
        assert long.init() == 0
        assert long.send(made, b"x", version=12) == 0
        assert long.state().transaction_state == "Ongoing"
        assert long.end(commits=True, version=5) == 0
        with RawKafka.from_url(running.kafka_url) as other, pytest.raises(ConnectionError):
            Producer(other, "x" * 5_000).init()
        with RawKafka.from_url(running.kafka_url) as other:
            stranger = Producer(other, "y" * 30_000)
            stranger.producer_id, stranger.epoch = long.producer_id, long.epoch
            assert stranger.send(made, b"x", version=12) == 49


def test_transactions_that_nobody_ends_hold_up_readers_for_their_time_only():
    """Many at a time, in one partition."""
    clock = SettableClock(1_700_000_000_000)
    with kafka_of(MemoryFolder(), clock=clock) as (running, raw):
        made = make(raw, "orders")
        for number in range(60):
            producer = Producer(raw, f"t{number}")
            assert producer.init(timeout_ms=10_000) == 0
            assert producer.send(made, b"x", version=12) == 0
        assert fetch(raw, made).last_stable_offset == 0
        clock.advance(by_ms=10_000)
        until(lambda: fetch(raw, made).last_stable_offset == 120)
        assert len(fetch(raw, made).aborted_transactions) == 60
        assert ledger_of(running, made).transactions.open == {}


def test_states_of_large_transactions_do_not_fill_the_log(monkeypatch):
    """It is rewritten for its bytes, too: each state names all partitions of its transaction."""
    monkeypatch.setattr(offsets_module, "REWRITE_AT_LEAST_BYTES", 50_000)
    with kafka_of(MemoryFolder(), kafka_default_partitions=200) as (running, raw):
        producer = Producer(raw, "t")
        producer.init()
        made = make(raw, "orders")
        for index in range(200):
            assert producer.add(made, index) == {index: 0}
        until(lambda: running.broker.kafka.offsets.size_bytes < 60_000)
        assert len(producer.state().topics[0].partitions) == 200


def test_the_groups_log_keeps_transactions_when_it_is_shortened(monkeypatch):
    """States and offsets of open transactions are written once more."""
    folder = MemoryFolder()
    with kafka_of(folder) as (running, raw):
        producer = Producer(raw, "t")
        producer.init()
        made = make(raw, "orders")
        producer.add(made)
        producer.add_group("g")
        producer.commit_offset("g", made, 3)

        async def shorten(broker: Any) -> None:
            await broker.kafka.offsets.rewrite()

        running.call(shorten)
    with kafka_of(folder) as (_, raw):
        producer.raw = raw
        assert producer.state().transaction_state == "Ongoing"
        assert producer.end(commits=True) == 0
        assert offset_of(raw, "g", made, stable=True) == (0, 3)


def coordinated(running: Any, work: Callable[[Any], Any]) -> Any:
    """What work gives that gets the coordinator, on the broker's loop."""

    async def run(broker: Any) -> Any:
        return await work(broker.kafka.transactions)

    return running.call(run)


def test_an_end_that_fails_in_whichever_way_is_made_again(monkeypatch):
    """Also with an error that nothing is known about."""
    folder, failures = MemoryFolder(), [RuntimeError("something else")]
    with kafka_of(folder) as (_, raw):
        producer = Producer(raw, "t")
        producer.init()
        made = make(raw, "orders")
        producer.add(made)
        producer.send(made, b"x")
        write_ends = coordinator.TransactionCoordinator.write_ends

        async def fails_once(one: Any, known: Any) -> None:
            if failures:
                raise failures.pop()
            await write_ends(one, known)

        monkeypatch.setattr(coordinator.TransactionCoordinator, "write_ends", fails_once)
        assert producer.end(commits=True) == 0
        until(lambda: producer.state().transaction_state == "CompleteCommit")


def test_what_was_decided_of_an_earlier_state_is_not_stored():
    """A time-out does not abort what is committed before its first step, on a busy loop."""
    clock = SettableClock(1_700_000_000_000)
    with kafka_of(MemoryFolder(), clock=clock) as (running, raw):
        producer = Producer(raw, "t")
        producer.init(timeout_ms=5_000)
        producer.add(make(raw, "orders"))
        clock.watchers.clear()

        async def late(one: Any) -> None:
            ending = asyncio.ensure_future(one.end("t", one.known["t"].producer, commits=True))
            await asyncio.sleep(0)
            clock.advance(by_ms=5_000)
            asyncio.get_running_loop().call_soon(time.sleep, 0.2)  # the decision becomes durable
            one.check_time()
            await ending

        coordinated(running, late)
        assert producer.state().transaction_state == "CompleteCommit"


def test_offsets_are_committed_while_a_partition_is_being_added():
    """librdkafka sends both at once, and would wait for 500 ms; but no offset follows the end."""
    with kafka_of(MemoryFolder()) as (running, raw):
        producer = Producer(raw, "t")
        producer.init()
        topic = make(raw, "orders")
        producer.add_group("g")

        async def both(one: Any) -> None:
            commit = partial(one.commit_offsets, "t", one.known["t"].producer, "g", "", {})
            adding = asyncio.ensure_future(
                one.add("t", one.known["t"].producer, partitions=[(topic, 0)])
            )
            await asyncio.sleep(0)
            await commit()
            await adding
            ending = asyncio.ensure_future(one.end("t", one.known["t"].producer, commits=True))
            for _ in range(2):
                await asyncio.sleep(0)
            with pytest.raises(KafkaError, match="being ended"):
                await commit()
            await ending

        coordinated(running, both)


def test_a_former_coordinator_ends_nothing_any_more():
    """What it has decided last is ended by the next one."""
    with kafka_of(MemoryFolder()) as (running, raw):
        producer = Producer(raw, "t")
        producer.init()
        producer.add(make(raw, "orders"))

        async def over(one: Any) -> str:
            ending = asyncio.ensure_future(one.end("t", one.known["t"].producer, commits=True))
            await asyncio.sleep(0)
            one.close()
            await ending
            return str(one.known["t"].state.value)

        assert coordinated(running, over) == "PrepareCommit"


def test_a_partition_that_the_coordinator_does_not_know_yet_is_not_added():
    """It would be taken for a deleted one when the transaction ends, and then be aborted."""
    with kafka_of(MemoryFolder()) as (running, raw):
        producer = Producer(raw, "t")
        producer.init()

        async def ask(broker: Any) -> Any:
            answer = broker.services.inner.answering[CHECK]
            state = producer.producer_id, producer.epoch
            return await answer(
                None, transactional_id="t", producer=state, partition=("new", 0), adds=True
            )

        code, _ = running.call(ask)
        assert code == Code.NOT_ENOUGH_REPLICAS
        assert producer.state().transaction_state == "Empty"
