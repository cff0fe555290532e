"""Handing the bytes of a commit to the tail cache, instead of dropping them.

They are the bytes that were written. Their checksums were computed here or checked at append, so
nothing has to be checked again when they are read from the cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from .commit import ROW_FIELDS, Group

PIECE_BYTES = 64 * 1024
"""Larger groups are kept in pieces, so that a view on one entry keeps only its piece in memory."""


def show(groups: Sequence[Group], *, keep: bool = True) -> None:
    """Show groups, which are durable, to readers, and keep their entries for those at the end.

    Called under the committer's lock: what is removed later is removed from the cache, too.
    ``keep`` is false where the main thread commits: a signal handler could end it half way.
    """
    for group in groups:
        group.show()
        if keep:
            _remember(group)


def _remember(group: Group) -> None:
    """Keep the entries of a group, if its topic is read at its end."""
    recent = group.owner.recent
    if not recent.is_wanted():
        return
    run = group.run
    unpack = run.unpacker()
    # The run's first bytes (a run's header) stand before its first entry.
    skip = len(run.first_bytes()) if group.offset == 0 else 0
    pieces = _cut(group, skip) if len(group.buffers) == 1 else _one_by_one(group, skip)
    first_entry_id = run.end_entry_id - group.entry_count
    recent.add(run.ledger_id, first_entry_id, [(count, data, unpack) for count, data in pieces])


def _cut(group: Group, skip: int) -> list[tuple[int, bytes]]:
    """The group's one buffer in pieces of whole records; as it is, without a copy, if small."""
    buffer = group.buffers[0]
    if type(buffer) is bytes and not skip and len(buffer) <= PIECE_BYTES:
        return [(group.entry_count, buffer)]
    ends, view = group.rows[ROW_FIELDS - 1 :: ROW_FIELDS], memoryview(buffer)
    pieces = []
    done, start = 0, group.offset + skip
    while done < len(ends):
        until = bisect_right(ends, start + PIECE_BYTES, done + 1)
        end = ends[until - 1]
        pieces.append((until - done, bytes(view[start - group.offset : end - group.offset])))
        done, start = until, end
    return pieces


def _one_by_one(group: Group, skip: int) -> list[tuple[int, bytes]]:
    """Large entries, each copied to a piece of its own, so that the original memory is freed."""
    ends = iter(group.rows[ROW_FIELDS - 1 :: ROW_FIELDS])
    pieces, parts = [], []
    offset, end = group.offset, next(ends, None)
    for buffer in group.buffers:
        parts.append(buffer)
        offset += len(buffer)
        if offset == end:
            data = b"".join(parts)
            pieces.append((1, data[skip:] if skip else data))
            parts, skip, end = [], 0, next(ends, None)
    return pieces
