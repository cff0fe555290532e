"""What `histories.py` judges, and how each is disturbed: faults by name.

`OneBroker` is a process on files, `Workers` several on one machine, `Cluster` two brokers on
ZooKeeper and three bookies, `Foreign` whatever runs elsewhere. A power cut (`power`) needs a disk
of its own (`PowerDisk`): a file system in an image, of which at the moment of the cut only that is
kept what has reached the image. It needs Linux and root.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from urllib.request import urlopen

from bookkeeper_peer import BookKeeperPeer, PeerError, free_port
from mutants import NO_MUTANT

from pulsemark.client import AdminClient
from pulsemark.client.errors import AdminError, UnreachableError
from pulsemark.coordination import connect
from pulsemark.ledger.bookkeeper.address import StoreAddress
from pulsemark.ledger.bookkeeper.client import BookKeeperClient
from pulsemark.ledger.bookkeeper.client.entries import bad_copies
from pulsemark.ledger.bookkeeper.client.errors import BookKeeperError
from pulsemark.testing import BrokerProcess

#: Messages above it come in chunks.
MAX_MESSAGE_BYTES = 65_536
DISK_BYTES = 3 << 30
#: ext4 writes nothing more, not even what is in its journal's memory.
EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, struct.pack("I", 2)
READY_S = 120.0
#: So many bits of a bookie flip at once, each in another file: its restart takes most of the time.
BITS = 5
OPTIONS = ("--max-message-size-bytes", str(MAX_MESSAGE_BYTES), "--expose-broker-entry-metadata")
TOPICS = (
    "exclusive",
    "failover",
    "shared",
    "keys",
    "once",
    "both-partition-0",
    "parts-partition-1",
)


class PowerDisk:
    """A file system in an image. A cut leaves what the system had written into the image.

    All writing ends at one moment, as the system stops the file system itself: a copy of the image
    would have some blocks from before others that were written first, as no disk ever does.
    """

    def __init__(self, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="power-")))
        self._image, self.folder = folder / "image", folder / "disk"
        self.folder.mkdir()
        with self._image.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=1", str(self._image))
        self._mount()
        stack.callback(_run, "umount", str(self.folder))

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.folder))

    @contextmanager
    def cut(self, pids: list[int]) -> Iterator[None]:
        """In the block the processes are killed; then the disk is as the cut has left it."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        folder = os.open(self.folder, os.O_RDONLY)
        ioctl(folder, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
        os.close(folder)
        yield
        _run("umount", str(self.folder))
        self._mount()


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


class System:
    """Something to be judged: its addresses, and its faults."""

    #: Those that are chosen from, if none are named.
    DEFAULT: ClassVar[tuple[str, ...]] = ()
    service_url: str
    kafka_url: str = ""
    http_urls: tuple[str, ...] = ()
    #: Whether it has transactions of Pulsar's clients.
    has_transactions = True

    def __init__(self, random: Random) -> None:
        self.random = random

    @property
    def admin(self) -> AdminClient:
        """The admin interface."""
        return AdminClient(self.http_urls[0])

    @property
    def faults(self) -> dict[str, Callable[[], None]]:
        """All that can be done to it."""
        names = [name for name in dir(self) if name.startswith("fault_")]
        return {name.removeprefix("fault_"): getattr(self, name) for name in names}

    def report(self) -> str:
        """What it says of itself at the end."""
        return ""

    def fault_unload(self) -> None:
        """A topic is closed; its clients connect again, perhaps elsewhere."""
        path = f"persistent/public/default/{self.random.choice(TOPICS)}/unload"
        for url in self.http_urls:
            with suppress(AdminError, UnreachableError):
                AdminClient(url).request("PUT", path)

    def pause(self, pid: int, seconds: tuple[float, float] = (0.5, 4)) -> None:
        """Stop a process for a while."""
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(*seconds))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class JudgedProcess(BrokerProcess):
    """A broker that notes what of it is used, and may have a fault of its own (`mutants.py`)."""

    def __init__(self, used: Path, mutant: str, *options: str, **more: Any) -> None:
        os.environ["PULSEMARK_TRANSACTION_COORDINATOR_ENABLED"] = "true"
        # Other ports may be taken for an outgoing connection while it is down.
        names = "--port", "--http-port", "--kafka-port"
        ports = [word for name in names for word in (name, str(free_port()))]
        super().__init__(*ports, *options, **more)
        launcher = str(Path(__file__).parent / "mutants.py")
        self.program = (sys.executable, launcher, str(used), mutant)


