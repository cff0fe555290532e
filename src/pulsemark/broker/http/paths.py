"""Reads the names and numbers in URLs and bodies, and finds their namespaces, bundles and topics.

Bundles are parts of a namespace, by ranges of the hash of topics' names. Pulsar gives each bundle
to one broker; without a cluster they only name groups of topics. A namespace has `bundles` in its
settings if it was created with them or if one was split, otherwise it has four of equal size.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from ...ledger import Position
from ...wire import InvalidTopicNameError, TopicName, check_namespace
from .messages import HttpError, Request, UnservedError
from .route import DOMAINS, TopicPath

if TYPE_CHECKING:
    from ..subscriptions.subscription import Subscription
    from ..topics.topic import Topic


def topic_name(request: Request, path: TopicPath) -> TopicName:
    """The topic name in a path; its namespace must exist. Raises `HttpError`, `RefusedError`."""
    if path.domain not in DOMAINS:
        raise UnservedError(404)
    if not request.topics.namespaces.may_have_topics(path.full_namespace):
        raise HttpError(404, "Namespace not found")
    return request.topics.parse(str(path))


def existing_topic(request: Request, path: TopicPath) -> TopicName:
    """The name of an existing topic. Raises `HttpError` 404."""
    name, topics = topic_name(request, path), request.topics
    if not topics.exists(name):
        topics.check_owned(name)  # it may just have been created at another broker
        raise HttpError(404, f"Topic {name} not found")
    return name


def check_stored(path: TopicPath) -> None:
    """Raise `HttpError` 406, as Pulsar, for a topic in memory."""
    if path.domain != "persistent":
        raise HttpError(406, f"{path} is not stored")


async def open_topic(request: Request, path: TopicPath, *, what: str = "") -> Topic:
    """Open an existing topic that has exactly one log. Raises `HttpError` 404, or 405 (`what`)."""
    name = existing_topic(request, path)
    if request.topics.partitioned.count_of(name):
        raise HttpError(405, what) if what else HttpError(404, f"Topic {name} not found")
    return await request.topics.open(name, create=False)


async def open_logs(request: Request, path: TopicPath) -> list[Topic]:
    """Open the topic, or all partitions of a partitioned topic. Raises `HttpError` 404."""
    topics = request.topics
    name = existing_topic(request, path)
    count = topics.partitioned.count_of(name)
    if not count:
        return [await topics.open(name, create=False)]
    indexes = topics.turns.each(range(count))
    return [await topics.open(name.partition(at), create=True) async for at in indexes]


def settings_of(request: Request, namespace: str) -> dict[str, Any]:
    """The settings of an existing namespace. Raises `HttpError` 404."""
    found: dict[str, Any] | None = request.topics.namespaces.get(namespace)
    if found is None:
        raise HttpError(404, "Namespace does not exist")
    return found


def existing_namespace(request: Request, namespace: str) -> str:
    """An existing namespace with a valid name. Raises `HttpError` 412, 404."""
    check_valid(namespace)
    settings_of(request, namespace)
    return namespace


def check_valid(namespace: str, what: str = "Namespace") -> None:
    """Raise `HttpError` 412 for a name that no namespace can have. `what` has the name."""
    try:
        check_namespace(namespace)
    except InvalidTopicNameError as error:
        raise HttpError(412, f"{what} name is not valid") from error


BUNDLES = "bundles"
DEFAULT_COUNT = 4
#: A namespace is asked for as a whole, so its bundles must not make answers of any size.
MAX_BUNDLES = 4096
FULL = 0xFFFFFFFF
RANGE = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")


def boundaries_of(settings: Any) -> list[int]:
    """The boundaries of a namespace's bundles, from 0 to 0xffffffff."""
    found = settings.get(BUNDLES)
    if not isinstance(found, dict) or not isinstance(found.get("boundaries"), list):
        return with_count(DEFAULT_COUNT)
    return [int(text, 16) for text in found["boundaries"]]


def bundles_of(boundaries: Sequence[int]) -> dict[str, Any]:
    """The bundles as Pulsar shows them."""
    texts = [f"0x{boundary:08x}" for boundary in boundaries]
    return {"boundaries": texts, "numBundles": len(texts) - 1}


def with_count(count: int) -> list[int]:
    """The boundaries of bundles of equal size. Raises `HttpError` 412."""
    if count > MAX_BUNDLES:
        raise HttpError(412, f"Invalid number of bundles: {count} is over {MAX_BUNDLES}")
    if count <= 0:
        count = DEFAULT_COUNT
    size = FULL // count
    if FULL % count == count - 1:
        size += 1
    return [*(number * size for number in range(count)), FULL]


def bundle_of(boundaries: Sequence[int], topic: str) -> str:
    """The bundle of a topic, by the hash of its full name."""
    value = min(zlib.crc32(topic.encode()), FULL - 1)
    high = bisect_right(boundaries, value)
    return f"0x{boundaries[high - 1]:08x}_0x{boundaries[high]:08x}"


