"""Adds of consecutive entries as bytes: the requests, and the answers of a bookie that did them.

Request numbers are the client's and not each connection's, so the same bytes go to all bookies of
an entry and are made once. The answer to a successful add is known beforehand, too. So answers that
come in order are compared with it, many at once; only other answers have to be parsed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ....metadata.crc import Buffer
from ....metadata.protobuf_fields import varint
from .errors import BookKeeperError
from .frames import ADD_ENTRY, HIGH_PRIORITY, LEN, tag, varints

AddsDone = Callable[[int | BookKeeperError], None]
"""Called with how many of the first entries the bookie holds, each time that there are more; or
with an error, and then not again: what the bookie has of the other entries is not known."""

_LENGTH = struct.Struct(">I")
_ADD = tag(101, LEN)
_STATUS_OK = b"\x10\x00"
_LEDGER, _ENTRY, _KEY, _BODY = tag(1), tag(2), tag(3, LEN), tag(4, LEN)
_RECOVERY_FLAG = tag(100) + b"\x01"
# Bodies below this size are joined: many small buffers cost more than one copy.
_JOIN_BYTES = 16 * 1024
_KEPT_SHAPES = 256


class AddRun(NamedTuple):
    """Adds of consecutive entries of one ledger, numbered one after another."""

    ledger_id: int
    first_entry_id: int
    first_number: int
    buffers: Sequence[Buffer]
    """All frames, one after another."""
    size_bytes: int
    answers: bytes
    """The frames of a bookie that did all of them, one after another."""
    answer_ends: Sequence[int]
    """The ends of the first 0, 1, 2... answers in ``answers``."""
    timeout_ms: int

    @property
    def entry_count(self) -> int:
        """The number of entries."""
        return len(self.answer_ends) - 1


class _Shape(NamedTuple):
    """The common parts of frames whose numbers, ids and bodies have the same lengths."""

    before_number: bytes
    before_entry: bytes
    before_body: bytes
    answer_before_number: bytes
    answer_before_entry: bytes
    size_bytes: int
    """The size of the request's frame, with the body."""


class AddEncoder:
    """Encodes the adds of one ledger; with ``recovery`` adds that pass a fence."""

    def __init__(
        self, ledger_id: int, master_key: bytes, *, timeout_ms: int, recovery: bool = False
    ) -> None:
        self._ledger_id = ledger_id
        self._timeout_ms = timeout_ms
        self._ledger = _LEDGER + varint(ledger_id)
        self._priority = b"\x20" + bytes((HIGH_PRIORITY,)) if recovery else b""
        flag = _RECOVERY_FLAG if recovery else b""
        self._after_entry = flag + _KEY + varint(len(master_key)) + master_key + _BODY
        self._shapes: dict[tuple[int, int, int], _Shape] = {}

    def encode(
        self, first_entry_id: int, first_number: int, bodies: Sequence[Sequence[Buffer]]
    ) -> AddRun:
        """Encode adds of consecutive entries. Each body is given by its buffers."""
        count = len(bodies)
        pieces: list[Buffer] = []
        buffers: list[Buffer] = []
        answers: list[bytes] = []
        ends, end, size = [0], 0, 0
        for number, entry, body in zip(
            varints(first_number, count), varints(first_entry_id, count), bodies, strict=True
        ):
            body_bytes = sum(map(len, body))
            key = (len(number), len(entry), body_bytes)
            shape = self._shapes.get(key) or self._keep_shape(key)
            pieces.append(
                shape.before_number + number + shape.before_entry + entry + shape.before_body
            )
            if body_bytes < _JOIN_BYTES:
                pieces += body
            else:
                buffers += (b"".join(pieces), *body)
                pieces.clear()
            answer = shape.answer_before_number + number + shape.answer_before_entry + entry
            answers.append(answer)
            end += len(answer)
            ends.append(end)
            size += shape.size_bytes
        if pieces:
            buffers.append(b"".join(pieces))
        return AddRun(
            self._ledger_id, first_entry_id, first_number, buffers, size, b"".join(answers), ends,
            self._timeout_ms,
        )  # fmt: skip

    def _keep_shape(self, key: tuple[int, int, int]) -> _Shape:
        if len(self._shapes) >= _KEPT_SHAPES:
            self._shapes.clear()
        self._shapes[key] = shape = self._shape(*key)
        return shape

    def _shape(self, number_bytes: int, entry_bytes: int, body_bytes: int) -> _Shape:
        header = b"\x08\x03\x10" + bytes((ADD_ENTRY,)) + b"\x18"
        header_bytes = len(header) + number_bytes + len(self._priority)
        before_entry = self._ledger + _ENTRY
        before_body = self._after_entry + varint(body_bytes)
        add_bytes = len(before_entry) + entry_bytes + len(before_body) + body_bytes
        add = _ADD + varint(add_bytes)
        size = 2 + header_bytes + len(add) + add_bytes
        # The answer's header has no priority; its part has a status of its own.
        answered = b"\x08\x00\x10" + self._ledger[1:] + b"\x18"
        answer = _STATUS_OK + _ADD + varint(len(answered) + entry_bytes) + answered
        answer_header_bytes = len(header) + number_bytes
        answer_bytes = 2 + answer_header_bytes + len(answer) + entry_bytes
        return _Shape(
            _LENGTH.pack(size) + b"\x0a" + bytes((header_bytes,)) + header,
            self._priority + add + before_entry,
            before_body,
            _LENGTH.pack(answer_bytes) + b"\x0a" + bytes((answer_header_bytes,)) + header,
            answer,
            _LENGTH.size + size,
        )
