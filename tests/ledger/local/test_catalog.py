import sqlite3
import threading

import pytest

from pulsemark.ledger import CatalogError, CorruptFileError, UnsupportedVersionError
from pulsemark.ledger.local.catalog import Catalog


@pytest.fixture
def path(tmp_path):
    """Where the catalog lies."""
    return tmp_path / "catalog.sqlite"


@pytest.fixture
def catalog(path):
    """A new catalog."""
    catalog = Catalog(path)
    yield catalog
    catalog.close()


def test_everything_is_there_after_reopening(path):
    """Topics, segments, ids and properties survive; what was removed stays removed."""
    catalog = Catalog(path)
    one, two = catalog.create_topic("one"), catalog.create_topic("two")
    catalog.add_segments([(one, 5, 0), (one, 3, 1), (two, 4, 0), (one, 3, 0)])
    catalog.remove_segments(one, [(3, 0)])
    catalog.put("namespace", "public/default", b"\0policies")
    assert catalog.reserve_ledger_ids(10) == 0
    catalog.close()
    catalog = Catalog(path)
    assert catalog.topics() == {"one": one, "two": two}
    assert catalog.segments(one) == [(3, 1), (5, 0)]
    assert catalog.removed() == {(3, 0)}
    assert catalog.get("namespace", "public/default") == b"\0policies"
    assert catalog.reserve_ledger_ids(1) == 10
    catalog.close()


def test_ledger_ids_are_never_given_twice(catalog):
    """Ranges never overlap, also when asked to begin further on, and by many threads."""
    assert catalog.reserve_ledger_ids(5) == 0
    assert catalog.reserve_ledger_ids(5, at_least=100) == 100
    assert catalog.reserve_ledger_ids(5, at_least=3) == 105
    given: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: given.extend(catalog.reserve_ledger_ids(3) for _ in range(30))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == [110 + 3 * n for n in range(120)]


def test_topic_ids_are_never_used_again(catalog):
    """A new topic with the name of a deleted one has another id, and gets nothing of it."""
    first = catalog.create_topic("orders")
    assert catalog.create_topic("orders") == first
    catalog.add_segments([(first, 1, 0), (first, 2, 0)])
    assert catalog.delete_topic(first) == [(1, 0), (2, 0)]
    assert catalog.removed() == {(1, 0), (2, 0)}
    assert catalog.topics() == {}
    second = catalog.create_topic("orders")
    assert second > first
    assert catalog.segments(second) == []


def test_removed_segment_is_never_listed_again(catalog):
    """A segment removed before it was listed does not appear when its listing comes late."""
    topic = catalog.create_topic("orders")
    catalog.remove_segments(topic, [(7, 0)])
    catalog.add_segments([(topic, 7, 0), (topic, 8, 0)])
    assert catalog.segments(topic) == [(8, 0)]
    catalog.forget_removed([(7, 0)])
    assert catalog.removed() == set()


def test_properties_by_kind(catalog):
    """Each kind has keys of its own; deleting returns whether there was a value."""
    catalog.put("schema", "a", b"1")
    catalog.put("schema", "b", b"2")
    catalog.put("policy", "a", b"3")
    catalog.put("schema", "a", b"4")
    assert catalog.items("schema") == [("a", b"4"), ("b", b"2")]
    assert catalog.get("policy", "b") is None
    assert catalog.delete("schema", "a")
    assert not catalog.delete("schema", "a")
    assert catalog.items("schema") == [("b", b"2")]
    assert catalog.items("policy") == [("a", b"3")]


def test_failed_change_changes_nothing(catalog, path):
    """A change that SQLite cannot make is a CatalogError; the next one works."""
    topic = catalog.create_topic("orders")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    catalog.db.execute("PRAGMA busy_timeout=1")
    for change in (
        lambda: catalog.create_topic("other"),
        lambda: catalog.reserve_ledger_ids(1),
        lambda: catalog.add_segments([(topic, 1, 0)]),
        lambda: catalog.delete_topic(topic),
        lambda: catalog.put("kind", "key", b"value"),
    ):
        with pytest.raises(CatalogError) as caught:
            change()
        assert caught.value.path == path
    other.execute("ROLLBACK")
    other.close()
    assert catalog.topics() == {"orders": topic}
    assert catalog.items("kind") == []
    assert catalog.reserve_ledger_ids(1) == 0


def test_interrupted_transaction_is_rolled_back(catalog):
    """A failure within a change leaves no part of it, and no open transaction."""
    topic = catalog.create_topic("orders")
    broken = ((topic, number, 0 if number < 2 else 1 // 0) for number in range(3))
    with pytest.raises(ZeroDivisionError):
        catalog.add_segments(broken)
    assert catalog.segments(topic) == []
    catalog.add_segments([(topic, 1, 0)])
    assert catalog.segments(topic) == [(1, 0)]


def test_closed_catalog_is_an_error(path):
    """After closing, every call is a typed error."""
    catalog = Catalog(path)
    catalog.close()
    for call in (catalog.topics, lambda: catalog.create_topic("x")):
        with pytest.raises(CatalogError):
            call()


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + b"x" * 5000]
)
def test_damaged_catalog_is_reported(path, content):
    """A file that is no SQLite database is a CorruptFileError that names it."""
    path.write_bytes(content)
    with pytest.raises(CorruptFileError) as caught:
        Catalog(path)
    assert caught.value.path == path


def test_newer_catalog_is_unsupported(path):
    """A catalog from the future is refused, not misread."""
    Catalog(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=9")
    database.close()
    with pytest.raises(UnsupportedVersionError) as caught:
        Catalog(path)
    assert (caught.value.found, caught.value.supported) == (9, 1)


def test_commits_are_synced(catalog):
    """The catalog is as durable as entries: WAL with a sync at every commit."""
    assert catalog.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert catalog.db.execute("PRAGMA synchronous").fetchone() == (2,)
