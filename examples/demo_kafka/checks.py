"""Every claim of the Kafka round, as a function that compares an answer with the truth.

They use plain data alone, so a test can call them with wrong answers. Each raises `CheckError` with
one line that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from demo.checks import CheckError

Rows = Sequence[tuple[int, bytes]]
"""Offset and payload of each message, in the order in which a reader got them."""


def offsets_are_unbroken(reader: str, rows: Rows, marks: Iterable[int]) -> None:
    """Every offset comes once, in order; only the marks of leader epochs have none to show."""
    skipped = set(marks)
    expected = 0
    for offset, _ in rows:
        while expected in skipped:
            expected += 1
        if offset != expected:
            raise CheckError(f"{reader} got offset {offset} where {expected} was to come")
        expected += 1


def readers_agree(one: str, rows: Rows, other: str, other_rows: Rows) -> None:
    """Two readers got the same payloads at the same offsets."""
    for mine, theirs in zip(rows, other_rows, strict=False):
        if mine != theirs:
            raise CheckError(f"{one} got {mine} where {other} got {theirs}")
    if len(rows) != len(other_rows):
        raise CheckError(f"{one} got {len(rows)} messages, {other} {len(other_rows)}")


def acknowledged_is_there(acknowledged: Mapping[bytes, int | None], rows: Rows) -> None:
    """Every acknowledged message can be read, at the offset that its producer got."""
    offset_of: dict[bytes, set[int]] = {}
    for at, payload in rows:
        offset_of.setdefault(payload, set()).add(at)
    for payload, offset in acknowledged.items():
        found = offset_of.get(payload)
        if not found:
            raise CheckError(f"{payload!r} was acknowledged and cannot be read")
        if offset is not None and offset not in found:
            raise CheckError(f"{payload!r} was acknowledged at {offset} and is at {found}")


def nothing_is_doubled(rows: Rows, but_of_phase: str) -> int:
    """No message comes twice, but for those that clients sent again over the kill; counts them."""
    seen: set[bytes] = set()
    doubled = 0
    for _, payload in rows:
        if payload in seen:
            if not payload.startswith(but_of_phase.encode()):
                raise CheckError(f"{payload!r} is stored twice")
            doubled += 1
        seen.add(payload)
    return doubled


def stored_format_is(topic: str, offset: int, magic: int, wanted: int) -> None:
    """A set is stored in the format that the topic asks for."""
    if magic != wanted:
        raise CheckError(f"{topic} has magic {magic} at offset {offset}, not {wanted}")
