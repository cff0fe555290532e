"""Runs of entries are what the ledger's own reader gives, damage included."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsemark.ledger import CorruptEntryError, FolderReader, LocalStore, Position, TopicLog
from pulsemark.ledger.local.segment.index_file import CHUNK_ROWS
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.metadata import (
    BrokerEntryMetadata,
    BrokerTimeStamper,
    IndexStamper,
    StamperChain,
)
from pulsemark.pipeline.decode import runs
from pulsemark.pipeline.decode.entries import EntryTable
from pulsemark.pipeline.decode.runs import read_tables
from pulsemark.testing.raw_messages import unbatched_message

Facts = tuple[Position, int, int, int, int, bytes]


def facts_of(tables: Sequence[EntryTable], *, bodies: bool) -> list[Facts]:
    """What the tables say of each entry; its bytes, or those of its prefix."""
    return [
        (
            table.position(row),
            int(table.kinds[row]),
            int(table.counts[row]),
            int(table.indexes[row]),
            int(table.append_times_ms[row]),
            table.data[table.starts[row] : (table.ends if bodies else table.body_starts)[row]],
        )
        for table in tables
        for row in range(len(table))
    ]


def by_the_ledger(log: TopicLog, start: Position, end: Position, *, bodies: bool) -> list[Facts]:
    """The same by the ledger's reader, one entry at a time."""
    found, at = [], start
    while at < end:
        try:
            entries = log.read(at, max_entries=1)
        except CorruptEntryError as damage:
            at = damage.next_position
            continue
        if not entries or entries[0].position >= end:
            break
        (entry,) = entries
        content = bytes(entry.stored if bodies else entry.prefix)
        found.append(
            (
                entry.position,
                int(entry.kind),
                entry.message_count,
                entry.index,
                entry.append_time_ms,
                content,
            )
        )
        at = log.next_position(entry.position)
    return found


def no_damage(damage: CorruptEntryError) -> None:
    """For topics that are whole."""
    raise damage


@pytest.mark.parametrize("bodies", [True, False])
def test_any_range_is_the_same_as_by_the_ledger(folder: Any, tools: Any, bodies: bool) -> None:
    """Ranges that begin and end anywhere, across ledgers and rolled segments."""
    topic = folder.topic("a")
    for _ in range(3):
        tools.fill(topic, folder.clock)
        topic.ledger.roll()
    with FolderReader(folder.path) as reader:
        log = reader.log(topic.name)
        everything = by_the_ledger(log, Position(0, 0), log.end_position, bodies=bodies)
        assert len(everything) > 60
        positions = [facts[0] for facts in everything]
        for first in (0, 1, 40, len(positions) - 1):
            for last in (0, 1, 41, len(positions) - 1):
                start, end = positions[first], positions[last]
                tables = list(read_tables(log, start, end, bodies=bodies, on_damage=no_damage))
                expected = by_the_ledger(log, start, end, bodies=bodies)
                assert facts_of(tables, bodies=bodies) == expected == everything[first:last]
        whole = read_tables(
            log, Position(0, 0), log.end_position, bodies=bodies, on_damage=no_damage
        )
        assert facts_of(list(whole), bodies=bodies) == everything


def many_small_entries(path: Path, count: int, form: bytes = b"%d") -> str:
    """A topic of `count` small entries; `form` makes the value of each of its number."""
    name = "persistent://public/default/many"
    store = LocalStore.open(path)
    ledger = store.open_topic(name)
    ledger.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
    done = [ledger.append(unbatched_message(form % n, publish_time_ms=n)) for n in range(count)]
    done[-1].commit.wait(30)
    store.close()
    return name