class OneBroker(System):
    """`pulsemark standalone` on files."""

    DEFAULT = ("kill", "term", "pause", "drop", "disk", "receipts", "refusals", "answers", "unload")

    def __init__(
        self, random: Random, stack: ExitStack, used: Path, *, mutant: str, has_power: bool
    ) -> None:
        super().__init__(random)
        self._disk = PowerDisk(stack) if has_power else None
        more: dict[str, Any] = {"kafka": True, "test_controls": True}
        if self._disk is not None:
            more["data_dir"] = self._disk.folder / "data"
        self.process = stack.enter_context(JudgedProcess(used, mutant, *OPTIONS, **more))
        self.service_url, self.kafka_url = self.process.service_url, self.process.kafka_url
        self.http_urls = (self.process.http_url,)

    def fault_kill(self) -> None:
        """SIGKILL, and a new start."""
        self.process.kill()
        self.process.start()

    def fault_term(self) -> None:
        """SIGTERM, and a new start."""
        self.process.restart()

    def fault_pause(self) -> None:
        """SIGSTOP for a while."""
        self.pause(self.process.pid)

    def fault_power(self) -> None:
        """The power is cut."""
        if self._disk is None:
            raise SystemExit("power: the fault has to be named at the start")
        with self._disk.cut([self.process.pid]):
            self.process.kill()
        self.process.start()

    def fault_drop(self) -> None:
        """All connections break."""
        self.process.faults.drop_connections()

    def fault_disk(self) -> None:
        """The disk is full for a while."""
        with self.process.faults.full_disk():
            time.sleep(self.random.uniform(0.3, 1.5))

    def fault_receipts(self) -> None:
        """Some messages are stored, and the connection breaks before the receipt."""
        with self.process.faults.losing_receipts(times=5):
            time.sleep(0.5)

    def fault_refusals(self) -> None:
        """Some messages are refused."""
        with self.process.faults.failing_sends(times=5):
            time.sleep(0.5)

    def fault_answers(self) -> None:
        """Some answers to Kafka's producers are lost."""
        with self.process.faults.losing_kafka_answers("Produce", times=2):
            time.sleep(0.5)

    def fault_clock(self) -> None:
        """The clock steps."""
        step_s = self.random.choice((-30_000_000, -86_400, -30, -1, 1, 30, 86_400))
        self.process.clock.advance(seconds=step_s)


class Workers(System):
    """`pulsemark standalone --workers 2`."""

    DEFAULT = ("kill", "term", "pause", "hang", "unload")

    def __init__(
        self, random: Random, stack: ExitStack, used: Path, *, mutant: str = NO_MUTANT
    ) -> None:
        super().__init__(random)
        # Each worker's port follows that of the worker before it: also that one has to be free.
        pulsar, http, kafka = (free_port(2) for _ in range(3))
        ports = ("--port", str(pulsar), "--http-port", str(http), "--kafka-port", str(kafka))
        options = ("--workers", "2", *ports, *OPTIONS)
        self.process = stack.enter_context(JudgedProcess(used, mutant, *options, kafka=True))
        self.service_url = f"pulsar://127.0.0.1:{pulsar},127.0.0.1:{pulsar + 1}"
        self.kafka_url = f"127.0.0.1:{kafka},127.0.0.1:{kafka + 1}"
        self.http_urls = (f"http://127.0.0.1:{http}", f"http://127.0.0.1:{http + 1}")

    def _worker(self) -> int:
        """The id of a worker's process."""
        own = str(self.process.pid)
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if stat.read_text().rpartition(")")[2].split()[1] == own:
                    found.append(int(stat.parent.name))
        return self.random.choice(found)

    def fault_kill(self) -> None:
        """SIGKILL of a worker: its supervisor starts another one."""
        os.kill(self._worker(), signal.SIGKILL)
        time.sleep(1)

    def fault_term(self) -> None:
        """SIGTERM of all, and a new start."""
        self.process.restart()

    def fault_pause(self) -> None:
        """SIGSTOP of a worker for a while."""
        self.pause(self._worker())

    def fault_hang(self) -> None:
        """SIGSTOP of a worker for longer than its supervisor waits."""
        self.pause(self._worker(), (7, 9))


class ClusterBroker(JudgedProcess):
    """One of several brokers, whose data are on bookies."""

    def __init__(self, used: Path, store: str) -> None:
        super().__init__(used, NO_MUTANT, "--session-timeout-ms", "4000", *OPTIONS, kafka=True)
        self._store = store

    def _place(self, folder: Path) -> tuple[str, ...]:
        return "--store", self._store


