"""A follower's folder: entries with their positions, whatever happens to either side."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsemark.broker import BrokerThread
from pulsemark.compaction import compact, compacted_log
from pulsemark.finder import NotPossibleError, client, following, service
from pulsemark.finder.following import StoreState, is_followed, state_of
from pulsemark.ledger import (
    EARLIEST,
    EntryKind,
    FencedError,
    FolderReader,
    FollowerFolderError,
    LedgerError,
    LocalStore,
    ManagedLedger,
    Position,
    StoreOptions,
    TopicLog,
    common_end,
)
from pulsemark.ledger.entry import StoredEntry
from pulsemark.ledger.store import SCHEMA_KIND
from pulsemark.maintenance.findings import Severity
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import StamperChain, control_of
from pulsemark.metadata.control import control_metadata
from pulsemark.mirror import (
    EndpointError,
    FollowReport,
    FollowRun,
    LostError,
    NotFollowerError,
    NoTopicsError,
    Options,
    OtherSourceError,
    Selection,
    open_followed,
    open_follower,
    promote,
)
from pulsemark.mirror.follow_source import History
from pulsemark.proto.broker_entry_pb2 import (
    CONTROL_CHECKPOINT,
    CONTROL_LEADER_CHANGE,
    CONTROL_TXN_COMMIT,
    CONTROL_USER,
)
from pulsemark.testing import FaultyFiles, running_broker
from pulsemark.testing.raw_messages import unbatched_message
from tests.support.simulated_store import SimulatedStore

from .conftest import TOPIC, publish

OTHER = "persistent://public/default/audit"
SMALL = StoreOptions(ledger_entries=7, segment_size_bytes=600)


class StoreSource:
    """A store of this process as a source."""

    endpoint = "a store of this process"

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.calls_until_lost = -1

    def state(self, known_digest: bytes) -> StoreState:
        """Its state."""
        store = self.store
        return state_of(
            store.catalog.topics,
            lambda: {
                name: store.open_view(name) for name in filter(is_followed, store.catalog.topics())
            },
            store.catalog.items,
            store.cursors.snapshots,
            store.catalog.next_ledger_id,
        )

    def history(self, topic: str) -> History:
        """Epochs and ledgers."""
        log = self.store.open_view(topic, create=False)
        return log.epoch_history(), log.ledger_extents()

    def read(self, topic: str, start: Position, limit: int = 100) -> Iterator[StoredEntry]:
        """Entries from a position on."""
        log = self.store.open_view(topic, create=False)
        return iter(log.read(start, max_entries=limit, max_bytes=1 << 30))

    def close(self) -> None:
        """Nothing to do."""


class Told(FollowReport):
    """A report that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__(self.lines.append)


def follow(source: Any, store: LocalStore, **options: Any) -> Told:
    """Follow once; all that the source has is there then."""
    report = Told()
    run = FollowRun(source, store, report, once=True, sleep=lambda _: None, **options)
    assert run.run()
    assert run.problems == []
    return report


def follow_into(source: Any, folder: Path, **options: Any) -> Told:
    """Follow once, into a folder."""
    with open_follower(folder) as store:
        return follow(source, store, **options)


def content(log: TopicLog) -> list[tuple[Any, ...]]:
    """All that a follower keeps of the entries."""
    return [
        (e.position, e.index, e.kind, e.message_count, e.append_time_ms, bytes(e.stored))
        for e in log.read(EARLIEST, max_entries=100_000, max_bytes=1 << 30)
    ]


def folder_content(folder: Path, topic: str = TOPIC) -> list[tuple[Any, ...]]:
    """The same of a folder that may be in use."""
    with FolderReader(folder) as reader:
        return content(reader.log(topic))


def write(ledger: ManagedLedger, text: str, entries: int) -> None:
    """Entries of one to three messages."""
    ledger.stampers = StamperChain.from_names(["broker-time", "index"])
    for number in range(entries):
        body = f"{text} {number}".encode() * 9
        ledger.append(body, message_count=number % 3 + 1).commit.wait(10)


def damages(folder: Path) -> list[str]:
    """What verify calls damage."""
    return [str(each) for each in verify_folder(folder) if each.severity is Severity.DAMAGE]


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[BrokerThread]:
    """A broker with a gRPC port and entries in two topics."""
    with running_broker(data_dir=tmp_path / "a", grpc_port=0) as broker:
        publish(broker, range(40))
        publish(broker, range(5), OTHER)
        yield broker


