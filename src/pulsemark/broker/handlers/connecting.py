"""CONNECT, PING, PONG and AUTH_RESPONSE: the commands of the connection itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    CommandPing,
    CommandPong,
    FeatureFlags,
    ServerError,
)
from ...wire import commands
from ..errors import RefusedError
from ..version import SERVER_VERSION
from .authenticating import authenticate, refresh
from .table import CommandTable

if TYPE_CHECKING:
    from ..services import Session

__all__ = ["COMMANDS"]

#: Since this version clients can read broker entry metadata (PIP-90).
ENTRY_METADATA_SINCE = 18
CLIENT_VERSION_MAX_CHARACTERS = 256


def connect(session: Session, command: CommandConnect) -> None:
    """Find out who the client is, and agree on the lower of both protocol versions."""
    authenticator = session.services.authenticator
    if authenticator is None:
        _accept(session, command)
    else:
        authenticate(session, authenticator, command, lambda: _accept(session, command))


def _accept(session: Session, command: CommandConnect) -> None:
    session.protocol_version = min(command.protocol_version, commands.PROTOCOL_VERSION)
    # Clients send about twenty characters. The text is kept, so it has a limit.
    session.client_version = command.client_version[:CLIENT_VERSION_MAX_CHARACTERS]
    session.exposes_entry_metadata = (
        session.config.exposing_broker_entry_metadata_to_client_enabled
        and session.protocol_version >= ENTRY_METADATA_SINCE
        and command.feature_flags.supports_broker_entry_metadata
    )
    session.write(
        commands.connected(
            SERVER_VERSION,
            session.protocol_version,
            session.config.max_message_size_bytes,
            FeatureFlags(
                supports_topic_watchers=True,
                supports_get_partitioned_metadata_without_auto_creation=True,
                supports_repl_dedup_by_lid_and_eid=True,
            ),
        )
    )


def ping(session: Session, command: CommandPing) -> None:
    """Answer with PONG."""
    session.write(commands.PONG)


def pong(session: Session, command: CommandPong) -> None:
    """Nothing to do: the session has already noted that bytes arrived."""


def auth_response(session: Session, command: CommandAuthResponse) -> None:
    """New credentials. Refuse them if this broker never asks for any."""
    if session.services.authenticator is not None:
        refresh(session, command)
        return
    session.refuse(
        commands.NO_REQUEST_ID,
        RefusedError(ServerError.AuthenticationError, "Failed to authenticate"),
    )
    session.close_because("AUTH_RESPONSE without a challenge")


COMMANDS: CommandTable = {
    BaseCommand.CONNECT: connect,
    BaseCommand.PING: ping,
    BaseCommand.PONG: pong,
    BaseCommand.AUTH_RESPONSE: auth_response,
}
