"""Transactions: their producers, what is in them, how they end, and what readers get meanwhile."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    JoinGroupRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from pulsemark.testing.raw_kafka import fetch_fields, produce_fields

from .admin_scenarios import make_topic
from .group_scenarios import fetched as fetch_offsets
from .group_scenarios import join_fields, sync
from .peers import Peer
from .record_sets import TIME_MS

#: NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS: something else is going on.
TRY_AGAIN = {"19", "51"}
#: From these versions on, partitions and groups are added by what is sent (KIP-890).
ADDING_PRODUCE, ADDING_OFFSETS, BUMPING_END = 12, 5, 5
#: The scenarios' records are older than a segment may be. A fetch ends where a segment does.
ONE_SEGMENT = {"segment.ms": str(2**63 - 1), "retention.ms": "-1"}
FEATURES = ("group.version", "transaction.version")
_Added = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_Offsets = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
_Listed = ListOffsetsRequest.ListOffsetsTopic
_Fetched = OffsetFetchRequest.OffsetFetchRequestTopic


def settled(peer: Peer, label: str, request: Any, version: int, **fields: Any) -> Any:
    """A request's answer, once nothing else is going on: Kafka ends transactions afterwards."""
    if version not in peer.versions(request):
        return None
    answers: list[Any] = []

    def is_settled() -> bool:
        answers.append(peer.main.call(request, version, **fields))
        return not TRY_AGAIN & _codes(answers[-1].to_dict())

    peer.eventually(is_settled, label)
    peer.record(f"{label} (v{version})", answers[-1].to_dict())
    return answers[-1]


def _codes(answer: Any) -> set[str]:
    if isinstance(answer, dict):
        own = {str(each) for name, each in answer.items() if name.endswith("error_code")}
        return own.union(*map(_codes, answer.values()))
    return set[str]().union(*map(_codes, answer)) if isinstance(answer, list) else set()


