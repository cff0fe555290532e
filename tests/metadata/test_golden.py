"""Entries that Apache Pulsar itself stored: every reader and writer here must agree with them."""

import json
from pathlib import Path

import crcmod.predefined
import pytest

from pulsemark.metadata import (
    BrokerEntryMetadata,
    StamperChain,
    crc32c,
    entry_time_ms,
    message_count_of,
    pack,
    pack_for_client,
    pack_stamp,
    payload_of,
    peek,
    prefix_size_bytes,
    read_message_metadata,
    split,
    strip,
    verify_checksum,
)

# An implementation of CRC32C that shares nothing with the one in use.
oracle_crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

GOLDEN = Path(__file__).parent.parent / "data" / "pulsar-4.0.8-entries.json"
GROUPS = json.loads(GOLDEN.read_text(encoding="utf-8"))["groups"]
ENTRIES = [
    pytest.param(
        group["interceptors"],
        entry,
        bytes.fromhex(entry["entry_hex"]),
        id=f"{'+'.join(group['interceptors']) or 'none'}-{entry['what']}-{entry['entry_id']}",
    )
    for group in GROUPS
    for entry in group["entries"]
]
every_entry = pytest.mark.parametrize(("interceptors", "recorded", "entry"), ENTRIES)

# Pulsar's interceptors by our stampers' names.
STAMPERS = {"broker_timestamp": "broker-time", "index": "index"}


def test_the_file_covers_every_setting():
    """The golden entries come from all four settings of Pulsar's two interceptors."""
    settings = {tuple(group["interceptors"]) for group in GROUPS}
    assert settings == {("broker_timestamp", "index"), ("broker_timestamp",), ("index",), ()}
    assert len(ENTRIES) >= 30


@every_entry
def test_decodes_to_the_recorded_values(interceptors, recorded, entry):
    """Time, index and prefix size are the recorded ones; null means absent, not zero."""
    metadata = peek(entry)
    assert (metadata is not None) == bool(interceptors)
    assert prefix_size_bytes(entry) == recorded["prefix_bytes"]
    for field in ("broker_timestamp", "index"):
        there = metadata is not None and metadata.HasField(field)
        assert (getattr(metadata, field) if there else None) == recorded[field]


@every_entry
def test_strips_to_the_producers_bytes(interceptors, recorded, entry):
    """Behind the prefix are the producer's bytes, whose CRC32C an independent oracle confirms."""
    body = strip(entry)
    assert entry[recorded["prefix_bytes"] :] == body
    assert bytes(body[:2]) == b"\x0e\x01"
    stored = int.from_bytes(body[2:6], "big")
    assert oracle_crc32c(bytes(body[6:])) == crc32c(body[6:]) == stored
    assert verify_checksum(body) is recorded["crc32c_ok"] is True


@every_entry
def test_reads_the_message(interceptors, recorded, entry):
    """Publish time and number of messages are the recorded ones, the payload is what is left."""
    body = strip(entry)
    metadata = read_message_metadata(body)
    assert metadata.publish_time == recorded["publish_time"]
    assert message_count_of(metadata) == recorded["messages"]
    assert entry.endswith(metadata.SerializeToString() + bytes(payload_of(body)))


@every_entry
def test_entry_time(interceptors, recorded, entry):
    """The entry's time is the broker's where it was recorded, else the producer's."""
    expected = recorded["broker_timestamp"]
    if expected is None:
        expected = recorded["publish_time"]
    assert entry_time_ms(*split(entry)) == expected


@every_entry
def test_packs_byte_identical(interceptors, recorded, entry):
    """The decoded metadata, and the recorded values alone, pack to the very bytes of Pulsar."""
    prefix = entry[: recorded["prefix_bytes"]]
    metadata, body = split(entry)
    if metadata is None:
        assert prefix == b""
        return
    values = {name: recorded[name] for name in STAMPERS if recorded[name] is not None}
    assert pack(metadata) + body == entry
    assert pack(BrokerEntryMetadata(**values)) == prefix
    assert pack_for_client(metadata) == prefix
    if len(values) == 2:
        assert pack_stamp(values["broker_timestamp"], values["index"]) == prefix


@every_entry
def test_stamps_byte_identical(interceptors, recorded, entry):
    """The same stampers, time and index in front of the same bytes give Pulsar's stored entry."""
    chain = StamperChain.from_names([STAMPERS[name] for name in interceptors])
    body = strip(entry)
    now_ms, index = recorded["broker_timestamp"] or 0, recorded["index"] or 0
    assert chain.prefix("t", now_ms, index, recorded["messages"], body) + body == entry


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["what"])
def test_index_grows_by_the_messages(group):
    """Between neighbouring entries the index grows by the later one's messages, first from -1."""
    if "index" not in group["interceptors"]:
        assert all(entry["index"] is None for entry in group["entries"])
        return
    previous_id, index = -1, -1
    for recorded in group["entries"]:
        if recorded["entry_id"] == previous_id + 1:
            body = strip(bytes.fromhex(recorded["entry_hex"]))
            index += message_count_of(read_message_metadata(body))
            assert index == recorded["index"]
        previous_id, index = recorded["entry_id"], recorded["index"]
