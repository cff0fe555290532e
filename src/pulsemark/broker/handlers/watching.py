"""WATCH_TOPIC_LIST and its end: clients are notified when topics of a namespace come and go.

The watchers themselves are in `topics.topic_watchers`.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from ...proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    ServerError,
)
from ...wire import InvalidTopicNameError, check_namespace_or_older, commands
from ..errors import RefusedError
from ..security.authorization import Target
from ..security.needs import namespace
from ..topics.topic_watchers import (
    TopicWatcher,
    compile_if_safe,
    matching,
    topics_hash,
    without_domain,
)
from .authorizing import check_again
from .checks import BYTES_PER_CHARACTER, STATE_BYTES
from .discovery import PATTERN_MAX_CHARACTERS
from .table import CommandTable

if TYPE_CHECKING:
    from ..services import Session

__all__ = ["COMMANDS"]

#: Watchers of one connection. Each created or deleted topic is compared with all patterns.
MAX_WATCHERS_PER_CONNECTION = 100
GET_TOPICS = namespace("GET_TOPICS")


def watch(session: Session, command: CommandWatchTopicList) -> None:
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


def _new_watcher(session: Session, command: CommandWatchTopicList) -> TopicWatcher:
    if len(session.watchers) >= MAX_WATCHERS_PER_CONNECTION:
        raise RefusedError(
            ServerError.NotAllowedError,
            f"at most {MAX_WATCHERS_PER_CONNECTION} topic lists can be watched on a connection",
        )
    # As in Pulsar, the domain does not count here. It does in GET_TOPICS_OF_NAMESPACE.
    if len(without_domain(command.topics_pattern)) > PATTERN_MAX_CHARACTERS:
        raise RefusedError(
            ServerError.NotAllowedError,
            "Unable to create topic list watcher: Pattern longer than maximum: "
            f"{PATTERN_MAX_CHARACTERS}",
        )
    try:
        pattern = compile_if_safe(command.topics_pattern)
    except re.error as error:
        raise RefusedError(
            ServerError.InvalidTopicName, f"Invalid topics pattern: {error}"
        ) from None
    if pattern is None:
        # Clients then ask for the list of topics from time to time.
        raise RefusedError(
            ServerError.NotAllowedError,
            f"the pattern {command.topics_pattern!r} is too complex to be watched",
        )
    watcher = TopicWatcher(
        command.watcher_id,
        command.namespace,
        pattern,
        partial(_notify, session),
    )
    texts = len(command.topics_pattern) + len(command.namespace)
    watcher.reservation = session.kept.reserve(
        "watcher of topics", STATE_BYTES + BYTES_PER_CHARACTER * texts
    )
    return watcher


async def _answer(
    session: Session, command: CommandWatchTopicList, watcher: TopicWatcher, generation: int
) -> None:
    topics = session.services.topics
    all_names = topics.names_in(watcher.namespace)
    names = await topics.turns.result(matching(watcher.pattern, all_names))
    check_again(session, BaseCommand.WATCH_TOPIC_LIST, command, generation)
    digest = topics_hash(names)
    if command.HasField("topics_hash") and command.topics_hash == digest:
        names = []
    session.write(
        commands.watch_topic_list_success(command.request_id, watcher.watcher_id, names, digest)
    )


def _notify(
    session: Session, watcher: TopicWatcher, new: list[str], deleted: list[str], digest: str
) -> None:
    target = Target.of_namespace(watcher.namespace)
    if not session.services.authorizer.allows(session.principal, GET_TOPICS, target):
        # The role has lost the permission. It gets names again when it has it again; the digest
        # that comes with them tells the client that it has missed some.
        return
    session.write(commands.watch_topic_update(watcher.watcher_id, new, deleted, digest))


def end_watch(session: Session, command: CommandWatchTopicListClose) -> None:
    """Notify no more. An unknown watcher id is a success, too."""
    watcher = session.watchers.pop(command.watcher_id, None)
    if watcher is not None:
        watcher.leave()
    session.write(commands.success(command.request_id))


COMMANDS: CommandTable = {
    BaseCommand.WATCH_TOPIC_LIST: watch,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: end_watch,
}