def grpc_of(broker: BrokerThread) -> Any:
    """The broker as a source."""
    return open_followed(f"grpc://{broker.grpc_url}", Options())


@pytest.mark.parametrize("kind", ["broker", "folder"])
def test_a_follower_has_the_same_entries_positions_and_epochs(
    leader: BrokerThread, tmp_path: Path, kind: str
) -> None:
    """From a broker and from its folder in use: every entry, whole, at its position."""
    source = grpc_of(leader) if kind == "broker" else open_followed(str(tmp_path / "a"), Options())
    report = follow_into(source, tmp_path / "b")
    assert (report.sum().entries, report.lag(), report.payloads_opened) == (45, (0, 0.0), 0)
    for topic in (TOPIC, OTHER):
        assert folder_content(tmp_path / "b", topic) == folder_content(tmp_path / "a", topic)
    publish(leader, range(40, 60))
    assert follow_into(source, tmp_path / "b").sum().entries == 20
    assert folder_content(tmp_path / "b") == folder_content(tmp_path / "a")
    assert damages(tmp_path / "b") == []
    source.close()


@pytest.mark.parametrize("what", ["restart", "unload"])
def test_what_came_before_a_topic_was_closed_is_followed(tmp_path: Path, what: str) -> None:
    """Between two looks at the source entries come, and it is restarted or the topic unloaded:
    nobody has opened the topic since, and its new entries are followed.
    """
    looks = 0

    def between(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            publish(broker, range(40, 45))
            publish(broker, range(3), OTHER)
            if what == "restart":
                broker.restart()
            else:
                for name in (TOPIC, OTHER):
                    path = f"/admin/v2/{name.replace('://', '/')}/unload"
                    broker.admin.request("PUT", path)

    with running_broker(data_dir=tmp_path / "a", grpc_port=0) as broker:
        publish(broker, range(40))
        source = grpc_of(broker)
        with open_follower(tmp_path / "b") as store:
            report = FollowReport(print)
            run = FollowRun(source, store, report, is_stopped=lambda: looks > 2, sleep=between)
            run.run()
            assert report.lag() == (0, 0.0)
        source.close()
    for topic in (TOPIC, OTHER):
        assert folder_content(tmp_path / "b", topic) == folder_content(tmp_path / "a", topic)


def test_a_full_disk_of_the_follower_is_named(tmp_path: Path) -> None:
    """The error is that of the disk, not one of what comes after the entries that were not stored;
    with space the follower goes on.
    """
    files = FaultyFiles()
    with LocalStore.open(tmp_path / "a") as store:
        log = store.open_topic(TOPIC)
        for number in range(1_800):
            last = log.append(b"%d" % number)
        last.commit.wait(10)
        with LocalStore.open(tmp_path / "b", files=files) as other:

            class Slow(StoreSource):
                """What was appended has failed when the next entries come."""

                def read(self, *place: Any) -> Iterator[StoredEntry]:
                    for number, entry in enumerate(super().read(*place)):
                        if number % 600 == 599:
                            with suppress(LedgerError, OSError):
                                other.checkpoint()
                        yield entry

            files.fail("pwritev", error=errno.ENOSPC, times=None)
            with pytest.raises(FencedError, match="No space left"):
                follow(Slow(store), other)
            files.heal()
        follow_into(StoreSource(store), tmp_path / "b")
        assert folder_content(tmp_path / "b") == content(log)


def speaks(monkeypatch: pytest.MonkeyPatch, side: str, versions: tuple[int, int]) -> None:
    """The versions that the source or the follower speaks from now on; 0: it names none."""
    for module in (service,) if side == "source" else (client, following):
        monkeypatch.setattr(module, "VERSIONS", versions)


@pytest.mark.parametrize("order", [("source", "follower"), ("follower", "source")])
def test_source_and_follower_are_upgraded_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]
) -> None:
    """Each is restarted with the next version while the other has the old one: all is followed.

    Once the oldest version is spoken no more, a side that has only that one is told so.
    """
    for side in order:
        speaks(monkeypatch, side, (0, 0))
    sent = 0
    steps = [(side, newer) for newer in ((1, 2), (2, 3)) for side in order]
    for side, versions in [(order[0], (0, 0)), *steps]:
        speaks(monkeypatch, side, versions)
        with running_broker(data_dir=tmp_path / "a", grpc_port=0) as broker:
            publish(broker, range(sent, sent + 5))
            source = grpc_of(broker)
            assert follow_into(source, tmp_path / "b").sum().entries == 5
            source.close()
        sent += 5
        assert folder_content(tmp_path / "b") == folder_content(tmp_path / "a")
    speaks(monkeypatch, order[1], (0, 0))
    with running_broker(data_dir=tmp_path / "a", grpc_port=0) as broker:
        source = grpc_of(broker)
        text = f"speaks the versions .* 2 to 3|2 to 3 .*: upgrade the {order[1]} first"
        with pytest.raises(NotPossibleError, match=text):
            follow_into(source, tmp_path / "b")
        source.close()
    assert folder_content(tmp_path / "b") == folder_content(tmp_path / "a")


