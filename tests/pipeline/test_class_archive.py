"""The archive of Spark's classes: its place, its use, and what a failed attempt leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsemark.pipeline import class_archive
from pulsemark.pipeline.class_archive import archive_options, archive_path, make_archive
from pulsemark.pipeline.java import Java


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a Java."""
    (tmp_path / "java").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = Java(tmp_path / "java", 17, "JAVA_HOME")
    monkeypatch.setattr(class_archive, "find_java", lambda: java)
    return tmp_path / "cache"


def test_an_archive_is_used_once_it_is_made(cache: Path) -> None:
    """Before, the JVM gets no option; after, the archive's path, and no folder holds a draft."""
    assert archive_options() == []

    def run(command: Sequence[str]) -> None:
        Path(command[-1]).write_bytes(b"classes")

    made = make_archive(run)
    assert made == archive_path()
    assert [each.name for each in (cache / "pulsemark").iterdir()] == [made.name]
    assert archive_options()[0] == f"-XX:SharedArchiveFile={made}"


def test_a_failed_attempt_leaves_no_archive(cache: Path) -> None:
    """Neither a part of one nor an old one."""

    def run(command: Sequence[str]) -> None:
        Path(command[-1]).write_bytes(b"a part")
        raise OSError("the JVM has died")

    with pytest.raises(OSError, match="has died"):
        make_archive(run)
    with pytest.raises(FileNotFoundError):
        make_archive(lambda _: None)
    assert list((cache / "pulsemark").iterdir()) == []
    assert archive_options() == []


def test_another_java_has_another_archive(tmp_path: Path) -> None:
    """By what its release file says."""
    before = archive_path()
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="21"')
    assert archive_path() != before


def test_a_path_with_a_blank_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark splits the JVM's options at blanks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    make_archive(lambda command: Path(command[-1]).write_bytes(b"classes"))
    assert archive_options() == []
