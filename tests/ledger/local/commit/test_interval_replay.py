"""What counts of a journal whose blocks were synced several at once."""

from __future__ import annotations

import pytest

from pulsemark.ledger.local.commit.journal import GroupRef, Journal, replay
from pulsemark.ledger.local.io.files import Files
from pulsemark.ledger.local.io.folder import journal_folder, journal_path


@pytest.mark.parametrize(("interval_ms", "kept"), [(0, [b"one", b"three"]), (50, [b"one"])])
def test_lost_block_ends_the_journal_only_with_a_sync_interval(tmp_path, interval_ms, kept):
    """After a lost block later blocks count, but not with a sync interval."""
    files = Files()
    journal_folder(tmp_path).mkdir()
    journal = Journal(files, tmp_path, sync_interval_ms=interval_ms)
    ends = []
    for number, content in enumerate((b"one", b"two", b"three")):
        journal.write([GroupRef(1, 0, len(content), number)], [content], sync=not interval_ms)
        ends.append(journal.size_bytes)
    journal.close()
    path = journal_path(tmp_path, 0)
    data = bytearray(path.read_bytes())
    lost = data.index(b"two")
    data[lost : lost + 3] = b"\0\0\0"
    path.write_bytes(data)
    found: list[bytes] = []
    report = replay(files, tmp_path, lambda _, content: found.append(bytes(content)))
    assert found == kept
    assert report.damaged_blocks == (0 if interval_ms else 1)