def test_control_entries_are_appended_by_the_follower(tmp_path: Path) -> None:
    """They are real entries there, too, of every type; a subscription does not count them."""
    with LocalStore.open(tmp_path / "a") as store:
        log = store.open_topic(TOPIC)
        log.open_cursor("billing", initial=EARLIEST)
        write(log, "first", 2)
        for kind in (CONTROL_CHECKPOINT, CONTROL_TXN_COMMIT, CONTROL_USER):
            base = control_metadata(kind, "17")
            log.append(b"", kind=EntryKind.CONTROL, base=base).commit.wait(10)
        log.begin_epoch(3, leader="a").commit.wait(10)
        with open_follower(tmp_path / "b") as other:
            follow(StoreSource(store), other)
            mine = other.open_topic(TOPIC)
            assert content(mine) == content(log)
            assert mine.epoch == 3
            controls = [c for e in mine.read(EARLIEST) if (c := control_of(e.prefix)) is not None]
            types = [CONTROL_CHECKPOINT, CONTROL_TXN_COMMIT, CONTROL_USER, CONTROL_LEADER_CHANGE]
            assert [each.control_type for each in controls] == types
            assert mine.cursors["billing"].backlog_messages == 3


def test_values_subscriptions_trimming_and_deletions_are_followed(tmp_path: Path) -> None:
    """Policies, schemas, cursors, a cut head and a deleted topic are as in the source."""
    with LocalStore.open(tmp_path / "a", options=SMALL) as store:
        source, log = StoreSource(store), store.open_topic(TOPIC)
        write(log, "first", 30)
        write(store.open_topic(OTHER), "other", 3)
        store.catalog.put("topic-policy", TOPIC, b'{"retention": 1}')
        store.catalog.put(SCHEMA_KIND, TOPIC, b"a schema")
        snapshot = {"topicId": log.topic_id, "position": [1, 2], "producers": {}}
        store.catalog.put("deduplication", TOPIC, json.dumps(snapshot).encode())
        cursor = log.open_cursor("billing", initial=EARLIEST, subscription_properties={"a": "b"})
        cursor.ack_cumulative(content(log)[10][0])
        cursor.ack(content(log)[20][0])
        log.open_cursor("gone", initial=EARLIEST)
        with open_follower(tmp_path / "b") as other:
            other.open_topic("persistent://public/default/x")  # so that ids of topics differ
            other.delete_topic("persistent://public/default/x")
            follow(source, other)
            mine = other.open_topic(TOPIC)
            taken = mine.cursors["billing"]
            assert taken.mark_delete == cursor.mark_delete
            assert taken.is_acked(content(log)[20][0])
            assert taken.subscription_properties == {"a": "b"}
            assert taken.backlog_messages == cursor.backlog_messages
            assert other.catalog.get("topic-policy", TOPIC) == b'{"retention": 1}'
            assert other.catalog.get(SCHEMA_KIND, TOPIC) == b"a schema"
            kept = json.loads(other.catalog.get("deduplication", TOPIC) or b"")
            assert kept == {**snapshot, "topicId": mine.topic_id}
            assert mine.topic_id != log.topic_id
            log.truncate_head(content(log)[12][0])
            log.delete_cursor("gone").wait(10)
            cursor.ack_cumulative(content(log)[10][0])
            store.delete_topic(OTHER)
            store.catalog.delete("topic-policy", TOPIC)
            report = follow(source, other)
            assert report.sum().entries == 0
            assert content(mine) == content(log)
            assert mine.first_index == log.first_index > 0
            assert set(mine.cursors) == {"billing"}
            assert taken.mark_delete == cursor.mark_delete
            assert other.topic_names() == [TOPIC]
            assert other.catalog.get("topic-policy", TOPIC) is None
        with LocalStore.open(tmp_path / "b") as other:  # all of it is durable
            mine = other.open_topic(TOPIC)
            assert content(mine) == content(log)
            assert mine.cursors["billing"].mark_delete == cursor.mark_delete
    assert damages(tmp_path / "b") == []


