"""Places: paths and URIs, whole files or none, also where pyarrow or fsspec reaches them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import pytest

from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.offload import verify_offload
from pulsemark.pipeline.offload.places import (
    LocalPlace,
    file_checksum,
    place_of,
    read_bytes,
    write_bytes,
)


@pytest.mark.parametrize("kind", ["path", "uri", "fsspec"])
def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, kind: str) -> None:
    """Below new folders with odd names; a failing write leaves the old file and nothing else."""
    names = {
        "path": str(tmp_path / "a b%20ü#?"),
        "uri": (tmp_path / "a b%20ü#?").as_uri(),
        "fsspec": f"memory://{tmp_path.name}/a",
    }
    place = place_of(names[kind])
    assert place_of(place.uri).names("x") == []
    write_bytes(place, "x/y=%2F/z", b"one")
    assert read_bytes(place_of(place.uri), "x/y=%2F/z") == b"one"

    def fill(file: IO[bytes]) -> None:
        file.write(b"half of a")
        raise OSError(28, os.strerror(28))

    with pytest.raises(OSError, match="No space left"):
        place.write("x/y=%2F/other", fill)
    assert place.names("x/y=%2F") == ["z"]
    with pytest.raises(FileExistsError):
        write_bytes(place, "x/y=%2F/z", b"two", keep=True)
    assert file_checksum(place, "x/y=%2F/z")[0] == 3
    place.remove("x/y=%2F/z")
    place.remove("x/y=%2F/z")
    with pytest.raises(FileNotFoundError):
        place.open("x/y=%2F/z")


@pytest.mark.parametrize("name", ["nope://x", "file://elsewhere/x", "s3:/x://"])
def test_what_is_no_place_is_refused(name: str) -> None:
    """Unknown schemes, and other hosts' files."""
    with pytest.raises(OptionError, match="option target"):
        place_of(name)


def test_an_offload_without_locks(
    folder: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an object store: nothing is noted or removed, and a repeated run adds nothing."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=2)
    uri = f"memory://{tmp_path.name}/out"
    with pytest.raises(KeyboardInterrupt):
        run.copy(folder, uri, files_before_kill=1)
    done = run.copy(folder, uri)
    assert done.rows == len(topic.rows)
    assert run.copy(folder, uri).files == ()
    assert all(check.good for check in verify_offload(folder.path, uri))
    assert not isinstance(place_of(uri), LocalPlace)
