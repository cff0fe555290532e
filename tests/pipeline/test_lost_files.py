"""What should be in a folder and is not is a loss, at a topic's edges as in its middle.

Read by the source's own reader, in this process: neither planning nor reading needs Spark's JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import FolderReader, LocalStore, Position, TopicNotFoundError
from pulsemark.ledger.local.io.files import Files
from pulsemark.ledger.local.io.folder import index_path, list_segments, segment_path
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.maintenance.expected import expected_of
from pulsemark.maintenance.verify_catalog import read_catalog
from pulsemark.pipeline.errors import DataLossError
from pulsemark.pipeline.followed import followed
from pulsemark.pipeline.options import ReadOptions
from pulsemark.testing.raw_messages import BatchMember

PER_LEDGER = 10


@dataclass
class Shelf:
    """A closed folder with topic `a`: five ledgers of ten messages in two entries each."""

    path: Path
    topic: str
    files: list[Path]
    rows_of: Callable[..., list[dict[str, Any]]]

    def read(self, **options: object) -> list[int]:
        """The indexes that a read of all topics hands out."""
        given = {"topicsPattern": ".*", "columns": "__index", **options}
        return [row["__index"] for row in self.rows_of(self.path, **given)]

    def lenient(self) -> list[int]:
        """The same where losses are logged."""
        return self.read(failOnDataLoss="false")


def shelf_at(path: Path, tools: Any) -> Shelf:
    """Such a folder."""
    folder = tools.Folder(path)
    topic = folder.topic("a")
    for number in range(5):
        folder.clock.advance(by_ms=60_000)
        for half in range(2):
            topic.batch([BatchMember(payload=b"%d.%d" % (number, half))] * (PER_LEDGER // 2))
        topic.ledger.roll()
    cursor = topic.ledger.open_cursor("sub", initial=Position(0, 0))
    cursor.ack_cumulative(topic.ledger.last_position)
    cursor.persist().wait(10)
    with FolderReader(path) as reader:
        files = [as_segment(segment).path for segment in reader.log(topic.name).segments()]
    folder.store.close()
    assert len(files) == 5
    return Shelf(path, topic.name, files, tools.rows_of)


@pytest.fixture
def shelf(tmp_path: Path, tools: Any) -> Shelf:
    """One to be damaged."""
    return shelf_at(tmp_path / "data", tools)


def remove(path: Path) -> None:
    """A ledger's file and what is beside it."""
    path.unlink()
    path.with_suffix(".idx").unlink()


def span(*ledgers: int) -> list[int]:
    """The indexes of these ledgers."""
    return [n * PER_LEDGER + at for n in ledgers for at in range(PER_LEDGER)]


def test_a_whole_folder_lacks_nothing(shelf: Shelf) -> None:
    """The witnesses agree with what is there, and what was trimmed is on no list."""
    assert shelf.read() == span(0, 1, 2, 3, 4)
    store = LocalStore.open(shelf.path)
    ledger = store.open_topic(shelf.topic)
    ledger.trim(as_segment(ledger.segments()[2]).first_position)
    assert shelf.read() == span(2, 3, 4)
    store.close()
    assert shelf.read() == span(2, 3, 4)
    with FolderReader(shelf.path) as reader:
        assert not expected_of(reader, shelf.path).lost


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("catalog", [True, False], ids=["with catalog", "without"])
def test_a_deleted_ledger_file_is_a_loss(shelf: Shelf, number: int, catalog: bool) -> None:
    """The first, one in the middle, the last: an error by default, else all others are read.

    Without the catalog the loss of the first one looks like a trim; a cursor shows the last.
    """
    remove(shelf.files[number])
    if not catalog:
        (shelf.path / "catalog.sqlite").unlink()
    others = span(*(n for n in range(5) if n != number))
    assert shelf.lenient() == others
    if number == 0 and not catalog:
        assert shelf.read() == others
        return
    with pytest.raises(DataLossError) as raised:
        shelf.read()
    first, end = raised.value.first_index, raised.value.end_index
    assert first == (None if number == 0 else number * PER_LEDGER)
    assert end == (None if number == 4 else (number + 1) * PER_LEDGER)
    assert raised.value.topic == shelf.topic
    assert "option failOnDataLoss=false" in str(raised.value)


@pytest.mark.parametrize(
    ("number", "options", "expected"),
    [
        (0, {"startingOffsets": 10}, span(1, 2, 3, 4)),
        (4, {"endingOffsets": 40}, span(0, 1, 2, 3)),
        (2, {"startingOffsets": 30}, span(3, 4)),
        (2, {"endingOffsets": 20}, span(0, 1)),
        (4, {"startingOffsets": "latest"}, []),
        (0, {"endingOffsets": "earliest"}, []),
        (0, {"startingTime": 1_700_000_000_000 + 3 * 60_000}, span(2, 3, 4)),
        (4, {"endingTime": 1_700_000_000_000 + 3 * 60_000}, span(0, 1)),
    ],
)
def test_a_range_that_does_not_reach_the_loss_is_whole(
    shelf: Shelf, number: int, options: dict[str, object], expected: list[int]
) -> None:
    """An index says where a range ends, and a time that is within what is there."""
    remove(shelf.files[number])
    assert shelf.read(**options) == expected


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (0, {"startingTime": 1_700_000_000_000}),
        (0, {"endingTime": 1_700_000_000_000 + 2 * 60_000}),
        (4, {"endingTime": 1_700_000_000_000 + 9 * 60_000}),
        (4, {"startingTime": 1_700_000_000_000 + 5 * 60_000}),
    ],
)
def test_a_range_by_time_that_may_reach_the_loss_fails(
    shelf: Shelf, number: int, options: dict[str, object]
) -> None:
    """The times of what is lost are not known."""
    remove(shelf.files[number])
    with pytest.raises(DataLossError):
        shelf.read(**options)