class Cluster(System):
    """Two brokers on ZooKeeper and three bookies."""

    DEFAULT = ("kill", "term", "pause", "away", "bookie", "bookie_pause", "zookeeper",
               "zookeeper_pause", "unload")  # fmt: skip

    def __init__(self, random: Random, stack: ExitStack, used: Path, *, has_power: bool) -> None:
        super().__init__(random)
        self._disk = PowerDisk(stack) if has_power else None
        folder = self._disk.folder if self._disk is not None else Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-"))
        )  # fmt: skip
        self.peer = BookKeeperPeer(folder / "peer")
        stack.callback(self.peer.stop)
        self.peer.start(3)
        _run("sync", "--file-system", str(folder))  # their settings: nobody else does
        self.brokers = [stack.enter_context(ClusterBroker(used, self.peer.store)) for _ in range(2)]
        addresses = [one.service_url.removeprefix("pulsar://") for one in self.brokers]
        self.service_url = "pulsar://" + ",".join(addresses)
        self.kafka_url = ",".join(one.kafka_url for one in self.brokers)
        self.http_urls = tuple(one.http_url for one in self.brokers)
        #: Where bits flip: at one bookie, since two of three have each entry at least.
        self._rotten = self._bookie()
        self._flips = Counter[str]()

    def report(self) -> str:
        """Which damage its brokers have met since they were started, and what there is in all."""
        found = [
            line
            for url in self.http_urls
            for line in urlopen(f"{url}/metrics").read().decode().splitlines()
            if line.startswith("pulsemark_bookie_bad_copies_total")
        ]
        if self._flips:
            others = [name for name in self.peer.bookies if name != self._rotten]
            found += [
                f"bits flipped: {dict(self._flips)} of {self._rotten}; all entries without it:"
            ]
            found += self._without([self._rotten], self._verified)
            found += ["their copies on it alone:", *self._without(others, self._copies)]
        return "\n".join(found)

    def _without(self, names: list[str], look: Callable[[], list[str]]) -> list[str]:
        """What is seen while some bookies are down."""
        where, count = StoreAddress.parse(self.peer.store), len(self.peer.bookies)
        for name in names:
            self.peer.kill(name)
        asyncio.run(_until_registered(where, count - len(names)))
        found = look()
        self.peer.run(*names)
        asyncio.run(_until_registered(where, count))
        return found

    def _verified(self) -> list[str]:
        command = [sys.executable, "-m", "pulsemark", "verify", "--store", self.peer.store]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).splitlines()

    def _copies(self) -> list[str]:
        found = asyncio.run(_read_all(StoreAddress.parse(self.peer.store)))
        return [f"{dict(found)}, damaged: {sum(bad_copies.counts().values())}"]

    def _bookie(self) -> str:
        return self.random.choice(self.peer.bookies)

    def fault_kill(self) -> None:
        """SIGKILL of a broker, and a new start."""
        broker = self.random.choice(self.brokers)
        broker.kill()
        time.sleep(self.random.uniform(0, 6))
        broker.start()

    def fault_term(self) -> None:
        """SIGTERM of a broker, and a new start."""
        self.random.choice(self.brokers).restart()

    def fault_pause(self) -> None:
        """SIGSTOP of a broker, within its session."""
        self.pause(self.random.choice(self.brokers).pid, (0.5, 2))

    def fault_away(self) -> None:
        """SIGSTOP of a broker for longer than its session: another one takes its topics."""
        self.pause(self.random.choice(self.brokers).pid, (6, 9))

    def fault_bookie(self) -> None:
        """SIGKILL of a bookie, and a new start."""
        name = self._bookie()
        self.peer.kill(name)
        time.sleep(self.random.uniform(0, 4))
        self.peer.run(name)

    def fault_bookie_pause(self) -> None:
        """SIGSTOP of a bookie for a while."""
        self.pause(self.peer.pids[self._bookie()], (0.5, 9))

    def fault_zookeeper(self) -> None:
        """SIGKILL of ZooKeeper, and a new start."""
        self.peer.kill("zookeeper")
        self.peer.run("zookeeper")

    def fault_zookeeper_pause(self) -> None:
        """SIGSTOP of ZooKeeper, sometimes for longer than sessions last."""
        self.pause(self.peer.pids["zookeeper"], (0.5, 7))

    def fault_bit(self) -> None:
        """Bits of a bookie's entries and journals flip while it is down, each in another file."""
        self.peer.kill(self._rotten)
        logs = [
            each
            for each in sorted((self.peer.folder / self._rotten).rglob("*.[lt]*"))
            if each.suffix in (".log", ".txn") and each.stat().st_size
        ]
        some = self.random.sample(logs, min(BITS, len(logs)))
        flips = [(log, *self._place_in(log)) for log in some]
        for flip in flips:
            _flip(*flip)
        try:
            self.peer.run(self._rotten)
            self._flips.update(log.suffix for log, _, _ in flips)
        except PeerError:  # as behind a record whose length is wrong: it says so, and is healed
            self._flips["no start"] += 1
            self.peer.kill(self._rotten)
            for flip in flips:
                _flip(*flip)
            self.peer.run(self._rotten)

    def _place_in(self, log: Path) -> tuple[int, int]:
        """A bit of a file, which may end with what it has not been given yet."""
        size = len(log.read_bytes().rstrip(b"\0"))
        return self.random.randrange(max(size, 1)), 1 << self.random.randrange(8)

    def fault_power(self) -> None:
        """The power of brokers, bookies and ZooKeeper is cut, and all start again."""
        if self._disk is None:
            raise SystemExit("power: the fault has to be named at the start")
        names = ["zookeeper", *self.peer.bookies]
        pids = [one.pid for one in self.brokers] + [self.peer.pids[name] for name in names]
        with self._disk.cut(pids):
            for broker in self.brokers:
                broker.kill()
            for name in names:
                self.peer.kill(name)
        self.peer.run("zookeeper")
        asyncio.run(_until_registered(StoreAddress.parse(self.peer.store), 0))
        self.peer.run(*self.peer.bookies)
        for broker in self.brokers:
            broker.start()