def check_bundle(request: Request, namespace: str, bundle: str) -> tuple[int, int]:
    """The range of one of the namespace's bundles. Raises `HttpError` 404, 412."""
    boundaries = boundaries_of(settings_of(request, namespace))
    found = RANGE.fullmatch(bundle)
    if found is None:
        raise HttpError(412, f"Invalid bundle range: {bundle[:80]}")
    low, high = int(found[1], 16), int(found[2], 16)
    if low not in boundaries[:-1]:
        raise HttpError(412, f"Invalid lower boundary for bundle {namespace}/{bundle}")
    wanted = boundaries[boundaries.index(low) + 1]
    if high != wanted:
        wanted_range = f"{namespace}/0x{low:08x}_0x{wanted:08x}"
        text = f"Invalid upper boundary for bundle {namespace}/{bundle}. "
        raise HttpError(412, f"{text}Expected upper boundary of {wanted_range}")
    return low, high


def topics_in_bundle(request: Request, namespace: str, bundle: str) -> list[str]:
    """The topics of one bundle. Raises `HttpError` 404, 412."""
    check_bundle(request, namespace, bundle)
    boundaries = boundaries_of(settings_of(request, namespace))
    names = request.topics.names_in(namespace)
    return [name for name in names if bundle_of(boundaries, name) == bundle]


async def split(request: Request, namespace: str, low: int, high: int) -> None:
    """Split a bundle in the middle. Raises `HttpError` 412 if it cannot be split."""
    middle = low + (high - low) // 2 + (1 if high == FULL else 0)

    def change(settings: dict[str, Any]) -> dict[str, Any]:
        boundaries = boundaries_of(settings)
        if high - low < 2 or len(boundaries) > MAX_BUNDLES:
            raise HttpError(412, "Failed to split bundle: it is too small, or there are too many")
        return {**settings, BUNDLES: bundles_of(sorted({*boundaries, middle}))}

    await request.topics.namespaces.change(namespace, change)


def subscription_not_found(name: str, topic: object) -> HttpError:
    """The answer for a subscription that a topic does not have."""
    return HttpError(404, f"Subscription {name} not found for topic {topic}")


async def find_subscription(
    request: Request, path: TopicPath, name: str, *, what: str
) -> Subscription:
    """The subscription, for `what`, which needs exactly one log."""
    opened = await open_topic(request, path, what=what)
    return _subscription_of(opened, name)


async def find_subscriptions(request: Request, path: TopicPath, name: str) -> list[Subscription]:
    """The subscription, or that of each partition. Raises `HttpError` 404 if one has none."""
    opened = await open_logs(request, path)
    return [_subscription_of(one, name) for one in opened]


def _subscription_of(opened: Topic, name: str) -> Subscription:
    found = opened.subscriptions.get(name)
    if found is None:
        raise subscription_not_found(name, opened.name)
    return found


def stored_topic(request: Request, path: TopicPath) -> TopicName:
    """The name of an existing topic. Raises `HttpError` 404."""
    if path.domain != "persistent":
        raise HttpError(404, f"Topic {path} not found")
    return existing_topic(request, path)


async def open_stored(request: Request, path: TopicPath) -> list[Topic]:
    """Open a topic, or all its partitions. Raises `HttpError` 404, `RefusedError`."""
    stored_topic(request, path)
    return await open_logs(request, path)


def position_in(body: Any) -> Position:
    """The message id in a body. Raises `HttpError` 400."""
    if isinstance(body, dict):
        ledger_id, entry_id = body.get("ledgerId", 0), body.get("entryId", 0)
        if _is_id(ledger_id) and _is_id(entry_id):
            return Position(ledger_id, entry_id)
    reason = 'the body must be {"ledgerId": ..., "entryId": ...}'
    raise HttpError(400, reason, text_type="text/plain")


def _is_id(value: Any) -> TypeGuard[int]:
    return type(value) is int and -1 <= value < 1 << 63


def int_value(text: str, bits: int = 32) -> int:
    """A number in a path or a query, as Java's int. Raises `UnservedError` 404, as Pulsar."""
    highest = 2 ** (bits - 1) - 1
    if not re.fullmatch(r"[-+]?[0-9]{1,19}", text) or not -highest - 1 <= int(text) <= highest:
        raise UnservedError(404)
    return int(text)


def long_value(text: str) -> int:
    """A number in a path or a query, as Java's long. Raises `UnservedError` 404, as Pulsar."""
    return int_value(text, 64)


def shown_id(
    position: Position, partition: int = -1, batch_index: int = -1, batch_size: int = 0
) -> dict[str, int]:
    """A message id as Pulsar shows it."""
    return {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": partition,
        "batchIndex": batch_index,
        "batchSize": batch_size,
    }


def check_no_partition(name: TopicName) -> None:
    """Raise `HttpError` 412 for the name of a partition, which cannot have partitions itself."""
    if name.partition_index >= 0:
        raise HttpError(412, "Partitioned Topic Name should not contain '-partition-'")
