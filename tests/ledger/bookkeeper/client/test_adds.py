"""Adds written by hand: what protobuf reads in them, and what bookies answer to them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.ledger.bookkeeper.client.adds import AddEncoder
from pulsemark.metadata import Buffer
from pulsemark.proto.bookkeeper_wire_pb2 import Request
from tests.support.fake_bookie import FakeBookie

KEY = b"k" * 20


def frames_in(data: bytes) -> list[bytes]:
    """The frames without their lengths."""
    frames = []
    while data:
        end = 4 + struct.unpack(">I", data[:4])[0]
        assert end <= len(data)
        frames.append(data[4:end])
        data = data[end:]
    return frames


@pytest.mark.parametrize("recovery", [False, True])
@given(
    ledger_id=st.integers(0, (1 << 63) - 1),
    first_entry_id=st.one_of(st.integers(0, 300), st.integers(16_380, 16_384)),
    first_number=st.one_of(st.integers(1, 300), st.integers(1 << 21, 1 << 40)),
    sizes=st.lists(st.sampled_from([0, 1, 60, 200, 20_000]), min_size=1, max_size=300),
)
def test_what_protobuf_reads(
    recovery: bool, ledger_id: int, first_entry_id: int, first_number: int, sizes: list[int]
) -> None:
    """Adds written by hand are what protobuf reads, and the answers are what protobuf writes."""
    encoder = AddEncoder(ledger_id, KEY, timeout_ms=1, recovery=recovery)
    bodies: list[list[Buffer]] = [
        [b"h" * (size // 2), memoryview(b"b" * (size - size // 2))] for size in sizes
    ]
    run = encoder.encode(first_entry_id, first_number, bodies)
    frames = frames_in(b"".join(run.buffers))
    assert run.size_bytes == sum(4 + len(frame) for frame in frames)
    assert run.entry_count == len(frames) == len(sizes)
    bookie, answers = FakeBookie("b"), list[bytes]()
    for at, frame in enumerate(frames):
        read = Request.FromString(frame)
        header, add = read.header, read.addRequest
        assert (header.version, header.operation, header.txnId) == (3, 2, first_number + at)
        assert (add.ledgerId, add.entryId, add.masterKey) == (ledger_id, first_entry_id + at, KEY)
        assert add.body == b"".join(bodies[at])
        assert add.flag == recovery
        assert header.priority == (100 if recovery else 0)
        bookie.handle(frame, answers.append)
    assert run.answers == b"".join(answers)
    ends = [sum(map(len, answers[:count])) for count in range(len(answers) + 1)]
    assert list(run.answer_ends) == ends


def test_what_a_real_bookie_answers() -> None:
    """The expected answer to an add has the bytes that BookKeeper 4.17.3 sent for it."""
    run = AddEncoder(0x7000000012, KEY, timeout_ms=1).encode(126, 300, [[b"x"]])
    golden = "000000190a070803100218ac021000aa060b08001092808080800e187e"
    assert run.answers == bytes.fromhex(golden)
