"""TLS to bookies that have it, that have none, and that one does not trust."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from bookkeeper_peer import BookKeeperPeer, PeerError, missing

from pulsemark.coordination import connect
from pulsemark.ledger import EARLIEST
from pulsemark.ledger.bookkeeper.client import (
    BookieTls,
    BookKeeperClient,
    LedgerEntry,
)
from pulsemark.ledger.bookkeeper.client.bookies import Bookies
from pulsemark.ledger.bookkeeper.client.errors import (
    BookieError,
    BookieProtocolError,
    BookieTlsError,
    BookieUnreachableError,
    LedgerMissingError,
    NotEnoughBookiesError,
    TlsFilesError,
)
from pulsemark.ledger.bookkeeper.client.frames import START_TLS, read_request
from pulsemark.ledger.bookkeeper.client.options import ClientOptions
from pulsemark.ledger.bookkeeper.client.registry import BookieRegistry
from pulsemark.ledger.bookkeeper.reader import BookKeeperReader
from pulsemark.ledger.bookkeeper.store import BookKeeperStore
from pulsemark.proto.bookkeeper_wire_pb2 import Request, Response
from tests.support.fake_bookie import FakeBookie

TOPIC = "persistent://public/default/orders"
OPTIONS = ClientOptions(reconnect_delay_ms=1, read_timeout_ms=20_000)
READ = read_request(1, 0, timeout_ms=20_000)


def files(
    folder: Path, *, shown: str | None = "client", trusted: str = "ca", check_hostname: bool = False
) -> BookieTls:
    """A client's files."""
    return BookieTls(
        trust_certs_file=str(folder / f"{trusted}.pem"),
        certificate_file=str(folder / f"{shown}.pem") if shown else None,
        key_file=str(folder / f"{shown}.key") if shown else None,
        check_hostname=check_hostname,
    )


class SecuredBookie:
    """A bookie in memory on a port of its own; `start_tls` says what it answers to START_TLS."""

    def __init__(self, folder: Path, *, name: str = "bookie", asks_client: bool = True) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
        if asks_client:
            self.context.load_verify_locations(folder / "ca.pem")
            self.context.verify_mode = ssl.CERT_REQUIRED
        self.held = FakeBookie("b")
        self.asked_in_plain: list[int] = []
        self.status = 0
        self.after_answer = b""
        self.peers: list[object] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = await self._frame(reader)
        request = Request.FromString(frame)
        self.asked_in_plain.append(request.header.operation)
        data = Response(header=request.header, status=self.status).SerializeToString()
        writer.write(struct.pack(">I", len(data)) + data + self.after_answer)
        if not self.status:
            await writer.start_tls(self.context)
            self.peers.append(writer.get_extra_info("peercert"))
        while True:
            self.held.handle(await self._frame(reader), writer.write)

    @staticmethod
    async def _frame(reader: asyncio.StreamReader) -> bytes:
        size = struct.unpack(">I", await reader.readexactly(4))[0]
        return await reader.readexactly(size)


@asynccontextmanager
async def connected(bookie: SecuredBookie, tls: BookieTls) -> AsyncIterator[Bookies]:
    """A client of this bookie."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.CancelledError):
            await bookie.serve(reader, writer)

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    address: tuple[str, int] = server.sockets[0].getsockname()

    async def resolve(name: str) -> tuple[str, int]:
        return address

    bookies = Bookies(resolve, OPTIONS, tls.renewed())
    try:
        async with asyncio.timeout(60):
            yield bookies
    finally:
        await bookies.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("check_hostname", [False, True])
async def test_requests_go_over_tls(bookie_certificates: Path, check_hostname: bool) -> None:
    """Nothing but START_TLS is sent in plain, and the bookie gets the client's certificate."""
    bookie = SecuredBookie(bookie_certificates)
    tls = files(bookie_certificates, check_hostname=check_hostname)
    async with connected(bookie, tls) as bookies:
        with pytest.raises(LedgerMissingError):
            await bookies.ask("b", READ)
        bookie.held.hold(1, 0, b"x" * 300_000, b"k")
        assert (await bookies.ask("b", READ)).readResponse.body == b"x" * 300_000
    assert bookie.asked_in_plain == [START_TLS]
    assert str(bookie.peers).count("client") == 1