def test_an_old_leader_rejoins(tmp_path: Path) -> None:
    """After a promotion it loses its unshared tail, topics and views, is told, and goes on."""
    with LocalStore.open(tmp_path / "a") as old:
        write(old.open_topic(TOPIC), "shared", 10)
        follow_into(StoreSource(old), tmp_path / "b")
        write(old.open_topic(TOPIC), "lost", 4)
        write(old.open_topic(OTHER), "lost, too", 2)
    with pytest.raises(FollowerFolderError), running_broker(data_dir=tmp_path / "b"):
        pass
    with open_follower(tmp_path / "b") as new:
        assert promote(new, "b") == {TOPIC: 1}
        with pytest.raises(NotFollowerError):
            promote(new, "b")
    with LocalStore.open(tmp_path / "b") as new:
        write(new.open_topic(TOPIC), "new", 3)
        source = StoreSource(new)
        report = follow_into(source, tmp_path / "a")
        assert report.truncated == {TOPIC: 4}
        said = report.lines
        assert any("4 entries that the source does not have were cut off" in line for line in said)
        assert any(f"deleted: {OTHER}" in line and "2 entries" in line for line in said)
        assert folder_content(tmp_path / "a") == content(new.open_topic(TOPIC))
        write(new.open_topic(TOPIC), "more", 2)
        assert follow_into(source, tmp_path / "a").truncated == {}
        assert folder_content(tmp_path / "a") == content(new.open_topic(TOPIC))
    for name in "ab":
        assert damages(tmp_path / name) == []


@pytest.mark.parametrize("kind", ["store", "broker"])
def test_a_compacted_view_is_followed(tmp_path: Path, kind: str) -> None:
    """What only the view has, because the log's head was removed, is in the follower's folder."""
    with LocalStore.open(tmp_path / "a") as store:
        log = store.open_topic(OTHER)  # so that ids of topics differ
        write(log, "other", 1)
        log = store.open_topic(TOPIC)
        for number in range(12):
            body = unbatched_message(b"%d" % number, publish_time_ms=number, key=f"k{number % 3}")
            log.append(body).commit.wait(10)
        compact(log)
        write(log, "after", 2)
        log.truncate_head(content(log)[11][0])
        expected = [e.position for e in compacted_log(log).read(EARLIEST, max_entries=100)]
        if kind == "store":
            follow_into(StoreSource(store), tmp_path / "b", selection=Selection((TOPIC,)))
    if kind == "broker":
        with running_broker(data_dir=tmp_path / "a", grpc_port=0) as broker:
            source = grpc_of(broker)
            follow_into(source, tmp_path / "b")
            follow_into(source, tmp_path / "b")
            source.close()
    with open_follower(tmp_path / "b") as store:
        promote(store, "b")
        log = store.open_topic(TOPIC)
        found = [e.position for e in compacted_log(log).read(EARLIEST, max_entries=100)]
        assert found[: len(expected)] == expected
        assert len(expected) >= 5
    assert damages(tmp_path / "b") == []


def test_a_view_that_the_folder_had_before_is_brought_again_and_is_durable(tmp_path: Path) -> None:
    """Its segments have the ids of those that were removed, which may not remove them, too."""
    with LocalStore.open(tmp_path / "a") as store:
        log = store.open_topic(TOPIC)
        for number in range(12):
            body = unbatched_message(b"%d" % number, publish_time_ms=number, key=f"k{number % 3}")
            log.append(body).commit.wait(10)
        compact(log)
        write(log, "after", 2)
        log.truncate_head(content(log)[11][0])
        expected = [e.position for e in compacted_log(log).read(EARLIEST, max_entries=100)]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with LocalStore.open(tmp_path / "a") as store, open_follower(tmp_path / "b") as other:
        follow(StoreSource(store), other)
        shutil.copytree(tmp_path / "b", tmp_path / "killed")
        other.checkpoint()
        assert store.catalog.listed_segments() <= other.catalog.listed_segments()
    with open_follower(tmp_path / "killed") as other:
        found = compacted_log(other.open_topic(TOPIC)).read(EARLIEST, max_entries=100)
        assert [e.position for e in found] == expected


