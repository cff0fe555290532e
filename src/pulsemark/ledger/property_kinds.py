"""Kinds of values that the ledger itself keeps in the metadata store, by topic id.

`view_property` has the kind of compacted views; the broker has further kinds.
"""

from __future__ import annotations

DELETING_KIND = "deleting"
"""The topic is being deleted. Stored in the change that removes it from the topics."""
CONTROL_NOTE_KIND = "control-entries"
"""The ledgers with control entries, and where these are (`control_positions`)."""
SEEN_PROPERTY_KIND = "retention-seen"
"""The notes of `retention` about entries whose append times cannot be used."""
