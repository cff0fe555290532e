"""New data folders: the same entries under the same indexes, in another form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from zlib import crc32

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.ledger import EARLIEST, EntryKind, FolderReader, LocalStore, Position
from pulsemark.maintenance.finding import Severity
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import peek
from pulsemark.pipeline.errors import JobFailedError, MigrateError, OptionError
from pulsemark.pipeline.migrate import MigrateResult, migrate, pulsar_topics
from pulsemark.pipeline.migrate.source import PLAN_OPTION, MigrateReader
from pulsemark.pipeline.migrate.staging import Staging

T = "persistent://public/default/"


class TasksHere:
    """What a migration uses of a SparkSession; `stop_after` tasks one raises."""

    def __init__(self, stop_after: int = 1 << 30) -> None:
        self.dataSource = SimpleNamespace(register=lambda source: None)
        self.stop_after = stop_after
        self.tasks = 0

    @property
    def read(self) -> Self:
        """A reader."""
        return self

    def format(self, name: str) -> Self:
        """Of the migration only."""
        assert name == "pulsemark-migrate"
        return self

    def option(self, name: str, value: str) -> Self:
        """The plan."""
        assert name == PLAN_OPTION
        self._plan = json.loads(value)
        return self

    def load(self) -> Self:
        """Nothing runs yet."""
        return self

    def collect(self) -> list[Any]:
        """Run the tasks."""
        reader = MigrateReader({**self._plan, "token": None})
        rows: list[Any] = []
        for partition in reader.partitions():
            if self.tasks >= self.stop_after:
                raise KeyboardInterrupt
            self.tasks += 1
            rows += reader.read(partition)
        return rows


def migrated(source: object, target: Path, *, spark: Any = None, **more: Any) -> MigrateResult:
    """Migrate in this process."""
    session: Any = spark or TasksHere()
    return migrate(session, str(source), target, **more)


def entries(path: Path, topic: str) -> list[tuple[Any, ...]]:
    """Each entry: position, kind, index, count, append time, checksum of its body; and prefix."""
    with FolderReader(path) as reader:
        log, place, found = reader.log(topic), Position(0, 0), []
        while got := log.read(place, max_entries=500, max_bytes=1 << 24):
            found += [
                (
                    tuple(e.position), e.kind, e.index, e.message_count, e.append_time_ms,
                    crc32(e.body), bytes(e.prefix),
                )
                for e in got
            ]  # fmt: skip
            last = got[-1].position
            place = Position(last.ledger_id, last.entry_id + 1)
    return found


def bare(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The entries without their prefixes."""
    return [entry[:-1] for entry in found]