def test_runs_go_on_across_the_index_s_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of any size meet at their ends: nothing twice, nothing left out."""
    count = 2 * CHUNK_ROWS + 77
    name = many_small_entries(tmp_path, count)
    with FolderReader(tmp_path) as reader:
        log = reader.log(name)
        for run_bytes, run_entries in ((8 << 20, 65_536), (50_000, 65_536), (8 << 20, 1000)):
            monkeypatch.setattr(runs, "RUN_BYTES", run_bytes)
            monkeypatch.setattr(runs, "RUN_ENTRIES", run_entries)
            start = log.first_position
            assert start is not None
            tables = list(
                read_tables(log, start, log.end_position, bodies=True, on_damage=no_damage)
            )
            assert max(len(table) for table in tables) <= run_entries
            assert [i for table in tables for i in table.indexes.tolist()] == list(range(count))
            assert sum(len(table.data) for table in tables) < count * 200


def test_large_bodies_are_not_read_for_their_heads(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of 200 KiB entries cost 64 bytes each, not their bodies."""
    topic = folder.topic("a")
    for _ in range(20):
        topic.single(os.urandom(200_000))
    read = 0
    pread = os.pread

    def counting(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = pread(fd, size, offset)
        read += len(data)
        return data

    with FolderReader(folder.path) as reader:
        log = reader.log(topic.name)
        start = log.first_position
        assert start is not None
        entries = log.read(start, max_entries=20, max_bytes=1 << 30)
        monkeypatch.setattr(os, "pread", counting)
        tables = list(read_tables(log, start, log.end_position, bodies=False, on_damage=no_damage))
    sizes = [size for table in tables for size in table.sizes.tolist()]
    assert sizes == [len(entry.stored) for entry in entries]
    assert 0 < read < 64 * 1024


class Reads:
    """Counts what is read of files, and what is decided by the ledger's own reader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size_bytes = self.singles = 0
        pread, read_one = os.pread, runs._read_one

        def counting(fd: int, size: int, offset: int) -> bytes:
            data = pread(fd, size, offset)
            self.size_bytes += len(data)
            return data

        def counting_one(*arguments: Any, **more: Any) -> EntryTable:
            self.singles += 1
            return read_one(*arguments, **more)

        monkeypatch.setattr(os, "pread", counting)
        monkeypatch.setattr(runs, "_read_one", counting_one)


@pytest.mark.parametrize("bodies", [True, False])
@pytest.mark.parametrize("sealed", [True, False], ids=["index kept", "index made again"])
def test_damage_costs_what_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bodies: bool, sealed: bool
) -> None:
    """64 KiB of zeros among 2 MB: the file is read once, and each lost entry asked for once."""
    count = 20_000
    name = many_small_entries(tmp_path, count)
    with FolderReader(tmp_path) as reader:
        segment = as_segment(reader.log(name).segments()[0])
        offsets = [segment.row(row).offset for row in range(count)]
    data = bytearray(segment.path.read_bytes())
    at = len(data) // 3
    data[at : at + (64 << 10)] = bytes(64 << 10)
    segment.path.write_bytes(data)
    if not sealed:
        segment.path.with_suffix(".idx").unlink()
    touched = [
        row
        for row, offset in enumerate(offsets)
        if offset < at + (64 << 10) and [*offsets, len(data)][row + 1] > at
    ]
    lost: list[int] = []
    with FolderReader(tmp_path) as reader:
        log = reader.log(name)
        reads = Reads(monkeypatch)
        start = log.first_position
        assert start is not None
        tables = read_tables(
            log,
            start,
            log.end_position,
            bodies=bodies,
            on_damage=lambda damage: lost.append(damage.position.entry_id),
        )
        found = [index for table in tables for index in table.indexes.tolist()]
    # Without bodies an entry whose head is whole is there.
    assert set(touched[1:-1]) <= set(lost) <= set(touched)
    assert sorted([*found, *lost]) == list(range(count))
    assert reads.size_bytes < 1.5 * len(data)
    assert reads.singles <= len(touched)


def test_scattered_damage_does_not_scatter_the_tables(tmp_path: Path) -> None:
    """With every tenth of 5,000 entries damaged the others still come by the run."""
    name = many_small_entries(tmp_path, 5000)
    with FolderReader(tmp_path) as reader:
        log = reader.log(name)
        segment = as_segment(log.segments()[0])
        data = bytearray(segment.path.read_bytes())
        for row in range(0, 5000, 10):
            data[segment.row(row).offset + 20] ^= 1
        segment.path.write_bytes(data)
        lost: list[CorruptEntryError] = []
        start = log.first_position
        assert start is not None
        tables = list(read_tables(log, start, log.end_position, bodies=True, on_damage=lost.append))
    assert len(lost) == 500
    assert [i for table in tables for i in table.indexes.tolist()] == [
        n for n in range(5000) if n % 10
    ]
    assert len(tables) < 10


def test_long_prefixes_are_read_at_once(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of large entries with prefixes of any length, without asking for one entry alone."""
    topic = folder.topic("a")
    body = unbatched_message(bytes(20_000), publish_time_ms=1)
    sizes = [0, 5, 60, 200, 1000, 30_000, 60_000] * 6
    for size in sizes:
        base = BrokerEntryMetadata(raw_size_bytes=1)
        if size:
            base.application_tags.add(key="t", value=bytes(size))
        topic.ledger.append(body, base=base).commit.wait(10)
    with FolderReader(folder.path) as reader:
        log = reader.log(topic.name)
        start = log.first_position
        assert start is not None
        expected = by_the_ledger(log, start, log.end_position, bodies=False)
        assert max(len(facts[-1]) for facts in expected) > 60_000
        reads = Reads(monkeypatch)
        for run_bytes in (8 << 20, 100_000, 1):
            monkeypatch.setattr(runs, "RUN_BYTES", run_bytes)
            reads.size_bytes = 0
            tables = list(
                read_tables(log, start, log.end_position, bodies=False, on_damage=no_damage)
            )
            assert facts_of(tables, bodies=False) == expected
            assert reads.singles == 0
            if run_bytes == 8 << 20:
                assert reads.size_bytes < 2 * sum(len(facts[-1]) + 200 for facts in expected)


@pytest.mark.parametrize("bodies", [True, False])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), min_size=1, max_size=4))
def test_damage_is_reported_as_by_the_ledger(
    damaged_log: tuple[FolderReader, str, Path, bytes],
    bodies: bool,
    flips: list[tuple[float, int]],
) -> None:
    """Any flipped bits after the segment's header: the whole entries, in order, and no other.

    Without bodies, entries whose heads are whole are there although their bodies are damaged.
    """
    reader, name, segment, original = damaged_log
    log = reader.log(name)
    start, end = log.first_position, log.end_position
    assert start is not None
    first_record = as_segment(log.segments()[0]).row(0).offset
    damaged = bytearray(original)
    for place, bit in flips:
        at = first_record + int(place * (len(damaged) - first_record - 1))
        damaged[at] ^= 1 << bit
    segment.write_bytes(damaged)
    try:
        reported: list[Position] = []
        tables = list(
            read_tables(
                log, start, end, bodies=bodies, on_damage=lambda d: reported.append(d.position)
            )
        )
        found = facts_of(tables, bodies=bodies)
        expected = by_the_ledger(log, start, end, bodies=bodies)
        if bodies:
            assert found == expected
        else:
            assert [facts for facts in found if facts in expected] == expected
            assert [facts[0] for facts in found] == sorted(facts[0] for facts in found)
        everything = {Position(start.ledger_id, n) for n in range(end.entry_id)}
        assert {facts[0] for facts in found} | set(reported) == everything
        assert len(reported) == len(everything) - len(found)
    finally:
        segment.write_bytes(original)


@pytest.fixture(scope="module", params=[b"%d", b"%04d"], ids=["sizes differ", "one size"])
def damaged_log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A sealed topic of 40 entries, to be damaged: reader, name, segment file and its bytes."""
    path = tmp_path_factory.mktemp("damage")
    name = many_small_entries(path, 40, request.param)
    with FolderReader(path) as reader:
        segment = as_segment(reader.log(name).segments()[0]).path
        yield reader, name, segment, segment.read_bytes()
