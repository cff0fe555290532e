"""Compacting entries in Kafka's format: their keys, and holes in them.

An entry whose prefix says that it is a Kafka record set is compacted record by record, as a batch
of Pulsar's is message by message. What deletes a key depends on the set's magic and, in magic 2, on
the topic's stage (KIP-87). Records without key are left out, as Pulsar's messages are; Kafka has no
such records on a compacted topic.

A key counts as the same key for both protocols' messages. A key that is not UTF-8 is compared in
the form in which Pulsar's clients send it: base64.

The record formats are imported with the first such entry: most stores have none.
"""

from __future__ import annotations

import base64

from ..ledger.entry import Entry
from ..metadata import BrokerEntryMetadata
from ..proto.broker_entry_pb2 import SourceFormat
from .batch_rewrite import BatchFormatError

FLAG_OR_NULL = 1
"""The stage in which a null value deletes a key of magic 2 too."""


def is_record_set(prefix: BrokerEntryMetadata | None) -> bool:
    """Whether the entry is in Kafka's format."""
    return prefix is not None and prefix.source_format in (
        SourceFormat.SOURCE_KAFKA_MAGIC_0,
        SourceFormat.SOURCE_KAFKA_MAGIC_1,
        SourceFormat.SOURCE_KAFKA_MAGIC_2,
    )


def keys_of(
    entry: Entry, prefix: BrokerEntryMetadata, stage: int, max_bytes: int
) -> list[tuple[int, bytes | None, bool]]:
    """Of each record its place, its key, and whether it deletes that key.

    Args:
        entry: a record set.
        prefix: the entry's.
        stage: 1 or 2, of the topic (KIP-87).
        max_bytes: the largest decompressed set that is opened.

    Raises:
        BatchFormatError: the bytes are not a record set, or their codec is not installed.
    """
    from ..kafka.records import RecordSetError, TombstoneStage, deletes, magic_of, read

    magic = magic_of(prefix.source_format)
    assert magic is not None
    try:
        return [
            (
                record.offset,
                _comparable(record.key),
                prefix.tombstone or deletes(record, magic, TombstoneStage(stage)),
            )
            for record in read(entry.body, max_raw_bytes=max_bytes)
        ]
    except RecordSetError as error:
        raise BatchFormatError(error.reason) from error


def with_holes(entry: Entry, places: list[int], max_bytes: int) -> bytes | None:
    """The set with holes for the records not in ``places``; None: it stays as it is."""
    from ..kafka.records import Work, keep, read

    kept = set(places)
    if all(record.offset in kept for record in read(entry.body, max_raw_bytes=max_bytes)):
        return None
    return keep(entry.body, kept, Work(), max_bytes)


def _comparable(key: bytes | None) -> bytes | None:
    if key is None:
        return None
    try:
        key.decode()
    except UnicodeDecodeError:
        return base64.b64encode(key)
    return key