def test_a_leader_that_lost_its_end_without_an_epoch(tmp_path: Path) -> None:
    """Where the leader's log is shorter than the follower's, and goes on in another ledger, the
    follower's end is cut off, though the epoch is the same.
    """
    with LocalStore.open(tmp_path / "a") as store:
        write(store.open_topic(TOPIC), "first", 6)
        follow_into(StoreSource(store), tmp_path / "b")
    with open_follower(tmp_path / "b") as other:
        mine = other.open_topic(TOPIC)
        last = mine.read(EARLIEST, max_entries=100)[-1]
        ahead = dataclasses.replace(last, position=last.position.following, index=last.index + 3)
        mine.follow([ahead], 0).commit.wait(10)
    with LocalStore.open(tmp_path / "a") as store:
        source = StoreSource(store)
        lines: list[str] = []
        with open_follower(tmp_path / "b") as other:
            run = FollowRun(source, other, FollowReport(lines.append), once=True)
            run.run()
            assert run.problems == [TOPIC]
            assert any("waiting until the source goes on" in line for line in lines)
        write(store.open_topic(TOPIC), "second", 2)
        assert follow_into(source, tmp_path / "b").truncated == {TOPIC: 1}
        assert folder_content(tmp_path / "b") == content(store.open_topic(TOPIC))


def test_a_source_that_was_set_back(tmp_path: Path) -> None:
    """A source that goes on from a backup gives ids of ledgers again: what it wrote before is not
    in its log any more, nor in the follower's.
    """
    a, b, backup = (tmp_path / name for name in ("a", "b", "backup"))
    for number in range(2):
        with LocalStore.open(a) as store:
            write(store.open_topic(TOPIC), f"first {number}", 5)
    shutil.copytree(a, backup)
    for _ in range(2):
        with LocalStore.open(a) as store:
            write(store.open_topic(TOPIC), "lost", 5)
    follow_into(open_followed(str(a), Options()), b)
    shutil.rmtree(a)
    shutil.copytree(backup, a)
    with LocalStore.open(a) as store:
        write(store.open_topic(TOPIC), "another", 3)
    report = follow_into(open_followed(str(a), Options()), b)
    assert report.truncated == {TOPIC: 10}
    assert folder_content(b) == folder_content(a)
    with LocalStore.open(a) as store:
        write(store.open_topic(TOPIC), "more", 12)
    assert follow_into(open_followed(str(a), Options()), b).truncated == {}
    assert folder_content(b) == folder_content(a)
    assert damages(b) == []


@pytest.mark.parametrize("options", [SMALL, StoreOptions()], ids=["ledgers", "one ledger"])
def test_a_follower_that_was_away_too_long_begins_anew(
    tmp_path: Path, options: StoreOptions
) -> None:
    """If the source removed what comes next, the follower keeps what the source has."""
    with LocalStore.open(tmp_path / "a", options=options) as store:
        log = store.open_topic(TOPIC)
        write(log, "first", 9)
        write(store.open_topic(OTHER), "other", 1)
        follow_into(StoreSource(store), tmp_path / "b")
        write(log, "second", 30)
        log.truncate_head(content(log)[30][0])
        follow_into(StoreSource(store), tmp_path / "b")
        assert folder_content(tmp_path / "b") == content(log)
    assert damages(tmp_path / "b") == []


def test_an_index_goes_on_where_all_entries_were_removed(tmp_path: Path) -> None:
    """A promoted follower gives no index of a removed entry to another one."""
    with LocalStore.open(tmp_path / "a") as store:
        log = store.open_topic(TOPIC)
        write(log, "removed", 6)
        log.truncate_head(log.end_position)
        follow_into(StoreSource(store), tmp_path / "b")
        index = log.next_index
    with open_follower(tmp_path / "b") as other:
        promote(other, "b")
        assert other.open_topic(TOPIC).first_index == index == 12


def test_another_log_is_refused(tmp_path: Path) -> None:
    """A folder with entries of which the source has none is left as it is."""
    for name in "ab":
        with LocalStore.open(tmp_path / name) as store:
            store.skip_ledger_ids(100 if name == "b" else 0)
            write(store.open_topic(TOPIC), name, 3)
    before = folder_content(tmp_path / "b")
    source = open_followed(str(tmp_path / "a"), Options())
    with pytest.raises(OtherSourceError, match="use an empty folder"):
        follow_into(source, tmp_path / "b")
    assert folder_content(tmp_path / "b") == before
    with running_broker(data_dir=tmp_path / "b"):  # and is no follower
        pass