def test_on_uvloop(bookie_certificates: Path) -> None:
    """The engine's own loop is uvloop's: there, too, requests go over TLS."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        bookie = SecuredBookie(bookie_certificates)
        bookie.held.hold(1, 0, b"x" * 300_000, b"k")
        async with connected(bookie, files(bookie_certificates)) as bookies:
            assert (await bookies.ask("b", READ)).readResponse.body == b"x" * 300_000
        other = SecuredBookie(bookie_certificates, name="expired")
        error = await failure(other, files(bookie_certificates))
        assert isinstance(error, BookieTlsError)
        assert "certificate has expired" in str(error)
        for shown in (None, "stranger"):
            error = await failure(
                SecuredBookie(bookie_certificates), files(bookie_certificates, shown=shown)
            )
            assert isinstance(error, BookieTlsError | BookieUnreachableError)

    uvloop.run(main())


async def failure(bookie: SecuredBookie, tls: BookieTls) -> BookieError:
    """Why a request fails."""
    async with connected(bookie, tls) as bookies:
        with pytest.raises(BookieError) as caught:
            await bookies.ask("b", READ)
        assert bookie.asked_in_plain[0] == START_TLS
        assert set(bookie.asked_in_plain) == {START_TLS}
        assert caught.value.bookie == "b"
        return caught.value


@pytest.mark.parametrize(
    ("name", "trusted", "check_hostname", "said"),
    [
        ("bookie", "other", False, "self-signed certificate"),
        ("expired", "ca", False, "certificate has expired"),
        ("elsewhere", "ca", True, "not valid for '127.0.0.1'"),
    ],
)
async def test_a_certificate_that_is_not_trusted(
    bookie_certificates: Path, name: str, trusted: str, check_hostname: bool, said: str
) -> None:
    """A bookie of another authority, whose time is over or of another host is refused."""
    tls = files(bookie_certificates, trusted=trusted, check_hostname=check_hostname)
    error = await failure(SecuredBookie(bookie_certificates, name=name), tls)
    assert isinstance(error, BookieTlsError)
    assert said in str(error)


@pytest.mark.parametrize("shown", [None, "stranger"])
async def test_a_client_that_is_not_trusted(bookie_certificates: Path, shown: str | None) -> None:
    """A bookie that refuses the client's certificate, or wants one, is a typed error."""
    error = await failure(
        SecuredBookie(bookie_certificates), files(bookie_certificates, shown=shown)
    )
    assert isinstance(error, BookieTlsError | BookieUnreachableError)


async def test_any_host_unless_it_is_checked(bookie_certificates: Path) -> None:
    """By default, as in Pulsar, a bookie's certificate may be for another host."""
    bookie = SecuredBookie(bookie_certificates, name="elsewhere", asks_client=False)
    bookie.held.hold(1, 0, b"x", b"k")
    async with connected(bookie, files(bookie_certificates, shown=None)) as bookies:
        assert (await bookies.ask("b", READ)).readResponse.body == b"x"


async def test_a_bookie_without_tls(bookie_certificates: Path) -> None:
    """It answers START_TLS with an error, and then nothing is sent to it in plain."""
    bookie = SecuredBookie(bookie_certificates)
    bookie.status = 404
    error = await failure(bookie, files(bookie_certificates))
    assert isinstance(error, BookieTlsError)
    assert "it has no TLS" in str(error)


async def test_plain_bytes_after_the_answer(bookie_certificates: Path) -> None:
    """A frame in plain before the handshake is not taken for one that came over TLS."""
    bookie = SecuredBookie(bookie_certificates)
    bookie.after_answer = b"\x00\x00\x00\x01x"
    error = await failure(bookie, files(bookie_certificates))
    assert isinstance(error, BookieProtocolError)


def test_files_that_cannot_be_used(bookie_certificates: Path, tmp_path: Path) -> None:
    """A missing file, one that is no PEM, and a key of another certificate are typed errors."""
    folder = bookie_certificates
    (tmp_path / "text.pem").write_text("no certificate")
    for tls in (
        files(tmp_path),
        files(folder, trusted="absent"),
        BookieTls(trust_certs_file=str(tmp_path / "text.pem")),
        BookieTls(
            trust_certs_file=str(folder / "ca.pem"),
            certificate_file=str(folder / "client.pem"),
            key_file=str(folder / "bookie.key"),
        ),
        BookieTls(
            trust_certs_file=str(folder / "ca.pem"),
            certificate_file=str(folder / "client.pem"),
            key_file=str(folder / "locked.key"),
        ),
    ):
        with pytest.raises(TlsFilesError):
            tls.renewed()
    with_password = BookieTls(
        trust_certs_file=str(folder / "ca.pem"),
        certificate_file=str(folder / "client.pem"),
        key_file=str(folder / "locked.key"),
        key_password_file=str(folder / "password"),
    )
    assert with_password.renewed()().verify_mode is ssl.CERT_REQUIRED