def snapshot(path: Path) -> dict[str, bytes]:
    """All bytes of a folder."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def damage(path: Path) -> list[Any]:
    """What `pulsemark verify` finds; the control entries that `fill` makes have no stamp of one."""
    found = [each for each in verify_folder(path) if each.severity is Severity.DAMAGE]
    return [(type(each).__name__, each.topic, each.what) for each in found]


def filled(folder: Any, tools: Any) -> list[Any]:
    """Two topics with entries of every kind, several ledgers, a trimmed head, a wrong clock."""
    topics = [folder.topic("a"), folder.topic("b", partition=0)]
    for _ in range(2):
        for topic in topics:
            tools.fill(topic, folder.clock)
        topics[0].single(b"from the future", publish_time_ms=folder.clock.now_ms() + 10**9)
        folder.store.close()
        folder.store = LocalStore.open(folder.path, clock=folder.clock)
        rows = [topic.rows for topic in topics]
        topics = [folder.topic("a"), folder.topic("b", partition=0)]
        for topic, known in zip(topics, rows, strict=True):
            topic.rows = known
    ledger = topics[0].ledger
    first = ledger.first_position
    cursor = ledger.open_cursor("s", initial=first)
    cursor.ack_cumulative(Position(first.ledger_id, first.entry_id + 5))
    ledger.truncate_head(Position(first.ledger_id, first.entry_id + 3))
    folder.store.catalog.put("namespace", "public/default", b"{}")
    folder.store.close()
    return topics


@pytest.mark.parametrize("form", ["stamped", "plain"])
def test_positions_indexes_and_bytes_stay(
    folder: Any, tools: Any, tmp_path: Path, form: str
) -> None:
    """Only prefixes change, and only in the way that was asked for; the source is not touched."""
    topics = filled(folder, tools)
    before = snapshot(folder.path)
    done = migrated(folder.path, tmp_path / "new", entry_format=form)
    assert snapshot(folder.path) == before
    assert [each.topic for each in done.topics] == [topic.name for topic in topics]
    for topic, result in zip(topics, done.topics, strict=True):
        old, new = entries(folder.path, topic.name), entries(tmp_path / "new", topic.name)
        assert bare(new) == bare(old)
        assert result.entries == len(old)
        assert result.messages == sum(entry[3] for entry in old)
        assert result.changed == sum(a[-1] != b[-1] for a, b in zip(old, new, strict=True))
        assert result.changed > 0
        for (_, kind, index, _, time_ms, _, prefix), was in zip(new, old, strict=True):
            if kind is EntryKind.CONTROL:
                assert prefix == was[-1]
            elif form == "plain":
                assert prefix == b""
            else:
                stamp = peek(prefix)
                assert stamp is not None
                assert (stamp.broker_timestamp, stamp.index) == (time_ms, index)
                assert prefix == was[-1] or was[-1] == b""
    assert damage(tmp_path / "new") == damage(folder.path)
    assert not (tmp_path / "new.migrating").exists()


def test_up_and_down_and_up_again(folder: Any, tools: Any, tmp_path: Path) -> None:
    """A folder that was made plain and stamped again differs from one that was stamped in nothing
    that an entry has: broker time is the time at which the ledger got it.
    """
    topics = filled(folder, tools)
    migrated(folder.path, tmp_path / "up", entry_format="stamped")
    migrated(tmp_path / "up", tmp_path / "down", entry_format="plain")
    migrated(tmp_path / "down", tmp_path / "again", entry_format="stamped")
    for topic in topics:
        assert entries(tmp_path / "again", topic.name) == entries(tmp_path / "up", topic.name)


def test_a_store_goes_on_with_it(folder: Any, tools: Any, tmp_path: Path) -> None:
    """Cursors, properties and ids are there; the next entry gets the next index."""
    topics = filled(folder, tools)
    (name,) = {topic.name for topic in topics} - {f"{T}b-partition-0"}
    with LocalStore.open(folder.path) as store:
        ledger = store.open_topic(name)
        mark, next_index = ledger.open_cursor("s", initial=EARLIEST).mark_delete, ledger.next_index
    old = entries(folder.path, name)
    migrated(folder.path, tmp_path / "new", entry_format="plain")
    with LocalStore.open(tmp_path / "new") as store:
        ledger = store.open_topic(name, create=False)
        assert ledger.open_cursor("s", initial=EARLIEST).mark_delete == mark
        done = ledger.append(b"more", message_count=2)
        done.commit.wait(10)
        assert done.index == next_index + 1
        assert done.position.ledger_id > max(entry[0][0] for entry in old)
        assert dict(store.catalog.items("namespace")) == {"public/default": b"{}"}
        assert store.open_topic(f"{T}new").topic_id > max(
            ledger.topic_id, topics[0].ledger.topic_id
        )
    assert bare(entries(tmp_path / "new", name))[:-1] == bare(old)


def test_a_search_by_time_finds_the_same_entries(folder: Any, tools: Any, tmp_path: Path) -> None:
    """In a stamped copy by the time of the ledger, also after entries of a producer's future."""
    from pulsemark.finder import Finder

    (topic, _) = filled(folder, tools)
    migrated(folder.path, tmp_path / "new")
    with FolderReader(tmp_path / "new") as reader:
        log = reader.log(topic.name)
        for position, _, _, _, time_ms, _, _ in entries(tmp_path / "new", topic.name):
            found = Finder(log).by_time(time_ms)
            first = next(e[0] for e in entries(tmp_path / "new", topic.name) if e[4] >= time_ms)
            assert tuple(found.position) == first <= position


