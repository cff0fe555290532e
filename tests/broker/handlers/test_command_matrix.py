"""Every command with every kind of credentials: nothing allowed that should not be.

The rows are the broker's own table of commands. Commands are made from Pulsar's protobuf by
reflection, so a new command is tried here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.broker.handlers import COMMANDS
from pulsemark.broker.handlers.authorizing import COMMAND_NEEDS, check_complete
from pulsemark.broker.security.needs import Need, Scope
from pulsemark.client import RequestRefusedError
from pulsemark.client.errors import ConnectionLostError, WaitTimeoutError
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient
from pulsemark.wire import commands
from pulsemark.wire.commands import frame
from tests.support.attackers import (
    attacked_broker,
    forged,
    role_with,
    roles_without,
    signed,
    state_of,
)
from tests.support.secured import rest, set_up

_T = pb.BaseCommand.Type
VICTIM = "persistent://acme/ns/victim"
#: The id of each request, and of the victim's producer on its own connection.
NUMBER = 1
TEXTS = {"namespace": "acme/ns", "subscription": "s", "client_version": "x"}
#: Fields that make a command do more, if it is let through.
SWITCHES = ("force_topic_creation", "metadata_auto_creation_enabled", "force")


@pytest.fixture(scope="module")
def attacked() -> Iterator[BrokerThread]:
    """A broker with a topic on which another client produces and consumes."""
    with attacked_broker() as broker:
        set_up(broker, signed("admin"))
        with connect(broker, signed("both")) as victim:
            producer = victim.create_producer(VICTIM)
            consumer = victim.subscribe(VICTIM, "s", earliest=True)
            assert (producer.producer_id, consumer.consumer_id) == (NUMBER, NUMBER + 2)
            producer.send(b"message")
            yield broker
            victim.ping()
            assert not victim.unsolicited, "something happened to the victim's consumer"


def connect(broker: BrokerThread, token: str | None) -> RawClient:
    """A connection with a token."""
    auth = {} if token is None else {"auth_method_name": "token", "auth_data": token.encode()}
    return RawClient.from_url(broker.service_url, **auth)


#: Messages that are not named after their command.
ALIASES = {
    "CommandLookup": "CommandLookupTopic",
    "CommandPartitionedMetadata": "CommandPartitionedTopicMetadata",
}


def body_of(kind: int, topic: str) -> Any:
    """The body of a command, with all required fields and those of `SWITCHES`."""
    name = "Command" + "".join(part.capitalize() for part in _T.Name(kind).split("_"))
    kinds = [each.message_type for each in pb.BaseCommand.DESCRIPTOR.fields]
    found = [kind for kind in kinds if kind is not None and kind.name == ALIASES.get(name, name)]
    assert len(found) == 1, f"there is no message {name}"
    body = getattr(pb, found[0].name)()
    _fill(body, topic)
    return body


def _fill(body: Any, topic: str) -> None:
    for field in body.DESCRIPTOR.fields:
        if field.name in SWITCHES:
            setattr(body, field.name, True)
        elif field.name == "topic":
            body.topic = topic
        elif field.name == "request_id" or field.is_required:
            _set(body, field, topic)


def _set(body: Any, field: Any, topic: str) -> None:
    if field.message_type is not None:
        _fill(getattr(body, field.name), topic)
        getattr(body, field.name).SetInParent()
    elif field.cpp_type == field.CPPTYPE_STRING:
        empty = field.type == field.TYPE_BYTES
        setattr(body, field.name, b"x" if empty else TEXTS.get(field.name, "x"))
    elif field.cpp_type == field.CPPTYPE_ENUM:
        setattr(body, field.name, field.enum_type.values[0].number)
    else:
        setattr(body, field.name, NUMBER)


def needs_of(kind: int) -> tuple[Need, ...]:
    """What a command needs."""
    return COMMAND_NEEDS[kind].needs


def name_of(kind: int) -> str:
    """The name of a command in pytest's output."""
    return str(_T.Name(kind))


