"""Under which kinds the catalog has the schemas of a topic."""

__all__ = ["FACTS_KIND", "SCHEMA_KIND", "STORED_KINDS"]

SCHEMA_KIND = "schema"
#: When each version was registered, which ones are deletions, and their fingerprints: JSON.
FACTS_KIND = "schema-facts"
STORED_KINDS = (SCHEMA_KIND, FACTS_KIND)
