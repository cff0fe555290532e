"""The seek service alone, over a data folder at rest or in use."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from pulsemark.finder import NotPossibleError, SeekClient
from pulsemark.finder.errors import BindError
from pulsemark.finder.server import FolderSource, ServerOptions, folder_server
from pulsemark.ledger import ForeignFolderError, TopicNotFoundError

WRITER = """
import sys
from pathlib import Path
from pulsemark.ledger import LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.testing.clock import SettableClock

clock = SettableClock(1000)
store = LocalStore.open(Path(sys.argv[1]), clock=clock)
for line in sys.stdin:
    name, count, what = line.split()
    topic = store.open_topic(name)
    topic.stampers = StamperChain.from_names(["broker-time", "index"])
    for _ in range(int(count)):
        appended = topic.append(b"x" * 50)
        clock.advance(by_ms=10)
    appended.commit.wait()
    if what == "roll":
        topic.roll()
    print(appended.index, flush=True)
store.close()
"""

SERVER = """
import asyncio, sys
from pathlib import Path
from pulsemark.finder.server import folder_server
from pulsemark.until_signal import stop_event

async def serve():
    stop = stop_event()
    async with folder_server(Path(sys.argv[1])) as server:
        print(server.target, flush=True)
        await stop.wait()

asyncio.run(serve())
"""


@asynccontextmanager
async def asked(folder, **more):
    """A server over the folder, and a way to use its client without blocking the loop."""
    loop = asyncio.get_running_loop()
    async with folder_server(folder, **more) as server:
        with SeekClient(server.target) as seek, ThreadPoolExecutor(1) as pool:

            async def ask(call, *args, **more):
                return await loop.run_in_executor(pool, lambda: call(seek, *args, **more))

            yield ask


async def test_a_folder_at_rest_can_be_asked(topics):
    """All searches and reads work without a broker; cursors, which are the broker's, do not."""
    topics.fill([bytes([n]) for n in range(5)])
    topics.store.close()
    async with asked(topics.folder) as ask:
        found = await ask(SeekClient.by_time, topics.ORDERS, topics.FIRST_MS + 15)
        assert (found.index, found.end) == (2, False)
        assert (await ask(SeekClient.by_index, topics.ORDERS, 4)).index == 4
        entries = await ask(lambda seek: list(seek.read_entries(topics.ORDERS)))
        assert [entry.body for entry in entries] == [bytes([n]) for n in range(5)]
        with pytest.raises(NotPossibleError):
            await ask(SeekClient.reset_cursor, topics.ORDERS, "audit", index=1)
        with pytest.raises(TopicNotFoundError):
            await ask(SeekClient.by_time, topics.ORDERS + "x", 1)


async def test_a_folder_that_another_process_writes_is_followed(topics):
    """What another process has made durable is seen by the next call: entries, ledgers, topics."""
    topics.store.close()
    with subprocess.Popen(  # noqa: ASYNC220 - its pipes are read on threads
        [sys.executable, "-c", WRITER, topics.folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None

        def write(topic, count, what="stay", *, to=writer.stdin, answers=writer.stdout):
            to.write(f"{topic} {count} {what}\n")
            to.flush()
            return int(answers.readline())

        async with asked(topics.folder) as ask:
            with pytest.raises(TopicNotFoundError):
                await ask(SeekClient.by_time, topics.ORDERS, 0)
            for count, what in ((1, "stay"), (3, "stay"), (700, "roll"), (2, "stay"), (5, "roll")):
                last = await asyncio.to_thread(write, topics.ORDERS, count, what)
                place = await ask(SeekClient.by_index, topics.ORDERS, last)
                assert (place.index, place.time_ms) == (last, 1000 + 10 * last)
                found = await ask(SeekClient.by_time, topics.ORDERS, 1000 + 10 * last + 1)
                assert (found.end, found.index) == (True, last + 1)
            entries = await ask(lambda seek: list(seek.read_entries(topics.ORDERS)))
            assert [entry.index for entry in entries] == list(range(711))
            other = topics.ORDERS + "-other"
            await asyncio.to_thread(write, other, 1)
            assert (await ask(SeekClient.by_index, other, 0)).index == 0
        writer.stdin.close()
        assert writer.wait(30) == 0


def test_a_topic_can_be_asked_from_many_threads(topics):
    """Following a growing topic from several threads at once gives each a consistent view."""
    log = topics.fill([b"x"])
    source = FolderSource(topics.folder)

    def look(_):
        seen = source.log(topics.ORDERS)
        assert seen.first_position is not None
        assert seen.last_position is not None
        [first] = seen.read(seen.first_position, max_entries=1)
        last = seen.read(seen.last_position)[-1]
        return first.index, last.index

    with ThreadPoolExecutor(4) as pool:
        before = 0
        for _ in range(30):
            answers = pool.map(look, range(8))
            topics.fill([b"x"] * 3)
            for first, last in answers:
                assert first == 0
                assert before <= last < log.next_index
            before = log.next_index - 1
            assert look(None) == (0, before)
    source.close()


async def test_short_names_work_with_a_normaliser(topics):
    """The command line hands its parser in."""
    topics.fill([b"a"])
    normalise = "persistent://public/default/{}".format
    async with asked(topics.folder, normalise=normalise) as ask:
        assert (await ask(SeekClient.by_index, "orders", 0)).index == 0


async def test_a_folder_of_others_is_refused(tmp_path):
    """Neither a missing nor a foreign folder is served."""
    (tmp_path / "thesis.tex").write_text("")
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ForeignFolderError):
            async with folder_server(folder):
                pass


async def test_a_start_that_fails_lets_the_folder_go(topics, monkeypatch):
    """A taken port must not leave files open."""
    closed = []

    def close(source):
        closed.append(source)

    monkeypatch.setattr(FolderSource, "close", close)
    async with folder_server(topics.folder) as server:
        with pytest.raises(BindError):
            async with folder_server(topics.folder, ServerOptions(port=server.port)):
                pass
        assert len(closed) == 1
    assert len(closed) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_stops_on_signals(topics, number):
    """Served from a program, SIGINT and SIGTERM end it in good order, with exit code 0."""
    topics.fill([b"a"])
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, topics.folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        try:
            with SeekClient(program.stdout.readline().strip()) as seek:
                assert seek.by_index(topics.ORDERS, 0).index == 0
            program.send_signal(number)
            output, errors = program.communicate(timeout=30)
        finally:
            program.kill()
    assert (program.returncode, output) == (0, "")
    assert "Traceback" not in errors
