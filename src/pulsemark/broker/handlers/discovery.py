"""Finding topics and their schemas: LOOKUP, GET_TOPICS_OF_NAMESPACE, GET_SCHEMA and others.

A client that watches a namespace is notified when its topics come and go (`topics.topic_watchers`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from ...proto import pulsar_api_pb2 as pb
from ...wire import InvalidTopicNameError, check_namespace_or_older, commands
from ..errors import RefusedError
from ..security.authorization import Target
from ..security.needs import namespace
from ..topics.registry import check_room, creates, is_beyond_partitions, partitions_created
from ..topics.schemas import schema_id, version_bytes
from ..topics.topic_watchers import (
    TopicWatcher,
    compile_if_safe,
    matching,
    topics_hash,
    without_domain,
)
from .authorizing import check_again
from .checks import BYTES_PER_CHARACTER, STATE_BYTES, CommandTable, schema_version_for

if TYPE_CHECKING:
    from ...wire import TopicName
    from ..connection.session import Session
    from ..ownership import Cluster


#: Longer patterns are left to the client (Pulsar: subscriptionPatternMaxLength).
PATTERN_MAX_CHARACTERS = 50
#: Clients that want transactions ask for its partitions first.
TRANSACTION_COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"
#: The name prefix that a mode selects; any other mode selects all names.
DOMAIN_OF_MODE = {
    pb.CommandGetTopicsOfNamespace.PERSISTENT: "persistent:",
    pb.CommandGetTopicsOfNamespace.NON_PERSISTENT: "non-persistent:",
}


def partitioned_metadata(session: Session, command: pb.CommandPartitionedTopicMetadata) -> None:
    """How many partitions a topic has; 0 for one that is not partitioned.

    A topic that does not exist may be created here, with the partitions that the policy says.
    """
    if command.topic == TRANSACTION_COORDINATORS:
        # With 0 clients report that transactions are off.
        coordinators = 0 if session.services.transactions is None else 1
        session.write(commands.partitioned_metadata_response(command.request_id, coordinators))
        return
    topics = session.services.topics
    created = 0
    with _refusing_metadata(command):
        name = topics.parse(command.topic)
        if not topics.exists(name):
            may_create = command.metadata_auto_creation_enabled and creates(topics, name)
            if not may_create or is_beyond_partitions(topics, name):
                raise RefusedError(pb.ServerError.TopicNotFound, "")
            created = partitions_created(topics, name)
    if created:
        session.run(command.request_id, _create_partitioned(session, command, name, created))
        return
    partitions = topics.partitioned.count_of(name)
    session.write(commands.partitioned_metadata_response(command.request_id, partitions))


async def _create_partitioned(
    session: Session, command: pb.CommandPartitionedTopicMetadata, name: TopicName, partitions: int
) -> None:
    topics = session.services.topics
    with _refusing_metadata(command):
        if not topics.exists(name):
            check_room(topics, name.namespace, partitions)
            await topics.create_partitioned(name, partitions)
    partitions = topics.partitioned.count_of(name)
    session.write(commands.partitioned_metadata_response(command.request_id, partitions))


@contextmanager
def _refusing(
    answer: type[Message], text_of: Callable[[RefusedError], str] = lambda refusal: refusal.message
) -> Iterator[None]:
    """Refusals are answered with the command's own response, and perhaps another text."""
    try:
        yield
    except RefusedError as refusal:
        changed = RefusedError(refusal.code, text_of(refusal))
        changed.answer = answer
        raise changed from refusal


def _refusing_metadata(
    command: pb.CommandPartitionedTopicMetadata,
) -> AbstractContextManager[None]:
    def text_of(refusal: RefusedError) -> str:
        is_absent = refusal.code == pb.ServerError.TopicNotFound
        # As in Pulsar: an absent topic has no text, an absent namespace only for clients of old.
        has_no_text = not (refusal.message and command.metadata_auto_creation_enabled)
        return "" if is_absent and has_no_text else _text_of(refusal)

    return _refusing(pb.CommandPartitionedTopicMetadataResponse, text_of)


def lookup(session: Session, command: pb.CommandLookupTopic) -> None:
    """A broker alone serves every topic; clients keep the address with which they connected."""
    services = session.services
    with _refusing(pb.CommandLookupTopicResponse, _text_of):
        name = services.topics.parse(command.topic)
        listener = command.advertised_listener_name
        if listener:
            text = f"the broker do not have {listener} listener"
            raise RefusedError(pb.ServerError.ServiceNotReady, text)
    if services.cluster is not None:
        session.run(command.request_id, _find(session, command, services.cluster, name))
        return
    answer = commands.lookup_response(
        command.request_id,
        services.service_url,
        services.service_url_tls,
        proxy_through_service_url=True,
    )
    session.write(answer)


