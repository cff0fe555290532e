"""One connection to a bookie: frames out, answers in, time limits."""

from __future__ import annotations

import asyncio
import ssl
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from ....metadata.crc import Buffer
from ....proto.bookkeeper_wire_pb2 import Response
from .adds import AddRun, AddsDone
from .errors import (
    STATUS_OK,
    BookieOverloadedError,
    BookieProtocolError,
    BookieTimeoutError,
    BookieTlsError,
    BookieUnreachableError,
    BookKeeperError,
    error_of_status,
)
from .frames import (
    ADD_ENTRY,
    READ_ENTRY,
    READ_LAC,
    WRITE_LAC,
    FrameReader,
    Outgoing,
    frame_start,
    parse_response,
)
from .options import ClientOptions

# Requests of one connection that wait for answers: matched by number, with a time limit each.
#
# No I/O is done here: the connection hands in frames and the time. Adds wait as runs (`adds`), in
# the order of their numbers. The answers that a run gets in order are compared as bytes
# (`take_adds`); any other one is parsed, as all other answers are (`receive`).


Answer = Response | BookKeeperError
Done = Callable[[Answer], None]
"""Called exactly once with an answer whose status is OK, or the error that stands for it."""

_FIELDS = {
    READ_ENTRY: "readResponse",
    ADD_ENTRY: "addResponse",
    READ_LAC: "readLacResponse",
    WRITE_LAC: "writeLacResponse",
}


class Numbers:
    """The client's request numbers, all different."""

    def __init__(self) -> None:
        self._next = 1

    def take(self, count: int = 1) -> int:
        """Take `count` numbers and return the first."""
        first = self._next
        self._next = first + count
        return first


class _Waiting(NamedTuple):
    request: Outgoing
    done: Done
    sent_s: float
    deadline_s: float


class _WaitingAdds:
    """A run of adds of which some are not answered yet."""

    __slots__ = ("answered", "deadline_s", "done", "early", "run", "sent_s")

    def __init__(self, run: AddRun, done: AddsDone, sent_s: float) -> None:
        self.run = run
        self.done = done
        self.sent_s = sent_s
        self.deadline_s = sent_s + run.timeout_ms / 1000
        self.answered = 0
        """How many of the first adds are answered."""
        self.early: set[int] = set()
        """Those after them that are answered, too: their places in the run."""

    def matched(self, data: bytes, start: int) -> int:
        """The number of next adds whose good answers are at `start`, in order."""
        run, answered = self.run, self.answered
        ends = run.answer_ends
        until = min(self.early) if self.early else run.entry_count
        begin = ends[answered]
        until = bisect_right(ends, begin + len(data) - start, answered, until + 1) - 1
        if not data.startswith(run.answers[begin : ends[until]], start):
            until = answered
            while data.startswith(run.answers[ends[until] : ends[until + 1]], start):
                start += ends[until + 1] - ends[until]
                until += 1
        return until - answered

    def answer(self, place: int) -> None:
        """Note an answer: to the add at a place, or to all next ones before it."""
        self.early.add(place)
        while self.answered in self.early:
            self.early.remove(self.answered)
            self.answered += 1