def test_chosen_topics(tmp_path: Path) -> None:
    """With names or a pattern only these topics are followed, and others are not touched."""
    with LocalStore.open(tmp_path / "a") as store:
        write(store.open_topic(TOPIC), "orders", 2)
        write(store.open_topic(OTHER), "audit", 2)
        source = StoreSource(store)
        follow_into(source, tmp_path / "b", selection=Selection(("orders",)))
        with LocalStore.open(tmp_path / "b") as other:
            assert other.topic_names() == [TOPIC]
        follow_into(source, tmp_path / "canary", selection=Selection(("orders",)))
        with open_follower(tmp_path / "canary") as other:
            assert promote(other, "canary") == {TOPIC: 1}
        for wrong in (("orders", "absent"), ("absent",)):  # as `mirror` does
            with pytest.raises(NoTopicsError, match="has no topic absent"):
                follow_into(source, tmp_path / "b", selection=Selection(wrong))
        pattern = Selection(("persistent://public/default/au.*",), is_regex=True)
        follow_into(source, tmp_path / "b", selection=pattern)
        with LocalStore.open(tmp_path / "b") as other:
            assert other.topic_names() == [OTHER, TOPIC]
            assert set(promote(other, "b")) == {OTHER, TOPIC}


def test_a_folder_does_not_follow_itself(tmp_path: Path) -> None:
    """Whatever its path is written like, it is refused and stays as it was."""
    with LocalStore.open(tmp_path / "a") as store:
        write(store.open_topic(TOPIC), "orders", 2)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for path in (tmp_path / "a", tmp_path / "link"):
        with pytest.raises(EndpointError, match="cannot follow itself"):
            follow_into(open_followed(str(path), Options()), tmp_path / "a")
    with LocalStore.open(tmp_path / "a") as store:
        assert store.followed_place is None


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("pulsar://127.0.0.1:6650", "gRPC port"),
        ("ftp://x", "gRPC port"),
        ("/no/such/folder", "no such data folder"),
    ],
)
def test_a_source_that_is_none(endpoint: str, text: str) -> None:
    """The error names the endpoint and says what is needed."""
    with pytest.raises(EndpointError, match=text):
        open_followed(endpoint, Options())


def test_a_source_that_is_lost(tmp_path: Path) -> None:
    """A follower waits for its source as long as it was told, and says so."""
    with running_broker(data_dir=tmp_path / "a", grpc_port=0) as broker:
        publish(broker, range(3))
        source = grpc_of(broker)
        with open_follower(tmp_path / "b") as store:
            follow(source, store)
            times = iter(range(1000))
            report = FollowReport(lambda _: None)
            run = FollowRun(
                source, store, report, reconnect_s=20, clock=lambda: float(next(times)),
                sleep=lambda _: broker.stop(),
            )  # fmt: skip
            with pytest.raises(LostError):
                run.run()
            assert report.reconnections == 1
            assert not report.is_connected


