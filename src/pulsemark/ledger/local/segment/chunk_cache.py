"""The chunks of index files that were read last, for all segments of a store."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress

from .index_format import Chunk


class ChunkCache:
    """The chunks read last, 16 KiB each, shared by all segments of a store."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._chunks: OrderedDict[tuple[int, int, int], Chunk] = OrderedDict()

    def get(self, key: tuple[int, int, int]) -> Chunk | None:
        """The chunk, if it is here; makes it the youngest."""
        chunk = self._chunks.get(key)
        if chunk is not None:
            with suppress(KeyError):  # another thread just dropped it; ours is still good
                self._chunks.move_to_end(key)
        return chunk

    def put(self, key: tuple[int, int, int], chunk: Chunk) -> None:
        """Keep a chunk, dropping the oldest beyond the capacity."""
        self._chunks[key] = chunk
        while len(self._chunks) > self._capacity:
            try:
                self._chunks.popitem(last=False)
            except KeyError:
                return

    def clear(self) -> None:
        """Drop all."""
        self._chunks.clear()

    def forget(self, ledger_id: int, segment_no: int) -> None:
        """Drop a segment's chunks: its index is being made again."""
        for key in [k for k in list(self._chunks) if k[:2] == (ledger_id, segment_no)]:
            self._chunks.pop(key, None)
