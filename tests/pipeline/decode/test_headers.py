"""Headers of many entries at once are what the metadata package reads of each."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.ledger import Entry, EntryKind, Position
from pulsemark.metadata import MessageFormatError, payload_of, read_message_metadata, strip
from pulsemark.pipeline.decode import headers as message
from pulsemark.pipeline.decode.entries import table_of_entries
from pulsemark.pipeline.decode.headers import Headers, read_headers
from pulsemark.pipeline.decode.protoscan import Want

GOLDEN = Path(__file__).parents[2] / "data" / "pulsar-4.0.8-entries.json"
BODIES = [
    bytes(strip(bytes.fromhex(entry["entry_hex"])))
    for group in json.loads(GOLDEN.read_text())["groups"]
    for entry in group["entries"]
]


def headers_of(bodies: list[bytes]) -> Headers:
    """The headers of unstamped entries with these bodies."""
    entries = [
        Entry(Position(1, n), EntryKind.DATA, 1, n, 5, 0, memoryview(body))
        for n, body in enumerate(bodies)
    ]
    return read_headers(
        table_of_entries(entries),
        {message.COMPRESSION: Want.VARINT, message.ENCRYPTION_KEYS: Want.COUNT},
    )


def test_pulsar_s_own_entries() -> None:
    """Publish time, compression, encryption and the payload's place, all as one by one."""
    headers = headers_of(BODIES)
    assert headers.good.all()
    one_by_one = [read_message_metadata(body) for body in BODIES]
    assert headers.value(message.PUBLISH_TIME).tolist() == [m.publish_time for m in one_by_one]
    assert headers.value(message.COMPRESSION).tolist() == [m.compression for m in one_by_one]
    assert headers.has(message.COMPRESSION).tolist() == [
        m.HasField("compression") for m in one_by_one
    ]
    assert headers.is_encrypted.tolist() == [bool(m.encryption_keys) for m in one_by_one]
    assert headers.is_encrypted.any()
    starts, ends = headers.payload_starts.tolist(), headers.table.ends.tolist()
    payloads = [headers.table.data[a:b] for a, b in zip(starts, ends, strict=True)]
    assert payloads == [bytes(payload_of(body)) for body in BODIES]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_is_good_is_what_the_metadata_package_accepts(data: st.DataObject) -> None:
    """Any header, cut anywhere or overwritten: good to one is good to the other.

    Two things only the one-by-one reader looks at: whether strings are UTF-8, and what stands
    inside properties and keys.
    """
    body = bytearray(data.draw(st.sampled_from(BODIES)))
    noise = data.draw(st.binary(max_size=6))
    at = data.draw(st.integers(0, 40))
    body[at : at + len(noise)] = noise
    body = body[: data.draw(st.integers(0, len(body)))]
    headers = headers_of([BODIES[0], bytes(body), BODIES[1]])
    assert headers.good[[0, 2]].all()
    try:
        one = read_message_metadata(body)
    except MessageFormatError as error:
        inside = ("UTF-8", "properties", "encryption_keys", "not a MessageMetadata")
        assert not headers.good[1] or any(part in error.reason for part in inside)
        assert headers.good[1] or headers.reason(1) == str(error)
        return
    assert not headers.good[1] or headers.value(message.PUBLISH_TIME)[1] == one.publish_time & (
        2**63 - 1
    )


def test_a_part_of_the_headers_is_the_headers_of_a_part() -> None:
    """`part` cuts table and columns alike."""
    whole, part = headers_of(BODIES), headers_of(BODIES).part(3, 9)
    assert part.value(message.PUBLISH_TIME).tolist() == (
        whole.value(message.PUBLISH_TIME)[3:9].tolist()
    )
    assert part.table.entry_ids.tolist() == list(range(3, 9))
    assert part.is_encrypted.tolist() == whole.is_encrypted[3:9].tolist()
