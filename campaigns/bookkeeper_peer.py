"""A real ZooKeeper and real bookies of Apache BookKeeper on this machine, for tests and the demo.

    python campaigns/bookkeeper_peer.py fetch
    python campaigns/bookkeeper_peer.py start FOLDER [--bookies 3] [--autorecovery]
    python campaigns/bookkeeper_peer.py status | stop FOLDER
    python campaigns/bookkeeper_peer.py kill | pause | resume | restart FOLDER NAME

NAME is zookeeper, bookie-0, bookie-1, ... or autorecovery. Needs Java 17 or newer; ``fetch`` needs
Maven too. The jars (95 MB) come by Maven into a cache outside of the repository:
$BOOKKEEPER_PEER_CACHE, else ~/.cache/bookkeeper-peer. All ports are free ones of 127.0.0.1. The
processes go on after this program has ended; ``FOLDER/peer.json`` says what runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

VERSION = "4.17.3"
DEPENDENCIES = (
    ("org.apache.bookkeeper", "bookkeeper-server", VERSION),
    # ZooKeeper's server needs these two, and does not name them.
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
)
OPENED = ("java.io", "java.util.zip", "java.nio", "jdk.internal.misc")
START_LIMIT_S = 110
ROOT = "/ledgers"
BOOKIE_MEMORY_MB = 160
"""Enough for tests; a load that measures speed needs more."""
LOWEST_PORT = 12_000
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""From where on the system gives ports to outgoing connections."""


class PeerError(Exception):
    """The peer cannot be fetched, started or found."""


def cache_folder() -> Path:
    """Where the jars are kept."""
    default = Path.home() / ".cache" / "bookkeeper-peer"
    return Path(os.environ.get("BOOKKEEPER_PEER_CACHE", default)) / VERSION


def missing() -> str | None:
    """Why no peer can be started without the network; None if one can."""
    if shutil.which("java") is None:
        return "no Java here: BookKeeper's bookies need Java 17 or newer"
    if not (cache_folder() / "lib").is_dir():
        return "BookKeeper's jars are not here: run python campaigns/bookkeeper_peer.py fetch"
    return None


def fetch() -> Path:
    """Have Maven fetch the jars, unless they are there. Returns their folder."""
    return jars(cache_folder() / "lib", DEPENDENCIES)


def jars(lib: Path, wanted: Sequence[tuple[str, str, str]]) -> Path:
    """A folder of jars with what they need, fetched by Maven unless it is there."""
    if lib.is_dir():
        return lib
    if shutil.which("mvn") is None:
        raise PeerError("no Maven here: it fetches the jars")
    lib.parent.mkdir(parents=True, exist_ok=True)
    part = lib.with_name(f"lib.part.{os.getpid()}")
    pom = lib.with_name(f"pom.{os.getpid()}.xml")
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in wanted
    )
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>peer</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={part}"]
    try:
        subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], check=True, cwd=lib.parent)
        part.rename(lib)
    finally:
        pom.unlink()
    return lib


def free_port(count: int = 1) -> int:
    """A port that is free now, and that no outgoing connection takes before a server has it; the
    first one of ``count`` that follow one another.

    A JVM needs seconds until it listens, and what was killed listens there again.
    """
    try:
        first_taken = int(PORT_RANGE.read_text().split()[0])
    except OSError:
        first_taken = 32_768
    for _ in range(1_000):
        port = random.randrange(LOWEST_PORT, max(first_taken, LOWEST_PORT + 1))
        with ExitStack() as stack, suppress(OSError):
            for number in range(port, port + count):
                stack.enter_context(socket.socket()).bind(("0.0.0.0", number))
            return port
    raise PeerError("no port is free")