class Exchange:
    """The requests of one connection."""

    def __init__(self, bookie: str, numbers: Numbers) -> None:
        self._bookie = bookie
        self._numbers = numbers
        self._waiting: dict[int, _Waiting] = {}
        self._adds: list[_WaitingAdds] = []
        self._due = 0
        """The place in `_adds` of the run whose answers are expected next."""
        self._last = 0
        self.waiting_bytes = 0
        """Of all requests that wait for an answer."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._adds)

    def begin(self, request: Outgoing, done: Done, now_s: float) -> int:
        """Wait for an answer to a request that is sent now; returns its number."""
        self._last = number = self._numbers.take()
        deadline = now_s + request.timeout_ms / 1000
        self._waiting[number] = _Waiting(request, done, now_s, deadline)
        self.waiting_bytes += request.size_bytes
        return number

    def begin_adds(self, run: AddRun, done: AddsDone, now_s: float) -> None:
        """Wait for answers to adds that are sent now. Their numbers are above all earlier adds'."""
        self._last = max(self._last, run.first_number + run.entry_count - 1)
        self._adds.append(_WaitingAdds(run, done, now_s))
        self.waiting_bytes += run.size_bytes

    # -- answers ----------------------------------------------------------------------------------

    def take_adds(self, data: bytes, start: int) -> int:
        """Take good answers of adds that come in order. Return where they end."""
        while self._due < len(self._adds):
            waiting = self._adds[self._due]
            count = waiting.matched(data, start)
            if not count:
                break
            ends, before = waiting.run.answer_ends, waiting.answered
            start += ends[before + count] - ends[before]
            waiting.answered += count - 1
            self._answered(waiting, before + count - 1)
        return start

    def _answered(self, waiting: _WaitingAdds, place: int) -> None:
        """Note that an add was done. The caller is told once all before it were."""
        before = waiting.answered
        waiting.answer(place)
        if waiting.answered == waiting.run.entry_count:
            self._end_adds(waiting)
        if waiting.answered > before:
            waiting.done(waiting.answered)

    def _end_adds(self, waiting: _WaitingAdds) -> None:
        """Stop waiting for a run, and expect the answers of the next one."""
        self._due = self._adds.index(waiting)
        del self._adds[self._due]
        if self._due == len(self._adds):
            self._due = 0
        self.waiting_bytes -= waiting.run.size_bytes

    def receive(self, frame: bytes) -> None:
        """Pass an answer to its caller, if that still waits. Raises BookieProtocolError."""
        response = parse_response(frame)
        number = response.header.txnId
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            self._receive_add(number, response)
            return
        self.waiting_bytes -= waiting.request.size_bytes
        request = waiting.request
        try:
            error = self._error_in(response, request.operation, request.ledger_id, request.entry_id)
        except BookieProtocolError as no_answer:
            waiting.done(no_answer)
            raise
        waiting.done(error or response)

    def _receive_add(self, number: int, response: Response) -> None:
        """Take an answer to an add that is out of order, or an error."""
        at = bisect_right(self._adds, number, key=lambda one: one.run.first_number) - 1
        waiting = self._adds[at] if at >= 0 else None
        place = number - waiting.run.first_number if waiting is not None else -1
        if waiting is None or place >= waiting.run.entry_count:
            if not 0 < number <= self._last:
                raise self._no_protocol(f"an answer to request {number}, which was never sent")
            return
        if place < waiting.answered or place in waiting.early:
            return
        run = waiting.run
        try:
            error = self._error_in(response, ADD_ENTRY, run.ledger_id, run.first_entry_id + place)
        except BookieProtocolError as no_answer:
            self._end_adds(waiting)
            waiting.done(no_answer)
            raise
        self._due = at
        if error is None:
            self._answered(waiting, place)
        else:
            self._end_adds(waiting)
            waiting.done(error)

    def _error_in(
        self, response: Response, operation: int, ledger_id: int, entry_id: int
    ) -> BookKeeperError | None:
        """The error for an answer's status. Checks that the ids are those of the request."""
        if response.header.operation != operation:
            raise self._no_protocol(f"operation {response.header.operation} answers {operation}")
        if response.status != STATUS_OK:
            entry = entry_id if entry_id >= 0 else None
            return error_of_status(
                response.status, ledger_id=ledger_id, entry_id=entry, bookie=self._bookie
            )
        field = _FIELDS[operation]
        if not response.HasField(field):
            raise self._no_protocol(f"an answer without {field}")
        part = getattr(response, field)
        if part.ledgerId != ledger_id:
            raise self._no_protocol(f"ledger {part.ledgerId} instead of {ledger_id}")
        if operation == ADD_ENTRY and part.entryId != entry_id:
            raise self._no_protocol(f"entry {part.entryId} instead of {entry_id}")
        return None

    def _no_protocol(self, reason: str) -> BookieProtocolError:
        return BookieProtocolError(reason, bookie=self._bookie)

    # -- times and the end ------------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """The first deadline of the waiting requests; None if none waits."""
        deadlines = [one.deadline_s for one in self._waiting.values()]
        deadlines += [one.deadline_s for one in self._adds]
        return min(deadlines, default=None)

    def expire(self, now_s: float, heard_s: float) -> bool:
        """Fail late requests. Return whether the bookie sent nothing since one of them was sent."""
        silent = False
        due = [(n, one) for n, one in self._waiting.items() if one.deadline_s <= now_s]
        for number, waiting in due:
            if self._waiting.pop(number, None) is None:
                continue
            request = waiting.request
            self.waiting_bytes -= request.size_bytes
            silent = silent or heard_s <= waiting.sent_s
            waiting.done(self._late(request, request.entry_id))
        for adds in [one for one in self._adds if one.deadline_s <= now_s]:
            if adds not in self._adds:
                continue
            self._end_adds(adds)
            silent = silent or heard_s <= adds.sent_s
            adds.done(self._late(adds.run, adds.run.first_entry_id + adds.answered))
        return silent

    def _late(self, request: Outgoing | AddRun, entry_id: int) -> BookieTimeoutError:
        return BookieTimeoutError(
            f"{request.timeout_ms} ms",
            ledger_id=request.ledger_id,
            entry_id=entry_id if entry_id >= 0 else None,
            bookie=self._bookie,
        )

    def fail_all(self, error: BookKeeperError) -> None:
        """Fail every waiting request."""
        waiting, self._waiting, self.waiting_bytes = self._waiting, {}, 0
        adds, self._adds, self._due = self._adds, [], 0
        for one in waiting.values():
            one.done(error)
        for run in adds:
            run.done(error)


