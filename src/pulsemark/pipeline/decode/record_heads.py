"""The fields of the record headers of a run, an array for each field.

A producer's entries differ in few of these fields. A field that is the same in all records is an
array of one element, which numpy takes for each of them. A check of such a field costs one
comparison instead of one for each record.
"""

from __future__ import annotations

import numpy as np

from ...ledger.local.segment.record_format import RECORD_HEADER, RECORD_HEADER_SIZE
from .octets import Ints, Words, items_at, once_if_alike

_WORD_BYTES = 8
_WORDS = RECORD_HEADER_SIZE // _WORD_BYTES
# The ledger's format, word by word. If that format changes, this must change too.
assert RECORD_HEADER.format == "<4sIIHBBIIQq"


class RecordHeads:
    """The headers of the records that begin at the offsets ``begins`` of ``data``.

    The fields of a header that does not fit into ``data`` mean nothing.
    """

    def __init__(self, data: bytes, begins: Ints) -> None:
        self._words = _words_at(data, begins)
        self._parse()

    def _parse(self) -> None:
        lead, sizes, ids, times, indexes = self._words
        self.markers = _bits(lead, 0, 32)
        self.crcs = _bits(lead, 32, 32)
        sizes = once_if_alike(sizes)
        self.entry_sizes = _bits(sizes, 0, 32)
        self.prefix_sizes = _bits(sizes, 32, 16)
        self.kinds = _bits(sizes, 48, 8)
        self.body_checks = _bits(sizes, 56, 8)
        self.entry_ids = _bits(ids, 0, 32)
        self.counts = once_if_alike(_bits(ids, 32, 32))
        self.append_times_ms: Ints = times.view(np.int64)
        self.indexes: Ints = indexes.view(np.int64)

    def cut(self, count: int) -> None:
        """Keep the headers of the first ``count`` records."""
        self._words = self._words[:, :count]
        self._parse()


def _words_at(data: bytes, begins: Ints) -> Words:
    """The headers' words: the first of each header, the second of each, and so on."""
    last = len(data) - RECORD_HEADER_SIZE
    if last < 0 or not len(begins):
        return np.zeros((_WORDS, len(begins)), np.uint64)
    if int(begins.max()) > last:
        begins = np.minimum(begins, last)
    octets = np.frombuffer(data, np.uint8)
    heads = np.ascontiguousarray(items_at(octets, f"V{RECORD_HEADER_SIZE}", begins))
    words: Words = heads.view("<u8").reshape(len(begins), _WORDS).T.astype(np.uint64, order="C")
    return words


def _bits(words: Words, first: int, count: int) -> Ints:
    """A field of ``count`` bits of each word, from bit ``first`` on."""
    shifted = words >> np.uint64(first) if first else words
    if first + count < 64:
        shifted = shifted & np.uint64((1 << count) - 1)
    return shifted.view(np.int64)