def answer_to(client: RawClient, kind: int, topic: str) -> Any:
    """What the broker answers to a command: a body with an error, another one, or None."""
    request_id = client.new_id()
    assert request_id == NUMBER
    client.write(frame(body_of(kind, topic)))
    try:
        client.ping()
        return client.wait_response(request_id, 0.01)
    except RequestRefusedError as refusal:
        return refusal.error
    except (ConnectionLostError, WaitTimeoutError):
        return None


def test_few_commands_need_no_permission() -> None:
    """Only those of the connection itself come before it is known who the client is."""
    found = {kind for kind in COMMANDS if needs_of(kind)[0].scope is Scope.OPEN}
    assert found == {_T.CONNECT, _T.PING, _T.PONG, _T.AUTH_RESPONSE}
    own = {kind for kind in COMMANDS if needs_of(kind)[0].scope is Scope.OWN}
    assert not own & {_T.PRODUCER, _T.SUBSCRIBE, _T.LOOKUP, _T.GET_SCHEMA}


@pytest.mark.parametrize("kind", sorted(COMMANDS), ids=name_of)
def test_forged_credentials(attacked: BrokerThread, kind: int) -> None:
    """They are refused at CONNECT, and a command that follows at once is not run."""
    before = state_of(attacked)
    for name, token in forged().items():
        with pytest.raises(RequestRefusedError) as refusal:
            connect(attacked, token).close()
        assert refusal.value.error == pb.AuthenticationError, name
        with RawClient.from_url(attacked.service_url, handshake=False) as client:
            first = commands.connect(
                "x",
                auth_method_name="token" if token else None,
                auth_data=None if token is None else token.encode(),
            )
            client.write(first, frame(body_of(kind, f"persistent://acme/ns/f{kind}")))
            client.wait_closed()
        assert state_of(attacked) == before, name


@pytest.mark.parametrize("kind", sorted(COMMANDS), ids=name_of)
def test_without_permission(attacked: BrokerThread, kind: int) -> None:
    """A valid role without the permission gets AuthorizationError, and nothing changes."""
    before = state_of(attacked)
    need = needs_of(kind)[0]
    roles = roles_without(need) if need.scope is not Scope.OWN else ("nobody", "stranger", "both")
    for role in roles:
        for topic in (VICTIM, f"persistent://acme/ns/w{kind}"):
            with connect(attacked, signed(role)) as client:
                answer = answer_to(client, kind, topic)
            if need.scope is not Scope.OWN:
                assert answer == pb.AuthorizationError, (role, answer)
            assert state_of(attacked) == before, role


@pytest.mark.parametrize("kind", sorted(COMMANDS), ids=name_of)
def test_with_permission(attacked: BrokerThread, kind: int) -> None:
    """The role with just the right that it takes is not refused for want of it."""
    need = needs_of(kind)[0]
    for role in (role_with(need), "admin"):
        with connect(attacked, signed(role)) as client:
            answer = answer_to(client, kind, f"persistent://acme/ns/{role}-{kind}")
        assert answer not in (pb.AuthorizationError, pb.AuthenticationError), role


def test_an_initial_subscription_needs_the_right_to_consume(attacked: BrokerThread) -> None:
    """A role that may only publish cannot make a subscription with its producer."""
    topic = "persistent://acme/ns/initial"
    for role, may in (("writer", False), ("both", True)):
        with connect(attacked, signed(role)) as client:
            opened = commands.producer(topic, 5, client.new_id(), initial_subscription_name="made")
            client.write(opened)
            if may:
                assert client.wait_response(1).request_id == 1
            else:
                with pytest.raises(RequestRefusedError, match="not authorized to Produce"):
                    client.wait_response(1)
        found = rest(
            attacked, "GET", "/admin/v2/persistent/acme/ns/initial/subscriptions", signed("boss")
        )
        assert (found.status == 200 and found.json == ["made"]) is may


def test_a_command_without_a_row_fails_at_import() -> None:
    """The table of needs has every command that is served."""
    check_complete(COMMANDS)
    with pytest.raises(LookupError, match="SEND_RECEIPT"):
        check_complete([*COMMANDS, _T.SEND_RECEIPT])
