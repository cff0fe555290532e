"""Segments of another data folder under the names of this one's: nothing in a file forbids it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pulsemark.finder import Finder, IndexOutOfRangeError, SearchMethod
from pulsemark.ledger import (
    EARLIEST,
    CorruptEntryError,
    FolderReader,
    LocalStore,
    Position,
    StoreOptions,
    TopicLog,
)
from pulsemark.maintenance.findings import Severity
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import StamperChain

ORDERS = "persistent://public/default/orders"


def fill(folder: Path, counts: list[int], *, topic: str = ORDERS, message_count: int = 1) -> Path:
    """A folder whose topic has ledgers with so many entries, each in small segments."""
    with LocalStore.open(folder, options=StoreOptions(segment_size_bytes=600)) as store:
        ledger = store.open_topic(topic)
        ledger.stampers = StamperChain.from_names(["broker-time", "index"])
        for count in counts:
            for _ in range(count):
                last = ledger.append(folder.name.encode(), message_count=message_count)
            last.commit.wait(10)
            ledger.roll()
    return folder


def segments_of(folder: Path) -> list[str]:
    """The names of a folder's segments."""
    return sorted(path.name for path in (folder / "ledgers").iterdir() if path.suffix == ".log")


def use(log: TopicLog) -> None:
    """Read and search a log all through: what is wrong in it is a typed error, or nothing."""
    position, found = EARLIEST, []
    while True:
        try:
            entries = log.read(position, max_entries=7)
        except CorruptEntryError as error:
            position = error.next_position
            continue
        if not entries:
            break
        found += entries
        position = entries[-1].position.following
    for index in range(0, log.next_index + 20, 3):
        for method in SearchMethod:
            try:
                place = Finder(log).by_index(index, method=method)
            except IndexOutOfRangeError:
                continue
            assert place.first_index <= index <= place.index
    for entry in found:
        for method in SearchMethod:
            Finder(log).by_time(entry.time_ms, method=method)
        log.next_position(entry.position)
        log.previous_position(entry.position)
        log.message_count(EARLIEST, entry.position)
        log.entry_message_count(Position(entry.position.ledger_id, entry.position.entry_id + 5))


@pytest.mark.parametrize("is_late", [False, True], ids=["before opening", "while open"])
@pytest.mark.parametrize("suffixes", [(".log",), (".log", ".idx")], ids=["log", "both"])
@pytest.mark.parametrize("other", [([3, 20, 9], 1), ([30, 12, 40], 3)], ids=["short", "long"])
def test_a_segment_of_another_folder_makes_no_untyped_error(tmp_path, other, suffixes, is_late):
    """Readers answer or raise a typed error, whichever segment was replaced; `verify` finds it."""
    own = fill(tmp_path / "own", [25, 20, 25])
    counts, message_count = other
    foreign = fill(tmp_path / "foreign", counts, message_count=message_count)
    for name in sorted(set(segments_of(own)) & set(segments_of(foreign)))[::2]:
        folder = Path(shutil.copytree(own, tmp_path / f"copy of {name}"))
        with FolderReader(folder) as reader:
            log = reader.log(ORDERS)
            if is_late:
                use(log)
            for suffix in suffixes:
                file = (Path("ledgers") / name).with_suffix(suffix)
                shutil.copy(foreign / file, folder / file)
            if is_late:
                use(log)
                log.refresh()
            use(reader.log(ORDERS))
        assert [each for each in verify_folder(folder) if each.severity > Severity.NOTE]
        with LocalStore.open(folder) as store:
            use(store.open_topic(ORDERS))


def test_the_owner_takes_no_segment_of_another_topic(tmp_path, caplog):
    """The catalog says whose segment it is: another topic's is lost, and is not removed."""
    own = fill(tmp_path / "own", [5, 5, 5])
    foreign = fill(tmp_path / "foreign", [7, 7, 7], topic="persistent://public/default/other")
    name = segments_of(own)[1]
    shutil.copy(foreign / "ledgers" / name, own / "ledgers" / name)
    with LocalStore.open(own) as store:
        bodies = [bytes(entry.body) for entry in store.open_topic(ORDERS).read(EARLIEST)]
    assert bodies == [b"own"] * len(bodies)
    assert 0 < len(bodies) < 15
    assert f"segment {name} is lost" in caplog.text
    assert "persistent://public/default/other" in caplog.text
    assert (own / "ledgers" / name).read_bytes() == (foreign / "ledgers" / name).read_bytes()


def test_a_segment_that_does_not_fit_its_neighbour_is_reported(tmp_path, caplog):
    """The log says at the opening which two files contradict each other."""
    own, foreign = fill(tmp_path / "own", [5, 5, 5]), fill(tmp_path / "foreign", [7, 7, 7])
    name = segments_of(own)[1]
    assert "another data folder" not in caplog.text
    for suffix in (".log", ".idx"):
        file = (Path("ledgers") / name).with_suffix(suffix)
        shutil.copy(foreign / file, own / file)
    with FolderReader(own) as reader:
        reader.log(ORDERS)
    assert "one of the two files is of another data folder" in caplog.text
