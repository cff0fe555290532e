"""Records from one magic into another.

What each direction loses, and what it makes of the rest:

- Up, 0 or 1 to 2: the time of magic 0 is -1; a null value gets the tombstone flag (KIP-87).
- 0 to 1: the time is -1.
- Down, 2 to 0 or 1: headers and producer id are lost, the tombstone flag becomes a null value;
  down to 0 the times too. The codec stays, but zstd, which old clients do not know, cannot.

Records go through one by one. What is in memory is the source, decompressed, and the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .batch import BatchFields, build
from .errors import CodecError
from .legacy import pack_wrapper, plain_message
from .record import Codec, Record, Work
from .rules import to_new, to_old


def to_magic_2(records: Iterable[Record], fields: BatchFields, work: Work) -> bytes:
    """One batch of records that were of magic 0 or 1. Raises CodecError."""
    return build(map(to_new, counted(records, work)), fields, work)


def to_legacy(
    records: Iterable[Record], magic: int, codec: int, work: Work, base: int = 0, bits: int = 0
) -> bytes:
    """A set of magic 0 or 1, compressed as the source was; empty without records.

    Args:
        records: of any magic; offsets count from ``base`` on.
        magic: 0 or 1.
        codec: of the source.
        work: what it costs.
        base: the offset of the entry's first message; 0 for the form that is stored.
        bits: further attributes of the messages: `LOG_APPEND_TIME`.

    Raises:
        CodecError: zstd, or the library of the codec is not installed.
    """
    if codec == Codec.ZSTD:
        raise CodecError(f"zstd cannot be sent as magic {magic}")
    old = map(to_old, counted(records, work))
    if codec != Codec.NONE:
        return pack_wrapper(old, magic, codec, work, base, bits)
    raw = bytearray()
    for record in old:
        raw += plain_message(record, magic, bits, base)
    return bytes(raw)


def counted(records: Iterable[Record], work: Work) -> Iterator[Record]:
    """The same records; each one counts as written again."""
    for record in records:
        work.converted_records += 1
        yield record


def renumbered(records: Iterable[Record]) -> Iterator[Record]:
    """The records with the offsets 0, 1, 2 ... (KIP-31: reassigned, not refused)."""
    for offset, record in enumerate(records):
        yield record._replace(offset=offset)
