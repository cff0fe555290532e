"""Real connections over localhost, to bookies that answer, hang, break off or talk nonsense."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from pulsemark.ledger.bookkeeper.client.adds import AddEncoder
from pulsemark.ledger.bookkeeper.client.bookies import Bookies
from pulsemark.ledger.bookkeeper.client.errors import (
    BookieError,
    BookieOverloadedError,
    BookieProtocolError,
    BookieRefusedError,
    BookieTimeoutError,
    BookieUnreachableError,
    BookKeeperError,
    ClientClosedError,
    EntryMissingError,
)
from pulsemark.ledger.bookkeeper.client.frames import read_request
from pulsemark.ledger.bookkeeper.client.options import ClientOptions
from pulsemark.proto.bookkeeper_wire_pb2 import Request, Response
from tests.support.fake_bookie import FakeBookie

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OPTIONS = ClientOptions(add_timeout_ms=20_000, read_timeout_ms=20_000, reconnect_delay_ms=1)
READ = read_request(1, 0, timeout_ms=20_000)
KEY = b"k" * 20


async def next_frame(reader: asyncio.StreamReader) -> bytes:
    """The next request's frame."""
    size = struct.unpack(">I", await reader.readexactly(4))[0]
    return await reader.readexactly(size)


def framed(response: Response) -> bytes:
    """An answer's frame."""
    data = response.SerializeToString()
    return struct.pack(">I", len(data)) + data


def answer_to(frame: bytes, **header: int) -> Response:
    """A good answer to a read, with some fields of its header changed."""
    request = Request.FromString(frame)
    response = Response(header=request.header, status=0)
    for name, value in header.items():
        setattr(response.header, name, value)
    response.readResponse.status = 0
    response.readResponse.ledgerId = request.readRequest.ledgerId
    response.readResponse.entryId = request.readRequest.entryId
    return response


async def add(bookies: Bookies, first_entry_id: int, bodies: list[bytes]) -> None:
    """Add entries to ledger 1 of bookie `b`, and wait for them."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    encoder = AddEncoder(1, KEY, timeout_ms=20_000)
    number = bookies.numbers.take(len(bodies))
    run = encoder.encode(first_entry_id, number, [[body] for body in bodies])

    def answered(answer: int | BookKeeperError) -> None:
        if isinstance(answer, BookKeeperError):
            future.set_exception(answer)
        elif answer == len(bodies):
            future.set_result(None)

    bookies.send_adds("b", run, answered)
    await future


@asynccontextmanager
async def serving(serve: Serve, options: ClientOptions = OPTIONS) -> AsyncIterator[Bookies]:
    """A server with this way of serving, and a client of it, whose bookie is called `b`."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    address: tuple[str, int] = server.sockets[0].getsockname()

    async def resolve(bookie: str) -> tuple[str, int]:
        return address

    bookies = Bookies(resolve, options)
    try:
        async with asyncio.timeout(60):
            yield bookies
    finally:
        await bookies.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_many_requests_on_one_connection() -> None:
    """Adds and reads of all sizes go through one connection, and each gets its own answer."""
    bookie, connections = FakeBookie("b"), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            bookie.handle(await next_frame(reader), writer.write)

    async with serving(serve) as bookies:
        bodies = [b"x" * (size * 37 % 30_000) for size in range(200)]
        steps = (0, 1, 2, 90, 91, 200)
        adds = [add(bookies, i, bodies[i:j]) for i, j in pairwise(steps)]
        await asyncio.gather(*adds)
        reads = [
            bookies.ask("b", read_request(1, i, timeout_ms=20_000)) for i in range(len(bodies))
        ]
        answers = await asyncio.gather(*reads)
        assert [one.readResponse.body for one in answers] == bodies
        with pytest.raises(EntryMissingError):
            await bookies.ask("b", read_request(1, 999, timeout_ms=20_000))
        assert connections == 1


