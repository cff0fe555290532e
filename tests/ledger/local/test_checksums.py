"""Bits that change in the catalog's file are noticed before the catalog is used."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress

import pytest

from pulsemark.ledger import CatalogError, CorruptCatalogError, UnsupportedVersionError
from pulsemark.ledger.local.catalog import Catalog
from pulsemark.ledger.store import DELETING_KIND

POLICIES = b'{"retention_policies": {"retentionTimeInMinutes": 1440}}'


@pytest.fixture
def path(tmp_path):
    """The file of a closed catalog with topics, removed segments and properties."""
    path = tmp_path / "catalog.sqlite"
    with closing(Catalog(path)) as catalog:
        one = catalog.create_topic("persistent://public/default/one")
        catalog.create_topic("persistent://public/default/two")
        catalog.reserve_ledger_ids(64)
        catalog.add_segments((one, ledger_id, 0) for ledger_id in (4, 5, 6))
        catalog.remove_segments(one, [(5, 0)])
        catalog.put("namespace", "public/default", POLICIES)
        catalog.put("tenant", "acme", b'{"adminRoles": ["bob"]}')
        catalog.put(DELETING_KIND, "77", b"")
    return path


def content(path):
    """What the catalog says."""
    with closing(Catalog(path)) as catalog:
        kinds = ("namespace", "tenant", DELETING_KIND)
        properties = {kind: catalog.items(kind) for kind in kinds}
        topics = catalog.topics()
        segments = {name: catalog.segments(topic_id) for name, topic_id in topics.items()}
        ids = catalog.next_ledger_id()
        return topics, segments, ids, catalog.removed(), catalog.deleted_topics(), properties


def flipped(data, offset):
    """The same bytes with one bit changed."""
    changed = bytearray(data)
    changed[offset] ^= 1 << offset % 8
    return bytes(changed)


def cells(data):
    """Offsets of the pages' content: all bytes but the schema's page and zeros."""
    return [offset for offset in range(4096, len(data)) if data[offset]]


def test_a_changed_bit_is_an_error_or_changes_nothing(path):
    """Names, ids and properties are as stored, or the catalog says that it is damaged."""
    data = path.read_bytes()
    expected = content(path)
    noticed = 0
    for offset in cells(data)[::2]:
        path.write_bytes(flipped(data, offset))
        try:
            found = content(path)
        except CorruptCatalogError:
            noticed += 1
            continue
        assert found == expected, offset
    assert noticed > 150


def test_a_changed_bit_of_the_schema_is_a_typed_error(path):
    """Whatever SQLite makes of damaged statements, the caller gets an error of the catalog."""
    data = path.read_bytes()
    expected = content(path)
    for offset in [o for o in range(4096) if data[o]][::3]:
        path.write_bytes(flipped(data, offset))
        with suppress(CatalogError, UnsupportedVersionError):
            assert content(path)[-1] == expected[-1], offset


def test_error_names_the_damaged_property(path):
    """Which policies are concerned can be read in the message."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TRIGGER property_written")
        query = "UPDATE property SET value=replace(CAST(value AS TEXT), '1440', '1441')"
        db.execute(f"{query} WHERE kind='namespace'")
        db.commit()
    with pytest.raises(CorruptCatalogError, match="'namespace' of 'public/default'"):
        Catalog(path)


def test_segment_to_be_removed_that_is_listed_is_an_error(path):
    """A damaged list of removed segments does not remove entries."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE removed SET ledger_id=6")
        db.commit()
    with pytest.raises(CorruptCatalogError, match="6:0"):
        Catalog(path)


def test_properties_of_an_earlier_version_get_checksums(path):
    """A catalog that a version without checksums or copies wrote, also in between, is whole."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT OR REPLACE INTO property VALUES ('tenant', 'acme', x'30')")
        db.execute("INSERT OR REPLACE INTO property VALUES ('tenant', 'new', x'31')")
        db.execute("DELETE FROM property WHERE kind='namespace'")
        db.commit()
    with closing(Catalog(path)) as catalog:
        assert catalog.items("tenant") == [("acme", b"0"), ("new", b"1")]
    with closing(sqlite3.connect(path)) as db:
        for what in (
            "TABLE checksum",
            "TRIGGER property_written",
            "TRIGGER property_removed",
            "INDEX segment_copy",
        ):
            db.execute(f"DROP {what}")
        db.commit()
    with closing(Catalog(path)) as catalog:
        assert catalog.items("tenant") == [("acme", b"0"), ("new", b"1")]
        assert catalog.db.execute("SELECT count(*) FROM checksum").fetchone() == (3,)
    with closing(sqlite3.connect(path)) as db:
        query = "SELECT 1 FROM sqlite_master WHERE name='segment_copy'"
        assert db.execute(query).fetchone() == (1,)
