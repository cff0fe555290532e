"""Checks that a record's stamp agrees with its record header.

A stamped entry has time and index twice: in the record's header, which the ledger reads, and in the
prefix, which readers of entries get (clients, mirrors, Pulsar's own tools). One append writes both
from the same numbers. So a difference means that bytes were joined which do not belong together,
though each part has a good checksum.
"""

from __future__ import annotations

from ..ledger.local.segment.record_format import RecordFields
from ..metadata import Buffer, PrefixError, peek
from ..proto.broker_entry_pb2 import EntryKind


def contradiction(fields: RecordFields, entry: Buffer) -> str | None:
    """How the prefix of ``entry`` contradicts its record, as text; None: it does not."""
    if not fields.prefix_size_bytes:
        return None
    try:
        metadata = peek(entry)
    except PrefixError as error:
        return str(error)
    if metadata is None:
        return f"no stamp, though the record header states {fields.prefix_size_bytes} bytes of it"
    for name, field, recorded in (
        ("index", "index", fields.index),
        ("broker time", "broker_timestamp", fields.append_time_ms),
        ("message count", "message_count", fields.message_count),
    ):
        stamped = getattr(metadata, field)
        if metadata.HasField(field) and stamped != recorded:
            return f"the stamp has {name} {stamped}, the record {recorded}"
    if metadata.entry_kind != fields.kind:
        kind = EntryKind.Name(metadata.entry_kind)
        return f"the stamp says {kind}, the record has kind {fields.kind}"
    return None