# Any sequence of leader changes


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4)),
        st.tuples(st.just("follow"), st.just(0)),
        st.tuples(st.just("fail over"), st.integers(0, 3)),
        st.tuples(st.just("trim"), st.integers(1, 3)),
    ),
    max_size=14,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_any_history_of_leaders_leaves_one_log(steps: list[tuple[str, int]]) -> None:
    """After any sequence of writes, follows and failovers both logs agree up to their common end,
    and a follow makes them equal; what was followed before a failover is never lost.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as at:
        folders = [Path(at) / "a", Path(at) / "b"]
        with LocalStore.open(folders[0], options=SMALL) as store:
            write(store.open_topic(TOPIC), "begin", 2)
        follow_into(open_followed(str(folders[0]), Options()), folders[1])
        for number, (what, count) in enumerate(steps):
            _step(folders, what, count, str(number))
        _make_equal(folders)
        assert damages(folders[0]) == damages(folders[1]) == []


def _make_equal(folders: list[Path]) -> None:
    """Follow; a follower may have removed more of its head, when it was the leader."""
    try:
        follow_into(open_followed(str(folders[0]), Options()), folders[1])
    except OtherSourceError:  # the leader has removed all that both had
        shutil.rmtree(folders[1])
        follow_into(open_followed(str(folders[0]), Options()), folders[1])
    theirs, mine = folder_content(folders[0]), folder_content(folders[1])
    assert mine == [entry for entry in theirs if entry[0] >= mine[0][0]]


def _step(folders: list[Path], what: str, count: int, text: str) -> None:
    if what == "follow":
        _make_equal(folders)
        return
    with LocalStore.open(folders[0], options=SMALL) as store:
        log = store.open_topic(TOPIC)
        if what == "trim":
            log.truncate_head(content(log)[:count][-1][0])
        else:
            write(log, text, count)  # before a failover: what will be cut off
    if what == "fail over":
        followed = folder_content(folders[1])
        with open_follower(folders[1]) as store:
            if store.followed_place is None:
                return  # the old leader has not come back: nobody can take over
            promote(store, text)
        folders.reverse()
        with FolderReader(folders[0]) as one, FolderReader(folders[1]) as other:
            new, old = one.log(TOPIC), other.log(TOPIC)
            end = common_end(new.ledger_extents(), old.ledger_extents())
            kept = content(new)
            assert kept[: len(followed)] == followed
            shared = {entry[0]: entry for entry in content(old)}
            for entry in kept:
                if end is not None and entry[0] < end and entry[0] in shared:
                    assert shared[entry[0]] == entry


# A crash at any call


@pytest.fixture(scope="module")
def new_leader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStore]:
    """A promoted follower with entries of its own; its old leader's log is made by `old_leader`."""
    folder = tmp_path_factory.mktemp("leader") / "b"
    with LocalStore.open(folder, options=SMALL) as store:
        for topic in (TOPIC, OTHER):
            write(store.open_topic(topic), "shared", 9)
        store.catalog.put("follows", "place", b"old")
        store.skip_ledger_ids(2**26)
        promote(store, "b")
        for topic in (TOPIC, OTHER):
            write(store.open_topic(topic), "new", 5)
        yield store


def old_leader(simulated: SimulatedStore, files: Any, leader: LocalStore) -> LocalStore:
    """A store with the entries before the promotion, and two of its own after them."""
    store = simulated.open(files)
    for topic in (TOPIC, OTHER):
        shared = leader.open_topic(topic).read(EARLIEST, max_entries=9)
        log = store.open_topic(topic)
        log.follow(shared, 0).commit.wait(10)
        last = dataclasses.replace(shared[-1], index=shared[-1].index + 3)
        for _ in range(2):
            last = dataclasses.replace(last, position=last.position.following)
            log.follow([last], 0).commit.wait(10)
            last = dataclasses.replace(last, index=last.index + 3)
    return store


@pytest.mark.parametrize("end", ["kill", "power_off"])
@pytest.mark.parametrize("phase", ["rejoin", "promotion"])
def test_a_crash_at_any_call_loses_nothing(
    memory_folder: Path, new_leader: LocalStore, end: str, phase: str
) -> None:
    """While it truncates and follows, or is promoted: the next run has the leader's log."""

    def work(store: LocalStore) -> None:
        if phase == "promotion":
            promote(store, "again")
        else:
            follow(StoreSource(new_leader), store)

    def prepared(name: str, seed: int) -> tuple[SimulatedStore, Any, LocalStore]:
        simulated = SimulatedStore(memory_folder / name, seed=seed)
        files = simulated.files()
        store = old_leader(simulated, files, new_leader)
        if phase == "promotion":
            follow(StoreSource(new_leader), store)
        return simulated, files, store

    simulated, files, store = prepared("count", 0)
    before = files.total_calls
    work(store)
    total = files.total_calls - before
    simulated.end()
    assert total > 5
    for number in range(1, total + 1, max(1, total // 12)):
        simulated, files, store = prepared(str(number), number)
        files.at_call(files.total_calls + number, getattr(simulated.disk, end))
        with suppress(OSError, LedgerError):
            work(store)
        getattr(simulated, end)()
        store = simulated.open()
        if phase == "promotion":
            epochs = store.open_topic(TOPIC).epoch
            if store.followed_place is not None:
                promote(store, "again")
                assert store.open_topic(TOPIC).epoch > epochs
        else:
            work(store)
        for topic in (TOPIC, OTHER):
            theirs = content(new_leader.open_topic(topic))
            assert content(store.open_topic(topic))[: len(theirs)] == theirs
            write(store.open_topic(topic), "goes on", 1)
        simulated.end()
