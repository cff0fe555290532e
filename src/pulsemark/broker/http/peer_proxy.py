"""Requests about topics that other brokers of a cluster serve.

A request about one topic is answered with a redirect (307) to the topic's broker, as in Pulsar. One
about a partitioned topic, or about a namespace, is sent on to the broker of each part, and the
answers are put together.
"""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from ...wire import TopicName
from ..metrics.stats import sum_of_partitions
from ..ownership import Cluster, Found, NotOwnedError, exchange
from .messages import HttpError, Json, Request, Response
from .paths import boundaries_of, bundles_of
from .route import Route

CALL_TIMEOUT_S = 30.0
#: Headers of a request that go with it to another broker.
SENT_ON = ("authorization", "content-type")
#: Statistics of partitions that are put together from those of each: their route's last segment.
OF_PARTITIONS = {"partitioned-stats": "stats", "partitioned-internalStats": "internalStats"}


async def elsewhere(
    request: Request, route: Route, values: tuple[str, ...], error: NotOwnedError
) -> Json | Response | None:
    """Answer a request that needs a topic of another broker. Raises `HttpError`."""
    cluster, topics = request.services.cluster, request.topics
    assert cluster is not None, "a broker alone serves every topic"
    name = TopicName.parse(error.topic)
    of_path = dict(zip(route.names, values, strict=True))
    if not {"topic", "namespace"} & of_path.keys():
        return await _one_topic(request, route, values, cluster, name)
    if "topic" not in of_path:
        return await _each_bundle(request, cluster, of_path, name)
    is_of_partition = of_path["topic"] == name.local
    if is_of_partition or not topics.partitioned.count_of(name.partitioned):
        return await _one_topic(request, route, values, cluster, name)
    return await _each_partition(request, cluster, name.partitioned, route, of_path)


async def _one_topic(
    request: Request, route: Route, values: tuple[str, ...], cluster: Cluster, name: TopicName
) -> Json | Response | None:
    found = await cluster.find(name, authoritative=request.flag("authoritative"))
    if found.broker_id == cluster.broker_id:
        # It was this broker's turn to take the topic over.
        return await route.run(request, values)
    return redirect(request, found)


def redirect(request: Request, found: Found) -> Response:
    """307 to the same path at another broker, by TLS if the client came by it."""
    path, _, query = request.target.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("authoritative=")]
    flag = "true" if found.redirect and found.authoritative else "false"
    base = (request.is_tls and found.http_url_tls) or found.http_url or found.http_url_tls
    location = f"{base}{path}?{'&'.join([*kept, f'authoritative={flag}'])}"
    return Response(307, b"", headers=(("location", location),))


async def found_topic(request: Request, name: TopicName) -> Found | Response:
    """The broker of a topic for a lookup over HTTP; a response to redirect to the one to ask."""
    cluster = request.services.cluster
    assert cluster is not None, "a broker alone serves every topic"
    found = await cluster.find(name, authoritative=request.flag("authoritative"))
    return redirect(request, found) if found.redirect else found


async def _each_partition(
    request: Request, cluster: Cluster, name: TopicName, route: Route, of_path: dict[str, str]
) -> Json:
    """Send the request on for each partition."""
    last = route.parts[-1]

    def target(part: TopicName) -> str:
        path = route.target({**of_path, "topic": part.local})
        return path.removesuffix(last) + OF_PARTITIONS[last] if last in OF_PARTITIONS else path

    parts = [name.partition(at) for at in range(request.topics.partitioned.count_of(name))]
    answers = await asyncio.gather(
        *(_send_on(request, cluster, part, target(part)) for part in parts)
    )
    rows = {str(part): body for part, body in zip(parts, answers, strict=True)}
    return await _together(request, last, name, rows)


