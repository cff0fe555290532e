"""Cleaning on demand: `compaction`, `trim` and `truncate`, as in Pulsar.

On a partitioned topic each does its work for every partition.
"""

from __future__ import annotations

from dataclasses import asdict

from ..security import needs
from .messages import HttpError, Request, Response
from .names import check_topics_namespace, open_logs, open_stored, stored_topic
from .route import TOPIC, Route

__all__ = ["ROUTES"]


async def compaction_status(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """NOT_RUN, RUNNING, SUCCESS or ERROR since the topic was opened; for one partition only."""
    full = f"{domain}://{tenant}/{namespace}/{topic}"
    if not request.services.topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
        raise HttpError(404, f"Topic {full} not found")
    name = stored_topic(request, domain, tenant, namespace, topic)
    if request.services.topics.partitions_of(name):
        raise HttpError(404, f"Topic {full} not found")
    figures = (await request.services.topics.open(name, create=False)).cleaning.compaction
    return Response.of_json({"status": figures.status.value, "lastError": figures.last_error})


async def compact(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Compact as soon as possible; 409 if a compaction runs already."""
    refused = False
    for opened in await open_stored(request, domain, tenant, namespace, topic):
        refused |= not request.services.cleaning.compact(opened)
    if refused:
        raise HttpError(409, "Compaction already in progress")
    return Response()


async def truncate(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Remove all entries of a topic, for all subscriptions and on disk."""
    if domain == "non-persistent":
        raise HttpError(412, "unsupport truncate")
    for opened in await open_stored(request, domain, tenant, namespace, topic):
        await request.services.cleaning.truncate(opened)
    return Response()


async def trim(request: Request, domain: str, tenant: str, namespace: str, topic: str) -> Response:
    """Apply a topic's retention now; figures=true, or dryRun=true, answers what is removed.

    Without them the answer is empty, as Pulsar's.
    """
    check_topics_namespace(request, domain, tenant, namespace, topic)
    is_dry_run = request.flag("dryRun")
    figures = [
        {
            "topic": opened.name,
            **asdict(await request.services.cleaning.trim(opened, is_dry_run=is_dry_run)),
        }
        for opened in await open_logs(request, domain, tenant, namespace, topic)
    ]
    wants = is_dry_run or request.flag("figures")
    return Response.of_json(figures) if wants else Response(200)


ROUTES = (
    Route("GET", f"{TOPIC}/compaction", needs.topic("COMPACT"), None, compaction_status),
    Route("PUT", f"{TOPIC}/compaction", needs.topic("COMPACT"), None, compact),
    Route("DELETE", f"{TOPIC}/truncate", needs.tenant_admin(), None, truncate),
    Route("POST", f"{TOPIC}/trim", needs.topic("TRIM_TOPIC"), None, trim),
)
