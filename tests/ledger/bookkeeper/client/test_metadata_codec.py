"""Ledger metadata as bytes: two versions of the format, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from pulsemark.ledger.bookkeeper.client.entries import DigestType
from pulsemark.ledger.bookkeeper.client.errors import InvalidRequestError, MetadataError
from pulsemark.ledger.bookkeeper.client.metadata import (
    LedgerMetadata,
    LedgerState,
    Segment,
    decode_metadata,
    encode_metadata,
)

OPEN = LedgerMetadata(
    ledger_id=7,
    ensemble_size=3,
    write_quorum_size=2,
    ack_quorum_size=1,
    segments=(Segment(0, ("a:1", "b:2", "c:3")), Segment(12, ("a:1", "d:4", "c:3"))),
    digest_type=DigestType.HMAC,
    password=b"secret",
    created_ms=1_700_000_000_000,
    custom_metadata={"first_index": b"\x00\xff", "topic": b"news"},
    creation_token=-5,
)


@pytest.mark.parametrize("state", [OPEN, OPEN.in_recovery(), OPEN.closed(20, 999)])
@pytest.mark.parametrize("version", [2, 3])
def test_protobuf_versions(state: LedgerMetadata, version: int) -> None:
    """What is written is read again; version 2 has no creation token."""
    metadata = dataclasses.replace(state, format_version=version)
    expected = metadata if version == 3 else dataclasses.replace(metadata, creation_token=None)
    assert decode_metadata(7, encode_metadata(metadata)) == expected


def test_text_of_java() -> None:
    """Version 2 as the Java client writes it."""
    text = (
        b"BookieMetadataFormatVersion\t2\nquorumSize: 2\nensembleSize: 2\nlength: 0\n"
        b"lastEntryId: -1\nstate: IN_RECOVERY\nsegment {\n"
        b'  ensembleMember: "127.0.0.1:3181"\n  ensembleMember: "127.0.0.1:3182"\n'
        b'  firstEntryId: 0\n}\ndigestType: CRC32C\npassword: "\\001"\nackQuorumSize: 2\n'
    )
    metadata = decode_metadata(1, text)
    assert metadata.state is LedgerState.IN_RECOVERY
    assert metadata.segments == (Segment(0, ("127.0.0.1:3181", "127.0.0.1:3182")),)
    assert (metadata.password, metadata.digest_type) == (b"\x01", DigestType.CRC32C)
    assert encode_metadata(metadata).startswith(b"BookieMetadataFormatVersion\t2\n")


GOOD = encode_metadata(OPEN)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"BookieMetadataFormatVersion\t",
        b"BookieMetadataFormatVersion\t3",
        b"BookieMetadataFormatVersion\t4\n",
        b"BookieMetadataFormatVersion\tx\n",
        b"BookieMetadataFormatVersion\t1\n",
        b"BookieMetadataFormatVersion\t1\n2\n2\n0\n0\n",
        b"BookieMetadataFormatVersion\t2\nnonsense",
        b"BookieMetadataFormatVersion\t2\n\xff\xfe",
        b"BookieMetadataFormatVersion\t3\n\xff\xff\xff\xff\xff\xff",
        GOOD[:-1],
        GOOD[:40],
    ],
)
def test_damaged_nodes_are_named(data: bytes) -> None:
    """A node that cannot be understood is a typed error with the ledger's id."""
    with pytest.raises(MetadataError) as caught:
        decode_metadata(7, data)
    assert caught.value.ledger_id == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"write_quorum_size": 4},
        {"ack_quorum_size": 3},
        {"ack_quorum_size": 0},
        {"segments": ()},
        {"segments": (Segment(1, ("a", "b", "c")),)},
        {"segments": (Segment(0, ("a", "b")),)},
        {"segments": (Segment(0, ("a", "b", "c")), Segment(0, ("a", "b", "d")))},
        {"last_entry_id": -2},
    ],
)
def test_contradictions_are_refused(wrong: dict[str, object]) -> None:
    """Sizes and segments that contradict one another make no metadata."""
    with pytest.raises(InvalidRequestError):
        dataclasses.replace(OPEN, **wrong)  # type: ignore[arg-type]


def test_where_entries_are() -> None:
    """An entry's bookies come from its segment, and move on by one with each entry."""
    assert OPEN.bookies_of(11) == ("c:3", "a:1")
    assert OPEN.bookies_of(12) == ("a:1", "d:4")
    assert OPEN.with_ensemble(12, ("x", "y", "z")).segments[1:] == (Segment(12, ("x", "y", "z")),)
