"""The commands of the connection itself: CONNECT, PING, PONG and AUTH_RESPONSE.

With authentication, answers are those of Pulsar's brokers. Wrong credentials get an ERROR
AuthenticationError, which says no more, and the connection is closed. The reason is logged.

Credentials may expire while the client is connected. Every `authenticationRefreshCheckSeconds` the
broker looks (`check_credentials`). A client with expired ones is sent an AUTH_CHALLENGE, and is
closed at the next look if it has not answered with valid ones. It is closed at once if it cannot
answer: an old client, or one behind a proxy that does not pass on credentials. A refresh must not
change the role.

While a password is checked on a thread, the connection is one without a handshake: only PING and
PONG are allowed, and frames must be small.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ...proto import pulsar_api_pb2 as pb
from ...wire import commands
from ..errors import RefusedError
from ..security.authentication import (
    Authenticated,
    AuthenticationFailed,
    Authenticator,
    Credentials,
    Identity,
    InvalidRoles,
    identify,
    method_of,
)
from ..version import SERVER_VERSION
from .checks import CommandTable

if TYPE_CHECKING:
    from ..connection.session import Session


T = TypeVar("T")

#: The data of Pulsar's challenge to send credentials again.
REFRESH_DATA = b"PulsarAuthRefresh"
#: How many credentials a client may send without being asked, between two looks. Each is checked.
MAX_UNASKED = 16


def authenticate(
    session: Session,
    authenticator: Authenticator,
    command: pb.CommandConnect,
    accept: Callable[[], None],
) -> None:
    """Authenticate the sender of a CONNECT, then call `accept`; or refuse it and close."""
    if session.credentials is not None:
        session.close_because("CONNECT came a second time")
        return
    session.credentials = Credentials(supports_refresh=command.feature_flags.supports_auth_refresh)
    config = session.config.security
    check = partial(identify, authenticator, config, command, session.peer_certificate)

    def done(identity: Identity) -> None:
        _identified(session, identity)
        accept()

    methods = {method_of(command), command.original_auth_method}
    if any(map(authenticator.is_slow_for, methods)):
        session.connection.withdraw_handshake()

        def resume(identity: Identity) -> None:
            session.connection.finish_handshake()
            done(identity)

        _check_on_thread(session, authenticator, check, resume)
    else:
        _check(session, check, done)


def refresh(session: Session, command: pb.CommandAuthResponse) -> None:
    """Check credentials that a client sends after an AUTH_CHALLENGE, or by itself."""
    credentials, authenticator = session.credentials, session.services.authenticator
    if credentials is None or credentials.identity is None or authenticator is None:
        _fail(session, AuthenticationFailed("none", "AUTH_RESPONSE without a challenge"))
        return
    if credentials.is_checking:
        session.close_because("AUTH_RESPONSE before the answer to another one")
        return
    credentials.unasked += not credentials.is_challenged
    if credentials.unasked > MAX_UNASKED:
        session.close_because("too many AUTH_RESPONSEs that answer no challenge")
        return
    given, identity = command.response, credentials.identity
    # The proxy's certificate says nothing about the client that it speaks for.
    certificate = session.peer_certificate if identity.principal.original_role is None else None

    def check() -> Authenticated:
        return authenticator.authenticate(given.auth_method_name, given.auth_data, certificate)

    def done(again: Authenticated) -> None:
        try:
            credentials.identity = identity.refreshed(again)
        except AuthenticationFailed as failure:
            session.close_because(str(failure))
            return
        credentials.is_challenged = False

    if authenticator.is_slow_for(given.auth_method_name):
        _check_on_thread(session, authenticator, check, done)
    else:
        _check(session, check, done)


def check_credentials(session: Session, now_s: float) -> None:
    """Challenge or close a client whose credentials have expired. Called about once a second."""
    credentials = session.credentials
    if credentials is None or credentials.identity is None or now_s < credentials.next_check_s:
        return
    config = session.config
    credentials.next_check_s = now_s + config.security.authentication_refresh_check_ms / 1000
    credentials.unasked = 0
    identity = credentials.identity
    expires_at_ms = identity.checked.expires_at_ms
    if session.is_closed or expires_at_ms is None or config.clock.now_ms() < expires_at_ms:
        return
    if not identity.can_refresh:
        session.close_because("the credentials expired, and the proxy does not pass on new ones")
    elif not credentials.supports_refresh:
        session.close_because("the credentials expired, and the client cannot send new ones")
    elif credentials.is_challenged:
        session.close_because("the credentials expired, and the client sent no new ones")
    else:
        credentials.is_challenged = True
        challenge = pb.CommandAuthChallenge(
            protocol_version=session.protocol_version,
            challenge=pb.AuthData(auth_method_name=identity.checked.method, auth_data=REFRESH_DATA),
        )
        session.write(commands.frame(challenge))


def _identified(session: Session, identity: Identity) -> None:
    assert session.credentials is not None
    session.credentials.identity = identity
    session.principal = identity.principal
    interval_s = session.config.security.authentication_refresh_check_ms / 1000
    session.credentials.next_check_s = asyncio.get_running_loop().time() + interval_s


def _check(session: Session, check: Callable[[], T], done: Callable[[T], None]) -> None:
    try:
        result = check()
    except (AuthenticationFailed, InvalidRoles) as failure:
        _fail(session, failure)
    else:
        done(result)


def _check_on_thread(
    session: Session,
    authenticator: Authenticator,
    check: Callable[[], T],
    done: Callable[[T], None],
) -> None:
    assert session.credentials is not None
    session.credentials.is_checking = True

    async def work() -> None:
        try:
            result = await authenticator.in_thread(check)
        except (AuthenticationFailed, InvalidRoles) as failure:
            _fail(session, failure)
            return
        finally:
            if session.credentials is not None:
                session.credentials.is_checking = False
        if not session.is_closed:
            done(result)

    session.run(commands.NO_REQUEST_ID, work())


def _fail(session: Session, failure: AuthenticationFailed | InvalidRoles) -> None:
    if isinstance(failure, InvalidRoles):
        refusal = RefusedError(pb.ServerError.AuthorizationError, "Invalid roles.")
    else:
        refusal = RefusedError(pb.ServerError.AuthenticationError, "Failed to authenticate")
    session.refuse(commands.NO_REQUEST_ID, refusal)
    session.close_because(f"not authenticated: {failure}")


#: Since this version clients can read broker entry metadata (PIP-90).
ENTRY_METADATA_SINCE = 18
CLIENT_VERSION_MAX_CHARACTERS = 256


def connect(session: Session, command: pb.CommandConnect) -> None:
    """Authenticate the client, and agree on the lower of both protocol versions."""
    authenticator = session.services.authenticator
    if authenticator is None:
        _accept(session, command)
    else:
        authenticate(session, authenticator, command, lambda: _accept(session, command))


def _accept(session: Session, command: pb.CommandConnect) -> None:
    session.protocol_version = min(command.protocol_version, commands.PROTOCOL_VERSION)
    # Clients send about twenty characters. The text is kept, so it has a limit.
    session.client_version = command.client_version[:CLIENT_VERSION_MAX_CHARACTERS]
    session.exposes_entry_metadata = (
        session.config.exposing_broker_entry_metadata_to_client_enabled
        and session.protocol_version >= ENTRY_METADATA_SINCE
        and command.feature_flags.supports_broker_entry_metadata
    )
    features = pb.FeatureFlags(
        supports_topic_watchers=True,
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_repl_dedup_by_lid_and_eid=True,
    )
    version, most = session.protocol_version, session.config.max_message_size_bytes
    session.write(commands.connected(SERVER_VERSION, version, most, features))


def ping(session: Session, command: pb.CommandPing) -> None:
    """Answer with PONG."""
    session.write(commands.PONG)


def pong(session: Session, command: pb.CommandPong) -> None:
    """Nothing to do: the session has already noted that bytes arrived."""


def auth_response(session: Session, command: pb.CommandAuthResponse) -> None:
    """Check new credentials. Refuse them if this broker never asks for any."""
    if session.services.authenticator is not None:
        refresh(session, command)
        return
    _fail(session, AuthenticationFailed("none", "AUTH_RESPONSE without a challenge"))


COMMANDS: CommandTable = {
    pb.BaseCommand.CONNECT: connect,
    pb.BaseCommand.PING: ping,
    pb.BaseCommand.PONG: pong,
    pb.BaseCommand.AUTH_RESPONSE: auth_response,
}
