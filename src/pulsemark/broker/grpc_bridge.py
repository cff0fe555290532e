"""The seek service inside a broker: it searches the broker's topics, resets their cursors, and
appends control entries.

The service searches on worker threads and asks for topics there. Topics are opened on the event
loop. Importing this module imports grpc, so the broker imports it only if a port is configured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from ..audit.errors import AuditInputError
from ..audit.report import Report
from ..finder.control import MAX_EPOCH, AppendControl, ControlAppended, ControlRequest
from ..finder.errors import (
    CursorBusyError,
    InvalidFieldError,
    NotPossibleError,
    SubscriptionNotFoundError,
)
from ..finder.server import SeekServer, ServerOptions
from ..finder.server_tls import ServerTls
from ..finder.service import AuditReport
from ..finder.token_file import TokenFileError, read_token
from ..ledger import (
    Appended,
    LedgerError,
    ManagedLedger,
    Position,
    StaleEpochError,
    TopicLog,
)
from ..metadata import StampError
from ..proto.pulsar_api_pb2 import ServerError
from ..wire import TopicName
from .commits import stored
from .configuration.config import BrokerConfig
from .configuration.security_config import SecurityConfig
from .errors import ConfigError, RefusedError
from .grpc_admission import admitting
from .grpc_routing import PASSING, forwarding_of, refused_topic
from .security.tls import make_context
from .services import Services
from .subscriptions.seek import SeekTarget, reset_subscription
from .topics.registry import Topics

__all__ = ["make_seek_server"]


def make_seek_server(services: Services, host: str, *, has_others: bool = False) -> SeekServer:
    """A seek server over the broker's topics, not started yet. Raises ConfigError.

    `has_others`: other brokers have some of the topics.
    """

    async def reset_cursor(topic_name: str, subscription_name: str, position: Position) -> None:
        try:
            topic = await services.topics.open(TopicName.parse(topic_name), create=False)
        except RefusedError as refusal:
            raise refused_topic(topic_name, refusal) from refusal
        subscription = topic.subscriptions.get(subscription_name)
        if subscription is None:
            raise SubscriptionNotFoundError(topic_name, subscription_name)
        try:
            target = SeekTarget(topic.clamp(position))
            await reset_subscription(subscription, target, then=lambda: None)
        except RefusedError as refusal:
            raise CursorBusyError(topic_name, subscription_name) from refusal

    security = services.config.security
    return SeekServer(
        _BrokerTopics(services.topics, asyncio.get_running_loop()),
        ServerOptions(
            host=host,
            port=services.config.grpc_port,
            tls=None if security.grpc_tls_port is None else _tls(security),
            tls_port=security.grpc_tls_port,
            max_concurrent_calls=services.config.max_grpc_calls,
            max_streams=services.config.max_grpc_streams,
            control_token=_control_token(services.config),
        ),
        normalise=lambda name: str(TopicName.parse(name)),
        reset_cursor=reset_cursor,
        append_control=_appending_control(services),
        audit=_audit_of(services),
        admit=None if services.authenticator is None else admitting(services),
        forwarding=forwarding_of(services) if has_others else None,
    )


def _tls(config: SecurityConfig) -> ServerTls:
    make_context(config)  # reports what is wrong with the files
    asks = config.tls_require_trusted_client_cert_on_connect
    trust = config.tls_trust_certs_file
    return ServerTls(
        certificate=Path(config.tls_certificate_file or ""),
        key=Path(config.tls_key_file or ""),
        client_ca=Path(trust) if asks and trust is not None else None,
        refresh_check_s=config.tls_cert_refresh_check_s,
    )


def _control_token(config: BrokerConfig) -> str | None:
    path = config.grpc_control_token_file
    if path is None:
        return None
    if config.security.authentication_enabled:
        reason = "is not used with authentication: roles decide who may append"
        raise ConfigError("grpc_control_token_file", str(path), reason)
    try:
        return read_token(Path(path))
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise ConfigError("grpc_control_token_file", str(path), reason) from error
    except TokenFileError as error:
        raise ConfigError("grpc_control_token_file", str(path), error.reason) from error


def _appending_control(services: Services) -> AppendControl:
    """Appends control entries to the broker's topics. Durable when it returns."""

    async def append_control(topic_name: str, request: ControlRequest) -> ControlAppended:
        try:
            topic = await services.topics.open(TopicName.parse(topic_name), create=False)
            epochs = services.topics.leader_epochs
            await epochs.begin_if_due(topic)
            appended, epoch = await services.run_blocking(
                _append, topic.ledger, request, epochs.leader
            )
            await stored(appended)
        except RefusedError as refusal:
            if isinstance(refusal.__cause__, LedgerError):
                raise refusal.__cause__ from None
            if refusal.code in PASSING or refusal.code == ServerError.TopicNotFound:
                raise refused_topic(topic_name, refusal) from refusal
            raise NotPossibleError(refusal.message) from refusal
        except StampError as error:
            raise NotPossibleError(f"{topic_name}: {error}") from error
        return ControlAppended(appended.position, appended.index, appended.time_ms, epoch)

    return append_control


def _append(ledger: ManagedLedger, request: ControlRequest, leader: str) -> tuple[Appended, int]:
    """Append, and return the entry's leader epoch, too. Blocks.

    Raises LedgerError, StampError, and NotPossibleError after the highest epoch.
    """
    while True:
        epoch = request.epoch
        if epoch is None:
            epoch = ledger.epoch + 1 if request.is_leader_change else ledger.epoch
        if epoch > MAX_EPOCH:
            raise NotPossibleError(f"no leader epoch follows the highest one, {MAX_EPOCH}")
        kind, name, tags = request.control_type, request.name, request.tags
        try:
            if request.is_leader_change:
                return ledger.begin_epoch(epoch, leader=name or leader, tags=tags), epoch
            return ledger.append_control(kind, name, tags=tags, epoch=epoch), epoch
        except StaleEpochError:
            if request.epoch is not None:
                raise
            # Another epoch began meanwhile.


def _audit_of(services: Services) -> AuditReport:
    """The audit's call over the broker's auditor."""

    async def audit(
        topic_name: str, by: Sequence[str], from_ms: int | None, to_ms: int | None
    ) -> Report:
        auditor = services.auditor
        if not auditor.is_on:
            raise NotPossibleError("this broker keeps no audit (pulsemarkAuditEnabled)")
        try:
            topic = await services.topics.open(TopicName.parse(topic_name), create=False)
            return await auditor.report(topic, by, starting_time_ms=from_ms, ending_time_ms=to_ms)
        except RefusedError as refusal:
            raise refused_topic(topic_name, refusal) from refusal
        except AuditInputError as error:
            raise InvalidFieldError(error.field, str(error)) from error

    return audit


class _BrokerTopics:
    """`TopicSource` over the broker's topics; called on the service's worker threads."""

    def __init__(self, topics: Topics, loop: asyncio.AbstractEventLoop) -> None:
        self._topics = topics
        self._loop = loop

    def log(self, topic: str) -> TopicLog:
        """The topic's log. Raises TopicNotFoundError."""
        known = self._topics.open_topics.get(topic)
        if known is not None:  # the usual case: no call to the event loop is needed
            return known.ledger
        opening = asyncio.run_coroutine_threadsafe(
            self._topics.open(TopicName.parse(topic), create=False), self._loop
        )
        try:
            return opening.result().ledger
        except RefusedError as refusal:
            raise refused_topic(topic, refusal) from refusal
