"""Topics, partitioned or not: list, look up, create, unload, terminate, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ledger import LedgerError, Position
from ...wire import TopicName
from ..errors import RefusedError
from ..policies.policy import UnreadableValueError, integer
from ..policies.pulsar_policies import PROPERTIES
from ..security import needs
from ..topics.registry import (
    MAX_PARTITIONS,
    check_room,
    creates,
    is_beyond_partitions,
    partitions_created,
)
from ..topics.topic import TopicInUseError
from . import bodies
from .bodies import EMPTY, METADATA_TYPE
from .messages import JSON_TYPE, HttpError, Request, Response
from .names import (
    boundaries_of,
    bundle_of,
    check_no_partition,
    namespace_name,
    open_logs,
    open_one_log,
    plain_topic,
    topic_name,
    topics_in_bundle,
)
from .peer_proxy import check_unused_elsewhere, found_topic
from .policies import properties_of, text_properties
from .route import TOPIC, Route

if TYPE_CHECKING:
    from ..ownership import Found
    from ..services import Services

__all__ = ["NOT_PARTITIONED", "ROUTES", "check_no_partition"]


async def list_topics(request: Request, domain: str, tenant: str, namespace: str) -> Response:
    """The namespace's topics of one domain, with each partition; `bundle` chooses some of them."""
    full = namespace_name(request, tenant, namespace)
    bundle = request.query.get("bundle")
    names = request.services.topics.names_in(full)
    if bundle:
        names = topics_in_bundle(request, full, bundle)
    shown = [name for name in names if name.startswith(f"{domain}:")]
    return await Response.of_long_json(shown, request.services.topics.turns)


async def create_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Create a topic without partitions; the body may have properties."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    given = text_properties(request.json())
    if topics.exists(name):
        raise HttpError(409, "This topic already exists")
    _check_partition(request, name)
    await topics.open(name, create=True, explicit=True)
    if given:
        await topics.policies[PROPERTIES].set_for_topic(name, given)
    return Response()


def _check_partition(request: Request, name: TopicName) -> None:
    """Raise `HttpError` 412 for the name of a partition that no partitioned topic has."""
    if name.partition_index < 0:
        return
    whole = name.partitioned
    start = f'Can\'t create topic {name.local} with "-partition-" followed by'
    if not request.services.topics.partitions_of(whole):
        raise HttpError(
            412, f"{start} numeric value if there isn't a partitioned topic {whole.local} created."
        )
    if is_beyond_partitions(request.services.topics, name):
        raise HttpError(
            412,
            f"{start} a number smaller than number of partition of partitioned topic {whole.local}",
        )


async def delete_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Delete a topic without producers and consumers; with force=true also one with some."""
    topics = request.services.topics
    if not topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
        raise HttpError(404, f"Topic {domain}://{tenant}/{namespace}/{topic} not found")
    name = plain_topic(request, domain, tenant, namespace, topic)
    if topics.partitions_of(name):
        raise HttpError(
            409,
            f"{name} is a partitioned topic, instead of calling delete topic, "
            "please call delete-partitioned-topic.",
        )
    try:
        await topics.delete(name, force=request.flag("force"))
    except TopicInUseError as error:
        used = error.producers + error.consumers
        raise HttpError(412, f"Topic has {used} connected producers/consumers") from error
    return Response()


async def unload(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Disconnect all producers and consumers; their clients reconnect by themselves."""
    for opened in await open_logs(request, domain, tenant, namespace, topic):
        await request.services.topics.turns.work(opened.disconnect())
    return Response()


