"""A mirror's progress outlives the entries that it brought."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from pulsemark.finder import mirror_progress
from pulsemark.finder.mirror_progress import MirrorProgress, TooManyMirrorsError
from pulsemark.ledger import LocalStore, ManagedLedger, Position
from pulsemark.ledger.errors import CatalogFullError
from pulsemark.metadata.source_stamp import SourceStamp

TOPIC = "persistent://public/default/t"
OpenStore = Callable[..., LocalStore]


def add(ledger: ManagedLedger, cluster: str, *entry_ids: int) -> None:
    """Append entries as a mirror does."""
    for entry_id in entry_ids:
        stamp = SourceStamp(cluster, 4, entry_id, entry_id + 10)
        ledger.append(b"x", base=stamp.metadata()).commit.wait(30)


def remove_all(ledger: ManagedLedger) -> None:
    """As the truncation of a topic."""
    last = ledger.last_position
    assert last is not None
    ledger.truncate_head(Position(last.ledger_id, last.entry_id + 1))


def test_progress_is_kept_when_the_entries_are_removed(open_store: OpenStore) -> None:
    """The progress of each cluster, also after a restart; later entries count before it."""
    with open_store(ledger_entries=3) as store:
        ledger, progress = store.open_topic(TOPIC), MirrorProgress(store.catalog)
        assert progress.last(ledger, "west") is None
        assert progress.last(ledger, "east") is None
        add(ledger, "west", *range(7))
        add(ledger, "east", 1)
        remove_all(ledger)
        assert progress.last(ledger, "west") == SourceStamp("west", 4, 6, 16)
        add(ledger, "west", 7)
        assert progress.last(ledger, "west") == SourceStamp("west", 4, 7, 17)
        remove_all(ledger)
        add(ledger, "north", 1)
    with open_store(ledger_entries=3) as store:
        ledger, progress = store.open_topic(TOPIC), MirrorProgress(store.catalog)
        assert progress.last(ledger, "west") == SourceStamp("west", 4, 7, 17)
        assert progress.last(ledger, "east") == SourceStamp("east", 4, 1, 11)


def test_a_new_topic_has_no_progress_of_an_earlier_one(open_store: OpenStore) -> None:
    """Neither if the record was forgotten with the topic, nor if it was left there."""
    with open_store() as store:
        ledger, progress = store.open_topic(TOPIC), MirrorProgress(store.catalog)
        progress.last(ledger, "west")
        add(ledger, "west", 1)
        remove_all(ledger)
        store.delete_topic(TOPIC)
        assert progress.last(store.open_topic(TOPIC), "west") is None
        progress.forget(TOPIC)
        assert store.catalog.get(mirror_progress.MIRRORS_KIND, TOPIC) is None


def test_the_record_is_bounded(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic takes mirrors from so many clusters; those that it knows may come again."""
    monkeypatch.setattr(mirror_progress, "MAX_CLUSTERS", 2)
    with open_store() as store:
        ledger, progress = store.open_topic(TOPIC), MirrorProgress(store.catalog)
        for cluster in ("a", "b", "a"):
            progress.last(ledger, cluster)
        with pytest.raises(TooManyMirrorsError, match="'c'"):
            progress.last(ledger, "c")


def test_a_full_disk_keeps_nothing_from_being_removed(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The store frees some of its reserve for the record; a removal that fails removes nothing."""
    with open_store() as store:
        ledger, progress = store.open_topic(TOPIC), MirrorProgress(store.catalog)
        progress.last(ledger, "west")
        add(ledger, "west", 1)
        put, calls = store.catalog.put, count()

        def full_at_first(kind: str, key: str, value: bytes) -> None:
            if next(calls) == 0:
                raise CatalogFullError(tmp_path, "full")
            put(kind, key, value)

        def full(kind: str, key: str, value: bytes) -> None:
            raise CatalogFullError(tmp_path, "full")

        monkeypatch.setattr(store.catalog, "put", full_at_first)
        remove_all(ledger)
        assert ledger.first_index == 1
        assert progress.last(ledger, "west") == SourceStamp("west", 4, 1, 11)
        add(ledger, "west", 2)
        monkeypatch.setattr(store.catalog, "put", full)
        with pytest.raises(CatalogFullError):
            remove_all(ledger)
        assert ledger.first_index == 1
        assert progress.last(ledger, "west") == SourceStamp("west", 4, 2, 12)
