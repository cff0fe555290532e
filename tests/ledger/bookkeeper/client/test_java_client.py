"""Both ways with the official Java client, on real bookies; skips without Java or its jars."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bookkeeper_peer import OPENED, BookKeeperPeer, fetch

from pulsemark.coordination import connect
from pulsemark.ledger.bookkeeper.client import BookKeeperClient, DigestType
from pulsemark.ledger.bookkeeper.client.errors import LedgerFencedError

PROGRAM = Path(__file__).resolve().parents[4] / "compat" / "bookkeeper_java" / "Ledgers.java"
JAVA_NAMES = {"CRC32C": "CRC32C", "CRC32": "CRC32", "HMAC": "MAC", "DUMMY": "DUMMY"}
OPENS = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED]
SMALL = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]


class JavaClient:
    """The Java program, which answers one line for each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str) -> str:
        """One command's answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        """The next answer; what libraries print is left out."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            assert not line.startswith("! "), line
            if line.startswith("= "):
                return line[2:].strip()
        raise AssertionError("the Java program ended")


@pytest.fixture(scope="module")
def java(bookkeeper_peer: BookKeeperPeer) -> Iterator[JavaClient]:
    """The official client, connected to the peer's cluster."""
    zookeeper = bookkeeper_peer.store.removeprefix("zk://")
    command = ["java", "-cp", f"{fetch()}/*", *SMALL, *OPENS, str(PROGRAM), zookeeper]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        client = JavaClient(process)
        try:
            assert client.answer() == "ready"
            yield client
        finally:
            process.kill()


def summary(payloads: list[bytes]) -> str:
    """What the Java program says of a ledger with these entries."""
    sum_of_all = hashlib.sha256(b"".join(payloads)).hexdigest()
    return f"{len(payloads) - 1} {sum(map(len, payloads))} {sum_of_all}"


@pytest.mark.timeout(110)
@pytest.mark.parametrize("digest", JAVA_NAMES)
@pytest.mark.parametrize("closes", [True, False])
async def test_java_reads_and_recovers_ours(
    bookkeeper_peer: BookKeeperPeer, java: JavaClient, digest: str, closes: bool
) -> None:
    """The Java client reads our closed ledger, and recovers the one that we left open."""
    session = await connect(bookkeeper_peer.zookeeper, session_timeout_ms=10_000)
    client = BookKeeperClient(session)
    writer = await client.create_ledger(digest_type=DigestType[digest], password=b"secret")
    payloads = [b"our entry %d" % number for number in range(20)]
    await asyncio.gather(*map(writer.append, payloads))
    if closes:
        await writer.close()
    said = await asyncio.to_thread(
        java.ask, f"read {writer.ledger_id} {JAVA_NAMES[digest]} secret recover"
    )
    assert said == summary(payloads)
    if not closes:
        with pytest.raises(LedgerFencedError):
            await writer.append(b"too late")
        # Java closed the ledger as this writer would have.
        assert (await writer.close()).last_entry_id == 19
    await client.close()
    await session.close()


@pytest.mark.timeout(110)
@pytest.mark.parametrize("digest", JAVA_NAMES)
@pytest.mark.parametrize("ending", ["close", "leave"])
async def test_we_read_and_recover_javas(
    bookkeeper_peer: BookKeeperPeer, java: JavaClient, digest: str, ending: str
) -> None:
    """We read the Java client's closed ledger, and recover the one that it left open."""
    line = f"write {JAVA_NAMES[digest]} secret 20 {ending}"
    ledger_id = int(await asyncio.to_thread(java.ask, line))
    session = await connect(bookkeeper_peer.zookeeper, session_timeout_ms=10_000)
    client = BookKeeperClient(session)
    payloads = [b"java entry %d" % number for number in range(20)]
    if ending == "leave":
        looking = await client.open_ledger_no_recovery(ledger_id, password=b"secret")
        assert looking.last_confirmed == 18
        assert not looking.metadata.is_closed
    reader = await client.open_ledger(ledger_id, password=b"secret")
    assert [one.payload for one in await reader.read(0, 19)] == payloads
    assert reader.metadata.length == sum(map(len, payloads))
    said = await asyncio.to_thread(java.ask, f"read {ledger_id} {JAVA_NAMES[digest]} secret look")
    assert said == summary(payloads)
    await client.close()
    await session.close()


@pytest.mark.timeout(110)
async def test_bookie_shell_knows_our_ledger(bookkeeper_peer: BookKeeperPeer) -> None:
    """BookieShell shows our ledger's metadata, and reads its entries from a bookie."""
    session = await connect(bookkeeper_peer.zookeeper, session_timeout_ms=10_000)
    client = BookKeeperClient(session)
    writer = await client.create_ledger(custom_metadata={"topic": b"news"})
    for number in range(3):
        await writer.append(b"our entry %d" % number)
    await writer.close()
    ledger = str(writer.ledger_id)
    shown = await asyncio.to_thread(shell, bookkeeper_peer, "ledgermetadata", "-ledgerid", ledger)
    for fact in (
        "ensembleSize=3",
        "writeQuorumSize=3",
        "ackQuorumSize=2",
        "state=CLOSED",
        "length=33",
        "lastEntryId=2",
        "digestType=CRC32C",
        "topic=base64:bmV3cw==",
    ):
        assert fact in shown  # fmt: skip
    read = await asyncio.to_thread(
        shell, bookkeeper_peer, "readledger", "-ledgerid", ledger, "-msg"
    )
    for number in range(3):
        assert f"our entry {number}" in read
    await client.close()
    await session.close()


def shell(peer: BookKeeperPeer, *command: str) -> str:
    """What BookieShell prints."""
    main = "org.apache.bookkeeper.bookie.BookieShell"
    settings = peer.folder / "bookie-0" / "settings"
    done = subprocess.run(
        ["java", "-cp", f"{fetch()}/*", *SMALL, *OPENS, main, "-conf", str(settings), *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=peer.folder,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
