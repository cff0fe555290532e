"""Paths of Pulsar 1, in the form of Pulsar 2: `/admin/clusters` is `/admin/v2/clusters`.

In those of namespaces and topics a cluster follows the tenant. It is a part of the namespace's name
here, as in `TopicName`. Paths that Pulsar 2 has added have no older form.
"""

from __future__ import annotations

from .table import DOMAINS

__all__ = ["current_path"]

#: Parts that are the same in both.
SAME = {
    "broker-stats": "broker-stats",
    "brokers": "brokers",
    "clusters": "clusters",
    "functions": "functions",
    "properties": "tenants",
}
#: Parts where tenant, cluster and namespace follow.
WITH_CLUSTER = frozenset({*DOMAINS, "resource-quotas", "schemas"})
#: What can follow a topic.
OF_TOPICS = frozenset(
    {
        "all_subscription",
        "backlog",
        "compaction",
        "internal-info",
        "internalStats",
        "lastMessageId",
        "ledger",
        "offload",
        "partitioned-internalStats",
        "partitioned-stats",
        "partitions",
        "permissions",
        "stats",
        "subscription",
        "subscriptions",
        "terminate",
        "unload",
    }
)
#: Parts of a namespace that have another name now, and those that came later.
OF_NAMESPACES = {"destinations": "topics", "topics": "-", "schemaCompatibilityStrategy": "-"}


def current_path(segments: tuple[str, ...]) -> tuple[str, ...]:
    """A path in the form of Pulsar 2; a path that is not of Pulsar 1 stays as it is."""
    match segments:
        case ("admin", "broker-stats", "topics" | "destinations" as last):
            return ("admin", "v2", "broker-stats", "topics" if last == "destinations" else "-")
        case ("admin", part, *rest) if part in SAME:
            return ("admin", "v2", SAME[part], *rest)
        case ("admin", "namespaces", tenant):
            return ("admin", "v2", "namespaces", tenant)
        case ("admin", "namespaces", _, "antiAffinity", _):
            return segments
        case ("admin", "namespaces", tenant, cluster, namespace, *rest):
            of_it = [OF_NAMESPACES.get(rest[0], rest[0]), *rest[1:]] if rest else rest
            return ("admin", "v2", "namespaces", tenant, f"{cluster}/{namespace}", *of_it)
        case ("admin", part, tenant, cluster, namespace, *rest) if part in WITH_CLUSTER:
            if part in DOMAINS and len(rest) > 1 and rest[1] not in OF_TOPICS:
                return segments
            return ("admin", "v2", part, tenant, f"{cluster}/{namespace}", *rest)
        case ("lookup", "v2", "destination", domain, tenant, cluster, namespace, *rest):
            return ("lookup", "v2", "topic", domain, tenant, f"{cluster}/{namespace}", *rest)
    return segments
