"""What is done to all topics of a namespace, or of one of its bundles."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from ...ledger.being_read import when_read
from ..commits import durable
from ..security import needs
from ..subscriptions.subscription import Subscription
from . import bodies
from .bundles import boundaries_of, bundles_of, check_bundle, split, topics_in_bundle
from .elsewhere import redirect, send_on
from .messages import HttpError, Request, Response
from .names import namespace_name
from .route import Route

if TYPE_CHECKING:
    from ..ownership import Cluster

__all__ = ["ROUTES"]

ALGORITHMS = (
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "flow_or_qps_equally_divide",
)
Action = Callable[[Subscription], Awaitable[None]]


async def bundles(request: Request, tenant: str, name: str) -> Response:
    """A namespace's bundles."""
    full = namespace_name(request, tenant, name)
    return Response.of_json(bundles_of(boundaries_of(request.services.topics.namespaces[full])))


def _with_bundles(request: Request, tenant: str, name: str) -> str:
    """An existing namespace, where Pulsar says "not found". Raises `HttpError` 404."""
    full = f"{tenant}/{name}"
    if full not in request.services.topics.namespaces:
        raise HttpError(404, "Namespace not found")
    return full


async def split_bundle(request: Request, tenant: str, name: str, bundle: str) -> Response:
    """Split a bundle in the middle."""
    full = _with_bundles(request, tenant, name)
    low, high = check_bundle(request, full, bundle)
    if request.services.cluster is not None:
        raise HttpError(412, "a broker of a cluster does not split bundles")
    algorithm = request.query.get("splitAlgorithmName", ALGORITHMS[0])
    if algorithm not in ALGORITHMS:
        raise HttpError(
            412,
            "Unsupported namespace bundle split algorithm, supported algorithms are "
            f"[{', '.join(ALGORITHMS)}]",
        )
    await split(request, full, low, high)
    return Response()


async def delete_bundle(request: Request, tenant: str, name: str, bundle: str) -> Response:
    """Answered if the bundle has no topics. Bundles cover all hashes, so it stays."""
    full = namespace_name(request, tenant, name)
    if topics_in_bundle(request, full, bundle):
        raise HttpError(409, "Cannot delete non empty bundle")
    return Response()


async def topic_hashes(request: Request, tenant: str, name: str, bundle: str) -> Response:
    """The hashes of the bundle's topics, or of those that `topics` names."""
    from zlib import crc32

    full = namespace_name(request, tenant, name)
    found = topics_in_bundle(request, full, bundle)
    wanted = request.query.get("topics")
    if wanted is not None:
        chosen = set(re.split(r",\s*", wanted))
        found = [topic for topic in found if topic in chosen]
    return Response.of_json(
        {
            "namespace": full,
            "bundle": bundle,
            "topicHashPositions": {topic: crc32(topic.encode()) for topic in found},
        }
    )


async def unload(request: Request, tenant: str, name: str) -> Response:
    """Disconnect all clients of a namespace; they reconnect by themselves."""
    full = _with_bundles(request, tenant, name)
    if request.services.cluster is not None:
        await _unload_bundles(request, request.services.cluster, full)
        return Response()
    await _disconnect(request, request.services.topics.names_in(full))
    return Response()


async def _unload_bundles(request: Request, cluster: Cluster, namespace: str) -> None:
    boundaries = bundles_of(boundaries_of(request.services.topics.namespaces[namespace]))
    texts = boundaries["boundaries"]
    for low, high in pairwise(texts):
        bundle = f"{namespace}/{low}_{high}"
        owner = await cluster.owner_of(bundle)
        if owner is not None and owner.broker_id == cluster.broker_id:
            await cluster.unload(bundle)
        elif owner is not None:
            target = f"/admin/v2/namespaces/{bundle}/unload"
            await send_on(request, owner, "PUT", target)


async def unload_bundle(request: Request, tenant: str, name: str, bundle: str) -> Response:
    """Disconnect all clients of a bundle; they reconnect by themselves."""
    full = _with_bundles(request, tenant, name)
    cluster = request.services.cluster
    if cluster is not None:
        check_bundle(request, full, bundle)
        owner = await cluster.owner_of(f"{full}/{bundle}")
        if owner is not None and owner.broker_id != cluster.broker_id:
            return redirect(request, owner)
        await cluster.unload(f"{full}/{bundle}")
        return Response()
    await _disconnect(request, topics_in_bundle(request, full, bundle))
    return Response()


