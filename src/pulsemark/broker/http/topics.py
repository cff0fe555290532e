"""Topics over HTTP: made, listed, deleted, cleaned, and their statistics.

On a partitioned topic each does its work for every partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...ledger import LedgerError, Position
from ...wire import TopicName
from ..errors import RefusedError
from ..handlers.discovery import TRANSACTION_COORDINATORS
from ..metrics.internal_stats import internal_stats, managed_ledger_info
from ..metrics.stats import Pieces, StatsOptions, sum_of_partitions, topic_stats
from ..policies.policy import integer
from ..policies.pulsar_policies import PROPERTIES
from ..security import needs
from ..topics import registry
from ..topics.topic import Topic, TopicInUseError
from . import paths
from .messages import HttpError, Json, Request, Response
from .peer_proxy import check_unused_elsewhere, found_topic
from .policies import properties_of, text_properties
from .route import TOPIC, Routes, TopicPath

if TYPE_CHECKING:
    from ..connection.services import Services
    from ..ownership import Found

routes = Routes()
#: The content type of a number of partitions with properties.
METADATA_TYPE = "application/vnd.partitioned-topic-metadata+json"
LOOKUP = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"


@routes.get("/admin/v2/{domain}/{tenant}/{namespace}", needs.namespace("GET_TOPICS"))
async def list_topics(request: Request, namespace: str, domain: str) -> Json:
    """The namespace's topics of one domain, with each partition; `bundle` chooses some of them."""
    paths.settings_of(request, namespace)
    names = request.topics.names_in(namespace)
    if bundle := request.query.get("bundle"):
        names = paths.topics_in_bundle(request, namespace, bundle)
    return [name for name in names if name.startswith(f"{domain}:")]


@routes.put(TOPIC, needs.namespace("CREATE_TOPIC"))
async def create_topic(request: Request, path: TopicPath) -> None:
    """Create a topic without partitions; the body may have properties."""
    topics = request.topics
    name = paths.topic_name(request, path)
    given = text_properties(request.json())
    async with topics.creating(str(name)):
        if topics.exists(name):
            raise HttpError(409, "This topic already exists")
        _check_partition(request, name)
        await topics.open(name, create=True, explicit=True)
        if given:
            await topics.policies[PROPERTIES].set(name, given)


def _check_partition(request: Request, name: TopicName) -> None:
    """Raise `HttpError` 412 for the name of a partition that no partitioned topic has."""
    if name.partition_index < 0:
        return
    whole = name.partitioned
    start = f'Can\'t create topic {name.local} with "-partition-" followed by'
    if not request.topics.partitioned.count_of(whole):
        text = f"{start} numeric value if there isn't a partitioned topic {whole.local} created."
        raise HttpError(412, text)
    if registry.is_beyond_partitions(request.topics, name):
        start += " a number smaller than number of partition of partitioned topic"
        raise HttpError(412, f"{start} {whole.local}")


@routes.delete(TOPIC, needs.namespace("DELETE_TOPIC"))
async def delete_topic(request: Request, path: TopicPath) -> None:
    """Delete a topic without producers and consumers; with force=true also one with some."""
    topics = request.topics
    name = paths.existing_topic(request, path)
    if topics.partitioned.count_of(name):
        text = f"{name} is a partitioned topic, instead of calling delete topic, "
        raise HttpError(409, f"{text}please call delete-partitioned-topic.")
    try:
        await topics.delete(name, force=request.flag("force"))
    except TopicInUseError as error:
        raise HttpError(412, f"Topic has {error.users} connected producers/consumers") from error


@routes.put(f"{TOPIC}/unload", needs.topic("UNLOAD"))
async def unload(request: Request, path: TopicPath) -> None:
    """Disconnect all producers and consumers; their clients reconnect by themselves."""
    for opened in await paths.open_logs(request, path):
        await request.topics.turns.work(opened.disconnect())


@routes.get(f"{TOPIC}/partitions", needs.topic("LOOKUP"))
async def partitions(request: Request, path: TopicPath) -> Json:
    """The number of partitions; 0 for a topic without partitions.

    With checkAllowAutoCreation=true an absent topic is created with the partitions that the policy
    of topics that clients create says: as in Pulsar, whose clients look topics up in this way.
    """
    if request.services.transactions is not None and str(path) == TRANSACTION_COORDINATORS:
        return {"partitions": 1, "deleted": False}
    topics = request.topics
    name = paths.topic_name(request, path)
    may_create = request.flag("checkAllowAutoCreation") and registry.creates(topics, name)
    if not topics.exists(name) and not may_create:
        raise HttpError(404, f"Topic {name} not found")
    await _create_if_absent(request, name)
    return _shown_metadata(topics, name, topics.partitioned.count_of(name))


