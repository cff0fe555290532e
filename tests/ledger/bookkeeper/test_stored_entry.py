"""What bookies store of an entry, and what is read from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsemark.ledger.bookkeeper.stored_entry import as_given, payload_of, read_facts
from pulsemark.ledger.entry import HEAD, EntryKind, pack
from pulsemark.metadata import pack_stamp
from pulsemark.metadata.prefix import pack_encoded

FACTS_TAG = b"\xca\x07\x1d"


def stored(
    kind: EntryKind,
    count: int,
    time_ms: int,
    index: int,
    prefix: bytes,
    body: bytes,
    time_max_ms: int,
) -> bytes:
    """The bytes on a bookie."""
    packed = b"".join(pack(3, kind, count, time_ms, index, prefix, body))
    assert len(packed) == HEAD.size + len(prefix) + len(body)
    return b"".join(payload_of(memoryview(packed), time_max_ms))


def test_an_ordinary_entry_is_stored_as_pulsar_stores_it() -> None:
    """A producer's entry with a stamp of time and index has no byte of the engine's own."""
    prefix = pack_stamp(1000, 41)
    assert stored(EntryKind.DATA, 2, 1000, 41, prefix, b"body", 1000) == prefix + b"body"
    facts = read_facts(prefix + b"body")
    assert (facts.index, facts.append_time_ms, facts.time_max_ms) == (41, 1000, 1000)
    assert facts.message_count == -1


@given(
    kind=st.sampled_from(EntryKind),
    count=st.integers(0, 2**20),
    time_ms=st.integers(0, 2**62),
    ahead_ms=st.integers(0, 1000),
    index=st.integers(-1, 2**62),
    fields=st.none()
    | st.binary(max_size=60)
    | st.binary(max_size=40).map(lambda b: b + FACTS_TAG + bytes(29)),
    body=st.binary(max_size=50).filter(lambda body: body[:2] != b"\x0e\x02"),
)
def test_every_other_entry_comes_back_with_its_facts(
    kind: EntryKind,
    count: int,
    time_ms: int,
    ahead_ms: int,
    index: int,
    fields: bytes | None,
    body: bytes,
) -> None:
    """Prefix, body, kind, count, times and index are those that were appended, also if the prefix
    ends with bytes that look like the engine's field.
    """
    prefix = b"" if fields is None else pack_encoded(fields)
    payload = stored(kind, count, time_ms, index, prefix, body, time_ms + ahead_ms)
    given_back, prefix_size = as_given(payload)
    assert bytes(given_back) == prefix + body
    assert prefix_size == len(prefix)
    facts = read_facts(payload)
    assert (facts.kind, facts.message_count, facts.append_time_ms) == (kind, count, time_ms)
    assert (facts.time_max_ms, facts.index) == (time_ms + ahead_ms, index)
