"""A bookie in memory that answers requests of BookKeeper's protocol, version 3.

No I/O is done here: a server, or a simulated network, hands in frames and takes the answers. It
does what a real bookie does and no more: it fences, pins the first key of a ledger, and checks
nothing of what entries hold.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from pulsemark.ledger.bookkeeper.client.frames import (
    ADD_ENTRY,
    FENCE,
    READ_ENTRY,
    WRITE_LAC,
)
from pulsemark.proto.bookkeeper_wire_pb2 import Request, Response

_LENGTH = struct.Struct(">I")
_LAST_CONFIRMED = struct.Struct(">16xq")

Reply = Callable[[bytes], None]


@dataclass(slots=True)
class HeldLedger:
    """What a bookie holds of a ledger."""

    key: bytes
    entries: dict[int, bytes] = field(default_factory=dict)
    is_fenced: bool = False
    last_confirmed: int = -1
    last_confirmed_body: bytes = b""
    """What the writer sent by itself."""


class FakeBookie:
    """One bookie.

    Attributes: `ledgers`, what it holds; `requests`, what it was asked, in order; `refuse`, asked
    with each request for a status to answer with instead of doing it (None: do it).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledgers: dict[int, HeldLedger] = {}
        self.refuse: Callable[[Request], int | None] = lambda request: None

    def handle(self, frame: bytes, reply: Reply) -> None:
        """Do what a request's frame (without its length) asks; `reply` gets the answer's frame."""
        request = Request.FromString(frame)
        status = self.refuse(request)
        if status is not None:
            reply(self._framed(request, status))
        elif request.header.operation == ADD_ENTRY:
            reply(self._framed(request, self._add(request)))
        elif request.header.operation == READ_ENTRY:
            self._read(request, reply)
        elif request.header.operation == WRITE_LAC:
            reply(self._framed(request, self._write_lac(request)))
        else:
            self._read_lac(request, reply)

    def hold(self, ledger_id: int, entry_id: int, body: bytes, key: bytes) -> None:
        """Put an entry into the bookie, as if a writer had added it."""
        ledger = self.ledgers.setdefault(ledger_id, HeldLedger(key))
        ledger.entries[entry_id] = body
        if len(body) >= _LAST_CONFIRMED.size:
            last = int(_LAST_CONFIRMED.unpack_from(body)[0])
            ledger.last_confirmed = max(ledger.last_confirmed, last)

    # -- operations -------------------------------------------------------------------------------

    def _add(self, request: Request) -> int:
        add = request.addRequest
        ledger = self.ledgers.get(add.ledgerId)
        if ledger is not None and ledger.key != add.masterKey:
            return 502
        if ledger is not None and ledger.is_fenced and add.flag != 1:
            return 504
        self.hold(add.ledgerId, add.entryId, add.body, add.masterKey)
        return 0

    def _write_lac(self, request: Request) -> int:
        given = request.writeLacRequest
        ledger = self.ledgers.setdefault(given.ledgerId, HeldLedger(given.masterKey))
        if ledger.key != given.masterKey:
            return 502
        if given.lac >= ledger.last_confirmed:
            ledger.last_confirmed, ledger.last_confirmed_body = given.lac, given.body
        return 0

    def _read(self, request: Request, reply: Reply) -> None:
        read = request.readRequest
        if read.flag == FENCE:
            ledger = self.ledgers.setdefault(read.ledgerId, HeldLedger(read.masterKey))
            if ledger.key != read.masterKey:
                reply(self._framed(request, 502))
                return
            ledger.is_fenced = True
        found = self.ledgers.get(read.ledgerId)
        if found is None:
            reply(self._framed(request, 402))
        else:
            entry = max(found.entries, default=-1) if read.entryId == -1 else read.entryId
            body = found.entries.get(entry)
            if body is None:
                reply(self._framed(request, 403))
            else:
                reply(self._framed(request, 0, body))

    def _read_lac(self, request: Request, reply: Reply) -> None:
        ledger = self.ledgers.get(request.readLacRequest.ledgerId)
        if ledger is None or not ledger.entries:
            reply(self._framed(request, 402))
        else:
            body = ledger.entries[max(ledger.entries)]
            reply(self._framed(request, 0, body, explicit=ledger.last_confirmed_body))

    @staticmethod
    def _framed(
        request: Request,
        status: int,
        body: bytes | None = None,
        explicit: bytes = b"",
    ) -> bytes:
        """The frame of an answer."""
        operation = request.header.operation
        response = Response(header=request.header, status=status)
        response.header.ClearField("priority")
        if status == 0 and operation == ADD_ENTRY:
            add = request.addRequest
            response.addResponse.status = 0
            response.addResponse.ledgerId = add.ledgerId
            response.addResponse.entryId = add.entryId
        elif status == 0 and operation == READ_ENTRY:
            part = response.readResponse
            part.status, part.ledgerId = 0, request.readRequest.ledgerId
            part.entryId = request.readRequest.entryId
            if body:
                part.body = body
        elif status == 0 and operation == WRITE_LAC:
            response.writeLacResponse.status = 0
            response.writeLacResponse.ledgerId = request.writeLacRequest.ledgerId
        elif status == 0:
            lac = response.readLacResponse
            lac.status, lac.ledgerId = 0, request.readLacRequest.ledgerId
            lac.lastEntryBody = body or b""
            if explicit:
                lac.lacBody = explicit
        encoded = response.SerializeToString()
        return _LENGTH.pack(len(encoded)) + encoded
