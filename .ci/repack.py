"""Makes an sdist's bytes depend on its files alone: order, times, owners and modes are fixed."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path


def repack(path: Path, epoch: int) -> None:
    """Write the archive again. `epoch`: the time of its files, in unix seconds."""
    packed = io.BytesIO()
    with (
        tarfile.open(path) as old,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old, key=lambda each: each.name):
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.pax_headers = epoch, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, content)
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as zipped:
        zipped.write(packed.getvalue())


if __name__ == "__main__":
    repack(Path(sys.argv[1]), int(os.environ["SOURCE_DATE_EPOCH"]))