async def partitions(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The number of partitions; 0 for a topic without partitions.

    With checkAllowAutoCreation=true an absent topic is created with the partitions that the policy
    of topics that clients create says: as in Pulsar, whose clients look topics up in this way.
    """
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    may_create = request.flag("checkAllowAutoCreation") and creates(topics, name)
    if not topics.exists(name) and not may_create:
        raise HttpError(404, f"Topic {name} not found")
    await _create_if_absent(request, name)
    count = topics.partitions_of(name)
    shown = properties_of(topics, name)
    return Response.of_json(
        {"partitions": count, "deleted": False, **({"properties": shown} if shown else {})}
    )


async def _create_if_absent(request: Request, name: TopicName) -> None:
    topics = request.services.topics
    count = 0 if topics.exists(name) else partitions_created(topics, name)
    if count:
        check_room(topics, name.namespace, count)
        await topics.create_partitioned(name, count)


async def create_partitioned(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Create a partitioned topic; the body is the number of partitions."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    count, given = _metadata(request)
    if count < 1:
        raise HttpError(406, "Number of partitions should be more than 0")
    _check_count(request, count)
    check_no_partition(name)
    if topics.exists(name):
        raise HttpError(409, "This topic already exists")
    try:
        check_room(topics, name.namespace, count)
    except RefusedError as refusal:
        raise HttpError(412, refusal.message) from refusal
    await topics.create_partitioned(name, count, {PROPERTIES.key: given} if given else None)
    return Response()


def _metadata(request: Request) -> tuple[int, dict[str, str]]:
    """The body: a number of partitions, or an object with it and with properties."""
    if request.headers.get("content-type", "").startswith(METADATA_TYPE):
        body = request.json()
        if not isinstance(body, dict):
            raise HttpError(400, "the body must be a JSON object", text_type="text/plain")
        return _int(body.get("partitions", 0)), text_properties(body.get("properties"))
    return _count(request), {}


async def update_partitions(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Add partitions."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    count = _count(request)
    before = topics.partitions_of(name)
    if not before:
        raise HttpError(409, f"Topic {name} is not the partitioned topic.")
    if count < before:
        raise HttpError(
            422, f"Desired partitions {count} can't be less than the current partitions {before}."
        )
    _check_count(request, count)
    if count > before:
        await topics.create_partitioned(name, count)
    return Response()


async def create_missed(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Create the partitions that were deleted one by one."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    check_no_partition(name)
    count = topics.partitions_of(name)
    if not count:
        raise HttpError(404, f"Topic {name} does not exist")
    for index in range(count if domain == "persistent" else 0):
        await topics.open(name.partition(index), create=True, explicit=True)
    return Response()


async def delete_partitioned(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Delete a partitioned topic with its partitions."""
    topics = request.services.topics
    if not topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
        raise HttpError(404, f"Topic {domain}://{tenant}/{namespace}/{topic} not found.")
    name = topic_name(request, domain, tenant, namespace, topic)
    if not topics.exists(name):
        raise HttpError(404, f"Topic {name} not found.")
    if not topics.partitions_of(name):
        raise HttpError(
            409,
            f"{name} is a non-partitioned topic. "
            "Instead of calling delete-partitioned-topic please call delete.",
        )
    if not request.flag("force"):
        await check_unused_elsewhere(request, name)
    try:
        await topics.delete_partitioned(name, force=request.flag("force"))
    except TopicInUseError as error:
        raise HttpError(412, "Topic has active producers/subscriptions") from error
    return Response()


async def list_partitioned(request: Request, domain: str, tenant: str, namespace: str) -> Response:
    """The namespace's partitioned topics."""
    names = request.services.topics.partitioned_in(namespace_name(request, tenant, namespace))
    shown = [name for name in names if name.startswith(f"{domain}:")]
    return await Response.of_long_json(shown, request.services.topics.turns)


def _count(request: Request) -> int:
    if not request.body.strip():
        raise HttpError(400, EMPTY, text_type=JSON_TYPE)
    return _int(request.json())


def _int(value: object) -> int:
    try:
        return integer("partitions", value)
    except UnreadableValueError as error:
        raise HttpError(400, str(error), text_type="text/plain") from error


def _check_count(request: Request, count: int) -> None:
    most = request.services.config.max_num_partitions_per_partitioned_topic or MAX_PARTITIONS
    if count > most:
        raise HttpError(406, f"Number of partitions should be less than or equal to {most}")


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


async def lookup(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Answer with the broker that serves the topic: without a cluster this one.

    The empty `brokerUrlSsl` is there because old C++ clients fail without it.
    """
    services = request.services
    listener = request.query.get("listenerName")
    if listener:
        # Pulsar has the same text, with status 500.
        raise HttpError(404, f"the broker do not have {listener} listener")
    try:
        name = topic_name(request, domain, tenant, namespace, topic)
    except RefusedError as refusal:
        raise HttpError(404, refusal.message) from refusal
    owner: Services | Found = services
    if services.cluster is not None:
        found = await found_topic(request, name)
        if isinstance(found, Response):
            return found
        owner = found
    url = owner.service_url
    shown = {
        "brokerUrl": url,
        "httpUrl": owner.http_url,
        "nativeUrl": url or owner.service_url_tls,
        "brokerUrlSsl": "",
    }
    if owner.service_url_tls:
        shown["brokerUrlTls"] = shown["brokerUrlSsl"] = owner.service_url_tls
    if owner.http_url_tls:
        shown["httpUrlTls"] = owner.http_url_tls
    return Response.of_json(shown)


async def bundle(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The bundle of a topic; one range of all hashes if the namespace is absent."""
    settings = request.services.topics.namespaces.get(f"{tenant}/{namespace}")
    if settings is None:
        return Response.of_word("0x00000000_0xffffffff")
    name = topic_name(request, domain, tenant, namespace, topic)
    return Response.of_word(bundle_of(boundaries_of(settings), str(name)))


LOOKUP = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"


ROUTES = (
    Route(
        "GET",
        "/admin/v2/{domain}/{tenant}/{namespace}",
        needs.namespace("GET_TOPICS"),
        None,
        list_topics,
    ),
    Route("PUT", TOPIC, needs.namespace("CREATE_TOPIC"), bodies.TEXTS, create_topic),
    Route("DELETE", TOPIC, needs.namespace("DELETE_TOPIC"), None, delete_topic),
    Route("PUT", f"{TOPIC}/unload", needs.topic("UNLOAD"), None, unload),
    Route(
        "GET",
        "/admin/v2/{domain}/{tenant}/{namespace}/partitioned",
        needs.namespace("GET_TOPICS"),
        None,
        list_partitioned,
    ),
    Route("GET", f"{TOPIC}/partitions", needs.topic("LOOKUP"), None, partitions),
    Route(
        "PUT",
        f"{TOPIC}/partitions",
        needs.topic_policy("PARTITION", "WRITE"),
        bodies.INT,
        create_partitioned,
    ),
    Route(
        "POST",
        f"{TOPIC}/partitions",
        needs.topic_policy("PARTITION", "WRITE"),
        bodies.INT,
        update_partitions,
    ),
    Route(
        "DELETE", f"{TOPIC}/partitions", needs.namespace("DELETE_TOPIC"), None, delete_partitioned
    ),
    Route(
        "POST",
        f"{TOPIC}/createMissedPartitions",
        needs.namespace("CREATE_TOPIC"),
        None,
        create_missed,
    ),
    Route("POST", f"{TOPIC}/terminate", needs.topic("TERMINATE"), None, terminate),
    Route(
        "POST",
        f"{TOPIC}/terminate/partitions",
        needs.topic("TERMINATE"),
        None,
        terminate_partitions,
    ),
    Route("GET", LOOKUP, needs.topic("LOOKUP"), None, lookup),
    Route("GET", f"{LOOKUP}/bundle", needs.topic("LOOKUP"), None, bundle),
)
