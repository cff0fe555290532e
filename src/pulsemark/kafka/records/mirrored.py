"""The check of a stored set that comes from another cluster's log (KIP-31, mirrored topics).

It was checked when it was produced, so it is not opened again. Compaction may have left holes in
its numbers: they stay, with the offsets that they take. So a mirror neither decompresses nor
numbers again, and no set becomes larger than it was.
"""

from __future__ import annotations

from ...metadata import Buffer
from . import batch as batches
from . import legacy
from .errors import InvalidRecordSetError
from .rules import magic_of
from .sets import stored_magic, whole_spans

__all__ = ["check_mirrored"]


def check_mirrored(body: Buffer, source_format: int, message_count: int) -> None:
    """Check the bytes of a stored set against what its tags say.

    Args:
        body: the set, in its stored form: as if its first message had offset 0.
        source_format: the field of the prefix.
        message_count: how many offsets it takes, holes included.

    Raises:
        RecordSetError: another magic, a wrong checksum, cut bytes, or offsets that do not fit.
    """
    view = memoryview(body)
    magic = stored_magic(view)
    if magic != magic_of(source_format):
        raise InvalidRecordSetError(
            f"magic {magic} in a set whose source_format is {source_format}"
        )
    if magic == 2:
        _check_batch(view, message_count)
    else:
        _check_messages(view, magic, message_count)


def _check_batch(view: memoryview, message_count: int) -> None:
    header = batches.read_whole_header(view)
    batches.check_crc(view, header)
    if header.base_offset or header.last_offset_delta + 1 != message_count:
        raise InvalidRecordSetError(
            f"offsets from {header.base_offset} with a last delta of {header.last_offset_delta} in "
            f"a set of {message_count} messages"
        )
    if header.record_count > message_count:
        raise InvalidRecordSetError(f"{header.record_count} records with {message_count} offsets")


def _check_messages(view: memoryview, magic: int, message_count: int) -> None:
    last = -1
    for span in whole_spans(view):
        if span.magic != magic:
            raise InvalidRecordSetError(
                f"a message of magic {span.magic} in a set of magic {magic}"
            )
        message = legacy.read_message(view, span)
        if not last < message.offset < message_count:
            raise InvalidRecordSetError(
                f"offset {message.offset} after {last} in a set of {message_count} messages"
            )
        last = message.offset
