"""Chaos on real bookies: what is acknowledged stays, and writing goes on while a quorum lives.

    python campaigns/bookkeeper_chaos.py [--seconds-each 8] [--topics 4] [--only NAME ...]
        [--folder F]

Starts ZooKeeper and four bookies of its own (`bookkeeper_peer`), and a store on them, and appends
all the time. Meanwhile one thing after another happens: a bookie is killed, or stopped and goes on,
or is slow, or its disk is full, or the network to it is lost; ZooKeeper is restarted; another owner
takes over. After each one the whole log is read,
by the owner and after a kill by the next owner, and compared with what was acknowledged. Exit code
1 if an acknowledged entry is lost or differs, or if no append succeeded for too long.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bookkeeper_peer import BookKeeperPeer
from lossy_network import Proxies, Rerouted

from pulsemark.coordination import connect
from pulsemark.ledger import EARLIEST, LedgerError, Position, StoreOptions
from pulsemark.ledger.bookkeeper.address import StoreAddress
from pulsemark.ledger.bookkeeper.client import BookKeeperClient
from pulsemark.ledger.bookkeeper.store import BookKeeperStore, fitting
from pulsemark.ledger.store_core import StoreSetup
from pulsemark.metadata import StamperChain, SystemClock

STALL_LIMIT_S = 10.0
"""So long may it take until an append succeeds, whatever happened, while a quorum lives. A topic
that needs a new ledger also needs ZooKeeper: the time without one is not counted."""
WAIT_S = 30.0


@dataclass
class TopicTrack:
    """What one topic acknowledged, and what was sent without an answer."""

    acked: dict[Position, bytes] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)


class Load:
    """Appends to some topics all the time, and keeps what was acknowledged."""

    def __init__(self, address: str, root: str, topics: int) -> None:
        self._where = StoreAddress.parse(address)
        self.proxies = Proxies()
        self._root = root
        self.tracks = {f"persistent://public/default/t{n}": TopicTrack() for n in range(topics)}
        self.store = self._open()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.longest_stall_s = 0.0
        self.refused = 0
        self._number = 0
        self._threads = [
            threading.Thread(target=self._append, args=(name,)) for name in self.tracks
        ]
        for thread in self._threads:
            thread.start()

    def _open(self) -> BookKeeperStore:
        options = StoreOptions(ledger_entries=50)
        return BookKeeperStore.open_with(
            self._connected,
            ledgers_root=self._where.ledgers_root,
            root=self._root,
            ledger_options=None,
            setup=StoreSetup(SystemClock(), fitting(options), None, threaded=True),
        )

    async def _connected(self) -> Any:
        session: Any = Rerouted(await connect(self._where.hosts), self.proxies)
        return session, BookKeeperClient(session, self._where.ledgers_root)

    def _append(self, name: str) -> None:
        track = self.tracks[name]
        succeeded = time.monotonic()
        while not self._stop.is_set():
            with self._lock:
                self._number += 1
                body = b"%d " % self._number + bytes(100)
            track.sent.add(body)
            store = self.store
            try:
                topic = store.open_topic(name)
                if not topic.stampers:
                    topic.stampers = StamperChain.from_names(("broker-time", "index"))
                appended = topic.append(body)
                appended.commit.wait(WAIT_S)
            except (LedgerError, OSError, TimeoutError):
                self.refused += 1
                time.sleep(0.02)
                continue
            track.acked[appended.position] = body
            now = time.monotonic()
            self.longest_stall_s = max(self.longest_stall_s, now - succeeded)
            succeeded = now

    def take_stall(self) -> float:
        """The longest time without a success since the last call."""
        stall_s, self.longest_stall_s = self.longest_stall_s, 0.0
        return stall_s

    def new_owner(self) -> None:
        """Another owner takes over, and the one before finds out by itself."""
        before = self.store
        self.store = self._open()
        try:
            before.close()
        except (LedgerError, OSError) as error:
            print(f"  the owner before: {error}")

    def stop(self) -> None:
        """End the appends."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def problems(self) -> list[str]:
        """What differs between the logs and what was acknowledged."""
        found = []
        for name, track in self.tracks.items():
            acked = dict(track.acked)
            there: dict[Position, bytes] = {}
            topic, position = self.store.open_topic(name), EARLIEST
            while entries := topic.read(position, max_entries=1000):
                there.update((entry.position, bytes(entry.body)) for entry in entries)
                position = entries[-1].position.following
            index = -1
            for at, body in acked.items():
                if there.get(at) != body:
                    what = "lost" if at not in there else "another entry"
                    found.append(f"{name}: acknowledged entry {at}: {what}")
            for at, body in there.items():
                if body not in track.sent:
                    found.append(f"{name}: entry {at} was never sent")
            for entries in [topic.read(EARLIEST, max_entries=1000)]:
                for entry in entries:
                    if entry.index != index + 1:
                        found.append(f"{name}: index {entry.index} after {index}")
                    index = entry.index
        return found


def killed(peer: BookKeeperPeer, load: Load, seconds: float) -> float:
    """A bookie is killed, and started again later. Returns for how long ZooKeeper was down."""
    name = peer.bookies[int(time.time()) % len(peer.bookies)]
    peer.kill(name)
    time.sleep(seconds)
    peer.run(name)
    return 0