def test_a_killed_run_goes_on(folder: Any, tools: Any, tmp_path: Path) -> None:
    """What is staged is not copied again; nothing is at the target before the end."""
    topics = filled(folder, tools)
    plain = {"entry_format": "plain"}
    for count in range(3):
        with pytest.raises(KeyboardInterrupt):
            migrated(folder.path, tmp_path / "new", spark=TasksHere(stop_after=count), **plain)
        assert not (tmp_path / "new").exists()
    staged = sorted((tmp_path / "new.migrating" / "data" / "ledgers").glob("*.log"))
    stamps = {path.name: path.stat().st_mtime_ns for path in staged}
    assert stamps
    with Staging(tmp_path / "new").lock(), pytest.raises(OptionError, match="another run"):
        migrated(folder.path, tmp_path / "new", **plain)
    with pytest.raises(OptionError, match="migration with entryFormat = 'plain', not 'stamped'"):
        migrated(folder.path, tmp_path / "new")
    migrated(folder.path, tmp_path / "new", **plain)
    for name, stamp in stamps.items():
        assert (tmp_path / "new" / "ledgers" / name).stat().st_mtime_ns == stamp
    for topic in topics:
        assert bare(entries(tmp_path / "new", topic.name)) == bare(entries(folder.path, topic.name))


def test_a_run_that_was_killed_after_the_last_step(folder: Any, tools: Any, tmp_path: Path) -> None:
    """The target is whole; the next run only cleans up, and says the same."""
    filled(folder, tools)
    first = migrated(folder.path, tmp_path / "one")
    staging = Staging(tmp_path / "two")
    clean = Staging.clean
    Staging.clean = lambda self: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    try:
        with pytest.raises(KeyboardInterrupt):
            migrated(folder.path, tmp_path / "two")
    finally:
        Staging.clean = clean  # type: ignore[method-assign]
    assert staging.is_visible
    assert migrated(folder.path, tmp_path / "two") == first
    assert not staging.path.exists()


def test_damage_is_not_copied(folder: Any, tools: Any, tmp_path: Path) -> None:
    """The error names the entry, and nothing is visible."""
    topic = folder.topic("a")
    for number in range(50):
        topic.single(b"value %d" % number)
    folder.store.close()
    (path,) = [p for p in folder.path.glob("ledgers/*.log") if b"value 30" in p.read_bytes()]
    path.write_bytes(path.read_bytes().replace(b"value 30", b"value 3X"))
    with pytest.raises(MigrateError, match=r"entry \d+:30 is damaged"):
        migrated(folder.path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_empty_folder(folder: Any, tmp_path: Path) -> None:
    """No topic, and a topic without entries."""
    folder.store.open_topic(f"{T}empty")
    folder.store.close()
    assert migrated(folder.path, tmp_path / "new").topics == ()
    with LocalStore.open(tmp_path / "new") as store:
        assert f"{T}empty" in store.topic_names()


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        ("data", {"entry_format": "v2"}, "entryFormat = 'v2': must be stamped or plain"),
        ("data", {"topics": ["a"]}, "topic = 'a': is for a broker as source"),
        ("data", {"namespaces": ["a/b"]}, "namespace = 'a/b': is for a broker"),
        ("pulsar://x:1", {}, "topic: is required"),
        ("pulsar://", {"topics": ["a"]}, "source = 'pulsar://'"),
        ("pulsar://x:1", {"topics": ["a/b"]}, "topic = 'a/b'"),
        ("pulsar://x:1", {"namespaces": ["b"]}, "namespace = 'b': is not of the form"),
    ],
)
def test_nonsense_is_refused_by_name(
    folder: Any, tmp_path: Path, source: str, more: Any, message: str
) -> None:
    """Before anything is made."""
    place = str(folder.path) if source == "data" else source
    with pytest.raises(OptionError, match=message):
        migrated(place, tmp_path / "new", **more)
    assert not (tmp_path / "new.migrating").exists()


def test_a_target_that_exists_or_is_in_the_source(folder: Any, tmp_path: Path) -> None:
    """Nothing is overwritten."""
    (tmp_path / "file").write_text("x")
    for target, reason in (
        (tmp_path / "file", "is a file"),
        (folder.path, "exists already"),
        (folder.path / "ledgers" / "new", "is inside the source"),
        (tmp_path / "file" / "x", "cannot be written|is a file"),
    ):
        with pytest.raises(OptionError, match=reason):
            migrated(folder.path, target)