async def _create_if_absent(request: Request, name: TopicName) -> None:
    topics = request.topics
    count = 0 if topics.exists(name) else registry.partitions_created(topics, name)
    if count:
        registry.check_room(topics, name.namespace, count)
        await topics.create_partitioned(name, count)


@routes.put(f"{TOPIC}/partitions", needs.topic_policy("PARTITION", "WRITE"))
async def create_partitioned(request: Request, path: TopicPath) -> None:
    """Create a partitioned topic; the body is the number of partitions."""
    topics = request.topics
    name = paths.topic_name(request, path)
    count, given = _metadata(request)
    if count < 1:
        raise HttpError(406, "Number of partitions should be more than 0")
    _check_count(request, count)
    paths.check_no_partition(name)
    async with topics.creating(str(name)):
        if topics.exists(name):
            raise HttpError(409, "This topic already exists")
        try:
            registry.check_room(topics, name.namespace, count)
        except RefusedError as refusal:
            raise HttpError(412, refusal.message) from refusal
        await topics.create_partitioned(name, count, {PROPERTIES.key: given} if given else None)


def _metadata(request: Request) -> tuple[int, dict[str, str]]:
    """The body: a number of partitions, or an object with it and with properties."""
    if request.headers.get("content-type", "").startswith(METADATA_TYPE):
        body = request.json_object() or {}
        count = integer("partitions", body.get("partitions", 0))
        return count, text_properties(body.get("properties"))
    return _count(request), {}


@routes.post(f"{TOPIC}/partitions", needs.topic_policy("PARTITION", "WRITE"))
async def update_partitions(request: Request, path: TopicPath) -> None:
    """Add partitions."""
    topics = request.topics
    name = paths.topic_name(request, path)
    count = _count(request)
    before = topics.partitioned.count_of(name)
    if not before:
        raise HttpError(409, f"Topic {name} is not the partitioned topic.")
    if count < before:
        text = f"Desired partitions {count} can't be less than the current partitions {before}."
        raise HttpError(422, text)
    _check_count(request, count)
    if count > before:
        await topics.create_partitioned(name, count, only_adds=True)


@routes.post(f"{TOPIC}/createMissedPartitions", needs.namespace("CREATE_TOPIC"))
async def create_missed(request: Request, path: TopicPath) -> None:
    """Create the partitions that were deleted one by one."""
    topics = request.topics
    name = paths.topic_name(request, path)
    paths.check_no_partition(name)
    count = topics.partitioned.count_of(name)
    if not count:
        raise HttpError(404, f"Topic {name} does not exist")
    for index in range(count if path.domain == "persistent" else 0):
        await topics.open(name.partition(index), create=True, explicit=True)


@routes.delete(f"{TOPIC}/partitions", needs.namespace("DELETE_TOPIC"))
async def delete_partitioned(request: Request, path: TopicPath) -> None:
    """Delete a partitioned topic with its partitions."""
    topics = request.topics
    name = paths.topic_name(request, path)
    if not topics.exists(name):
        raise HttpError(404, f"Topic {name} not found")
    if not topics.partitioned.count_of(name):
        text = f"{name} is a non-partitioned topic. Instead of calling delete-partitioned-topic "
        raise HttpError(409, f"{text}please call delete.")
    if not request.flag("force"):
        await check_unused_elsewhere(request, name)
    try:
        await topics.delete_partitioned(name, force=request.flag("force"))
    except TopicInUseError as error:
        raise HttpError(412, "Topic has active producers/subscriptions") from error


@routes.get("/admin/v2/{domain}/{tenant}/{namespace}/partitioned", needs.namespace("GET_TOPICS"))
async def list_partitioned(request: Request, namespace: str, domain: str) -> Json:
    """The namespace's partitioned topics."""
    paths.settings_of(request, namespace)
    names = request.topics.partitioned.in_namespace(namespace)
    return [name for name in names if name.startswith(f"{domain}:")]


def _count(request: Request) -> int:
    return integer("partitions", request.required_json())


def _check_count(request: Request, count: int) -> None:
    most = (
        request.services.config.max_num_partitions_per_partitioned_topic or registry.MAX_PARTITIONS
    )
    if count > most:
        raise HttpError(406, f"Number of partitions should be less than or equal to {most}")


NOT_PARTITIONED = (
    "Termination of a non-partitioned topic is not allowed using partitioned-terminate, "
    "please use terminate commands"
)


