r"""What a producer sends: its check, and the bytes that are stored.

The checks are those of Apache Kafka 3.9.2 (`LogValidator`), in its order: what the version of the
request allows, then each batch as a whole, then its records. A set is stored as it was sent, but
for the offsets, wherever the topic's entry format is the set's own (KIP-31)::

    sent \ stored    0                          1                        2
    magic 0          in place                   up, no times             up, no times
    magic 1          down, times lost           in place                 up
    magic 2          down, times, headers lost  down, headers lost       in place

"In place" has conditions: the offsets in a compressed set are 0, 1, 2 ...; if not, they are
assigned, and the set is compressed again. A wrapper's or batch's latest time is corrected if it is
wrong; the records' bytes stay the producer's.

The stored form of a set is the set as if its first message had offset 0: batches of magic 2 have
base offset 0, messages of magic 0 and 1 the offsets 0, 1, 2 ..., wrappers the last of them. A fetch
adds the entry's base (`fetched`). So the first two bytes of an entry are zero, which is neither a
prefix nor Pulsar's checksum, whatever offset the producer sent.

Where Kafka differs: an uncompressed batch of magic 2 whose records are not numbered 0, 1, 2 ... is
refused; Kafka stores it, and its consumers then see the wrong offsets.
"""

from __future__ import annotations

from itertools import islice

from ...metadata import Buffer
from .errors import InvalidRecordSetError
from .produced_batch import check_and_store as store_batch
from .produced_legacy import check_and_store as store_legacy
from .rules import EntryRules, Produced
from .sets import spans

ONE_BATCH_VERSION = 3
"""From this version of Produce on, a set is one batch of magic 2 (KIP-98)."""


def validate_produced(
    records: Buffer | None, produce_version: int, rules: EntryRules, *, is_given: bool = False
) -> Produced | None:
    """Check a record set, and make it what is stored.

    Args:
        records: the set, as the request has it for one partition; None: null. A part of a batch
            at its end is dropped.
        produce_version: of the request. Below 3 a set may be empty.
        rules: the topic's.
        is_given: the caller gives ``records`` away. Where they can be written to, what is stored
            may be made in them, and be a view of them.

    Returns:
        None if there is nothing to store, which is no error below version 3 (offset -1).

    Raises:
        RecordSetError: refused, nothing is to be stored; its ``code`` is Kafka's.
    """
    view = memoryview(records if records is not None else b"")
    first_two = list(islice(spans(view), 2))
    if produce_version >= ONE_BATCH_VERSION:
        if not first_two:
            raise InvalidRecordSetError(f"no whole batch in {len(view)} bytes")
        if first_two[0].magic != 2:
            raise InvalidRecordSetError(
                f"magic {first_two[0].magic} in version {produce_version} of Produce"
            )
    if not first_two:
        return None
    if first_two[0].magic != 2:
        return store_legacy(view, rules)
    if len(first_two) > 1:
        raise InvalidRecordSetError("more than one batch of magic 2 in a set")
    return store_batch(view[: first_two[0].end], produce_version, rules, is_given=is_given)