@pytest.mark.parametrize("shows", [True, False])
def test_from_a_broker(folder: Any, tools: Any, tmp_path: Path, shows: bool) -> None:
    """Bytes, partitions and schemas come along; index and time if the broker shows them."""
    topics = [folder.topic("a"), folder.topic("b", partition=0), folder.topic("b", partition=1)]
    for topic in topics:
        for number in range(10):
            folder.clock.advance(by_ms=1000)
            topic.single(b"value %d" % number, compression=number % 5)
    folder.store.catalog.put("partitioned-topic", f"{T}b", b"2")
    folder.store.close()
    config = BrokerConfig(
        data_dir=folder.path,
        port=0,
        http_port=0,
        exposing_broker_entry_metadata_to_client_enabled=shows,
    )
    with BrokerThread(config) as broker:
        done = migrated(broker.service_url, tmp_path / "new", topics=["a", "b"])
        with pytest.raises(MigrateError, match="cannot be read"):
            migrated(broker.service_url, tmp_path / "no", topics=["absent"])
    assert [each.topic for each in done.topics] == [topic.name for topic in topics]
    for topic in topics:
        old, new = entries(folder.path, topic.name), entries(tmp_path / "new", topic.name)
        assert [entry[2:4] + entry[5:6] for entry in new] == [e[2:4] + e[5:6] for e in old]
        times = [row["__brokerPublishTime" if shows else "__publishTime"] for row in topic.rows]
        found = tools.rows_of(tmp_path / "new", topic=topic.name, columns="__brokerPublishTime")
        assert [row["__brokerPublishTime"] for row in found] == times
    assert damage(tmp_path / "new") == []
    new_config = BrokerConfig(data_dir=tmp_path / "new", port=0, http_port=0)
    with BrokerThread(new_config) as broker:
        from pulsemark.client import Service

        with Service(broker.service_url) as service:
            assert service.first().partitions(f"{T}b", create=False) == 2


def test_from_a_broker_after_a_kill(folder: Any, tmp_path: Path) -> None:
    """The next run goes on after the last segment that was written as a whole."""
    topic = folder.topic("a")
    for number in range(100):
        topic.single(b"%03d" % number + b"x" * 1000)
    folder.store.close()
    with BrokerThread(BrokerConfig(data_dir=folder.path, port=0, http_port=0)) as broker:
        url, staging = broker.service_url, Staging(tmp_path / "new")
        settings = {"source": url, "entryFormat": "plain", "topics": [topic.name], "namespaces": []}
        with staging.lock():
            plan = pulsar_topics.plan_of(url, None, [topic.name], [])
            staging.begin(settings, plan)
            planned = {**plan["topics"][0], "last": [plan["topics"][0]["last"][0], 39]}
            pulsar_topics.copy_topic(url, None, staging, planned, _plain(), segment_bytes=10_000)
        count = len(list((staging.path / "progress").iterdir()))
        assert count > 3
        done = migrated(url, tmp_path / "new", topics=["a"], entry_format="plain")
    assert done.messages == 100
    old, new = entries(folder.path, topic.name), entries(tmp_path / "new", topic.name)
    assert [entry[2:4] + entry[5:6] for entry in new] == [e[2:4] + e[5:6] for e in old]


def _plain() -> Any:
    from pulsemark.pipeline.migrate.entry_format import EntryFormat

    return EntryFormat.PLAIN


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    """One error with its address; the next run may name another one."""
    with pytest.raises(JobFailedError, match=r"127\.0\.0\.1:1"):
        migrated("pulsar://127.0.0.1:1", tmp_path / "new", topics=["a"])


KILLED = """
import sys
from tests.pipeline.migrate.test_job import migrated
from pathlib import Path
print("begin", flush=True)
migrated(sys.argv[1], Path(sys.argv[2]), entry_format="plain")
"""


def test_kill_9_at_any_moment(folder: Any, tools: Any, tmp_path: Path) -> None:
    """Runs that are killed after random times, then one that is not: the copy is equal."""
    topics = [folder.topic(f"t{number}") for number in range(8)]
    for topic in topics:
        tools.fill(topic, folder.clock, rounds=4)
    folder.store.close()
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", KILLED, str(folder.path), str(tmp_path / "new")]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    for delay_s in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
        process = subprocess.Popen(command, cwd=root, env=env, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        time.sleep(delay_s)
        process.kill()
        process.communicate(timeout=60)
        if (tmp_path / "new").exists():
            break
    migrated_now = (tmp_path / "new").exists() and not (tmp_path / "new.migrating").exists()
    if not migrated_now:
        migrated(folder.path, tmp_path / "new", entry_format="plain")
    for topic in topics:
        old, new = entries(folder.path, topic.name), entries(tmp_path / "new", topic.name)
        assert bare(new) == bare(old)
