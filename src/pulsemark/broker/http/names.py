"""Checks the names in URLs, and finds their topics and namespaces."""

from __future__ import annotations

from ...wire import InvalidTopicNameError, TopicName, check_namespace
from ..topics.topic import Topic
from .messages import HttpError, Request, UnservedError
from .route import DOMAINS

__all__ = [
    "DOMAINS",
    "check_new_namespace",
    "existing_namespace",
    "existing_topic",
    "is_valid_name",
    "namespace_name",
    "open_logs",
    "open_one_log",
    "open_topic",
    "plain_topic",
    "topic_name",
    "why_absent",
]


def topic_name(request: Request, domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """The topic name in a path; its namespace must exist. Raises `HttpError`, `RefusedError`."""
    if domain not in DOMAINS:
        raise UnservedError(404)
    if not request.services.topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
        raise HttpError(404, "Namespace not found")
    return request.services.topics.parse(f"{domain}://{tenant}/{namespace}/{topic}")


def check_topics_namespace(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> None:
    """Raise `HttpError` 404 about the topic if its namespace does not exist.

    Other routes are answered with "Namespace not found": each as Pulsar answers it.
    """
    if not request.services.topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
        raise HttpError(404, f"Topic {domain}://{tenant}/{namespace}/{topic} not found")


def existing_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> TopicName:
    """The name of an existing topic. Raises `HttpError` 404."""
    name = topic_name(request, domain, tenant, namespace, topic)
    if not _exists(request, name):
        raise HttpError(404, why_absent(request, name))
    return name


def _exists(request: Request, name: TopicName) -> bool:
    """Whether a topic exists. Raises `NotOwnedError` if only another broker can know."""
    topics = request.services.topics
    if topics.exists(name):
        return True
    # It may just have been created there.
    topics.check_owned(name)
    return False


def plain_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> TopicName:
    """The name of an existing topic, where Pulsar says no more of a partition that is absent."""
    name = topic_name(request, domain, tenant, namespace, topic)
    if not _exists(request, name):
        raise HttpError(404, f"Topic {name} not found")
    return name


def why_absent(request: Request, name: TopicName) -> str:
    """What Pulsar says of a topic that does not exist; of a partition more."""
    if name.partition_index < 0:
        return f"Topic {name} not found"
    if request.services.topics.partitions_of(name.partitioned):
        return "Topic partitions were not yet created"
    return f"Partitioned Topic not found: {name} has zero partitions"


async def open_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Topic:
    """Open an existing topic. Raises `HttpError` 404 for a partitioned topic: it has no log."""
    name = existing_topic(request, domain, tenant, namespace, topic)
    if request.services.topics.partitions_of(name):
        raise HttpError(404, f"Topic {name} not found")
    return await request.services.topics.open(name, create=False)


async def open_one_log(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, *, what: str
) -> Topic:
    """Open an existing topic for a call that needs exactly one log.

    Raises `HttpError` 405 with the reason `what` for a partitioned topic: it has several logs.
    """
    name = existing_topic(request, domain, tenant, namespace, topic)
    if request.services.topics.partitions_of(name):
        raise HttpError(405, what)
    return await open_topic(request, domain, tenant, namespace, topic)


async def open_logs(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> list[Topic]:
    """Open the topic, or all partitions of a partitioned topic. Raises `HttpError` 404."""
    topics = request.services.topics
    name = existing_topic(request, domain, tenant, namespace, topic)
    count = topics.partitions_of(name)
    if not count:
        return [await topics.open(name, create=False)]
    opened = []
    for index in range(count):
        opened.append(await topics.open(name.partition(index), create=True))
        if not topics.turns.has_time():
            await topics.turns.next()
    return opened


def namespace_name(request: Request, tenant: str, namespace: str) -> str:
    """An existing namespace, as `tenant/namespace`. Raises `HttpError` 404."""
    name = f"{tenant}/{namespace}"
    if name not in request.services.topics.namespaces:
        raise HttpError(404, "Namespace does not exist")
    return name


def check_new_namespace(tenant: str, namespace: str) -> str:
    """A valid name for a new namespace. Raises `HttpError` 412."""
    name = f"{tenant}/{namespace}"
    try:
        check_namespace(name)
    except InvalidTopicNameError as error:
        raise HttpError(412, "Namespace name is not valid") from error
    return name


def is_valid_name(name: str) -> bool:
    """Whether a tenant may have this name."""
    try:
        check_namespace(f"{name}/any")
    except InvalidTopicNameError:
        return False
    return True


def existing_namespace(request: Request, tenant: str, namespace: str) -> str:
    """An existing namespace with a valid name. Raises `HttpError` 412, 404."""
    check_new_namespace(tenant, namespace)
    return namespace_name(request, tenant, namespace)
