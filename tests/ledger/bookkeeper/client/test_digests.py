"""Digests and master keys: BookKeeper's own values."""

from __future__ import annotations

import pytest

from pulsemark.ledger.bookkeeper.client.entries import (
    DigestType,
    digest_of,
    master_key,
    pack_entry,
    unpack_entry,
)
from pulsemark.ledger.bookkeeper.client.errors import DigestMismatchError


def test_golden_entry() -> None:
    """Ledger 7, entry 0, nothing confirmed, `hello`: the bytes that a real bookie returned."""
    digest = digest_of(DigestType.CRC32C, b"")
    body = b"".join(pack_entry(digest, 7, 0, -1, 5, [b"hel", b"lo"]))
    assert body.hex() == (
        "00000000000000070000000000000000ffffffffffffffff00000000000000059e3e717b68656c6c6f"
    )


def test_golden_key() -> None:
    """The key of the empty password."""
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


@pytest.mark.parametrize("digest_type", DigestType)
def test_round_trip(digest_type: DigestType) -> None:
    """What is packed is unpacked; a changed bit is noticed by all but DUMMY."""
    digest = digest_of(digest_type, b"secret")
    body = b"".join(pack_entry(digest, 3, 9, 7, 100, [b"pay", memoryview(b"load")]))
    assert len(body) == 32 + digest.size_bytes + 7
    entry = unpack_entry(digest, body, ledger_id=3, entry_id=9)
    assert entry == (9, b"payload", 100, 7)
    if digest_type is not DigestType.DUMMY:
        for at in (0, 17, 33, len(body) - 1):
            wrong = body[:at] + bytes((body[at] ^ 1,)) + body[at + 1 :]
            with pytest.raises(DigestMismatchError):
                unpack_entry(digest, wrong, ledger_id=3, entry_id=9)


def test_hmac_depends_on_the_password() -> None:
    """An entry of another password's writer is refused."""
    body = b"".join(pack_entry(digest_of(DigestType.HMAC, b"one"), 3, 0, -1, 1, [b"x"]))
    with pytest.raises(DigestMismatchError):
        unpack_entry(digest_of(DigestType.HMAC, b"two"), body, ledger_id=3, entry_id=0)


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "last_confirmed", "length"),
    [(4, 9, 7, 100), (3, 8, 7, 100), (3, 9, -2, 100), (3, 9, 7, 6)],
)
def test_another_entry_is_refused(
    ledger_id: int, entry_id: int, last_confirmed: int, length: int
) -> None:
    """A body of another ledger or entry, or with impossible values, is damage, named as such."""
    digest = digest_of(DigestType.CRC32C, b"")
    body = b"".join(pack_entry(digest, ledger_id, entry_id, last_confirmed, length, [b"payload"]))
    with pytest.raises(DigestMismatchError) as caught:
        unpack_entry(digest, body, ledger_id=3, entry_id=9, bookie="b1:1")
    assert (caught.value.ledger_id, caught.value.entry_id, caught.value.bookie) == (3, 9, "b1:1")


@pytest.mark.parametrize("last_confirmed", [9, 3_096])
def test_a_copy_that_autorecovery_made_is_read(last_confirmed: int) -> None:
    """BookKeeper's replicator writes the entry that is confirmed when it copies, which can be this
    one or one after it.
    """
    digest = digest_of(DigestType.CRC32C, b"")
    body = b"".join(pack_entry(digest, 3, 9, last_confirmed, 100, [b"payload"]))
    entry = unpack_entry(digest, body, ledger_id=3, entry_id=9)
    assert entry == (9, b"payload", 100, last_confirmed)


def test_short_body_is_refused() -> None:
    """Fewer bytes than header and digest are damage."""
    with pytest.raises(DigestMismatchError, match="3 bytes"):
        unpack_entry(digest_of(DigestType.CRC32, b""), b"abc", ledger_id=1, entry_id=None)