def damage_header(path: Path) -> None:
    """Nothing of a header, nor of its second copy, is left that could be put together again."""
    with path.open("r+b") as file:
        file.write(b"\xa5" * 120)
    index_path(path).unlink()


@pytest.mark.parametrize("catalog", [True, False], ids=["with catalog", "without"])
def test_a_topic_whose_only_header_is_damaged_does_not_vanish(
    tmp_path: Path, tools: Any, catalog: bool
) -> None:
    """A pattern that means it fails; one that cannot mean it does not, where the catalog tells."""
    folder = tools.Folder(tmp_path)
    for name in ("a", "b"):
        folder.topic(name).single(b"x")
    folder.store.close()
    with FolderReader(tmp_path) as reader:
        lost = as_segment(reader.log("persistent://public/default/b").segments()[0]).path
    damage_header(lost)
    if not catalog:
        (tmp_path / "catalog.sqlite").unlink()
    with pytest.raises(DataLossError, match=lost.name) as raised:
        tools.rows_of(tmp_path, topicsPattern=".*")
    assert raised.value.topic.endswith("/b" if catalog else "unknown name")
    lenient = tools.rows_of(tmp_path, topicsPattern=".*", failOnDataLoss="false")
    assert [row["__topic"][-1] for row in lenient] == ["a"]
    assert len(tools.rows_of(tmp_path, topic="a")) == 1
    if catalog:
        assert len(tools.rows_of(tmp_path, topicsPattern="a")) == 1
        with pytest.raises(DataLossError):
            tools.rows_of(tmp_path, topic="b")
    else:
        with pytest.raises(TopicNotFoundError):
            tools.rows_of(tmp_path, topic="b")


def test_a_header_that_is_being_written_is_no_loss(shelf: Shelf) -> None:
    """A file without a whole record holds nothing yet."""
    last = list_segments(Files(), shelf.path)[-1]
    segment_path(shelf.path, last[0] + 7, 0).write_bytes(b"PMKSEGM\n\x01")
    assert shelf.read() == span(0, 1, 2, 3, 4)


@pytest.mark.parametrize("row", [0, 9], ids=["the first", "the last"])
def test_damaged_records_at_the_edges_are_a_loss(shelf: Shelf, row: int) -> None:
    """The plan's own bounds tell of them; the others are read."""
    number = row * 4 // 9
    with FolderReader(shelf.path) as reader:
        segment = as_segment(reader.log(shelf.topic).segments()[number])
        offset = segment.row(0 if row == 0 else 1).offset
    data = bytearray(shelf.files[number].read_bytes())
    data[offset + 20] ^= 0xFF
    shelf.files[number].write_bytes(data)
    lost = range(5) if row == 0 else range(45, 50)
    with pytest.raises(DataLossError) as raised:
        shelf.read()
    assert (raised.value.first_index, raised.value.end_index) == (lost.start, lost.stop)
    assert shelf.lenient() == [n for n in range(50) if n not in lost]


def test_a_folder_that_changes_while_it_is_planned_lacks_nothing(
    tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledgers that come, and go by trimming, between the looks at files and catalog."""
    folder = tools.Folder(tmp_path)
    topic = folder.topic("a")
    for _ in range(4):
        topic.single(b"x")
        topic.ledger.roll()
    folder.store.checkpoint()

    def meanwhile(path: Path) -> Any:
        content = read_catalog(path)
        monkeypatch.undo()
        topic.ledger.trim(as_segment(topic.ledger.segments()[2]).first_position)
        topic.single(b"y")
        topic.ledger.roll()
        folder.store.checkpoint()
        return content

    monkeypatch.setattr("pulsemark.maintenance.expected.read_catalog", meanwhile)
    assert [row["__index"] for row in tools.rows_of(tmp_path, topicsPattern=".*")] in (
        [2, 3, 4],
        [2, 3],
    )
    folder.store.close()


def test_many_topics_cost_a_look_at_the_folder_each_way(
    tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listings of the folder do not grow with the number of topics, in planning nor in reading."""
    listings = 0
    listdir = Files.listdir

    def counting(self: Files, path: Path) -> list[str]:
        nonlocal listings
        listings += 1
        return listdir(self, path)

    found = []
    for count in (3, 60):
        folder = tools.Folder(tmp_path / str(count))
        for number in range(count):
            folder.topic(f"t{number}").single(b"x")
        folder.store.close()
        with monkeypatch.context() as patch:
            patch.setattr(Files, "listdir", counting)
            listings = 0
            options = {"path": str(tmp_path / str(count)), "topicsPattern": ".*"}
            assert len(followed(ReadOptions.parse(options)).read()) == 1
            assert len(tools.rows_of(tmp_path / str(count), topicsPattern=".*")) == count
        found.append(listings)
    assert found[0] == found[1] < 20
