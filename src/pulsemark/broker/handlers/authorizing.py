"""The permission that each command of Pulsar's protocol needs, and the answer to a refusal.

Every command in `handlers.COMMANDS` has a row here, else the import fails. Commands of an existing
producer or consumer (SEND, FLOW, ACK, SEEK ...) need nothing more: it was authorised when it was
opened, and is closed when its role loses the permission.

With authorisation switched on, a command is checked before its handler sees it. A topic's name that
cannot be parsed is refused here, too, so no handler gets an unchecked name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from ...proto import pulsar_api_pb2 as pb
from ...proto.pulsar_api_pb2 import BaseCommand, ServerError
from ...records import record
from ...wire import InvalidTopicNameError, TopicName, check_namespace_or_older
from ..errors import RefusedError
from ..security.authorization import Target
from ..security.needs import AUTHENTICATED, OPEN, OWN, Need, Scope, namespace, topic

if TYPE_CHECKING:
    from ..connection.session import Session


@record(frozen=True)
class CommandNeed:
    """The permissions that a command needs: for a topic, for a namespace, or none."""

    needs: tuple[Need, ...]
    #: The refusal's text for the client.
    message: str = ""
    #: The class of Pulsar's response to this command, which has the error; None: an ERROR.
    answer: type[Message] | None = None


def _always(need: Need, message: str = "", answer: type[Message] | None = None) -> CommandNeed:
    return CommandNeed((need,), message, answer)


SUBSCRIBE = topic("SUBSCRIBE")
_T = BaseCommand
OWN_COMMAND = _always(OWN)

COMMAND_NEEDS: dict[int, CommandNeed] = {
    _T.CONNECT: _always(OPEN),
    _T.PING: _always(OPEN),
    _T.PONG: _always(OPEN),
    _T.AUTH_RESPONSE: _always(OPEN),
    _T.PARTITIONED_METADATA: _always(
        topic("LOOKUP"),
        "Client is not authorized to Get Partition Metadata",
        pb.CommandPartitionedTopicMetadataResponse,
    ),
    _T.LOOKUP: _always(
        topic("LOOKUP"), "Client is not authorized to Lookup", pb.CommandLookupTopicResponse
    ),
    _T.GET_TOPICS_OF_NAMESPACE: _always(
        namespace("GET_TOPICS"), "Client is not authorized to GetTopicsOfNamespace"
    ),
    _T.PRODUCER: CommandNeed((topic("PRODUCE"), SUBSCRIBE), "Client is not authorized to Produce"),
    _T.SUBSCRIBE: _always(topic("CONSUME"), "Client is not authorized to subscribe"),
    _T.GET_SCHEMA: _always(
        topic("GET_METADATA"), "Client is not authorized to get schema", pb.CommandGetSchemaResponse
    ),
    _T.GET_OR_CREATE_SCHEMA: _always(
        topic("PRODUCE"),
        "Client is not authorized to get or create schema",
        pb.CommandGetOrCreateSchemaResponse,
    ),
    _T.WATCH_TOPIC_LIST: _always(
        namespace("GET_TOPICS"), "Proxy Client is not authorized to watchTopicList"
    ),
    # The handlers check topics, and that the transaction is the client's own.
    **dict.fromkeys(
        (
            _T.TC_CLIENT_CONNECT_REQUEST,
            _T.NEW_TXN,
            _T.ADD_PARTITION_TO_TXN,
            _T.ADD_SUBSCRIPTION_TO_TXN,
            _T.END_TXN,
            _T.END_TXN_ON_PARTITION,
            _T.END_TXN_ON_SUBSCRIPTION,
        ),
        _always(AUTHENTICATED, "Client is not authorized to use transactions"),
    ),
    **dict.fromkeys(
        (
            _T.CLOSE_PRODUCER,
            _T.FLOW,
            _T.ACK,
            _T.REDELIVER_UNACKNOWLEDGED_MESSAGES,
            _T.SEEK,
            _T.GET_LAST_MESSAGE_ID,
            _T.CLOSE_CONSUMER,
            _T.UNSUBSCRIBE,
            _T.CONSUMER_STATS,
            _T.WATCH_TOPIC_LIST_CLOSE,
        ),
        OWN_COMMAND,
    ),
}


def check_complete(served: Collection[int]) -> None:
    """Raise LookupError if a served command has no row."""
    missing = [BaseCommand.Type.Name(kind) for kind in served if kind not in COMMAND_NEEDS]
    if missing:
        raise LookupError(f"COMMAND_NEEDS does not say what these commands need: {missing}")


def authorize(session: Session, kind: int, body: Any) -> None:
    """Raise RefusedError unless the client may have this command handled."""
    row = COMMAND_NEEDS[kind]
    refusal = None if row is OWN_COMMAND else _refusal(session, row, body)
    if refusal is not None:
        refusal.answer = row.answer
        raise refusal


def check_again(session: Session, kind: int, body: Any, generation: int) -> None:
    """Raise RefusedError if the permission was revoked since `authorize`, at `generation`."""
    authorizer = session.services.authorizer
    if authorizer.is_on and authorizer.generation != generation:
        refusal = _refusal(session, COMMAND_NEEDS[kind], body)
        if refusal is not None:
            raise refusal


def _refusal(session: Session, row: CommandNeed, body: Any) -> RefusedError | None:
    authorizer = session.services.authorizer
    for need in row.needs:
        if need is SUBSCRIBE and not body.initial_subscription_name:
            continue  # a producer that creates none
        try:
            target = _target(need, body)
        except InvalidTopicNameError as error:
            return RefusedError(ServerError.InvalidTopicName, str(error))
        if not authorizer.allows(session.principal, need, target):
            tenants = session.services.topics.namespaces.tenants
            if need.operation == "LOOKUP" and target.tenant not in tenants:
                # As in Pulsar: clients report an absent tenant as an absent topic.
                text = f"Tenant {target.tenant} does not exist"
                return RefusedError(ServerError.TopicNotFound, text)
            return RefusedError(ServerError.AuthorizationError, row.message)
    return None


def _target(need: Need, body: Any) -> Target:
    if need.scope is Scope.TOPIC:
        name = TopicName.parse(body.topic)
        if need is SUBSCRIBE:
            return Target.of_topic(name, body.initial_subscription_name)
        return Target.of_topic(name, getattr(body, "subscription", None))
    if need.scope is Scope.NAMESPACE:
        check_namespace_or_older(body.namespace)
        return Target.of_namespace(body.namespace)
    return Target()
