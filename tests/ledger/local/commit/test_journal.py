"""What replaying a journal costs: payloads that clients chose must not change its order."""

from __future__ import annotations

import struct

import pytest

from pulsemark.ledger.local.commit.journal import JOURNAL_HEADER_SIZE, GroupRef, Journal, replay
from pulsemark.ledger.local.io.folder import journal_folder, journal_path
from pulsemark.testing.faulty_files import FaultyFiles

SIZE_BYTES = 1 << 20


def headers_of_blocks(marker: bytes) -> bytes:
    """A payload of block headers, each of which announces half a MiB."""
    header = struct.pack("<4sIII", marker, 0, 1, SIZE_BYTES // 2)
    return header * (SIZE_BYTES // len(header))


@pytest.mark.parametrize("payload", ["version 1", "own marker", "zeros"])
@pytest.mark.parametrize("place", ["stale", "damaged"])
def test_a_chosen_payload_does_not_change_what_a_replay_reads(tmp_path, payload, place):
    """Bytes of the file's last use, or in a damaged block, are read at most a few times."""
    files = FaultyFiles()
    journal_folder(tmp_path).mkdir()
    journal = Journal(files, tmp_path)
    journal.write([GroupRef(1, 0, 3, 0)], [b"old"])
    path = journal_path(tmp_path, 0)
    marker = {
        "version 1": b"PMKB",
        # No client knows it; even so it is of no use once the file is used again.
        "own marker": path.read_bytes()[40:44],
        "zeros": bytes(4),
    }[payload]
    content = headers_of_blocks(marker)
    journal.write([GroupRef(1, 0, len(content), 3)], [content])
    if place == "stale":
        journal.free(1, journal.rotate())
        journal.write([GroupRef(2, 0, 3, 0)], [b"new"])
    elif payload == "own marker":
        pytest.skip("a client cannot put the marker of the present journal into a payload")
    else:
        journal.write([GroupRef(2, 0, 3, 0)], [b"new"])
        data = path.read_bytes()
        at = data.index(content) - 30
        path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    journal.close()
    files.bytes_read = 0
    found: list[bytes] = []
    replay(files, tmp_path, lambda _, got: found.append(bytes(got)))
    assert found == ([b"new"] if place == "stale" else [b"old", b"new"])
    assert files.bytes_read < 4 * path.stat().st_size


def test_each_use_of_a_file_has_a_secret_of_its_own(tmp_path):
    """A journal file that is used again has another secret, so its old blocks do not match."""
    files = FaultyFiles()
    journal_folder(tmp_path).mkdir()
    journal = Journal(files, tmp_path)
    secrets = set()
    for _ in range(3):
        journal.write([GroupRef(1, 0, 3, 0)], [b"abc"])
        header = journal_path(tmp_path, 0).read_bytes()[:JOURNAL_HEADER_SIZE]
        assert header[:64] == header[64:]
        secrets.add(header[40:48])
        last_id = journal.rotate()
        journal.free(1, last_id)
    assert len(secrets) == 3
