"""Whether a record's stamp says what the record itself says.

Time and index stand twice in a stamped entry: in the record's header, where the ledger reads them,
and in the prefix, which readers of entries get (clients, mirrors, Pulsar's own tools). Both are
written from the same numbers in one append, so a difference means that bytes were put together
which do not belong together, though each has its checksum.
"""

from __future__ import annotations

from ..ledger.local.segment.record_format import RecordFields
from ..metadata import Buffer, PrefixError, peek
from ..proto.broker_entry_pb2 import EntryKind


def contradiction(fields: RecordFields, entry: Buffer) -> str | None:
    """What the prefix of ``entry`` says otherwise than its record, in words; None: nothing."""
    if not fields.prefix_size_bytes:
        return None
    try:
        metadata = peek(entry)
    except PrefixError as error:
        return str(error)
    if metadata is None:
        return f"no stamp, though the record counts {fields.prefix_size_bytes} bytes of one"
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
