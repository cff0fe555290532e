"""Kinds of values that the broker keeps in a store's catalog, and that others read or write, too.

The ledger does not look at them. A mirror and the pipeline find by them what a broker has stored.
docs/formats.md lists all kinds.
"""

from __future__ import annotations

__all__ = ["NAMESPACE_KIND", "PARTITIONED_KIND", "SCHEMA_KIND", "TENANT_KIND"]

TENANT_KIND = "tenant"
NAMESPACE_KIND = "namespace"
"""The policies of a namespace, by tenant/namespace."""
PARTITIONED_KIND = "partitioned-topic"
"""The number of partitions, by the topic's full name."""
SCHEMA_KIND = "schema"
"""All versions of a topic's schema (`metadata.schema_list`), by the topic's full name."""