async def test_answers_out_of_order_and_unasked_repetitions() -> None:
    """Answers are matched by number; one that comes twice is dropped."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = [await next_frame(reader) for _ in range(3)]
        for frame in (*reversed(frames), *frames):
            response = answer_to(frame)
            response.readResponse.body = b"%d" % response.readResponse.entryId
            writer.write(framed(response))
        while True:
            writer.write(framed(answer_to(await next_frame(reader))))

    async with serving(serve) as bookies:
        asked = [bookies.ask("b", read_request(1, i, timeout_ms=20_000)) for i in range(3)]
        answers = await asyncio.gather(*asked)
        assert [one.readResponse.body for one in answers] == [b"0", b"1", b"2"]
        await bookies.ask("b", READ)


def nonsense(kind: str, frame: bytes) -> bytes:
    """Bytes that are no answer to the request in a frame."""
    good = framed(answer_to(frame))
    no_part = answer_to(frame)
    no_part.ClearField("readResponse")
    other_ledger = answer_to(frame)
    other_ledger.readResponse.ledgerId = 2
    return {
        "cut": good[: len(good) // 2],
        "nothing": b"",
        "huge": b"\xff\xff\xff\xff" + good,
        "garbage": b"\x00\x00\x00\x05\xff\xff\xff\xff\xff",
        "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
        "number": framed(answer_to(frame, txnId=77)),
        "zero": framed(answer_to(frame, txnId=0)),
        "operation": framed(answer_to(frame, operation=2)),
        "version": framed(answer_to(frame, version=2)),
        "empty": framed(no_part),
        "ledger": framed(other_ledger),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("cut", BookieUnreachableError),
        ("nothing", BookieUnreachableError),
        *(
            (kind, BookieProtocolError)
            for kind in ("huge", "garbage", "http", "number", "zero", "operation", "version",
                         "empty", "ledger")
        ),
    ],
)  # fmt: skip
async def test_what_is_no_answer_ends_the_connection(
    kind: str, error: type[BookKeeperError]
) -> None:
    """Everything that waits fails with the bookie's name; the next request connects again."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            frame = await next_frame(reader)
            await next_frame(reader)
            writer.write(nonsense(kind, frame))
            await writer.drain()
            return
        while True:
            writer.write(framed(answer_to(await next_frame(reader))))

    async with serving(serve) as bookies:
        results = await asyncio.gather(
            bookies.ask("b", READ), bookies.ask("b", READ), return_exceptions=True
        )
        for result in results:
            assert isinstance(result, error)
            assert isinstance(result, BookieError)
            assert result.bookie == "b"
        assert (await bookies.ask("b", READ)).status == 0
        assert connections == 2


async def test_a_silent_bookie_is_given_up() -> None:
    """A request's time is over: it fails, and a bookie that said nothing is disconnected."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()

    async with serving(serve) as bookies:
        with pytest.raises(BookieTimeoutError) as caught:
            await bookies.ask("b", read_request(1, 5, timeout_ms=50))
        assert (caught.value.ledger_id, caught.value.entry_id) == (1, 5)
        await ended.wait()


async def test_bytes_that_wait_for_a_bookie_are_bounded() -> None:
    """Above the limit a request fails at once, and nothing more is held for that bookie."""
    options = ClientOptions(max_bookie_bytes=10_000, reconnect_delay_ms=1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serving(serve, options) as bookies:
        for connected in (False, True):
            waiting = [
                asyncio.ensure_future(add(bookies, i, [b"x" * 3_000]))
                for i in range(4 if connected is False else 2)
            ]
            await asyncio.sleep(0)
            failed = [one for one in waiting if one.done()]
            assert len(failed) == (1 if connected is False else 2)
            for one in failed:
                with pytest.raises(BookieOverloadedError):
                    await one
            async with asyncio.timeout(20):
                while bookies.is_connecting("b"):  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.01)


async def test_statuses_and_no_server() -> None:
    """An error status is a typed error that the connection survives; no server is another one."""
    bookie = FakeBookie("b")
    bookie.refuse = lambda request: 506

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            bookie.handle(await next_frame(reader), writer.write)

    async with serving(serve) as bookies:
        for _ in range(2):
            with pytest.raises(BookieRefusedError, match="too many requests") as caught:
                await bookies.ask("b", READ)
            assert caught.value.status == 506

    async def nowhere(bookie: str) -> tuple[str, int]:
        raise BookieUnreachableError("it is not registered", bookie=bookie)

    lost = Bookies(nowhere, OPTIONS)
    with pytest.raises(BookieUnreachableError, match="not registered"):
        await lost.ask("b", READ)
    await lost.close()
    with pytest.raises(ClientClosedError):
        await lost.ask("b", READ)


async def test_close_fails_what_waits() -> None:
    """Closing the client fails requests that are under way and those that wait to be sent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serving(serve) as bookies:
        waiting = [asyncio.ensure_future(bookies.ask("b", READ)) for _ in range(2)]
        await asyncio.sleep(0)
        await bookies.close()
        for one in waiting:
            with pytest.raises(ClientClosedError):
                await one