@dataclass
class Producer:
    """A producer with a transactional id, and the highest versions that it uses."""

    peer: Peer
    name: str
    #: Of AddPartitionsToTxn, Produce, EndTxn and TxnOffsetCommit.
    versions: tuple[int, int, int, int] = (3, 10, 4, 3)
    producer_id: int = 10**9
    epoch: int = 0
    sequences: dict[str, int] = field(default_factory=dict)

    def took(self, answer: Any) -> Any:
        """Go on as an answer says."""
        if answer is not None and not answer.error_code and answer.producer_id >= 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer

    def init(
        self, label: str, version: int = 4, claimed: tuple[int, int] = (-1, -1),
        timeout_ms: int = 60_000,
    ) -> Any:  # fmt: skip
        """InitProducerId."""
        return self.took(
            settled(
                self.peer, f"init: {label}", InitProducerIdRequest, version,
                transactional_id=self.name, transaction_timeout_ms=timeout_ms,
                producer_id=claimed[0], producer_epoch=claimed[1],
            )
        )  # fmt: skip

    def add(self, label: str, topics: dict[str, list[int]], version: int | None = None) -> None:
        """AddPartitionsToTxn."""
        settled(
            self.peer, f"add {label}", AddPartitionsToTxnRequest,
            self.versions[0] if version is None else version,
            v3_and_below_transactional_id=self.name, v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[_Added(name=name, partitions=at) for name, at in topics.items()],
        )  # fmt: skip

    def send(
        self, label: str, topic: str, count: int = 1, version: int | None = None, index: int = 0,
        name: str | None = "", sequence: int | None = None,
    ) -> None:  # fmt: skip
        """Produce a batch; `name` None: without the transactional id."""
        version = self.versions[1] if version is None else version
        at = self.sequences.get(topic, 0) if sequence is None else sequence
        records = batch_of(self.producer_id, self.epoch, at, count)
        fields = produce_fields([(topic, index, records)], -1)
        fields["transactional_id"] = self.name if name == "" else name
        answer = settled(self.peer, f"send {label}", ProduceRequest, version, **fields)
        if answer is not None and not answer.responses[0].partition_responses[0].error_code:
            self.sequences[topic] = at + count

    def end(self, label: str, *, commits: bool, version: int | None = None) -> Any:
        """EndTxn."""
        version = self.versions[2] if version is None else version
        answer = settled(
            self.peer, f"{'commit' if commits else 'abort'} {label}", EndTxnRequest, version,
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch,
            committed=commits,
        )  # fmt: skip
        return self.took(answer) if version >= BUMPING_END else answer

    def add_group(self, label: str, group: str, version: int = 3) -> None:
        """AddOffsetsToTxn."""
        settled(
            self.peer, f"add group {label}", AddOffsetsToTxnRequest, version,
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch,
            group_id=group,
        )  # fmt: skip

    def commit_offsets(
        self, label: str, group: str, topic: str, offset: int, version: int | None = None,
        member: tuple[int, str] = (-1, ""), index: int = 0, text: str = "",
    ) -> None:  # fmt: skip
        """TxnOffsetCommit of one partition."""
        part = _Offsets.TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=-1,
            committed_metadata=text,
        )  # fmt: skip
        settled(
            self.peer, f"offsets {label}", TxnOffsetCommitRequest,
            self.versions[3] if version is None else version,
            transactional_id=self.name, group_id=group, producer_id=self.producer_id,
            producer_epoch=self.epoch, generation_id=member[0], member_id=member[1],
            group_instance_id=None, topics=[_Offsets(name=topic, partitions=[part])],
        )  # fmt: skip

    def state(self, label: str) -> str:
        """DescribeTransactions, once the last end is complete."""
        answers: list[Any] = []

        def is_settled() -> bool:
            answers.append(
                self.peer.quietly(DescribeTransactionsRequest, 0, transactional_ids=[self.name])
            )
            return not answers[-1].transaction_states[0].transaction_state.startswith("Prepare")

        if self.peer.versions(DescribeTransactionsRequest):
            self.peer.eventually(is_settled, "the end")
            self.peer.record(f"state {label}", answers[-1].to_dict())
            return str(answers[-1].transaction_states[0].transaction_state)
        return ""


def batch_of(producer_id: int, epoch: int, sequence: int, count: int) -> bytes:
    builder = MemoryRecordsBuilder(2, 0, 1 << 20)
    builder.set_producer_state(producer_id, epoch, sequence, True)
    for number in range(count):
        builder.append(TIME_MS + number, b"k", b"v%d" % (sequence + number), [])
    builder.close()
    return bytes(builder.buffer())


def read(peer: Peer, label: str, topic: str, versions: tuple[int, ...] = (10,)) -> None:
    """What readers of all, and of committed records, get from the start; and the ends they see."""
    for version in (each for each in versions if each in peer.versions(FetchRequest)):
        for level in (0, 1):
            fields = fetch_fields([(topic, 0, 0, 1 << 20, -1)], 0, 1, 1 << 20)
            answer = peer.main.call(FetchRequest, version, **fields | {"isolation_level": level})
            part = answer.responses[0].partitions[0]
            peer.record(
                f"{label}, level {level} (v{version})",
                {
                    "error_code": part.error_code, "end": part.high_watermark,
                    "stable": part.last_stable_offset,
                    "aborted": None if part.aborted_transactions is None else [
                        {"producer_id": each.producer_id, "first": each.first_offset}
                        for each in part.aborted_transactions
                    ],
                    "batches": batches(bytes(part.records or b"")),
                },
            )  # fmt: skip
    for version in peer.versions(ListOffsetsRequest)[2:6]:
        for level, time_ms in ((0, -1), (1, -1), (1, -2), (1, 0)):
            part = _Listed.ListOffsetsPartition(
                partition_index=0, current_leader_epoch=-1, timestamp=time_ms
            )
            peer.ask(
                f"{label}: offset of {time_ms}, level {level}", ListOffsetsRequest, version,
                replica_id=-1, isolation_level=level, topics=[_Listed(name=topic, partitions=[part])],
            )  # fmt: skip


