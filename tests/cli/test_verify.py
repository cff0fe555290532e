"""`pulsemark verify`: clean folders, damaged ones, topics, and what cannot be verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Command = Any
Folder = Any


def test_clean_folder(folder: Folder, pulsemark: Command) -> None:
    """A folder without damage: one line that says what was read, exit code 0."""
    ran = pulsemark("verify", folder.path)
    assert ran.status == 0
    size = folder.segment().stat().st_size
    assert ran.out == f"1 topic, 1 segment, 10 entries, 19 messages, {size:,} bytes: clean\n"
    assert ran.err == ""


def test_damaged_folder(folder: Folder, pulsemark: Command) -> None:
    """One line for each damaged place, naming topic, entry and file; exit code 1."""
    folder.damage(3)
    ran = pulsemark("verify", folder.path)
    assert ran.status == 1
    finding, summary = ran.out.splitlines()
    assert finding.startswith(f"damage: {folder.topic} entry ")
    assert ":3 damaged at byte" in finding
    assert str(folder.segment()) in finding
    assert summary.endswith("9 entries, 18 messages, "
                            f"{folder.segment().stat().st_size:,} bytes: 1 damage")  # fmt: skip


def test_json(folder: Folder, pulsemark: Command) -> None:
    """An object for each finding with its facts, and one that sums up."""
    folder.damage(3)
    (folder.path / "ledgers" / "notes.txt").write_text("")
    ran = pulsemark("verify", folder.path, "--json")
    assert ran.status == 1
    damage, foreign, summary = ran.json()
    assert (damage["kind"], damage["severity"]) == ("DamagedEntries", "damage")
    assert damage["first"]["entry_id"] == 3
    assert damage["topic"] == folder.topic
    assert foreign["path"].endswith("notes.txt")
    assert summary["kind"] == "Summary"
    assert (summary["damage_count"], summary["note_count"]) == (1, 1)


def test_leftovers_leave_the_exit_code(folder: Folder, pulsemark: Command) -> None:
    """What a crash leaves is reported, and is not damage."""
    (folder.path / "ledgers" / f"{999:016x}-00000000.log").write_bytes(b"")
    ran = pulsemark("verify", folder.path)
    assert ran.status == 0
    assert ran.out.startswith("leftover: ")
    assert ran.out.endswith(": 1 leftover\n")


def test_topics(folder: Folder, pulsemark: Command) -> None:
    """With --data-dir the arguments are topics, by short or full name."""
    folder.damage(3)
    for name in ("orders", folder.topic):
        assert pulsemark("verify", name, "--data-dir", folder.path).status == 1
    assert pulsemark("verify", "--data-dir", folder.path).status == 1
    ran = pulsemark("verify", "orders", "audit", "--data-dir", folder.path)
    assert "audit" in ran.error()


def test_bad_input(folder: Folder, pulsemark: Command, tmp_path: Path) -> None:
    """What is no data folder or no topic's name is refused in one line."""
    assert "does not exist" in pulsemark("verify", tmp_path / "none").error()
    assert f"{__file__} is not a folder" in pulsemark("verify", __file__).error()
    assert "not a pulsemark data folder" in pulsemark("verify", tmp_path).error()
    assert "name one folder" in pulsemark("verify", folder.path, tmp_path).error()
    assert pulsemark("verify", "a/b", "--data-dir", folder.path).error()


def test_damaged_header_is_reported_once(folder: Folder, pulsemark: Command) -> None:
    """The store's own log lines do not appear beside the findings."""
    data = bytearray(folder.segment().read_bytes())
    data[40] ^= 4
    folder.segment().write_bytes(data)
    ran = pulsemark("verify", folder.path)
    assert ran.status == 1
    assert len(ran.out.splitlines()) == 2
    assert ran.err == ""