def _flip(file: Path, place: int, bit: int) -> None:
    with file.open("r+b") as log:
        log.seek(place)
        byte = log.read(1)[0]
        log.seek(place)
        log.write(bytes([byte ^ bit]))


async def _until_registered(where: StoreAddress, count: int) -> None:
    """Wait until ZooKeeper knows so many bookies: it forgets one some time after its end.

    A bookie waits for that itself, but just as long as a session lasts: some give up, and hang.
    """
    session = await connect(where.hosts)
    registered = f"{where.ledgers_root}/available"
    while sum(":" in name for name in await session.children(registered)) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    await session.close()


async def _read_all(where: StoreAddress) -> Counter[str]:
    """Read every entry of every ledger; how many could be read, and how many not."""
    session, found = await connect(where.hosts), Counter[str]()
    client, root = BookKeeperClient(session, where.ledgers_root), where.ledgers_root
    for upper in filter(str.isdigit, await session.children(root)):
        for middle in await session.children(f"{root}/{upper}"):
            for name in await session.children(f"{root}/{upper}/{middle}"):
                await _read_ledger(client, int(upper + middle + name[1:]), found)
    await client.close()
    await session.close()
    return found


async def _read_ledger(client: BookKeeperClient, ledger_id: int, found: Counter[str]) -> None:
    try:
        ledger = await client.open_ledger_no_recovery(ledger_id)
    except BookKeeperError:  # no bookie that is there knows it
        found["ledgers not opened"] += 1
        return
    for number in range(ledger.last_confirmed + 1):
        try:
            await ledger.read(number, number)
            found["read"] += 1
        except BookKeeperError:
            found["missing or damaged"] += 1


class Foreign(System):
    """A broker that runs already. With the id of its process it can be disturbed."""

    DEFAULT = ("unload",)

    def __init__(
        self, random: Random, service_url: str, http_url: str, kafka_url: str, pid: int | None
    ) -> None:
        super().__init__(random)
        self.service_url, self.kafka_url = service_url, kafka_url
        self.http_urls = (http_url,) if http_url else ()
        self._pid = pid

    @property
    def has_transactions(self) -> bool:  # type: ignore[override]
        """If they are set."""
        if not self.http_urls:
            return False
        settings = self.admin.request("GET", "brokers/configuration/runtime")
        return bool(settings["transactionCoordinatorEnabled"] == "true")

    @property
    def faults(self) -> dict[str, Callable[[], None]]:
        """Without the process's id there are only those over REST."""
        found = super().faults
        if self._pid is None:
            found = {"unload": found["unload"]}
        if not self.http_urls:
            del found["unload"]
        return found

    def fault_pause(self) -> None:
        """SIGSTOP for a while."""
        assert self._pid is not None
        self.pause(self._pid)

    def fault_kill(self) -> None:
        """SIGKILL, and a new start with the same command, environment and folder."""
        self._start_again(signal.SIGKILL)

    def fault_term(self) -> None:
        """SIGTERM, and a new start."""
        self._start_again(signal.SIGTERM)

    def _start_again(self, number: int) -> None:
        assert self._pid is not None
        about = Path(f"/proc/{self._pid}")
        command = (about / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
        variables = (about / "environ").read_bytes().decode().rstrip("\0").split("\0")
        cwd = (about / "cwd").readlink()
        os.kill(self._pid, number)
        while about.exists() and "Z" not in (about / "stat").read_text().rpartition(")")[2][:3]:
            time.sleep(0.1)
        self._pid = subprocess.Popen(
            command, env=dict(each.partition("=")[::2] for each in variables), cwd=cwd,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        ).pid  # fmt: skip
        until_s = time.monotonic() + READY_S
        while time.monotonic() < until_s:
            with suppress(AdminError, UnreachableError, OSError):
                if self.http_urls:
                    self.admin.request("GET", "persistent/public/default")
                else:
                    host, _, port = self.kafka_url.rpartition(":")
                    socket.create_connection((host, int(port))).close()
                return
            time.sleep(0.5)
        raise SystemExit(f"{self.service_url or self.kafka_url} does not serve again")
