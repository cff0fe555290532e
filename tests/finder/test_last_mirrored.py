"""The last entry from a source, in a log with others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsemark.finder.mirror_progress import last_mirrored
from pulsemark.ledger import FolderReader, LocalStore
from pulsemark.metadata.source_stamp import SourceStamp

TOPIC = "persistent://public/default/t"
OpenStore = Callable[..., LocalStore]


@pytest.mark.parametrize("cluster", ["west", "east", "north"])
def test_the_last_one_of_the_cluster_is_found(open_store: OpenStore, cluster: str) -> None:
    """Over ledgers, before other clusters' entries and those of producers."""
    ledger = open_store(ledger_entries=3).open_topic(TOPIC)
    expected: SourceStamp | None = None
    for number in range(20):
        stamp: Any = SourceStamp("west" if number < 7 else "east", 4, number, number)
        base = stamp.metadata() if number < 12 else None
        ledger.append(b"x", base=base).commit.wait()
        if base is not None and stamp.cluster == cluster:
            expected = stamp
    assert last_mirrored(ledger, cluster) == expected


def test_a_damaged_entry_is_passed_over(tmp_path: Path) -> None:
    """If the last entry cannot be read, the one before it says how far the mirror came."""
    bodies = [b"entry number %d" % number for number in range(5)]
    with LocalStore.open(tmp_path) as store:
        ledger = store.open_topic(TOPIC)
        for number, body in enumerate(bodies):
            ledger.append(body, base=SourceStamp("west", 1, number).metadata()).commit.wait()
    (segment,) = (p for p in tmp_path.glob("ledgers/*.log") if bodies[0] in p.read_bytes())
    data = bytearray(segment.read_bytes())
    data[data.index(bodies[4]) - 3] ^= 1  # in the prefix, which its header's checksum covers
    segment.write_bytes(data)
    with FolderReader(tmp_path) as reader:
        found = last_mirrored(reader.log(TOPIC), "west")
    assert found is not None
    assert found.entry_id == 3