class BookKeeperPeer:
    """ZooKeeper and bookies that keep their data, logs and state in one folder."""

    def __init__(
        self, folder: Path, *, bookie_settings: str = "", bookie_memory_mb: int = BOOKIE_MEMORY_MB
    ) -> None:
        """`bookie_settings`: more lines for the settings of bookies that are added.

        `bookie_memory_mb`: the heap of each bookie, and as much again for its buffers.
        """
        self.folder = folder.absolute()
        self._bookie_memory_mb = bookie_memory_mb
        self._bookie_settings = bookie_settings
        self.state_file = self.folder / "peer.json"
        state = json.loads(self.state_file.read_text()) if self.state_file.exists() else {}
        self.ports: dict[str, int] = state.get("ports", {})
        self.pids: dict[str, int] = state.get("pids", {})
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        """The processes that this object has started, by their ids."""

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's address, HOST:PORT."""
        return f"127.0.0.1:{self.ports['zookeeper']}"

    @property
    def store(self) -> str:
        """What ``--store`` takes."""
        return f"zk://{self.zookeeper}{ROOT}"

    @property
    def bookies(self) -> list[str]:
        """The bookies' names."""
        return [name for name in self.ports if name.startswith("bookie-")]

    def start(self, bookies: int = 3, *, autorecovery: bool = False) -> None:
        """Start everything anew, and return when all bookies are registered."""
        fetch()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ports["zookeeper"] = free_port()
        self._save()
        self.run("zookeeper")
        self.add_bookies(bookies, first=True)
        if autorecovery:
            self.run("autorecovery")

    def add_bookies(self, count: int, *, first: bool = False) -> list[str]:
        """Start more bookies; their names."""
        begin = len(self.bookies)
        names = [f"bookie-{number}" for number in range(begin, begin + count)]
        for name in names:
            self.ports[name] = free_port()
            self._save()
            self._write_bookie_settings(name)
        if first:
            self._shell("bookie-0", "initnewcluster")
        self.run(*names)
        return names

    def run(self, *names: str) -> None:
        """Start processes, again if they ran before with the same data. Returns when they serve."""
        for name in names:
            self._launch(name)
        for name in names:
            self._wait(name)

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash."""
        self._signal(name, signal.SIGKILL)
        self._gone(name)

    def pause(self, name: str) -> None:
        """SIGSTOP: its connections stay open, and nothing answers."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self._signal(name, signal.SIGCONT)

    def stop(self) -> None:
        """End all processes, the bookies before ZooKeeper."""
        for name in sorted(self.pids):
            archive = self._archive(name)
            self._signal(name, signal.SIGKILL if archive.exists() else signal.SIGTERM)
            self._signal(name, signal.SIGCONT)
            self._gone(name)
            if (part := self.folder / name / archive.name).exists():
                shutil.move(part, archive)

    def is_running(self, name: str) -> bool:
        """Whether its process is there."""
        pid = self.pids.get(name)
        if pid is None:
            return False
        if (started := self._started.get(pid)) is not None:
            return started.poll() is None
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        # A pid may be another process's by now; one that has ended may wait for its parent.
        return stat.rpartition(")")[2].split()[0] != "Z" and str(self.folder).encode() in command

    def serves(self, name: str) -> bool:
        """Whether a process accepts connections."""
        if name == "autorecovery":
            return self.is_running(name)
        try:
            with socket.create_connection(("127.0.0.1", self.ports[name]), timeout=1) as probe:
                if name != "zookeeper":
                    return True
                probe.sendall(b"ruok")
                return probe.recv(4) == b"imok"
        except OSError:
            return False

    def address(self, name: str) -> str:
        """HOST:PORT of a bookie or of ZooKeeper."""
        return f"127.0.0.1:{self.ports[name]}"

    # Inside

    def _save(self) -> None:
        part = self.state_file.with_suffix(".part")
        part.write_text(json.dumps({"ports": self.ports, "pids": self.pids}, indent=1))
        part.replace(self.state_file)

    def _archive(self, name: str) -> Path:
        """The JVM's classes, ready to be used: that halves the time of a start."""
        return cache_folder() / f"{name.partition('-')[0]}.jsa"

    def _classes(self, name: str) -> str:
        archive = self._archive(name)
        if archive.exists():
            return f"-XX:SharedArchiveFile={archive}"
        return f"-XX:ArchiveClassesAtExit={self.folder / name / archive.name}"

    def _java(self, heap_mb: int) -> list[str]:
        opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED]
        memory = [f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={heap_mb}m", "-XX:+UseSerialGC"]
        small = ["-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1", "-Xss512k"]
        return ["java", "-cp", f"{fetch()}/*", f"-Dpeer={self.folder}", *memory, *small, *opened]

    def _command(self, name: str) -> list[str]:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        settings = folder / "settings"
        if name == "zookeeper":
            settings.write_text(
                f"tickTime=2000\ndataDir={folder}/data\nclientPort={self.ports[name]}\n"
                "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
                "4lw.commands.whitelist=ruok\nmaxSessionTimeout=60000\n"
            )
            main = "org.apache.zookeeper.server.ZooKeeperServerMain"
            return [*self._java(128), main, str(settings)]
        if name == "autorecovery":
            settings.write_text(
                f"metadataServiceUri=zk+hierarchical://{self.zookeeper}{ROOT}\nhttpServerEnabled=false\n"
                "openLedgerRereplicationGracePeriod=5000\nlostBookieRecoveryDelay=0\n"
                # Without this it ends at once on a machine whose address is a loopback one.
                "allowLoopback=true\nadvertisedAddress=127.0.0.1\n"
            )
            main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
            return [*self._java(96), main, "--conf", str(settings)]
        main = "org.apache.bookkeeper.server.Main"
        return [*self._java(self._bookie_memory_mb), main, "--conf", str(settings)]

    def _write_bookie_settings(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "settings").write_text(
            f"bookiePort={self.ports[name]}\nadvertisedAddress=127.0.0.1\nallowLoopback=true\n"
            f"metadataServiceUri=zk+hierarchical://{self.zookeeper}{ROOT}\n"
            f"journalDirectories={folder}/journal\nledgerDirectories={folder}/ledgers\n"
            "journalPreAllocSizeMB=16\ndiskUsageThreshold=0.98\nhttpServerEnabled=false\n"
            "nettyMaxFrameSizeBytes=5253120\nnumAddWorkerThreads=1\nnumReadWorkerThreads=2\n"
            "serverNumIOThreads=2\nzkTimeout=10000\n" + self._bookie_settings
        )

    def _launch(self, name: str) -> None:
        java, *words = self._command(name)
        command = [java, self._classes(name), *words]
        with (self.folder / name / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                start_new_session=True,
            )
        self.pids[name] = process.pid
        self._started[process.pid] = process
        self._save()

    def _shell(self, name: str, *command: str) -> None:
        settings = self.folder / name / "settings"
        main = "org.apache.bookkeeper.bookie.BookieShell"
        run = subprocess.run(
            [*self._java(96), main, "-conf", str(settings), *command],
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
        )
        if run.returncode:
            raise PeerError(f"{command[0]}: {run.stdout[-2000:]}{run.stderr[-2000:]}")

    def _wait(self, name: str) -> None:
        limit = time.monotonic() + START_LIMIT_S
        while not self.serves(name):
            if not self.is_running(name):
                log = (self.folder / name / "log").read_text(errors="replace")
                raise PeerError(f"{name} ended: {log[-2000:]}")
            if time.monotonic() > limit:
                raise PeerError(f"{name} does not serve after {START_LIMIT_S} s")
            time.sleep(0.1)

    def _signal(self, name: str, number: int) -> None:
        if self.is_running(name):
            os.kill(self.pids[name], number)

    def _gone(self, name: str) -> None:
        limit = time.monotonic() + START_LIMIT_S
        while self.is_running(name):
            if time.monotonic() > limit:
                raise PeerError(f"{name} does not end")
            time.sleep(0.02)
        started = self._started.pop(self.pids.get(name, -1), None)
        if started is not None:
            started.wait()


def main() -> int:
    """Run one command; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch")
    start = commands.add_parser("start")
    start.add_argument("folder", type=Path)
    start.add_argument("--bookies", type=int, default=3)
    start.add_argument("--autorecovery", action="store_true")
    for name in ("status", "stop"):
        commands.add_parser(name).add_argument("folder", type=Path)
    for name in ("kill", "pause", "resume", "restart"):
        one = commands.add_parser(name)
        one.add_argument("folder", type=Path)
        one.add_argument("name")
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "fetch":
        print(fetch())
        return 0
    peer = BookKeeperPeer(arguments.folder)
    if arguments.command == "start":
        peer.start(arguments.bookies, autorecovery=arguments.autorecovery)
    elif arguments.command == "stop":
        peer.stop()
        return 0
    elif arguments.command in ("kill", "pause", "resume"):
        getattr(peer, arguments.command)(arguments.name)
    elif arguments.command == "restart":
        peer.kill(arguments.name)
        peer.run(arguments.name)
    print(f"store {peer.store}")
    for name in peer.ports | peer.pids:
        where = peer.address(name) if name in peer.ports else "-"
        print(f"{name} {where} pid {peer.pids.get(name)} serves {peer.serves(name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