def batches(data: bytes) -> list[dict[str, Any]]:
    """What the headers of batches say; of a control batch also its key."""
    found, records = [], MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        rows = list(batch)
        found.append(
            {
                "producer_id": batch.producer_id, "offset": batch.base_offset, "count": len(rows),
                "transactional": batch.is_transactional,
                "key": struct.unpack(">hh", rows[0].key) if batch.is_control_batch else None,
            }
        )  # fmt: skip
    return found


# -- scenarios ------------------------------------------------------------------------------------


def _topic(peer: Peer, name: str, partitions: int = 1) -> str:
    return make_topic(peer, name, 2, partitions, **ONE_SEGMENT)


def ids(peer: Peer) -> None:
    """InitProducerId: ids, epochs, time-outs; the features that clients go by."""
    answer = peer.quietly(
        ApiVersionsRequest, 3, client_software_name="compare", client_software_version="1"
    )
    shown = {each.name: each.max_version_level for each in answer.finalized_features or ()}
    peer.record("features", {name: shown.get(name) for name in FEATURES})
    for version in peer.versions(InitProducerIdRequest):
        producer = Producer(peer, peer.topic(f"init{version}"))
        producer.init("first", version)
        producer.init("again", version)
        for timeout_ms in (0, -1, 900_001, 2**31 - 1):
            producer.init(f"time-out {timeout_ms}", version, timeout_ms=timeout_ms)
        producer.init("another time-out", version, timeout_ms=900_000)
        producer.state("after that")
        Producer(peer, "").init("no name", version)
        Producer(peer, peer.topic("n" * 200)).init("a long name", version)
        if version >= 3:
            _claims(peer, producer, version)


def _claims(peer: Peer, producer: Producer, version: int) -> None:
    first = producer.producer_id, producer.epoch
    producer.init("next epoch", version, first)
    producer.init("the same once more", version, first)
    second = producer.producer_id, producer.epoch
    producer.init("the one after", version, second)
    for label, claimed in {
        "an old epoch": first, "the last epoch": second,
        "a later epoch": (producer.producer_id, producer.epoch + 1),
        "another id": (producer.producer_id + 10**6, producer.epoch),
        "no epoch": (producer.producer_id, -1), "no id": (-1, producer.epoch),
        "negative": (-2, -2), "epoch -1 of id -5": (-5, -1),
    }.items():  # fmt: skip
        producer.init(label, version, claimed)
    stranger = Producer(peer, peer.topic(f"stranger{version}"))
    stranger.init("claims what nobody had", version, (10**6, 5))


def transactions(peer: Peer) -> None:
    """What is added, sent, committed and aborted; refusals; what readers get."""
    if peer.converts:
        return  # 2.8 stores what is in no transaction
    fetches = tuple(range(4, 12))
    for version in peer.versions(AddPartitionsToTxnRequest)[:4]:
        topic = _topic(peer, f"txn{version}", 2)
        producer = Producer(peer, peer.topic(f"t{version}"), (version, 7 + version, version, 3))
        producer.add("before an id", {topic: [0]})
        producer.init("first")
        producer.init("next")
        producer.end("nothing", commits=True)
        producer.end("nothing", commits=False)
        _refused_adds(peer, producer, topic)
        producer.add("one", {topic: [0]})
        producer.add("it again", {topic: [0]})
        producer.send("with another name", topic, name=peer.topic("nobody"))
        producer.send("one", topic, 2)
        producer.send("the same again", topic, 2, sequence=0)
        producer.send("to another partition", topic, index=1, sequence=0)
        producer.send("without a name", topic, name=None)
        read(peer, "open", topic, fetches)
        producer.state("open")
        producer.end("it", commits=True)
        producer.state("committed")
        producer.end("again", commits=True)
        producer.end("what is committed", commits=False)
        producer.send("after the end", topic)
        read(peer, "committed", topic, fetches)
        producer.add("next", {topic: [0]})
        producer.send("next", topic)
        producer.end("it", commits=False)
        producer.state("aborted")
        producer.end("again", commits=False)
        producer.end("what is aborted", commits=True)
        producer.add("third", {topic: [0]})
        producer.send("third", topic)
        read(peer, "one aborted, one open", topic, fetches)
        _fenced(peer, producer, topic)
        read(peer, "at the end", topic, fetches)