@routes.post(f"{TOPIC}/terminate", needs.topic("TERMINATE"))
async def terminate(request: Request, path: TopicPath) -> Json:
    """End a topic; the answer is its last message's id. Once more gives the same answer."""
    paths.check_stored(path)
    what = "Termination of a partitioned topic is not allowed"
    opened = await paths.open_topic(request, path, what=what)
    return paths.shown_id(await request.topics.terminate(opened))


@routes.post(f"{TOPIC}/terminate/partitions", needs.topic("TERMINATE"))
async def terminate_partitions(request: Request, path: TopicPath) -> Json:
    """End all partitions of a topic; the answer has each one's last message id, by number."""
    topics = request.topics
    name = paths.topic_name(request, path)
    count = topics.partitioned.count_of(name)
    if not count:
        raise HttpError(405, NOT_PARTITIONED)
    paths.check_stored(path)
    ends = {}
    for index in range(count):
        try:
            opened = await topics.open(name.partition(index), create=True)
            ends[str(index)] = paths.shown_id(await topics.terminate(opened))
        except LedgerError as error:
            done = ", ".join(ends) or "none"
            raise HttpError(503, f"{error} (partitions terminated before: {done})") from error
    return ends


@routes.get(LOOKUP, needs.topic("LOOKUP"))
async def lookup(request: Request, path: TopicPath) -> Json:
    """Answer with the broker that serves the topic: without a cluster this one.

    The empty `brokerUrlSsl` is there because old C++ clients fail without it.
    """
    services = request.services
    listener = request.query.get("listenerName")
    if listener:
        # Pulsar has the same text, with status 500.
        raise HttpError(404, f"the broker do not have {listener} listener")
    try:
        name = paths.topic_name(request, path)
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
    return shown


@routes.get(f"{LOOKUP}/bundle", needs.topic("LOOKUP"))
async def bundle(request: Request, path: TopicPath) -> Response:
    """The bundle of a topic; one range of all hashes if the namespace is absent."""
    settings = request.topics.namespaces.get(path.full_namespace)
    if settings is None:
        return Response.of_word("0x00000000_0xffffffff")
    name = paths.topic_name(request, path)
    return Response.of_word(paths.bundle_of(paths.boundaries_of(settings), str(name)))


@routes.get(f"{TOPIC}/stats", needs.topic("GET_STATS"))
async def stats(request: Request, path: TopicPath) -> Json:
    """Counters, producers, subscriptions and their consumers."""
    opened = await paths.open_topic(request, path)
    wanted = stats_options(request)
    if request.flag("getEarliestTimeInBacklog"):
        earliest = await request.services.run_blocking(_earliest_times, opened)
        wanted = replace(wanted, earliest_ms=earliest)
    return topic_stats(opened, wanted)


#: The query parameter that asks for figures that only this broker has.
OWN_FIGURES = "ownFigures"


def stats_options(request: Request) -> StatsOptions:
    """The options in a request's query."""
    return StatsOptions(
        publishers=not request.flag("excludePublishers"),
        consumers=not request.flag("excludeConsumers"),
        own=request.flag(OWN_FIGURES),
        owner=request.services.http_url.partition("://")[2],
    )


def _earliest_times(opened: Topic) -> dict[str, int]:
    """By subscription, the time of its first waiting entry; -1 without one. Blocks."""
    times: dict[str, int] = {}
    for subscription in tuple(opened.subscriptions.values()):
        try:
            first = subscription.cursor.first_unacked
            found = opened.ledger.read(first, max_entries=1)
        except LedgerError:
            found = []
        times[subscription.name] = found[0].append_time_ms if found else -1
    return times


@routes.get(f"{TOPIC}/internalStats", needs.topic("GET_STATS"))
async def stats_internal(request: Request, path: TopicPath) -> Json:
    """Ledgers and cursors."""
    opened = await paths.open_topic(request, path)
    from ...compaction.current_view import current_view

    view = await request.services.run_blocking(current_view, opened.ledger)
    return internal_stats(opened, view, own=request.flag(OWN_FIGURES))


@routes.get(f"{TOPIC}/internal-info", needs.topic("GET_STATS"))
async def internal_info(request: Request, path: TopicPath) -> Json:
    """What is stored of a topic's ledgers and cursors; of each partition, if it has some."""
    topics = request.topics
    name = paths.existing_topic(request, path)
    count = topics.partitioned.count_of(name)
    opened = await paths.open_logs(request, path)

    def pieces() -> Pieces:
        if not count:
            return (yield from managed_ledger_info(opened[0]))
        return {"version": 0, "partitions": (yield from _each(opened, managed_ledger_info))}

    return pieces()


