"""The chunks of index files that were read last, for all segments of a store."""

from __future__ import annotations

from ...lru import Lru
from .index_format import Chunk

ChunkCache = Lru[tuple[int, int, int], Chunk]
"""By ledger id, segment number and number of the chunk; a chunk has 16 KiB."""
CHUNKS_KEPT = 1024
