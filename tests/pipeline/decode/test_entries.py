"""Entries side by side keep what they had one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import Entry, EntryKind, Position
from pulsemark.metadata import BrokerEntryMetadata, pack, prefix_size_bytes
from pulsemark.pipeline.decode.entries import table_of_entries
from pulsemark.pipeline.decode.protoscan import ABSENT

GOLDEN = Path(__file__).parents[2] / "data" / "pulsar-4.0.8-entries.json"


def golden_groups() -> list[list[dict[str, Any]]]:
    """Entries that Pulsar stored, by what was stamped."""
    groups: list[list[dict[str, Any]]] = [
        group["entries"] for group in json.loads(GOLDEN.read_text())["groups"]
    ]
    return groups


@pytest.mark.parametrize("group", golden_groups())
def test_broker_times_are_those_that_pulsar_stamped(group: list[dict[str, Any]]) -> None:
    """With both stamps, with one, and with none."""
    stored = [bytes.fromhex(entry["entry_hex"]) for entry in group]
    table = table_of_entries(
        [
            Entry(
                Position(entry["ledger_id"], entry["entry_id"]),
                EntryKind.DATA,
                entry["messages"],
                number,
                0,
                prefix_size_bytes(data),
                memoryview(data),
            )
            for number, (entry, data) in enumerate(zip(group, stored, strict=True))
        ]
    )
    expected = [
        ABSENT if entry["broker_timestamp"] is None else entry["broker_timestamp"]
        for entry in group
    ]
    assert table.broker_times_ms().tolist() == expected
    assert table.prefix_sizes.tolist() == [entry["prefix_bytes"] for entry in group]
    assert [table.data[a:b] for a, b in zip(table.starts, table.ends, strict=True)] == stored
    assert [table.position(row) for row in range(len(table))] == [
        Position(entry["ledger_id"], entry["entry_id"]) for entry in group
    ]


def test_broker_times_beside_our_own_fields() -> None:
    """Application tags and other fields from 100 up do not hide the time; broken ones have none."""
    metadata = BrokerEntryMetadata(broker_timestamp=2**40, index=5, message_count=3)
    metadata.application_tags.add(key="k", value=b"v" * 200)
    prefixes = [pack(metadata), pack(BrokerEntryMetadata(index=1)), b"\x0e\x02\0\0\0\x01\xff"]
    entries = [
        Entry(Position(1, n), EntryKind.DATA, 1, n, 7, len(prefix), memoryview(prefix + b"body"))
        for n, prefix in enumerate(prefixes)
    ]
    table = table_of_entries(entries)
    assert table.broker_times_ms().tolist() == [2**40, ABSENT, ABSENT]
    assert table.sizes.tolist() == [4 + len(prefix) for prefix in prefixes]
    assert (table.body_starts - table.starts).tolist() == [len(prefix) for prefix in prefixes]


def test_consumers_see_data_with_messages() -> None:
    """Control entries and entries of no message are left out; the rest keeps its places."""
    kinds = [(EntryKind.DATA, 2), (EntryKind.CONTROL, 1), (EntryKind.DATA, 0), (EntryKind.DATA, 1)]
    data = memoryview(b"body")
    table = table_of_entries(
        [Entry(Position(1, n), kind, count, 9, 5, 0, data) for n, (kind, count) in enumerate(kinds)]
    )
    seen = table.with_messages()
    assert seen.entry_ids.tolist() == [0, 3]
    assert seen.first_indexes.tolist() == [8, 9]
    assert [seen.data[a:b] for a, b in zip(seen.starts, seen.ends, strict=True)] == [b"body"] * 2
    assert len(table_of_entries([]).with_messages()) == 0