async def _disconnect(request: Request, names: list[str]) -> None:
    topics = request.services.topics
    for name in names:
        opened = topics.open_topics.get(name)
        if opened is not None:
            await topics.turns.work(opened.disconnect())


async def clear(
    request: Request, tenant: str, name: str, subscription: str | None = None
) -> Response:
    """Acknowledge all messages of a namespace, for one subscription or for all."""
    await _each(request, request.services.topics.names_in(f"{tenant}/{name}"), subscription, _clear)
    return Response()


async def clear_bundle(
    request: Request, tenant: str, name: str, bundle: str, subscription: str | None = None
) -> Response:
    """Acknowledge all messages of a bundle, for one subscription or for all."""
    full = namespace_name(request, tenant, name)
    await _each(request, topics_in_bundle(request, full, bundle), subscription, _clear)
    return Response()


async def unsubscribe(request: Request, tenant: str, name: str, subscription: str) -> Response:
    """Delete a subscription from all topics of a namespace."""
    _check_no_replicator(subscription)
    await _each(
        request, request.services.topics.names_in(f"{tenant}/{name}"), subscription, _unsubscribe
    )
    return Response()


async def unsubscribe_bundle(
    request: Request, tenant: str, name: str, bundle: str, subscription: str
) -> Response:
    """Delete a subscription from all topics of a bundle."""
    _check_no_replicator(subscription)
    full = namespace_name(request, tenant, name)
    await _each(request, topics_in_bundle(request, full, bundle), subscription, _unsubscribe)
    return Response()


def _check_no_replicator(subscription: str) -> None:
    if subscription.startswith("pulsar.repl."):
        raise HttpError(412, "Cannot unsubscribe a replication cursor")


async def _each(
    request: Request, names: list[str], subscription: str | None, action: Action
) -> None:
    topics = request.services.topics
    for name in names:
        parsed = topics.parse(name)
        if not parsed.is_persistent or not topics.exists(parsed):
            continue
        opened = await topics.open(parsed, create=False)
        for one in tuple(opened.subscriptions.values()):
            if subscription in (None, one.name) and one.exists:
                await action(one)


async def _clear(subscription: Subscription) -> None:
    last = await when_read(lambda: subscription.log.last_position)
    if last is not None:
        await when_read(subscription.give_up, last)
        await durable(subscription.cursor.persist())


async def _unsubscribe(subscription: Subscription) -> None:
    if subscription.consumers:
        raise HttpError(412, "Subscription has active connected consumers")
    await durable(subscription.topic.remove_subscription(subscription))


NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
BUNDLE = f"{NAMESPACE}/{{bundle}}"

ROUTES = (
    Route("GET", f"{NAMESPACE}/bundles", needs.namespace("GET_BUNDLE"), None, bundles),
    Route("PUT", f"{BUNDLE}/split", needs.SUPER_USER, bodies.LONGS, split_bundle),
    Route("DELETE", BUNDLE, needs.namespace("DELETE_BUNDLE"), None, delete_bundle),
    Route(
        "GET",
        f"{BUNDLE}/topicHashPositions",
        needs.namespace_policy("PERSISTENCE", "READ"),
        None,
        topic_hashes,
    ),
    Route("PUT", f"{NAMESPACE}/unload", needs.SUPER_USER, None, unload),
    Route("PUT", f"{BUNDLE}/unload", needs.SUPER_USER, None, unload_bundle),
    Route("POST", f"{NAMESPACE}/clearBacklog", needs.namespace("CLEAR_BACKLOG"), None, clear),
    Route(
        "POST",
        f"{NAMESPACE}/clearBacklog/{{subscription}}",
        needs.namespace("CLEAR_BACKLOG"),
        None,
        clear,
    ),
    Route("POST", f"{BUNDLE}/clearBacklog", needs.namespace("CLEAR_BACKLOG"), None, clear_bundle),
    Route(
        "POST",
        f"{BUNDLE}/clearBacklog/{{subscription}}",
        needs.namespace("CLEAR_BACKLOG"),
        None,
        clear_bundle,
    ),
    Route(
        "POST",
        f"{NAMESPACE}/unsubscribe/{{subscription}}",
        needs.namespace("UNSUBSCRIBE"),
        None,
        unsubscribe,
    ),
    Route(
        "POST",
        f"{BUNDLE}/unsubscribe/{{subscription}}",
        needs.namespace("UNSUBSCRIBE"),
        None,
        unsubscribe_bundle,
    ),
)
