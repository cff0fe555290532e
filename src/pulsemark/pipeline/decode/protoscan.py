"""Reading chosen fields of very many small protobuf messages at once, with numpy.

A *lane* is one message: a span of bytes in a shared buffer. All lanes advance together, by one
field per step. A step costs a few numpy calls, however many lanes there are: 0.1-0.3 us per
message. Parsing each message by itself costs 0.5 us even before a field is read. A lane that
reaches its end is removed. When only few lanes are left (for example one message with thousands of
properties), they are read one by one, because a numpy call costs the same for one lane as for a
thousand.

Rules (protobuf's encoding): unknown fields are skipped; the last occurrence of a singular field
counts; a field with an unexpected wire type is an unknown field; groups are refused, because Pulsar
has none. A lane whose bytes break the rules is marked ``bad``, and its values mean nothing. The
caller checks required fields.

The headers of a topic's entries differ in their numbers, hardly ever in how they are built: the
same fields in the same order, each of the same size. A *skeleton* has all bytes that decide this:
tags, lengths, and the high bits of varints. Messages with the same skeleton have each field at the
same place, so it is enough to parse one of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from ...metadata.protobuf_fields import (
    BYTES,
    VARINT,
    MalformedError,
    field_at,
    fields_of,
)
from .octets import (
    Bools,
    Bytes,
    Ints,
    Words,
    at_every_place,
    items_at,
    joined_groups,
    once_if_alike,
    spread,
)

FEW_LANES = 64
"""With fewer lanes than this, reading them one by one is faster."""

FEW_ALIKE = 512
"""With fewer lanes than this, looking for equally built ones is not worth its work."""
SKELETONS_MAX = 8
"""So many ways in which lanes are built are looked for in a chunk of lanes."""

_LANES_AT_ONCE = 8192
"""The number of lanes at a time: a step's data then stays in the processor's cache."""

ABSENT = -(2**63)
"""The value in a column if the lane does not have the field."""
_LOWEST = ABSENT + 1


class Want(Enum):
    """The form in which a wanted field is returned."""

    VARINT = "varint"
    """``values``: the number, ABSENT if the field is missing. Numbers from 2^63 on wrap (int64);
    2^63 itself gives the same value as 2^63 + 1, so that it is not taken for ABSENT."""
    SPAN = "span"
    """``starts`` and ``ends`` of the bytes; ABSENT if the field is missing."""
    SPANS = "spans"
    """A repeated field: spans of all occurrences, each with its lane, in the order of lanes."""
    COUNT = "count"
    """``values``: how often a length-delimited field occurs."""


@dataclass(slots=True)
class Column:
    """One field of all lanes; :class:`Want` says which arrays are filled."""

    values: Ints
    starts: Ints
    ends: Ints
    lanes: Ints

    def part(self, first: int, last: int) -> Column:
        """The column of the lanes ``[first, last)``, numbered from 0 again."""
        if len(self.lanes):
            at = slice(*np.searchsorted(self.lanes, [first, last]))
            return Column(self.values, self.starts[at], self.ends[at], self.lanes[at] - first)
        at = slice(first, last)
        return Column(self.values[at], self.starts[at], self.ends[at], self.lanes)


_NONE = np.empty(0, np.int64)


@dataclass(slots=True)
class _Spans:
    """Occurrences of a repeated field, in the order the steps found them."""

    lanes: list[Ints] = field(default_factory=list)
    starts: list[Ints] = field(default_factory=list)
    ends: list[Ints] = field(default_factory=list)
    singles: array[int] = field(default_factory=lambda: array("q"))
    """The occurrences that were found one by one: lane, start, end, lane, start, end ..."""

    def gathered(self) -> Column:
        singles = np.array(self.singles, np.int64).reshape(-1, 3)
        lanes = np.concatenate([*self.lanes, singles[:, 0]])
        order = np.argsort(lanes, kind="stable")
        starts = np.concatenate([*self.starts, singles[:, 1]])
        ends = np.concatenate([*self.ends, singles[:, 2]])
        return Column(_NONE, starts[order], ends[order], lanes[order])


def scan(
    data: Bytes, starts: Ints, ends: Ints, wanted: Mapping[int, Want]
) -> tuple[dict[int, Column], Bools]:
    """Find the ``wanted`` fields of the messages ``data[start:end]``.

    Args:
        data: the bytes of all lanes, one-dimensional.
        starts: where each lane's message begins.
        ends: one past its last byte; all inside ``data``.
        wanted: field numbers, each with the form in which it is returned.

    Returns:
        The columns by field number, and which lanes are bad.
    """
    return _Scan(data, starts, ends, wanted).run()


class _Scan:
    """One run of :func:`scan`: the lanes that have not ended, and the fields found so far."""

    def __init__(self, data: Bytes, starts: Ints, ends: Ints, wanted: Mapping[int, Want]) -> None:
        self._data = data
        self._all_starts, self._all_ends = starts, ends
        self._wanted = wanted
        self._bad = np.zeros(len(starts), np.bool_)
        self._columns: dict[int, Column] = {}
        self._spans = {n: _Spans() for n, want in wanted.items() if want is Want.SPANS}
        self._lanes = self._at = self._ends = _NONE
        self._skeleton: Skeleton | None = None

    def run(self) -> tuple[dict[int, Column], Bools]:
        return self._all_alike() or self._by_parts()

    def _all_alike(self) -> tuple[dict[int, Column], Bools] | None:
        """Read all lanes at once if they have one skeleton; None if not."""
        starts, ends, count = self._all_starts, self._all_ends, len(self._all_starts)
        if count < FEW_ALIKE or len(once_if_alike(ends - starts)) > 1:
            return None
        skeleton = skeleton_of(self._data[int(starts[-1]) : int(ends[-1])].tobytes())
        if skeleton is None:
            return None
        rows, heads = skeleton.alike(self._data, starts, ends)
        if len(rows) < count:
            self._skeleton = skeleton
            return None
        columns = {
            number: _column_of(number, want, skeleton, heads, starts)
            for number, want in self._wanted.items()
        }
        return columns, self._bad

    def _by_parts(self) -> tuple[dict[int, Column], Bools]:
        """Read lanes of any skeletons, some thousand at a time."""
        count = len(self._all_starts)
        self._columns = {number: _absent(want, count) for number, want in self._wanted.items()}
        started = np.flatnonzero(self._all_starts < self._all_ends)
        for first in range(0, len(started), _LANES_AT_ONCE):
            self._lanes = started[first : first + _LANES_AT_ONCE]
            self._at = self._all_starts[self._lanes]
            self._ends = self._all_ends[self._lanes]
            self._take_alike()
            while len(self._lanes) >= FEW_LANES:
                self._step()
            for lane, at, end in zip(
                self._lanes.tolist(), self._at.tolist(), self._ends.tolist(), strict=True
            ):
                self._finish(lane, at, end)
        for number, spans in self._spans.items():
            self._columns[number] = spans.gathered()
        return self._columns, self._bad

    def _take_alike(self) -> None:
        """Read lanes with a common skeleton together, while they are a good part."""
        skeleton = self._skeleton
        for _ in range(SKELETONS_MAX):
            count = len(self._lanes)
            if count < FEW_ALIKE:
                return
            if skeleton is None:
                at, end = int(self._at[count // 2]), int(self._ends[count // 2])
                skeleton = skeleton_of(self._data[at:end].tobytes())
            if skeleton is None:
                return
            taken = self._take(skeleton)
            if taken * 2 > count:
                self._skeleton = skeleton  # the next lanes are probably built like these
            elif taken * SKELETONS_MAX < count and skeleton is not self._skeleton:
                return
            skeleton = None

    def _take(self, skeleton: Skeleton) -> int:
        """Read the lanes with this skeleton. Return their number."""
        rows, heads = skeleton.alike(self._data, self._at, self._ends)
        if not len(rows):
            return 0
        lanes, begins = self._lanes[rows], self._at[rows]
        for each in skeleton.fields:
            want = self._wanted.get(each.number)
            if want is None or each.wire_type != (VARINT if want is Want.VARINT else BYTES):
                continue
            values = each.numbers(heads) if want is Want.VARINT else _NONE
            self._keep(each.number, lanes, values, begins + each.start, begins + each.end)
        others = np.ones(len(self._lanes), np.bool_)
        others[rows] = False
        self._lanes, self._at = self._lanes[others], self._at[others]
        self._ends = self._ends[others]
        return len(rows)

    def _step(self) -> None:
        """Read the next field of every lane."""
        fields = take_fields(self._data, self._at, self._ends)
        if bool(fields.broken.any()):
            self._bad[self._lanes[fields.broken]] = True
        for number, want in self._wanted.items():
            tag = number << 3 | (VARINT if want is Want.VARINT else BYTES)
            hit = np.flatnonzero(fields.tags == tag)
            if len(hit):
                starts, ends = fields.starts[hit], fields.ends[hit]
                self._keep(number, self._lanes[hit], fields.values[hit], starts, ends)
        going = fields.ends < self._ends
        self._lanes, self._at = self._lanes[going], fields.ends[going]
        self._ends = self._ends[going]

    def _finish(self, lane: int, at: int, end: int) -> None:
        """Read all remaining fields of one lane."""
        data = self._data[at:end].tobytes()
        try:
            for number, wire_type, value, start, stop in fields_of(data):
                want = self._wanted.get(number)
                if want is None or wire_type != (VARINT if want is Want.VARINT else BYTES):
                    continue
                column = self._columns[number]
                if want is Want.SPANS:
                    self._spans[number].singles.extend((lane, at + start, at + stop))
                elif want is Want.SPAN:
                    column.starts[lane], column.ends[lane] = at + start, at + stop
                elif want is Want.COUNT:
                    column.values[lane] += 1
                else:
                    column.values[lane] = max(value, _LOWEST)
        except MalformedError:
            self._bad[lane] = True

    def _keep(self, number: int, lanes: Ints, values: Ints, starts: Ints, ends: Ints) -> None:
        """Put occurrences of a wanted field into its column."""
        want, column = self._wanted[number], self._columns[number]
        if want is Want.VARINT:
            column.values[lanes] = np.maximum(values, _LOWEST)
        elif want is Want.COUNT:
            column.values[lanes] += 1
        elif want is Want.SPAN:
            column.starts[lanes], column.ends[lanes] = starts, ends
        else:
            spans = self._spans[number]
            spans.lanes.append(lanes)
            spans.starts.append(starts)
            spans.ends.append(ends)


def _column_of(number: int, want: Want, skeleton: Skeleton, heads: Words, starts: Ints) -> Column:
    """The column of a field of messages with one skeleton; ``heads`` are their first bytes."""
    count, wire_type = len(starts), VARINT if want is Want.VARINT else BYTES
    found = [f for f in skeleton.fields if (f.number, f.wire_type) == (number, wire_type)]
    if want is Want.COUNT:
        return Column(spread(np.array([len(found)]), count), _NONE, _NONE, _NONE)
    if want is Want.SPANS:
        places = np.array([(f.start, f.end) for f in found], np.int64).reshape(-1, 2)
        spans = starts[:, np.newaxis, np.newaxis] + places
        lanes = np.repeat(np.arange(count), len(found))
        return Column(_NONE, spans[:, :, 0].ravel(), spans[:, :, 1].ravel(), lanes)
    if not found:
        absent = spread(np.array([ABSENT]), count)
        return (
            Column(absent, _NONE, _NONE, _NONE)
            if want is Want.VARINT
            else Column(_NONE, absent, absent, _NONE)
        )
    last = found[-1]
    if want is Want.SPAN:
        return Column(_NONE, starts + last.start, starts + last.end, _NONE)
    return Column(np.maximum(last.numbers(heads), _LOWEST), _NONE, _NONE, _NONE)


def _absent(want: Want, count: int) -> Column:
    """The column of a field that no lane has."""
    if want is Want.SPAN:
        absent = np.full(count, ABSENT, np.int64)
        return Column(_NONE, absent, absent.copy(), _NONE)
    if want is Want.SPANS:
        return Column(_NONE, _NONE, _NONE, _NONE)
    value = 0 if want is Want.COUNT else ABSENT
    return Column(np.full(count, value, np.int64), _NONE, _NONE, _NONE)


@dataclass(slots=True)
class Fields:
    """One field of each lane."""

    tags: Ints
    """Field number and wire type as encoded; -1 if the lane is malformed."""
    values: Ints
    """A varint's number, a byte string's length."""
    starts: Ints
    """The start of a byte string."""
    ends: Ints
    """The field's end; the lane's end if it is malformed."""
    broken: Bools


_TAG_BITS = np.uint64(8)
_ONE = np.uint64(1)
_STOPS = np.uint64(0x0080808080808080)


def take_fields(data: Bytes, at: Ints, ends: Ints) -> Fields:
    """Read the field that begins at each of the places ``at``, each before its end.

    Nearly all fields have a tag of one byte and a varint (a number or a length) of up to seven
    bytes. For these, eight bytes are read at once. The other fields are read byte by byte.
    """
    words_at = at_every_place(data, "<u8")
    last = len(words_at) - 1
    if last < 0:
        return _take_unusual_fields(data, at, ends)
    words = words_at[np.minimum(at, last)]
    tags = (words & np.uint64(0xFF)).view(np.int64)
    # The first byte without its high bit ends the varint.
    words >>= _TAG_BITS
    stops = ~words & _STOPS
    below = (stops & (~stops + _ONE)) - _ONE
    values = joined_groups(words & below)
    starts = at + 1 + (np.bitwise_count(below) + 1 >> 3)
    is_bytes = tags & 7 == BYTES
    field_ends = starts + values * is_bytes
    odd = (stops == 0) | (field_ends > ends) | (at > last) | (tags >= 0x80) | (tags < 1 << 3)
    odd |= ~is_bytes & (tags & 7 != VARINT)
    fields = Fields(tags, values, starts, field_ends, np.zeros(len(at), np.bool_))
    rest = np.flatnonzero(odd)
    if len(rest):
        slow = _take_unusual_fields(data, at[rest], ends[rest])
        fields.tags[rest], fields.values[rest] = slow.tags, slow.values
        fields.starts[rest], fields.ends[rest] = slow.starts, slow.ends
        fields.broken[rest] = slow.broken
    return fields


def _take_unusual_fields(data: Bytes, at: Ints, ends: Ints) -> Fields:
    """The same for fields of any form, one by one."""
    view, found = data.data, array("q")
    for place, end in zip(at.tolist(), ends.tolist(), strict=True):
        try:
            number, wire_type, *more = field_at(view, place, end)
            found.extend((number << 3 | wire_type, *more))
        except MalformedError:
            found.extend((-1, 0, end, end))
    tags, values, starts, stops = np.array(found, np.int64).reshape(-1, 4).T
    return Fields(tags, values, starts, stops, tags < 0)


_WORD_BYTES = 8
_SIZE_MAX_BYTES = 256
"""Larger messages are not compared: their bytes would be copied."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field and its place in each message."""

    number: int
    wire_type: int
    start: int
    end: int

    def numbers(self, heads: Words) -> Ints:
        """The varints of messages, of which ``heads`` are the first bytes."""
        row_bytes = heads.shape[1] * _WORD_BYTES
        at_start: Words = np.ndarray(
            (len(heads),), "<u8", buffer=heads, offset=self.start, strides=(row_bytes,)
        )
        return joined_groups(at_start & np.uint64((1 << 8 * (self.end - self.start)) - 1))


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The bytes that equally built messages have in common."""

    size: int
    fields: tuple[Field, ...]
    words: tuple[tuple[int, int], ...]
    """Of each eight bytes: the bits that are compared, and what they are. Eight bytes more than
    the messages have, so that eight bytes can be read at the last field."""

    def alike(self, data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Words]:
        """The messages ``data[start:end]`` with this skeleton, and their first bytes."""
        last = len(data) - len(self.words) * _WORD_BYTES
        fitting: Bools = (ends - starts == self.size) & (starts <= last)
        rows: Ints = np.flatnonzero(fitting)
        heads = self._first_bytes(data, starts if len(rows) == len(starts) else starts[rows])
        for column, (mask, bits) in enumerate(self.words):
            if mask:
                right = heads[:, column] & np.uint64(mask) == np.uint64(bits)
                if not bool(right.all()):
                    rows, heads = rows[right], heads[right]
        return rows, heads

    def _first_bytes(self, data: Bytes, starts: Ints) -> Words:
        """The words of each message; all must be inside ``data``."""
        count = len(self.words)
        items = np.ascontiguousarray(items_at(data, f"V{count * _WORD_BYTES}", starts))
        return items.view("<u8").reshape(len(starts), count)


def skeleton_of(message: bytes) -> Skeleton | None:
    """The skeleton of a message; None if it is malformed, large, or has very long varints."""
    if not 0 < len(message) <= _SIZE_MAX_BYTES:
        return None
    width = -(-len(message) // _WORD_BYTES) * _WORD_BYTES + _WORD_BYTES
    mask = bytearray(b"\xff" * len(message)).ljust(width, b"\0")
    fields = []
    try:
        for number, wire_type, _, start, end in fields_of(message):
            if wire_type == VARINT and end - start > _WORD_BYTES:
                return None
            free = b"\x80" if wire_type == VARINT else b"\0"
            mask[start:end] = free * (end - start)
            fields.append(Field(number, wire_type, start, end))
    except MalformedError:
        return None
    bits = bytes(a & b for a, b in zip(mask, message.ljust(width, b"\0"), strict=True))
    words = tuple(
        (int.from_bytes(mask[at : at + _WORD_BYTES], "little"), int.from_bytes(each, "little"))
        for at, each in ((at, bits[at : at + _WORD_BYTES]) for at in range(0, width, _WORD_BYTES))
    )
    return Skeleton(len(message), tuple(fields), words)
