"""SaslHandshake and SaslAuthenticate: who a client is, at first and again (KIP-43, 152, 368).

A client names a mechanism, then sends its credentials: in SaslAuthenticate requests after a
handshake of version 1, and without a header (`RAW_SASL`) after one of version 0. A client that is
refused gets the reason in Kafka's words, and its connection is closed.

Credentials may expire. SaslAuthenticate from version 1 on says after how long, and the client
authenticates again in time, by the same mechanism and as the same role. If it does not, its next
request of another kind closes the connection.
"""

from __future__ import annotations

import logging
import struct
from functools import partial
from typing import Any

from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from ....kafka.errors import Code
from ....kafka.protocol import RAW_SASL, SASL_AUTHENTICATE, SASL_HANDSHAKE, Request
from ....kafka.sasl import (
    OAUTHBEARER,
    TOKEN_REFUSED,
    Claim,
    RefusedTokenError,
    SaslError,
    parse_claim,
)
from ...security.authentication import AuthenticationFailed
from ..access import Admitted, mechanisms
from ..endpoint import Handler, KafkaSession, one_part

log = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
LIFETIME_MAX_MS = 2**63 - 1


def sasl_handshake(session: KafkaSession, request: Request) -> None:
    """Choose a mechanism."""
    known_here, asked = mechanisms(session.endpoint.services.authenticator), request.body.mechanism
    known = asked in known_here
    if known and session.authenticated_by not in (None, asked):
        session.close_because("SASL: another mechanism than before")
        return
    code = Code.NONE if known else Code.UNSUPPORTED_SASL_MECHANISM
    response = SaslHandshakeResponse(error_code=code, mechanisms=list(known_here))
    session.answer(request, response)
    if not known:
        name = str(asked)[:40]
        log.info("%s: there is no SASL mechanism %r here", session.address, name)
        return
    session.sasl_mechanism = asked
    session.connection.takes_raw_sasl = request.version == 0


async def sasl_authenticate(session: KafkaSession, request: Request) -> None:
    """Check credentials. Without a request's header, a refusal only ends the connection."""
    if session.sasl_mechanism is None:
        message = "SaslAuthenticate request received after successful authentication"
        if session.authenticated_by is None:
            message = "SaslAuthenticate request received before SaslHandshake"
        code = Code.ILLEGAL_SASL_STATE
        session.answer(request, SaslAuthenticateResponse(error_code=code, error_message=message))
        return
    is_raw = request.api is RAW_SASL
    session.connection.takes_raw_sasl = False
    response = SaslAuthenticateResponse(error_code=Code.NONE, error_message=None, auth_bytes=b"")
    try:
        data = request.body if is_raw else request.body.auth_bytes or b""
        admitted = await _authenticated(session, data)
    except SaslError as failure:
        log.info("%s: SASL authentication refused: %s", session.address, failure)
        if isinstance(failure, RefusedTokenError):
            # The client's answer to the challenge ends the exchange.
            session.sasl_challenge, session.connection.takes_raw_sasl = TOKEN_REFUSED, is_raw
            response.auth_bytes = TOKEN_REFUSED.encode()
        else:
            response.error_code = Code.SASL_AUTHENTICATION_FAILED
            response.error_message = session.sasl_challenge or (
                f"Authentication failed during authentication due to invalid credentials with "
                f"SASL mechanism {session.sasl_mechanism}"
            )
    else:
        session.authenticated_by, session.sasl_mechanism = session.sasl_mechanism, None
        session.admit(admitted)
        if admitted.expires_at_ms is not None:
            left_ms = admitted.expires_at_ms - session.endpoint.now_ms()
            response.session_lifetime_ms = min(max(left_ms, 1), LIFETIME_MAX_MS)
    _answer(session, request, response)


def _answer(session: KafkaSession, request: Request, response: Any) -> None:
    is_refused = response.error_code is not Code.NONE
    if request.api is not RAW_SASL:
        session.answer(request, response)
    elif not is_refused:
        size = _SIZE.pack(len(response.auth_bytes))
        session.answer_frame(request, size + response.auth_bytes)
    if is_refused:
        session.close_because("not authenticated")


async def _authenticated(session: KafkaSession, data: bytes) -> Admitted:
    mechanism = session.sasl_mechanism
    assert mechanism is not None
    if session.sasl_challenge is not None:
        raise SaslError("the token was refused, and the client ended the exchange")
    claim = parse_claim(mechanism, bytes(data))
    try:
        admitted = await _with_sasl(session, claim)
    except SaslError as failure:
        if mechanism == OAUTHBEARER:
            raise RefusedTokenError(str(failure)) from failure
        raise
    if claim.role is not None and claim.role != admitted.role:
        raise SaslError("the credentials are of another role than the client names")
    before = session.admitted
    if session.authenticated_by is not None and before is not None and before.role != admitted.role:
        raise SaslError("the role must not change when a client authenticates again")
    return admitted


async def _with_sasl(session: KafkaSession, claim: Claim) -> Admitted:
    """Check credentials by the provider of their method. Raises SaslError."""
    authenticator = session.endpoint.services.authenticator
    if authenticator is None or claim.method not in authenticator.methods:
        raise SaslError(f"this broker has no provider for {claim.method}")
    what = claim.method, claim.credentials, session.peer_certificate
    check = partial(authenticator.authenticate, *what)
    try:
        if authenticator.is_slow_for(claim.method):
            found = await authenticator.in_thread(check)
        else:
            found = check()
    except AuthenticationFailed as failure:
        raise SaslError(str(failure)) from failure
    return Admitted(found.role, found.expires_at_ms)


HANDLERS: dict[int, Handler] = {
    SASL_HANDSHAKE: Handler(sasl_handshake, one_part),
    SASL_AUTHENTICATE: Handler(sasl_authenticate, one_part),
    RAW_SASL.key: Handler(sasl_authenticate, one_part),
}
