"""Terminating topics: they keep their messages, and never get another one."""

from __future__ import annotations

from typing import Any

from ...ledger import LedgerError, Position
from ..security import needs
from .messages import HttpError, Request, Response
from .names import open_one_log, topic_name
from .route import Route

__all__ = ["NOT_PARTITIONED", "ROUTES"]

NOT_PARTITIONED = (
    "Termination of a non-partitioned topic is not allowed using partitioned-terminate, "
    "please use terminate commands"
)


async def terminate(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """End a topic; the answer is its last message's id. Once more gives the same answer."""
    name = topic_name(request, domain, tenant, namespace, topic)
    if request.services.topics.partitions_of(name):
        raise HttpError(405, "Termination of a partitioned topic is not allowed")
    what = "Termination of a partitioned topic is not allowed"
    opened = await open_one_log(request, domain, tenant, namespace, topic, what=what)
    return Response.of_json(_shown(await request.services.topics.terminate(opened)))


async def terminate_partitions(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """End all partitions of a topic; the answer has each one's last message id, by number."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    count = topics.partitions_of(name)
    if not count:
        raise HttpError(405, NOT_PARTITIONED)
    ends = {}
    for index in range(count):
        try:
            opened = await topics.open(name.partition(index), create=True)
            ends[str(index)] = _shown(await topics.terminate(opened))
        except LedgerError as error:
            done = ", ".join(ends) or "none"
            raise HttpError(503, f"{error} (partitions terminated before: {done})") from error
    return Response.of_json(ends)


def _shown(end: Position) -> dict[str, Any]:
    return {
        "ledgerId": end.ledger_id,
        "entryId": end.entry_id,
        "partitionIndex": -1,
        "batchIndex": -1,
        "batchSize": 0,
    }


TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"

ROUTES = (
    Route("POST", f"{TOPIC}/terminate", needs.topic("TERMINATE"), None, terminate),
    Route(
        "POST",
        f"{TOPIC}/terminate/partitions",
        needs.topic("TERMINATE"),
        None,
        terminate_partitions,
    ),
)
