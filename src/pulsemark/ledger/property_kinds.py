"""Kinds of values that the ledger itself keeps in the metadata store, by topic id.

`view_property` has the one of compacted views; others are the broker's.
"""

from __future__ import annotations

DELETING_KIND = "deleting"
"""The topic is being deleted. Stored in the change that takes it off the list of topics."""
SEEN_PROPERTY_KIND = "retention-seen"
"""What `retention` knows of entries whose append times are no use."""
