"""The two forms of an entry: with the broker's stamp before the producer's bytes, or without."""

from __future__ import annotations

from enum import StrEnum

from ...ledger import Entry, EntryKind
from ...metadata import PrefixError, pack, pack_stamp, peek
from ...proto.broker_entry_pb2 import SOURCE_PULSAR
from ..errors import MigrateError

__all__ = ["EntryFormat", "prefix_of"]


class EntryFormat(StrEnum):
    """What a migrated folder has."""

    STAMPED = "stamped"
    """Each entry has broker time and index in front of it (PIP-70)."""
    PLAIN = "plain"
    """Entries are the producers' bytes, as before PIP-70."""


def prefix_of(topic: str, entry: Entry, form: EntryFormat) -> bytes:
    """The prefix of an entry in the target.

    Stamped: what is missing is added, broker time from the time at which the ledger got the entry.
    Tags that are there stay. Plain: none. The broker's own control entries say all they have to say
    in their prefix, so theirs stays; entries that take no index never have one.

    Raises:
        MigrateError: a prefix is damaged, or an entry is of no use without it.
    """
    if entry.kind is not EntryKind.DATA or not entry.message_count:
        return bytes(entry.prefix)
    try:
        stamp = peek(entry.prefix)
    except PrefixError as error:
        raise MigrateError(topic, f"entry {entry.position}: {error}") from error
    if form is EntryFormat.PLAIN:
        if stamp is not None and stamp.source_format != SOURCE_PULSAR:
            reason = "is a record set of a Kafka client, which cannot be read without its prefix"
            raise MigrateError(topic, f"entry {entry.position} {reason}")
        return b""
    if stamp is None:
        return pack_stamp(entry.append_time_ms, entry.index)
    if stamp.HasField("broker_timestamp") and stamp.HasField("index"):
        return bytes(entry.prefix)
    stamp.broker_timestamp = entry.append_time_ms
    stamp.index = entry.index
    return pack(stamp)
