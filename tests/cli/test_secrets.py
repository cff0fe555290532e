"""What makes a segment's records its own stays in the data folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pulsemark.finder.stream import ReadPlan, entry_responses
from pulsemark.ledger import EARLIEST, CorruptEntryError, FolderReader
from pulsemark.ledger.local import ledgers
from pulsemark.ledger.local.segment.segment import as_segment

from .conftest import TOPIC, Folder, fill

Command = Any

SECRET = bytes.fromhex("9e3b4c5d60718293")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder whose secret is known, with a damaged entry and a damaged header."""
    with patch.object(ledgers, "new_secret", lambda: SECRET):
        made = fill(tmp_path / "data")
    made.damage(4)
    path = made.segment()
    data = path.read_bytes()
    assert data.count(SECRET[:4]) == 11
    path.write_bytes(data[:20] + b"\xff" + data[21:])
    return made


def shows(text: str | bytes) -> bool:
    """Whether the secret or a half of it is in what is shown, in any of the usual forms."""
    data = text.encode() if isinstance(text, str) else text
    for part in (SECRET[:4], SECRET[4:]):
        number, turned = int.from_bytes(part, "big"), int.from_bytes(part, "little")
        forms = [part, part.hex().encode(), part.hex(" ").encode(), repr(part)[2:-1].encode()]
        if any(form in data for form in (*forms, str(number).encode(), str(turned).encode())):
            return True
    return False


def test_no_command_shows_it(
    folder: Folder, pulsemark: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """Dumps, verification and log messages tell of all damage without the secret."""
    caplog.set_level(logging.DEBUG)
    for arguments in (
        ("dump", folder.path),
        ("dump", folder.path, "--json"),
        ("verify", folder.path),
        ("verify", folder.path, "--json"),
    ):
        ran = pulsemark(*arguments)
        assert ran.out
        assert not shows(ran.out + ran.err)
    assert not shows(caplog.text)


def test_no_answer_contains_it(folder: Folder) -> None:
    """ReadEntries' messages, whole and of prefixes, and errors have no bytes of record headers."""
    with FolderReader(folder.path) as reader:
        log = reader.log(TOPIC)
        for prefixes_only in (True, False):
            seen, plan = b"", ReadPlan(EARLIEST, None, None, prefixes_only)
            try:
                for response in entry_responses(log, plan):
                    seen += response.SerializeToString()
            except CorruptEntryError as error:
                assert not shows(f"{error} {error!r}")
            assert seen
            assert not shows(seen)
        header = as_segment(log.segments()[0]).header
        assert header.secret == SECRET
        assert not shows(repr(header))