@routes.get(f"{TOPIC}/offload", needs.topic("OFFLOAD"))
async def offload_status(request: Request, path: TopicPath) -> Json:
    """NOT_RUN: the broker offloads nothing."""
    await paths.open_topic(request, path)
    first = paths.shown_id(Position(-1, -1))
    return {"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": first}


@routes.get(f"{TOPIC}/partitioned-stats", needs.topic("GET_STATS"))
async def partitioned_stats(request: Request, path: TopicPath) -> Json:
    """The sums over the partitions; with perPartition (the default) also each one's stats."""
    topics = request.topics
    paths.check_no_partition(paths.topic_name(request, path))
    name, parts = await _open_partitions(request, path)
    wanted = stats_options(request)

    def pieces() -> Pieces:
        rows = yield from _each(parts, lambda part: topic_stats(part, wanted))
        sums = yield from sum_of_partitions(list(rows.values()))
        return {
            **sums,
            "metadata": _shown_metadata(topics, name, len(parts)),
            "partitions": rows if request.flag("perPartition", "true") else {},
        }

    return pieces()


@routes.get(f"{TOPIC}/partitioned-internalStats", needs.topic("GET_STATS"))
async def partitioned_internal_stats(request: Request, path: TopicPath) -> Json:
    """Each partition's ledgers and cursors."""
    topics = request.topics
    name, parts = await _open_partitions(request, path)

    def pieces() -> Pieces:
        rows = yield from _each(parts, partial(internal_stats, own=request.flag(OWN_FIGURES)))
        return {"metadata": _shown_metadata(topics, name, len(parts)), "partitions": rows}

    return pieces()


def _each(parts: list[Topic], figures: Callable[[Topic], Pieces]) -> Pieces:
    """The figures of each partition, by its name."""
    rows: dict[str, Any] = {}
    for part in parts:
        rows[part.name] = yield from figures(part)
        yield None
    return rows


def _shown_metadata(topics: registry.Topics, name: TopicName, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {"partitions": count, "deleted": False}
    shown = properties_of(topics, name)
    return {**metadata, "properties": shown} if shown else metadata


async def _open_partitions(request: Request, path: TopicPath) -> tuple[TopicName, list[Topic]]:
    topics = request.topics
    name = paths.topic_name(request, path)
    count = topics.partitioned.count_of(name)
    if not count:
        raise HttpError(404, f"Partitioned Topic {name} not found")
    return name, [await topics.open(name.partition(i), create=True) for i in range(count)]


@routes.get(f"{TOPIC}/compaction", needs.topic("COMPACT"))
async def compaction_status(request: Request, path: TopicPath) -> Json:
    """NOT_RUN, RUNNING, SUCCESS or ERROR since the topic was opened; for one partition only."""
    paths.stored_topic(request, path)
    figures = (await paths.open_topic(request, path)).cleaning.compaction
    return {"status": figures.status.value, "lastError": figures.last_error}


@routes.put(f"{TOPIC}/compaction", needs.topic("COMPACT"))
async def compact(request: Request, path: TopicPath) -> None:
    """Compact as soon as possible; 409 if a compaction runs already."""
    refused = False
    for opened in await paths.open_stored(request, path):
        refused |= not request.services.cleaning.compact(opened)
    if refused:
        raise HttpError(409, "Compaction already in progress")


@routes.delete(f"{TOPIC}/truncate", needs.tenant_admin())
async def truncate(request: Request, path: TopicPath) -> None:
    """Remove all entries of a topic, for all subscriptions and on disk."""
    if path.domain == "non-persistent":
        raise HttpError(412, "unsupport truncate")
    for opened in await paths.open_stored(request, path):
        await request.services.cleaning.truncate(opened)


@routes.post(f"{TOPIC}/trim", needs.topic("TRIM_TOPIC"))
async def trim(request: Request, path: TopicPath) -> Response:
    """Apply a topic's retention now; figures=true, or dryRun=true, answers what is removed.

    Without them the answer is empty, as Pulsar's.
    """
    is_dry_run = request.flag("dryRun")
    cleaning, figures = request.services.cleaning, []
    for opened in await paths.open_logs(request, path):
        removed = await cleaning.trim(opened, is_dry_run=is_dry_run)
        figures.append({"topic": opened.name, **asdict(removed)})
    wants = is_dry_run or request.flag("figures")
    return Response.of_json(figures) if wants else Response(200)