def stopped(peer: BookKeeperPeer, load: Load, seconds: float) -> float:
    """A bookie is stopped (SIGSTOP), and goes on later."""
    name = peer.bookies[int(time.time()) % len(peer.bookies)]
    peer.pause(name)
    time.sleep(seconds)
    peer.resume(name)
    return 0


def slow(peer: BookKeeperPeer, load: Load, seconds: float) -> float:
    """A bookie is stopped and goes on, again and again."""
    name = peer.bookies[0]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        peer.pause(name)
        time.sleep(0.4)
        peer.resume(name)
        time.sleep(0.1)
    return 0


def two_killed(peer: BookKeeperPeer, load: Load, seconds: float) -> float:
    """Two of four bookies are killed: an ack quorum of two is left."""
    for name in peer.bookies[:2]:
        peer.kill(name)
    time.sleep(seconds)
    for name in peer.bookies[:2]:
        peer.run(name)
    return 0


def zookeeper_restarted(peer: BookKeeperPeer, load: Load, seconds: float) -> float:
    """ZooKeeper is killed and started again."""
    began = time.monotonic()
    peer.kill("zookeeper")
    time.sleep(1)
    peer.run("zookeeper")
    down_s = time.monotonic() - began
    time.sleep(seconds)
    return down_s


def session_lost(peer: BookKeeperPeer, load: Load, seconds: float) -> float:
    """ZooKeeper does not answer for longer than the session lasts."""
    peer.pause("zookeeper")
    time.sleep(7)
    peer.resume("zookeeper")
    time.sleep(seconds)
    return 7


def network_lost(peer: BookKeeperPeer, load: Load, seconds: float) -> float:
    """Nothing comes through between the store and one bookie; its connections stay open."""
    name = peer.bookies[int(time.time()) % len(peer.bookies)]
    address = ("127.0.0.1", peer.ports[name])
    load.proxies.cut.add(address)
    time.sleep(max(seconds, 12))
    load.proxies.cut.discard(address)
    return 0


def disk_full(peer: BookKeeperPeer, load: Load, seconds: float) -> float:
    """The last bookie's disk, a small one in memory, is full for a while."""
    name = peer.bookies[-1]
    if not os.path.ismount(peer.folder / name):
        print("  left out: mounting a small disk needs root")
        return 0
    filler = peer.folder / name / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    time.sleep(max(seconds, 12))
    alive = peer.is_running(name)
    print(f"  {name} {'is read-only or refuses' if alive else 'has ended'}")
    filler.unlink()
    if not alive:
        peer.run(name)
    return 0


def owner_changed(peer: BookKeeperPeer, load: Load, seconds: float) -> float:
    """Another owner takes over while the one before appends."""
    load.new_owner()
    time.sleep(seconds)
    return 0


SCENARIOS: dict[str, Callable[[BookKeeperPeer, Load, float], float]] = {
    each.__name__: each
    for each in (
        killed,
        stopped,
        slow,
        network_lost,
        disk_full,
        owner_changed,
        two_killed,
        zookeeper_restarted,
        session_lost,
    )
}


def run(peer: BookKeeperPeer, names: list[str], topics: int, seconds: float) -> int:
    """Let it all happen; how many problems there were."""
    load = Load(peer.store, "/chaos", topics)
    bad = 0
    try:
        time.sleep(2)
        for name in names:
            load.take_stall()
            down_s = SCENARIOS[name](peer, load, seconds)
            time.sleep(2)
            stall_s = max(0.0, load.take_stall() - down_s)
            acked = sum(len(track.acked) for track in load.tracks.values())
            print(f"{name}: longest stall {stall_s:.1f} s, {acked} acknowledged so far", flush=True)
            if stall_s > STALL_LIMIT_S:
                print(f"  {stall_s:.1f} s are above {STALL_LIMIT_S} s")
                bad += 1
        load.stop()
        bad += _checked(load, "the owner")
        load.new_owner()
        bad += _checked(load, "the next owner")
    finally:
        load.stop()
        load.store.close()
        load.proxies.stop()
    print(f"{load.refused} appends were refused or failed; {bad} problems")
    return bad


def _checked(load: Load, who: str) -> int:
    problems = load.problems()
    acked = sum(len(track.acked) for track in load.tracks.values())
    print(f"{who} has all {acked} entries" if not problems else "\n".join(problems[:20]))
    return len(problems)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds-each", type=float, default=8)
    parser.add_argument("--topics", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peer = BookKeeperPeer(arguments.folder or Path(folder))
        disk = peer.folder / "bookie-3"
        try:
            if "disk_full" in arguments.only:
                _mount(disk)
            peer.start(4)
            return min(1, run(peer, arguments.only, arguments.topics, arguments.seconds_each))
        finally:
            peer.stop()
            if os.path.ismount(disk):
                subprocess.run(["umount", str(disk)], check=True)


def _mount(folder: Path) -> None:
    """A disk of its own for one bookie, if this user may mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder)]
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