def _refused_adds(peer: Peer, producer: Producer, topic: str) -> None:
    missing = peer.topic("nothing")
    producer.add("missing partition", {topic: [0, 9]})
    producer.add("missing topic", {topic: [0], missing: [0]})
    producer.add("illegal topic", {"a/b": [0]})
    producer.add("negative partition", {topic: [-1]})
    producer.add("nothing", {})
    producer.add("no partition", {topic: []})
    producer.add("the same twice", {topic: [1, 1]})
    producer.end("an empty one", commits=False)
    for version in range(7, 12):
        producer.send("what was not added", topic, version=version)
    true = producer.producer_id, producer.epoch
    for label, changed in {
        "another id": (true[0] + 10**6, true[1]), "an old epoch": (true[0], true[1] - 1),
        "a later epoch": (true[0], true[1] + 1),
    }.items():  # fmt: skip
        producer.producer_id, producer.epoch = changed
        producer.add(label, {topic: [0]})
        producer.end(label, commits=True)
        producer.add_group(label, peer.topic("group"))
        producer.commit_offsets(label, peer.topic("group"), topic, 1)
        producer.send(label, topic, sequence=0)
    producer.producer_id, producer.epoch = true


def _fenced(peer: Peer, producer: Producer, topic: str) -> None:
    """Another producer with the same name comes."""
    heir = Producer(peer, producer.name, producer.versions)
    heir.init("an heir")
    producer.send("when fenced", topic)
    producer.add("when fenced", {topic: [0]})
    producer.end("when fenced", commits=True)
    producer.end("when fenced", commits=False)
    producer.add_group("when fenced", peer.topic("group"))
    producer.commit_offsets("when fenced", peer.topic("group"), topic, 1)
    producer.init("when fenced", 4, (producer.producer_id, producer.epoch))
    heir.add("of the heir", {topic: [0]})
    heir.send("of the heir", topic)
    heir.end("of the heir", commits=True)
    heir.state("of the heir")


def offsets(peer: Peer) -> None:
    """Offsets of groups in transactions."""
    if peer.converts:
        return  # 2.8 stores what is in no transaction
    topic = _topic(peer, "txn-offsets", 2)
    for version in peer.versions(TxnOffsetCommitRequest)[:4]:
        producer = Producer(peer, peer.topic(f"o{version}"), (3, 10, 3, version))
        producer.init("first")
        group = peer.topic(f"group{version}")
        producer.commit_offsets("without the group", group, topic, 3)
        producer.add_group("one", group, version)
        producer.add_group("again", group, version)
        producer.add_group("without a name", "", version)
        producer.commit_offsets("one", group, topic, 4)
        producer.commit_offsets("of a missing partition", group, topic, 4, index=9)
        producer.commit_offsets("of a missing topic", group, peer.topic("nothing"), 4)
        producer.commit_offsets("with a long text", group, topic, 4, text="m" * 4_097)
        producer.commit_offsets("of another group", peer.topic("other"), topic, 4)
        producer.commit_offsets("of no group", "", topic, 4)
        if version >= 3:
            producer.commit_offsets("of a generation", group, topic, 5, member=(3, "who"))
            producer.commit_offsets("of a member", group, topic, 5, member=(-1, "who"))
        _stable(peer, "open", topic, group)
        producer.end("it", commits=True)
        producer.state("committed")
        _stable(peer, "committed", topic, group)
        producer.add_group("next", group, version)
        producer.commit_offsets("next", group, topic, 8)
        producer.end("it", commits=False)
        producer.state("aborted")
        _stable(peer, "aborted", topic, group)
    _of_members(peer, topic)


