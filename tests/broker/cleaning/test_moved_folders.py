"""A folder that was copied, that aged, or whose files have other times is cleaned as it was.

Kafka's KAFKA-881 and KAFKA-1379: its logs were rolled and cleaned by the times of files, which a
restart or a move to another machine changes. Here only the append times in the records count.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pulsemark.ledger import FolderReader, StoreOptions
from pulsemark.testing import SettableClock, running_broker

from .conftest import MINUTE_MS, NAME, SMALL, Place, wait_until

MESSAGES = 20
KEPT_MINUTES = 5
YEARS_S = 10 * 365 * 86_400


def untouched(_: Iterable[Path]) -> None:
    """Leave the files' times."""


def old(files: Iterable[Path]) -> None:
    """All files are ten years old."""
    set_times(files, lambda _: time.time() - YEARS_S)


def of_the_future(files: Iterable[Path]) -> None:
    """All files are of a time in ten years."""
    set_times(files, lambda _: time.time() + YEARS_S)


def in_reverse(files: Iterable[Path]) -> None:
    """The later a file's name, the older the file."""
    set_times(files, lambda number: time.time() - number * 86_400)


def set_times(files: Iterable[Path], time_s: Callable[[int], float]) -> None:
    """Give each file, in the order of the names, a time of access and of change."""
    for number, path in enumerate(sorted(files)):
        os.utime(path, (time_s(number), time_s(number)))


@pytest.fixture
def original(tmp_path: Path, clock: SettableClock) -> Path:
    """A folder with a message a minute in several segments, and a subscription that lags."""
    folder = tmp_path / "original"
    with running_broker(clock=clock, data_dir=folder, store_options=SMALL) as broker:
        place = Place(broker, clock)
        place.client.subscribe(NAME, "s", earliest=True)
        for number in range(MESSAGES):
            place.send(f"k{number}")
            clock.advance(by_ms=MINUTE_MS)
        place.client.close()
    return folder


def moved(original: Path, change: Callable[[Iterable[Path]], None]) -> Path:
    """A copy of the folder in which files have other times; copies do not keep the old ones."""
    folder = original.with_name("copy")
    shutil.copytree(original, folder, copy_function=shutil.copyfile)
    change(folder.rglob("*"))
    return folder


@pytest.mark.parametrize("aged_minutes", [0, 2, 60])
@pytest.mark.parametrize("change", [untouched, old, of_the_future, in_reverse])
def test_what_is_cleaned_depends_on_append_times(
    original: Path,
    clock: SettableClock,
    change: Callable[[Iterable[Path]], None],
    aged_minutes: int,
) -> None:
    """Expiry and retention take what is old by its append, also after the copy has lain a while."""
    folder = moved(original, change)
    clock.advance(by_ms=aged_minutes * MINUTE_MS)
    young = max(0, KEPT_MINUTES - aged_minutes)
    with running_broker(clock=clock, data_dir=folder, store_options=SMALL) as broker:
        place = Place(broker, clock)
        assert (len(place.stored()), place.backlog("s")) == (MESSAGES, MESSAGES)
        place.change("POST", f"messageTTL?messageTTL={KEPT_MINUTES * 60}")
        wait_until(lambda: place.backlog("s") == young, f"a backlog of {young}")
        place.retention(KEPT_MINUTES)
        wait_until(lambda: len(place.stored()) == young, f"{young} stored messages")
        kept = [payload.decode().partition("@")[0] for payload in place.stored()]
        assert kept == [f"k{number}" for number in range(MESSAGES - young, MESSAGES)]
        place.client.close()


@pytest.mark.parametrize("change", [untouched, old, of_the_future, in_reverse])
def test_ledgers_roll_by_the_stamps_of_their_entries(
    original: Path, clock: SettableClock, change: Callable[[Iterable[Path]], None]
) -> None:
    """A new ledger ends when its first entry is old enough, whatever the files' times are."""
    folder = moved(original, change)
    with FolderReader(folder) as reader:
        before = len({segment.ledger_id for segment in reader.log(NAME).segments()})
    options = StoreOptions(ledger_age_ms=10 * MINUTE_MS)
    with running_broker(clock=clock, data_dir=folder, store_options=options) as broker:
        place = Place(broker, clock)
        for _ in range(25):
            place.send("x")
            clock.advance(by_ms=MINUTE_MS)
        ledgers = {row["ledgerId"] for row in place.get("internalStats")["ledgers"]}
        place.client.close()
    assert len(ledgers) == before + 3
