"""Finding topics: PARTITIONED_METADATA, LOOKUP, GET_TOPICS_OF_NAMESPACE."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...metadata import crc32c
from ...proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    ServerError,
)
from ...wire import commands
from ..errors import RefusedError
from ..topics.creation import check_room, creates, partitions_created
from .table import CommandTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...wire import TopicName
    from ..connection.session import Session

__all__ = ["COMMANDS", "topics_hash"]

PATTERN_SIZE_MAX_BYTES = 256
#: Names that are filtered in one piece.
NAMES_AT_ONCE = 200
#: The name prefix that a mode selects; any other mode selects all names.
DOMAIN_OF_MODE = {
    CommandGetTopicsOfNamespace.PERSISTENT: "persistent:",
    CommandGetTopicsOfNamespace.NON_PERSISTENT: "non-persistent:",
}


def partitioned_metadata(session: Session, command: CommandPartitionedTopicMetadata) -> None:
    """How many partitions a topic has; 0 for one that is not partitioned.

    A topic that does not exist may be created here, with the partitions that the policy says.
    """
    topics = session.services.topics
    try:
        name = topics.parse(command.topic)
        created = 0
        if not topics.exists(name):
            if not (command.metadata_auto_creation_enabled and creates(topics, name)):
                raise RefusedError(ServerError.TopicNotFound, f"Topic not found: {name}")
            created = partitions_created(topics, name)
    except RefusedError as refusal:
        _refuse_metadata(session, command, refusal)
        return
    if created:
        session.run(command.request_id, _create_partitioned(session, command, name, created))
        return
    partitions = topics.partitions_of(name)
    session.write(commands.partitioned_metadata_response(command.request_id, partitions))


async def _create_partitioned(
    session: Session, command: CommandPartitionedTopicMetadata, name: TopicName, partitions: int
) -> None:
    topics = session.services.topics
    try:
        if not topics.exists(name):
            check_room(topics, name.namespace, partitions)
            await topics.create_partitioned(name, partitions)
    except RefusedError as refusal:
        _refuse_metadata(session, command, refusal)
        return
    partitions = topics.partitions_of(name)
    session.write(commands.partitioned_metadata_response(command.request_id, partitions))


def _refuse_metadata(
    session: Session, command: CommandPartitionedTopicMetadata, refusal: RefusedError
) -> None:
    session.write(
        commands.partitioned_metadata_error(command.request_id, refusal.code, refusal.message)
    )


def lookup(session: Session, command: CommandLookupTopic) -> None:
    """This broker serves every topic; clients keep the address with which they connected."""
    services = session.services
    try:
        services.topics.parse(command.topic)
        listener = command.advertised_listener_name
        if listener:
            raise RefusedError(
                ServerError.ServiceNotReady, f"the broker do not have {listener} listener"
            )
    except RefusedError as refusal:
        answer = commands.lookup_error(command.request_id, refusal.code, refusal.message)
    else:
        answer = commands.lookup_response(
            command.request_id,
            services.service_url,
            services.service_url_tls,
            proxy_through_service_url=True,
        )
    session.write(answer)


def topics_of_namespace(session: Session, command: CommandGetTopicsOfNamespace) -> None:
    """The namespace's topics, with each partition; an unknown namespace has no topics."""
    names = session.services.topics.names_in(command.namespace)
    if len(names) > NAMES_AT_ONCE:
        session.run(command.request_id, _many_topics(session, command, names))
        return
    pattern = _pattern_of(command)
    _answer_topics(session, command, _choose(names, command, pattern), filtered=bool(pattern))


async def _many_topics(
    session: Session, command: CommandGetTopicsOfNamespace, names: list[str]
) -> None:
    pattern = _pattern_of(command)
    chosen: list[str] = []

    def choosing() -> Iterator[None]:
        for at in range(0, len(names), NAMES_AT_ONCE):
            chosen.extend(_choose(names[at : at + NAMES_AT_ONCE], command, pattern))
            yield

    await session.services.topics.turns.work(choosing())
    _answer_topics(session, command, chosen, filtered=bool(pattern))


def _answer_topics(
    session: Session, command: CommandGetTopicsOfNamespace, names: list[str], *, filtered: bool
) -> None:
    digest = topics_hash(names)
    changed = command.topics_hash != digest
    session.write(
        commands.get_topics_of_namespace_response(
            command.request_id,
            names if changed else (),
            filtered=filtered,
            topics_hash=digest,
            changed=changed,
        )
    )


def _choose(
    names: list[str], command: CommandGetTopicsOfNamespace, pattern: re.Pattern[str] | None
) -> list[str]:
    """The names that the command asks for."""
    domain = DOMAIN_OF_MODE.get(command.mode, "")
    chosen = [name for name in names if name.startswith(domain)]
    if pattern is not None:
        chosen = [name for name in chosen if pattern.fullmatch(_without_domain(name))]
    return chosen


def _pattern_of(command: CommandGetTopicsOfNamespace) -> re.Pattern[str] | None:
    return _compile_if_safe(command.topics_pattern) if command.topics_pattern else None


def topics_hash(names: Iterable[str]) -> str:
    """Pulsar's digest of a list of topics: CRC32C of the sorted names, little-endian hex."""
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


def _compile_if_safe(pattern: str) -> re.Pattern[str] | None:
    """The compiled pattern; None if it is not valid, or if matching could take too long.

    The answer says whether the pattern was applied. If not, the client filters by itself.
    """
    if len(pattern.encode()) > PATTERN_SIZE_MAX_BYTES or not _is_linear(pattern):
        return None
    try:
        return re.compile(_without_domain(pattern))
    except re.error:
        return None


def _without_domain(name: str) -> str:
    return name.partition("://")[2] or name


def _is_linear(pattern: str) -> bool:
    """Whether matching takes no more than linear time: no groups, few repetitions.

    A client's pattern runs on the event loop, which serves all other clients, too.
    """
    repeats = sum(pattern.count(sign) for sign in "*+{?")
    return "(" not in pattern and "\\" not in pattern.replace("\\.", "") and repeats <= 2


COMMANDS: CommandTable = {
    BaseCommand.PARTITIONED_METADATA: partitioned_metadata,
    BaseCommand.LOOKUP: lookup,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: topics_of_namespace,
}