def _stable(peer: Peer, label: str, topic: str, group: str) -> None:
    for version in peer.versions(OffsetFetchRequest)[-3:]:
        if version == 7:
            for stable in (False, True):
                peer.ask(
                    f"offsets, {label}, stable {stable}", OffsetFetchRequest, version,
                    group_id=group, require_stable=stable,
                    topics=[_Fetched(name=topic, partition_indexes=[0, 1])],
                )  # fmt: skip
    fetch_offsets(peer, f"offsets, {label}", 5, group, [(topic, [0])])


def _of_members(peer: Peer, topic: str) -> None:
    """Offsets of a group with a member."""
    group = peer.topic("with-members")
    fields = join_fields(group)
    member = peer.ask("joins", JoinGroupRequest, 3, **fields)
    if member is None:
        return
    sync(peer, "syncs", 3, group, 1, member.member_id, [(member.member_id, b"all")])
    producer = Producer(peer, peer.topic("of-members"))
    producer.init("first")
    producer.add_group("with a member", group)
    for label, who in {
        "of the member": (1, member.member_id), "of an old generation": (0, member.member_id),
        "of a later one": (2, member.member_id), "of another member": (1, "other"),
        "of nobody": (-1, ""), "of the member without generation": (-1, member.member_id),
    }.items():  # fmt: skip
        producer.commit_offsets(label, group, topic, 6, member=who)
    producer.commit_offsets("of nobody, version 2", group, topic, 6, version=2)
    producer.end("it", commits=True)
    producer.state("committed")
    _stable(peer, "with a member", topic, group)


def lists(peer: Peer) -> None:
    """DescribeTransactions and ListTransactions."""
    if not peer.versions(ListTransactionsRequest):
        return
    topic = _topic(peer, "txn-listed", 3)
    producer = Producer(peer, peer.topic("listed"))
    producer.init("first")
    producer.state("empty")
    producer.add("two", {topic: [2, 0]})
    producer.add_group("one", peer.topic("listed-group"))
    Producer(peer, peer.topic("nobody")).state("of nobody")
    Producer(peer, "").state("without a name")
    for version in peer.versions(ListTransactionsRequest):
        for label, fields in _filters(producer).items():
            answer = peer.main.call(ListTransactionsRequest, version, **fields)
            shown = answer.to_dict()
            shown["transaction_states"] = [
                each
                for each in shown["transaction_states"]
                if each["transactional_id"] == producer.name
            ]
            peer.record(f"list {label} (v{version})", shown)


def _filters(producer: Producer) -> dict[str, dict[str, Any]]:
    none = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    return {
        "all": none, "its id": none | {"producer_id_filters": [producer.producer_id]},
        "another id": none | {"producer_id_filters": [producer.producer_id + 10**6]},
        "its state": none | {"state_filters": ["Ongoing"]},
        "other states": none | {"state_filters": ["Empty", "CompleteCommit"]},
        "an unknown state": none | {"state_filters": ["nonsense", "Ongoing"]},
        "lower case": none | {"state_filters": ["ongoing"]},
        "old ones": none | {"duration_filter": 600_000}, "all ages": none | {"duration_filter": 0},
        "less than none": none | {"duration_filter": -2},
    }  # fmt: skip