async def _find(
    session: Session, command: pb.CommandLookupTopic, cluster: Cluster, name: TopicName
) -> None:
    """Answer with the broker of the topic, to which clients connect directly."""
    with _refusing(pb.CommandLookupTopicResponse):
        found = await cluster.find(name, authoritative=command.authoritative)
    answer = commands.lookup_response(
        command.request_id,
        found.service_url,
        found.service_url_tls,
        redirect=found.redirect,
        authoritative=found.authoritative,
    )
    session.write(answer)


def _text_of(refusal: RefusedError) -> str:
    is_absent = refusal.code == pb.ServerError.TopicNotFound
    return "Namespace not found" if is_absent else refusal.message


def topics_of_namespace(session: Session, command: pb.CommandGetTopicsOfNamespace) -> None:
    """The namespace's topics, with each partition; an unknown namespace has no topics."""
    try:
        check_namespace_or_older(command.namespace)
    except InvalidTopicNameError as error:
        # As in Pulsar.
        session.close_because(str(error))
        return
    _check_mode(session, command)
    pieces, turns = _answering(session, command), session.services.topics.turns
    if not turns.run_now(pieces):
        session.run(command.request_id, turns.work(pieces))


def _check_mode(session: Session, command: pb.CommandGetTopicsOfNamespace) -> None:
    """As in Pulsar: of an absent namespace only the stored topics can be asked for."""
    if command.mode == pb.CommandGetTopicsOfNamespace.PERSISTENT:
        return
    if command.namespace not in session.services.topics.namespaces:
        text = "org.apache.pulsar.broker.web.RestException: Namespace not found"
        raise RefusedError(pb.ServerError.MetadataError, text)


def _answering(session: Session, command: pb.CommandGetTopicsOfNamespace) -> Iterator[None]:
    pattern, domain = _pattern_of(command), DOMAIN_OF_MODE.get(command.mode, "")
    all_names = session.services.topics.names_in(command.namespace)
    names = [name for name in all_names if name.startswith(domain)]
    if pattern is not None:
        names = yield from matching(pattern, names)
    digest = topics_hash(names)
    changed = command.topics_hash != digest
    answer = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=command.request_id,
        topics=names if changed else (),
        filtered=pattern is not None,
        topics_hash=digest,
        changed=changed,
    )
    session.write(commands.frame(answer))


def _pattern_of(command: pb.CommandGetTopicsOfNamespace) -> re.Pattern[str] | None:
    """The pattern; None without one, or if the client has to apply it. Raises `RefusedError`."""
    pattern = command.topics_pattern
    if not command.HasField("topics_pattern") or len(pattern) > PATTERN_MAX_CHARACTERS:
        return None
    try:
        return compile_if_safe(pattern)
    except re.error as error:
        raise RefusedError(
            pb.ServerError.MetadataError, f"Invalid topics pattern: {error}"
        ) from None


#: Watchers of one connection. Each created or deleted topic is compared with all patterns.
MAX_WATCHERS_PER_CONNECTION = 100
GET_TOPICS = namespace("GET_TOPICS")


def watch(session: Session, command: pb.CommandWatchTopicList) -> None:
    """Answer with the matching topics, and notify the client of changes from now on.

    A watcher id that is in use gets the topics again, for the watcher that has the id.
    """
    try:
        check_namespace_or_older(command.namespace)
    except InvalidTopicNameError as error:
        # As in Pulsar.
        session.close_because(str(error))
        return
    watcher = session.watchers.get(command.watcher_id)
    if watcher is None:
        watcher = _new_watcher(session, command)
        session.watchers[command.watcher_id] = watcher
        session.services.topics.names.watchers.add(watcher)
    generation = session.services.authorizer.generation
    session.run(command.request_id, _answer(session, command, watcher, generation))


def _new_watcher(session: Session, command: pb.CommandWatchTopicList) -> TopicWatcher:
    if len(session.watchers) >= MAX_WATCHERS_PER_CONNECTION:
        most = MAX_WATCHERS_PER_CONNECTION
        text = f"at most {most} topic lists can be watched on a connection"
        raise RefusedError(pb.ServerError.NotAllowedError, text)
    # As in Pulsar, the domain does not count here. It does in GET_TOPICS_OF_NAMESPACE.
    if len(without_domain(command.topics_pattern)) > PATTERN_MAX_CHARACTERS:
        text = "Unable to create topic list watcher: Pattern longer than maximum: "
        raise RefusedError(pb.ServerError.NotAllowedError, f"{text}{PATTERN_MAX_CHARACTERS}")
    try:
        pattern = compile_if_safe(command.topics_pattern)
    except re.error as error:
        text = f"Invalid topics pattern: {error}"
        raise RefusedError(pb.ServerError.InvalidTopicName, text) from None
    if pattern is None:
        # Clients then ask for the list of topics from time to time.
        text = f"the pattern {command.topics_pattern!r} is too complex to be watched"
        raise RefusedError(pb.ServerError.NotAllowedError, text)
    watcher = TopicWatcher(
        command.watcher_id, command.namespace, pattern, partial(_notify, session)
    )
    texts = len(command.topics_pattern) + len(command.namespace)
    size_bytes = STATE_BYTES + BYTES_PER_CHARACTER * texts
    watcher.reservation = session.kept.reserve("watcher of topics", size_bytes)
    return watcher


