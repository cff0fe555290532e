"""The coordination service of one machine: on disk, and over a socket."""

import asyncio
import signal
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pulsemark.coordination import (
    ConnectionLossError,
    CoordinationUnavailableError,
    NodeMissingError,
    SessionExpiredError,
    State,
)
from pulsemark.coordination.local import LocalCoordination, LocalServer, Silence, line_of
from pulsemark.coordination.memory import DurableTree, MemoryTree


async def test_persistent_nodes_outlive_the_process(tmp_path):
    """Nodes, versions and sequence numbers are there again; ephemeral nodes are not."""
    tree = DurableTree(tmp_path / "tree")
    session = tree.session()
    await session.create("/a/b", b"1", make_parents=True)
    await session.set("/a/b", b"2")
    await session.create("/a/e", ephemeral=True)
    first = await session.create("/a/n-", sequence=True)
    await session.create("/gone")
    await session.delete("/gone")
    tree.close()
    again = DurableTree(tmp_path / "tree")
    session = again.session()
    assert again.paths() == sorted(["/", "/a", "/a/b", first])
    assert await session.get("/a/b") == (b"2", 1)
    second = await session.create("/a/n-", sequence=True)
    assert second > first
    again.close()


async def test_an_answer_that_cannot_be_read_ends_the_session():
    """What waits fails, and the state says that the session is lost."""
    served = asyncio.Event()

    async def serve(reader, writer):
        writer.write(line_of(1, 5_000) + b"no message\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        served.set()

    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.start_unix_server(serve, f"{folder}/socket")
        session = await LocalCoordination.connect(Path(folder) / "socket")
        lost = asyncio.Event()
        session.listen(lambda state: lost.set() if state is State.LOST else None)
        async with asyncio.timeout(10):
            await lost.wait()
        with pytest.raises(SessionExpiredError):
            await session.get("/")
        await session.close()
        await served.wait()
        server.close()


async def test_a_changed_bit_is_an_error_or_changes_nothing(tmp_path):
    """Nodes are as they were stored, or the file is refused with its name."""
    file = tmp_path / "tree"
    tree = DurableTree(file)
    session = tree.session()
    await session.create("/policies/public", b'{"retention": 1440}', make_parents=True)
    await session.set("/policies/public", b'{"retention": 2880}')
    await session.create("/n-", sequence=True)
    tree.close()
    data = file.read_bytes()
    expected = {path: tree.facts(path) for path in tree.paths()}
    noticed = 0
    for offset in [each for each in range(4096, len(data)) if data[each]]:
        file.write_bytes(
            data[:offset] + bytes([data[offset] ^ 1 << offset % 8]) + data[offset + 1 :]
        )
        try:
            again = DurableTree(file)
        except CoordinationUnavailableError as error:
            noticed += 1
            assert str(file) in str(error)
            continue
        assert {path: again.facts(path) for path in again.paths()} == expected, offset
        again.close()
    assert noticed > 50


async def test_a_change_that_cannot_be_stored_is_not_made(tmp_path):
    """If the disk refuses a change, no session sees it."""
    tree = DurableTree(tmp_path / "tree")
    session = tree.session()
    await session.create("/a", b"1")
    tree.close()
    with pytest.raises(sqlite3.Error):
        await session.set("/a", b"2")
    with pytest.raises(sqlite3.Error):
        await session.create("/b")
    assert await session.get("/a") == (b"1", 0)
    with pytest.raises(NodeMissingError):
        await session.get("/b")


async def test_the_end_of_the_server(tmp_path):
    """A session is lost when the server ends, and says so; waiting requests fail."""
    socket = Path(tempfile.mkdtemp()) / "socket"
    tree = DurableTree(tmp_path / "tree")
    server = LocalServer(tree, socket)
    await server.start()
    session = await LocalCoordination.connect(socket)
    states: list[State] = []
    session.listen(states.append)
    await server.close()
    with pytest.raises((ConnectionLossError, Exception)):
        await session.get("/a")
    assert states == [State.LOST]
    await session.close()
    tree.close()


async def test_a_process_that_hangs(tmp_path, processes):
    """The server names a process that is stopped, and says when it hears it again. After the
    session's time the session ends, and its ephemeral nodes go. One that only waits keeps its own.
    """
    socket = Path(tempfile.mkdtemp()) / "socket"
    tree = DurableTree(tmp_path / "tree")
    told: asyncio.Queue[tuple[int, Silence]] = asyncio.Queue()
    server = LocalServer(
        tree,
        socket,
        on_silence=lambda pid, silence: told.put_nowait((pid, silence)),
        session_timeout_ms=2_000,
    )
    await server.start()
    idle = await LocalCoordination.connect(socket)
    await idle.create("/idle", ephemeral=True)
    process = await processes(
        "import asyncio, pathlib, sys\n"
        "from pulsemark.coordination.local import LocalCoordination\n"
        "async def main():\n"
        "    session = await LocalCoordination.connect(pathlib.Path(sys.argv[1]))\n"
        "    await session.create('/hangs', ephemeral=True)\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n",
        str(socket),
    )
    assert await process.stdout.readline() == b"ready\n"
    gone = asyncio.Event()
    await idle.watch("/hangs", gone.set)
    async with asyncio.timeout(60):
        process.send_signal(signal.SIGSTOP)
        assert await told.get() == (process.pid, Silence.BEGAN)
        assert await idle.exists("/hangs") is not None
        process.send_signal(signal.SIGCONT)
        assert await told.get() == (process.pid, Silence.OVER)
        process.send_signal(signal.SIGSTOP)
        assert await told.get() == (process.pid, Silence.BEGAN)
        assert await told.get() == (process.pid, Silence.TOO_LONG)
        await gone.wait()
    assert await idle.exists("/hangs") is None
    assert await idle.exists("/idle") is not None
    assert told.empty()
    await idle.close()
    await server.close()
    tree.close()


@pytest.fixture
async def processes():
    """Starts Python programs, and kills them after the test."""
    made = []

    async def start(program, *arguments):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, *arguments), stdout=asyncio.subprocess.PIPE
        )
        made.append(process)
        return process

    yield start
    for process in made:
        process.kill()
        await process.wait()


async def test_a_session_is_closed_while_a_ping_is_due():
    """Closing a session ends the task that pings, also when its next ping is due."""
    socket = Path(tempfile.mkdtemp()) / "socket"
    server = LocalServer(MemoryTree(), socket, session_timeout_ms=1_000)
    await server.start()
    session = await LocalCoordination.connect(socket)
    await asyncio.sleep(0.02)
    time.sleep(0.15)  # noqa: ASYNC251 - now the next ping is due,
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # and its task wakes up in this turn of the loop
    await session.close()
    await server.close()


async def test_a_server_that_hangs():
    """A request that is not answered in time raises ConnectionLossError."""
    socket = Path(tempfile.mkdtemp()) / "socket"

    async def answer_nothing(reader, writer):
        writer.write(line_of(1, 100))
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(answer_nothing, str(socket)):
        session = await LocalCoordination.connect(socket)
        with pytest.raises(ConnectionLossError):
            await session.get("/a")
        await session.close()