async def _together(request: Request, last: str, name: TopicName, rows: dict[str, bytes]) -> Json:
    if request.method != "GET":
        return None
    parsed: dict[str, Any] = {key: json.loads(body) for key, body in rows.items()}
    metadata = {"partitions": len(rows), "deleted": False}
    if last == "partitioned-stats":
        turns = request.topics.turns
        sums = await turns.result(sum_of_partitions(list(parsed.values())))
        each = parsed if request.flag("perPartition", "true") else {}
        return {**sums, "metadata": metadata, "partitions": each}
    if last == "partitioned-internalStats":
        return {"metadata": metadata, "partitions": parsed}
    if all(isinstance(value, list) for value in parsed.values()):
        return sorted({item for value in parsed.values() for item in value})
    if last == "internal-info":
        return {"version": 0, "partitions": parsed}
    text = f"{last} of {name} needs its partitions one by one: other brokers have some"
    raise HttpError(501, text)


async def _send_on(request: Request, cluster: Cluster, name: TopicName, target: str) -> bytes:
    """The answer about one partition from its broker. Raises `HttpError`."""
    found = await cluster.find(name, authoritative=False)
    query = request.target.partition("?")[2]
    return await send_on(request, found, request.method, f"{target}?{query}", request.body)


async def check_unused_elsewhere(request: Request, name: TopicName) -> None:
    """Refuse (412) if clients use a partition that another broker serves. Raises `HttpError`.

    Before the first partition is deleted; also if a broker does not answer, or not this client.
    """
    cluster, topics = request.services.cluster, request.topics
    for part in map(name.partition, range(topics.partitioned.count_of(name))):
        if cluster is None or cluster.owns(part) or not topics.exists(part):
            continue
        local = quote(part.local, safe="")
        path = f"/admin/v2/{part.domain}/{part.namespace}/{local}/stats"
        found = await cluster.find(part, authoritative=False)
        if found.broker_id == cluster.broker_id:
            continue
        shown = json.loads(await send_on(request, found, "GET", path))
        subscriptions = shown["subscriptions"].values()
        if shown["publishers"] or any(one["consumers"] for one in subscriptions):
            raise HttpError(412, "Topic has active producers/subscriptions")


async def _each_bundle(
    request: Request, cluster: Cluster, of_path: dict[str, str], name: TopicName
) -> Response | None:
    """Send a request about a namespace on for each of its bundles."""
    namespace = f"{of_path.get('tenant')}/{of_path.get('namespace')}"
    if namespace != name.namespace or request.method == "GET":
        raise HttpError(501, f"other brokers serve some of the topics, such as {name}")
    settings = request.topics.namespaces[namespace]
    boundaries = bundles_of(boundaries_of(settings))["boundaries"]
    path, _, query = request.target.partition("?")
    head, middle, tail = path.partition(f"/{namespace}/")
    for low, high in pairwise(boundaries):
        bundle = f"{low}_{high}"
        owner = await cluster.owner_of(f"{namespace}/{bundle}")
        if "bundle" in of_path:
            if of_path["bundle"] == bundle and owner is not None:
                return redirect(request, owner)
        elif owner is not None:
            target = f"{head}{middle}{bundle}/{tail}?{query}"
            await send_on(request, owner, request.method, target, request.body)
    return None


async def send_on(
    request: Request, found: Found, method: str, target: str, body: bytes = b""
) -> bytes:
    """The body of another broker's answer, in the name of this request's client.

    Redirects are followed. Raises `HttpError` with the answer's status and reason; 503 without an
    answer.
    """
    kept = {name: value for name, value in request.headers.items() if name in SENT_ON}
    cafile = request.services.config.security.tls_certificate_file
    url = f"{found.http_url or found.http_url_tls}{target}"
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            status, answer = await exchange(url, method, kept, body, cafile)
    except OSError as error:
        raise HttpError(503, f"the broker at {url} does not answer: {error!r}") from error
    if status >= 300:
        raise HttpError(status, _reason(answer))
    return answer


def _reason(answer: bytes) -> str:
    try:
        reason = json.loads(answer).get("reason", "")
    except (ValueError, AttributeError):
        reason = answer.decode(errors="replace")
    return str(reason)