def test_changed_files_are_read_again(bookie_certificates: Path, tmp_path: Path) -> None:
    """New connections use new files; as long as these are no good, the old ones stay in use."""
    for name in ("ca.pem", "client.pem", "client.key"):
        shutil.copy(bookie_certificates / name, tmp_path)
    now_s = 0.0
    contexts = files(tmp_path).renewed(lambda: now_s)
    first = contexts()
    shutil.copy(bookie_certificates / "other.pem", tmp_path / "ca.pem")
    assert contexts() is first
    now_s = 301
    second = contexts()
    assert second is not first
    (tmp_path / "client.pem").write_text("half")
    now_s = 602
    assert contexts() is second
    shutil.copy(bookie_certificates / "stranger.pem", tmp_path / "client.pem")
    shutil.copy(bookie_certificates / "stranger.key", tmp_path / "client.key")
    now_s = 903
    assert contexts() is not second


async def all_registered(peer: BookKeeperPeer) -> None:
    """Wait until ZooKeeper names all three bookies: a little later than they serve."""
    session = await connect(peer.zookeeper)
    registry = BookieRegistry(session, "/ledgers", ClientOptions())
    try:
        async with asyncio.timeout(60):
            while len(await registry.writable()) < 3:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.1)
    finally:
        await session.close()


@pytest.fixture(scope="module")
def secured_peer(
    bookie_certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BookKeeperPeer]:
    """Real bookies with TLS that want a certificate of their clients."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    folder = bookie_certificates
    settings = (
        "tlsProvider=JDK\ntlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n"
        f"tlsKeyStoreType=PEM\ntlsKeyStore={folder}/bookie.key\n"
        f"tlsCertificatePath={folder}/bookie.pem\n"
        f"tlsClientAuthentication=true\ntlsTrustStoreType=PEM\ntlsTrustStore={folder}/ca.pem\n"
    )
    for attempt in range(3):
        peer = BookKeeperPeer(tmp_path_factory.mktemp("secured"), bookie_settings=settings)
        try:
            peer.start(3)
        except PeerError:
            peer.stop()
            if attempt == 2:
                raise
            continue
        break
    try:
        asyncio.run(all_registered(peer))
        yield peer
    finally:
        peer.stop()


async def test_real_bookies_with_tls(
    secured_peer: BookKeeperPeer, bookie_certificates: Path
) -> None:
    """A ledger is written, read and recovered over TLS, by a client with a certificate."""
    session = await connect(secured_peer.zookeeper)
    tls = files(bookie_certificates, check_hostname=True)
    client, other = BookKeeperClient(session, tls=tls), BookKeeperClient(session, tls=tls)
    payloads = [b"x" * (size * 997 % 300_000) for size in range(60)]
    try:
        writer = await client.create_ledger()
        await writer.append_all([(payload,) for payload in payloads])
        reader = await other.open_ledger(writer.ledger_id)
        found: list[LedgerEntry] = []
        while len(found) < len(payloads):
            found += await reader.read(len(found), len(payloads) - 1)
        assert [entry.payload for entry in found] == payloads
    finally:
        await client.close()
        await other.close()
        await session.close()


@pytest.mark.parametrize("shown", [None, "stranger"])
async def test_real_bookies_refuse_other_clients(
    secured_peer: BookKeeperPeer, bookie_certificates: Path, shown: str | None
) -> None:
    """Without a certificate of their authority nothing is written, and it is said why."""
    session = await connect(secured_peer.zookeeper)
    client = BookKeeperClient(session, tls=files(bookie_certificates, shown=shown))
    try:
        writer = await client.create_ledger()
        with pytest.raises(NotEnoughBookiesError):
            await writer.append(b"x")
    finally:
        await client.close()
        await session.close()


@pytest.mark.skipif(
    "BOOKKEEPER_PEER_FOLDER" in os.environ, reason="the bookies there may have other settings"
)
async def test_real_bookies_without_tls(
    bookkeeper_peer: BookKeeperPeer, bookie_certificates: Path
) -> None:
    """A real bookie without TLS says so, and gets nothing in plain."""
    await all_registered(bookkeeper_peer)
    session = await connect(bookkeeper_peer.zookeeper)
    client = BookKeeperClient(session, tls=files(bookie_certificates))
    try:
        writer = await client.create_ledger()
        with pytest.raises(NotEnoughBookiesError):
            await writer.append(b"x")
    finally:
        await client.close()
        await session.close()


def test_a_store_on_bookies_with_tls(
    secured_peer: BookKeeperPeer, bookie_certificates: Path
) -> None:
    """The engine writes its entries over TLS, and a reader without a broker reads them."""
    tls, root = files(bookie_certificates), f"/test/{uuid4().hex}"
    with BookKeeperStore.open(secured_peer.store, root=root, tls=tls) as store:
        topic = store.open_topic(TOPIC)
        for number in range(30):
            last = topic.append(b"%d" % number)
        last.commit.wait(60)
    with BookKeeperReader.open(secured_peer.store, root=root, tls=tls) as reader:
        found = reader.log(TOPIC).read(EARLIEST, max_entries=100)
        assert [bytes(entry.body) for entry in found] == [b"%d" % one for one in range(30)]
