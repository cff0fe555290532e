"""Requests of one connection that wait for answers: matched by number, with a time limit each.

No I/O is done here: the connection hands in frames and the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ....proto.bookkeeper_wire_pb2 import Response
from .errors import (
    STATUS_OK,
    BookieProtocolError,
    BookieTimeoutError,
    BookKeeperError,
    error_of_status,
)
from .frames import ADD_ENTRY, READ_ENTRY, READ_LAC, WRITE_LAC, Outgoing, parse_response

Answer = Response | BookKeeperError
Done = Callable[[Answer], None]
"""Called exactly once with an answer whose status is OK, or the error that stands for it."""

_FIELDS = {
    READ_ENTRY: "readResponse",
    ADD_ENTRY: "addResponse",
    READ_LAC: "readLacResponse",
    WRITE_LAC: "writeLacResponse",
}


class _Waiting(NamedTuple):
    request: Outgoing
    done: Done
    sent_s: float
    deadline_s: float


class Exchange:
    """The requests of one connection."""

    def __init__(self, bookie: str) -> None:
        self._bookie = bookie
        self._waiting: dict[int, _Waiting] = {}
        self._next = 1
        self.waiting_bytes = 0
        """Of all requests that wait for an answer."""

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, request: Outgoing, done: Done, now_s: float) -> int:
        """Wait for an answer to a request that is sent now; returns its number."""
        number = self._next
        self._next = number + 1
        deadline = now_s + request.timeout_ms / 1000
        self._waiting[number] = _Waiting(request, done, now_s, deadline)
        self.waiting_bytes += request.size_bytes
        return number

    def receive(self, frame: bytes) -> None:
        """Hand an answer to its caller; an answer whose caller has ended is dropped.

        Raises BookieProtocolError if no such request was ever sent, or the answer is to another.
        """
        response = parse_response(frame)
        number = response.header.txnId
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            if number >= self._next or number == 0:
                raise self._no_protocol(f"an answer to request {number}, which was never sent")
            return
        self.waiting_bytes -= waiting.request.size_bytes
        try:
            answer = self._checked(waiting.request, response)
        except BookieProtocolError as error:
            waiting.done(error)
            raise
        waiting.done(answer)

    def _checked(self, request: Outgoing, response: Response) -> Answer:
        """The answer, whose facts must be those of the request."""
        if response.header.operation != request.operation:
            raise self._no_protocol(
                f"operation {response.header.operation} answers {request.operation}"
            )
        if response.status != STATUS_OK:
            entry = request.entry_id if request.entry_id >= 0 else None
            return error_of_status(
                response.status, ledger_id=request.ledger_id, entry_id=entry, bookie=self._bookie
            )
        field = _FIELDS[request.operation]
        if not response.HasField(field):
            raise self._no_protocol(f"an answer without {field}")
        part = getattr(response, field)
        if part.ledgerId != request.ledger_id:
            raise self._no_protocol(f"ledger {part.ledgerId} instead of {request.ledger_id}")
        if request.operation == ADD_ENTRY and part.entryId != request.entry_id:
            raise self._no_protocol(f"entry {part.entryId} instead of {request.entry_id}")
        return response

    def _no_protocol(self, reason: str) -> BookieProtocolError:
        return BookieProtocolError(reason, bookie=self._bookie)

    def next_deadline_s(self) -> float | None:
        """When the first of the waiting requests is due; None if none waits."""
        return min((waiting.deadline_s for waiting in self._waiting.values()), default=None)

    def expire(self, now_s: float, heard_s: float) -> bool:
        """Fail what is due. True if the bookie sent nothing at all since one of them was sent.

        Args:
            now_s: the time on the loop's clock.
            heard_s: when something was last received.
        """
        due = [
            (number, waiting)
            for number, waiting in self._waiting.items()
            if waiting.deadline_s <= now_s
        ]
        silent = False
        for number, waiting in due:
            if self._waiting.pop(number, None) is None:
                continue
            request = waiting.request
            self.waiting_bytes -= request.size_bytes
            silent = silent or heard_s <= waiting.sent_s
            waiting.done(
                BookieTimeoutError(
                    f"{request.timeout_ms} ms",
                    ledger_id=request.ledger_id,
                    entry_id=request.entry_id if request.entry_id >= 0 else None,
                    bookie=self._bookie,
                )
            )
        return silent

    def fail_all(self, error: BookKeeperError) -> None:
        """Fail every waiting request."""
        waiting, self._waiting, self.waiting_bytes = self._waiting, {}, 0
        for one in waiting.values():
            one.done(error)
