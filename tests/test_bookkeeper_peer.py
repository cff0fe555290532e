"""The real bookies that tests and the demo start: ``campaigns/bookkeeper_peer.py``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from bookkeeper_peer import VERSION, BookKeeperPeer


def test_a_process_is_known_whatever_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that this object has started is known and ended, whatever /proc says of it.

    In the first moment of a new program /proc has no command line. A process that was taken for
    ended then stayed, and the wait for its end had no end.
    """
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexec sleep 100\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{java.parent}:{os.environ['PATH']}")
    (tmp_path / "cache" / VERSION / "lib").mkdir(parents=True)
    monkeypatch.setenv("BOOKKEEPER_PEER_CACHE", str(tmp_path / "cache"))
    peer = BookKeeperPeer(tmp_path / "peer")
    peer.folder.mkdir()
    peer.ports["zookeeper"] = 1
    try:
        peer.run("autorecovery")
        command = Path(f"/proc/{peer.pids['autorecovery']}/cmdline")
        deadline = time.monotonic() + 60
        while str(peer.folder).encode() in command.read_bytes():
            assert time.monotonic() < deadline, "the shell does not become another program"
            time.sleep(0.01)
        assert peer.is_running("autorecovery")
    finally:
        peer.stop()
    assert not peer.is_running("autorecovery")