# An answer to a read is an entry that fitted into a frame once, and a few fields.
_ANSWER_ROOM_BYTES = 64 * 1024


class BookieConnection(asyncio.Protocol):
    """An open connection. It calls ``ended`` once, when it is closed."""

    def __init__(
        self,
        bookie: str,
        options: ClientOptions,
        loop: asyncio.AbstractEventLoop,
        numbers: Numbers,
        ended: Callable[[BookieConnection], None],
    ) -> None:
        self._bookie = bookie
        self._options = options
        self._loop = loop
        self._ended = ended
        self._exchange = Exchange(bookie, numbers)
        self._reader = FrameReader(options.max_frame_bytes + _ANSWER_ROOM_BYTES)
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._heard_s = 0.0
        self._error: BookKeeperError | None = None

    # -- for the user -----------------------------------------------------------------------------

    def send(self, request: Outgoing, done: Done) -> None:
        """Send a request; `done` is called later, or at once if the connection is over."""
        if (refusal := self._refusal(request.size_bytes)) is not None:
            done(refusal)
            return
        now = self._loop.time()
        number = self._exchange.begin(request, done, now)
        self._write((frame_start(request, number), request.body), now, request.timeout_ms)

    def send_adds(self, run: AddRun, done: AddsDone) -> None:
        """Send adds; `done` is called later, or at once if the connection is over."""
        if (refusal := self._refusal(run.size_bytes)) is not None:
            done(refusal)
            return
        now = self._loop.time()
        self._exchange.begin_adds(run, done, now)
        self._write(run.buffers, now, run.timeout_ms)

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._error is None

    def close(self, error: BookKeeperError) -> None:
        """End the connection. All waiting requests fail with this error."""
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()
        self._ended(self)
        self._exchange.fail_all(error)

    # -- inside -----------------------------------------------------------------------------------

    def _refusal(self, size_bytes: int) -> BookKeeperError | None:
        """The reason why a request of this size cannot be sent."""
        if self._error is not None:
            return self._error
        waiting_bytes = self._exchange.waiting_bytes
        if waiting_bytes + size_bytes > self._options.max_bookie_bytes:
            reason = f"{waiting_bytes} bytes wait for its answers"
            return BookieOverloadedError(reason, bookie=self._bookie)
        return None

    def _write(self, buffers: Sequence[Buffer], now_s: float, timeout_ms: int) -> None:
        """Write buffers at the end of this turn of the loop, and watch the time limit."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.extend(buffers)
        due = now_s + timeout_ms / 1000
        if self._timer is None or due < self._timer_s:
            self._set_timer(due)

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            out, self._out = self._out, []
            self._transport.writelines(out)

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_at(due_s, self._look_at_times)

    def _look_at_times(self) -> None:
        """Fail late requests. Disconnect a bookie that has sent nothing meanwhile."""
        self._timer = None
        if self._exchange.expire(self._loop.time(), self._heard_s):
            reason = "it sent nothing since the request"
            self.close(BookieUnreachableError(reason, bookie=self._bookie))
            return
        due = self._exchange.next_deadline_s()
        if due is not None and self._error is None:
            # Not for each request: what is due is looked for a few times a second.
            self._set_timer(max(due, self._loop.time() + 0.05))

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is up."""
        self._transport = cast("asyncio.Transport", transport)
        # Requests wait in our own list and are bounded there; the transport takes all of it.
        self._transport.set_write_buffer_limits(high=self._options.max_bookie_bytes)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take bytes. Invalid bytes end the connection."""
        self._heard_s = self._loop.time()
        try:
            for frame in self._reader.feed(data, self._exchange.take_adds):
                self._exchange.receive(frame)
                if self._error is not None:
                    return
        except BookieProtocolError as error:
            error.bookie = self._bookie
            self.close(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        if isinstance(exc, ssl.SSLError):
            # Only now a bookie says that it does not take the client's certificate (TLS 1.3).
            reason = f"it ended the connection: {exc.reason or exc}"
            self.close(BookieTlsError(reason, bookie=self._bookie))
            return
        reason = f"the connection broke: {exc}" if exc is not None else "it closed the connection"
        self.close(BookieUnreachableError(reason, bookie=self._bookie))
