"""Under which kinds the catalog has the schemas of a topic."""

from ...ledger.store import SCHEMA_KIND

__all__ = ["FACTS_KIND", "STORED_KINDS"]

#: When each version was registered, which ones are deletions, and their fingerprints: JSON.
FACTS_KIND = "schema-facts"
STORED_KINDS = (SCHEMA_KIND, FACTS_KIND)