async def _answer(
    session: Session, command: pb.CommandWatchTopicList, watcher: TopicWatcher, generation: int
) -> None:
    topics = session.services.topics
    all_names = topics.names_in(watcher.namespace)
    names = await topics.turns.result(matching(watcher.pattern, all_names))
    check_again(session, pb.BaseCommand.WATCH_TOPIC_LIST, command, generation)
    digest = topics_hash(names)
    if command.HasField("topics_hash") and command.topics_hash == digest:
        names = []
    answer = pb.CommandWatchTopicListSuccess(
        request_id=command.request_id,
        watcher_id=watcher.watcher_id,
        topic=names,
        topics_hash=digest,
    )
    session.write(commands.frame(answer))


def _notify(
    session: Session, watcher: TopicWatcher, new: list[str], deleted: list[str], digest: str
) -> None:
    target = Target.of_namespace(watcher.namespace)
    if not session.services.authorizer.allows(session.principal, GET_TOPICS, target):
        # The role has lost its permission. If it gets that back, the digest in the next update
        # tells the client that it has missed names.
        return
    update = pb.CommandWatchTopicUpdate(
        watcher_id=watcher.watcher_id, new_topics=new, deleted_topics=deleted, topics_hash=digest
    )
    session.write(commands.frame(update))


def end_watch(session: Session, command: pb.CommandWatchTopicListClose) -> None:
    """Notify no more. An unknown watcher id is a success, too."""
    watcher = session.watchers.pop(command.watcher_id, None)
    if watcher is not None:
        watcher.leave()
    session.write(commands.success(command.request_id))


# -- schemas ------------------------------------------------------------------------------------


VERSION_SIZE_BYTES = 8
#: The beginning of other commands' refusals; Pulsar's answer to GET_SCHEMA has only the rest.
INVALID = "Invalid topic name: "


def get_schema(session: Session, command: pb.CommandGetSchema) -> None:
    """Answer with a topic's schema: the given version, or the latest."""
    if 0 < len(command.schema_version) < VERSION_SIZE_BYTES:
        # As in Pulsar.
        session.close_because(f"GET_SCHEMA with the version {command.schema_version!r}")
        return
    session.run(command.request_id, _get_schema(session, command))


async def _get_schema(session: Session, command: pb.CommandGetSchema) -> None:
    services = session.services

    def text_of(refusal: RefusedError) -> str:
        is_absent = refusal.code == pb.ServerError.TopicNotFound
        absent = f"Topic not found or no-schema {command.topic}"
        return absent if is_absent else refusal.message.removeprefix(INVALID)

    with _refusing(pb.CommandGetSchemaResponse, text_of):
        name = services.topics.parse(command.topic)
        version = command.schema_version if command.HasField("schema_version") else None
        if version == b"":
            raise RefusedError(pb.ServerError.IncompatibleSchema, "Empty schema version")
        found = await services.schemas.find(name, version)
    shown = pb.Schema()
    shown.CopyFrom(found.schema)
    shown.name = schema_id(name)
    answer = pb.CommandGetSchemaResponse(
        request_id=command.request_id, schema=shown, schema_version=version_bytes(found.number)
    )
    session.write(commands.frame(answer))


def get_or_create_schema(session: Session, command: pb.CommandGetOrCreateSchema) -> None:
    """Register a schema for an existing topic."""
    session.run(command.request_id, _get_or_create_schema(session, command))


async def _get_or_create_schema(session: Session, command: pb.CommandGetOrCreateSchema) -> None:
    services = session.services
    with _refusing(pb.CommandGetOrCreateSchemaResponse):
        name = services.topics.parse(command.topic)
        if not services.topics.exists(name):
            raise RefusedError(pb.ServerError.TopicNotFound, f"Topic not found {name}")
        topic = await services.topics.open(name, create=False)
        # As in Pulsar: the type NONE asks for no schema.
        schema = command.schema if command.schema.type else None
        version = await schema_version_for(session, topic, schema)
    answer = pb.CommandGetOrCreateSchemaResponse(
        request_id=command.request_id, schema_version=version
    )
    session.write(commands.frame(answer))


COMMANDS: CommandTable = {
    pb.BaseCommand.PARTITIONED_METADATA: partitioned_metadata,
    pb.BaseCommand.LOOKUP: lookup,
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: topics_of_namespace,
    pb.BaseCommand.WATCH_TOPIC_LIST: watch,
    pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE: end_watch,
    pb.BaseCommand.GET_SCHEMA: get_schema,
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: get_or_create_schema,
}
