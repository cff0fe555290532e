"""Entries of one topic stamped in every way side by side: each is read by what it has itself."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import FolderReader, LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.pipeline.decode.protoscan import ABSENT
from pulsemark.pipeline.decode.runs import read_tables
from pulsemark.testing import SettableClock
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/mixed"
CHAINS = [(), ("broker-time", "index"), ("index",), ("broker-time",), ("property-tags:region",)]
CHAINS += [("broker-time", "index", "property-tags:region"), ("property-tags:absent",)]


@pytest.mark.parametrize("bodies", [True, False])
def test_broker_times_and_indexes_of_mixed_entries(tmp_path: Path, bodies: bool) -> None:
    """The stamp's time where there is one, absent elsewhere; indexes and append times always."""
    clock = SettableClock()
    expected: list[Any] = []
    with LocalStore.open(tmp_path, clock=clock) as store:
        topic = store.open_topic(TOPIC)
        for pair in permutations(CHAINS, 2):
            for names in pair:
                now_ms = clock.advance(by_ms=7)
                topic.stampers = StamperChain.from_names(names)
                body = unbatched_message(b"x", publish_time_ms=1, properties={"region": "eu"})
                done = topic.append(body, message_count=1 + len(expected) % 3)
                stamp_ms = now_ms if "broker-time" in names else ABSENT
                expected.append((stamp_ms, done.index, now_ms))
        done.commit.wait(30)
    found = []
    with FolderReader(tmp_path) as reader:
        log = reader.log(TOPIC)
        start = log.first_position
        assert start is not None

        def on_damage(damage: Exception) -> None:
            raise damage

        for table in read_tables(log, start, log.end_position, bodies=bodies, on_damage=on_damage):
            columns = (table.broker_times_ms(), table.indexes, table.append_times_ms)
            found += list(zip(*(column.tolist() for column in columns), strict=True))
    assert found == expected