def implicit(peer: Peer) -> None:
    """Partitions and groups are added by what is sent, and each end begins an epoch (KIP-890)."""
    if BUMPING_END not in peer.versions(EndTxnRequest):
        return
    topic = _topic(peer, "implicit", 2)
    producer = Producer(
        peer, peer.topic("implicit"), (3, ADDING_PRODUCE, BUMPING_END, ADDING_OFFSETS)
    )
    producer.send("before an id", topic)
    producer.init("first", 5)
    producer.end("nothing", commits=True)
    producer.end("nothing", commits=False)
    producer.send("one", topic, 2)
    producer.send("another", topic, index=1, sequence=0)
    producer.send("to a missing partition", topic, index=9, sequence=0)
    group = peer.topic("implicit-group")
    producer.commit_offsets("one", group, topic, 4)
    producer.commit_offsets("of no group", "", topic, 4)
    producer.state("open")
    before = producer.producer_id, producer.epoch
    producer.end("it", commits=True)
    producer.state("committed")
    after = producer.producer_id, producer.epoch
    for label, commits in (("again", True), ("what is committed", False)):
        producer.producer_id, producer.epoch = before
        producer.end(label, commits=commits)
    producer.producer_id, producer.epoch = before
    producer.send("late", topic, sequence=2)
    producer.commit_offsets("late", group, topic, 5)
    producer.init("lost its epoch", 5, before)
    producer.producer_id, producer.epoch = after
    producer.sequences.clear()
    _second(peer, producer, topic, group)
    read(peer, "at the end", topic)


def _second(peer: Peer, producer: Producer, topic: str, group: str) -> None:
    producer.end("nothing", commits=True)
    producer.send("not from 0", topic, sequence=7)
    producer.send("next", topic)
    producer.commit_offsets("next", group, topic, 9)
    before = producer.producer_id, producer.epoch
    producer.end("it", commits=False)
    producer.state("aborted")
    for label, commits in (("again", False), ("what is aborted", True)):
        kept = producer.producer_id, producer.epoch
        producer.producer_id, producer.epoch = before
        producer.end(label, commits=commits)
        producer.producer_id, producer.epoch = kept
    producer.end("nothing", commits=False)
    producer.send("third", topic)
    _stable(peer, "after an abort", topic, group)
    producer.end("it, old style", commits=True, version=3)
    producer.state("committed, old style")
    producer.end("again, old style", commits=True, version=3)
    producer.end("again", commits=True)
    heir = Producer(peer, producer.name, producer.versions)
    producer.send("fourth", topic)
    heir.init("an heir", 5)
    producer.send("when fenced", topic)
    producer.end("when fenced", commits=False)
    producer.commit_offsets("when fenced", group, topic, 9)
    heir.send("of the heir", topic)
    heir.end("of the heir", commits=True)
    heir.state("of the heir")


def late(peer: Peer) -> None:
    """A transaction that takes longer than its producer said."""
    if peer.converts:
        return  # 2.8 stores what is in no transaction
    topic = _topic(peer, "late")
    producer = Producer(peer, peer.topic("late"))
    producer.init("first", timeout_ms=1_000)
    producer.add("one", {topic: [0]})
    producer.send("one", topic)
    for _ in range(6):  # Kafka looks every ten seconds
        try:
            peer.eventually(lambda: _state(peer, producer) == "CompleteAbort", "the abort")
            break
        except LookupError:
            continue
    producer.state("aborted")
    producer.send("late", topic)
    producer.end("late", commits=True)
    producer.end("late", commits=False)
    producer.add("late", {topic: [0]})
    producer.init("goes on", 4, (producer.producer_id, producer.epoch))
    producer.add("next", {topic: [0]})
    producer.send("next", topic)
    producer.end("it", commits=True)
    producer.state("committed")
    read(peer, "at the end", topic)


def _state(peer: Peer, producer: Producer) -> str:
    answer = peer.quietly(DescribeTransactionsRequest, 0, transactional_ids=[producer.name])
    return str(answer.transaction_states[0].transaction_state)


TRANSACTION_SCENARIOS: dict[str, Callable[[Peer], None]] = {
    "producer-ids": ids,
    "transactions": transactions,
    "transaction-offsets": offsets,
    "transaction-lists": lists,
    "implicit-transactions": implicit,
    "late-transactions": late,
}
