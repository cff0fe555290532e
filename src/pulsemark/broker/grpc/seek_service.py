"""The seek service inside a broker: searches topics, resets cursors, appends control entries.

A call is authenticated as an HTTP request is: `authorization: Bearer TOKEN` or `Basic ...`, or the
client's certificate. Then it needs what `NEEDS` says, about the topic that its request names. A
call is ended when its token expires: gRPC has no way to ask for a new one.

The service searches on worker threads and asks for topics there. Topics are opened on the event
loop. Importing this module imports grpc, so the broker imports it only if a port is configured.

In a cluster, a broker that does not have a topic looks its owner up, as for any other client, and
sends the call on to the gRPC port that the owner has registered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from ...audit.report import Report
from ...audit.rows import AuditInputError
from ...compaction.compacted_log import CompactedLog
from ...finder import errors
from ...finder.arguments import TokenFileError, read_token
from ...finder.following import StoreState, is_followed, state_of
from ...finder.forwarding import Forwarding, Owner
from ...finder.messages import MAX_EPOCH, ControlAppended, ControlRequest
from ...finder.server import Admit, Caller, CallRefusedError, SeekServer, ServerOptions, ServerTls
from ...finder.service import TopicSource
from ...ledger import (
    Appended,
    LedgerError,
    ManagedLedger,
    Position,
    StaleEpochError,
    TopicLog,
    TopicNotFoundError,
    TopicStore,
)
from ...ledger.local.catalog import Catalog
from ...maintenance.expected import Expected, LogEnds, ends_of, lost_head
from ...metadata import StampError
from ...proto.cursor_pb2 import CursorRecord
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import InvalidTopicNameError, TopicName
from ..configuration.config import BrokerConfig
from ..configuration.security_config import SecurityConfig
from ..connection.services import Services
from ..errors import ConfigError, RefusedError
from ..security.authentication import (
    AuthenticationFailed,
    Authenticator,
    InvalidRoles,
    identify_request,
)
from ..security.authorization import Authorizer, Target
from ..security.needs import AUTHENTICATED, Need, broker, topic
from ..security.tls import make_context
from ..storage import stored
from ..subscriptions.seek import SeekTarget, reset_subscription
from ..topics.topic import Topic

log = logging.getLogger(__name__)

#: How long one call of a follower opens topics. It has a minute.
OPENING_S = 5.0


def make_seek_server(services: Services, host: str, *, has_others: bool = False) -> SeekServer:
    """A seek server over the broker's topics, not started yet. Raises ConfigError.

    `has_others`: other brokers have some of the topics.
    """
    security, who = services.config.security, services.authenticator
    return SeekServer(
        _BrokerTopics(services, has_others=has_others),
        ServerOptions(
            host=host,
            port=services.config.grpc_port,
            tls=None if security.grpc_tls_port is None else _tls(security),
            tls_port=security.grpc_tls_port,
            max_concurrent_calls=services.config.max_grpc_calls,
            max_streams=services.config.max_grpc_streams,
            control_token=_control_token(services.config),
        ),
        admit=None if who is None else admitting(who, services.authorizer, services.config),
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


def _append(ledger: ManagedLedger, request: ControlRequest, leader: str) -> tuple[Appended, int]:
    """Append, and return the entry's leader epoch, too. Blocks.

    Raises LedgerError, StampError, and NotPossibleError after the highest epoch.
    """
    while True:
        epoch = request.epoch
        if epoch is None:
            epoch = ledger.epoch + 1 if request.is_leader_change else ledger.epoch
        if request.is_leader_change and epoch > MAX_EPOCH:
            raise errors.NotPossibleError(f"no leader epoch follows the highest one, {MAX_EPOCH}")
        kind, name, tags = request.control_type, request.name, request.tags
        try:
            if request.is_leader_change:
                return ledger.begin_epoch(epoch, leader=name or leader, tags=tags), epoch
            return ledger.append_control(kind, name, tags=tags, epoch=epoch), epoch
        except StaleEpochError:
            if request.epoch is not None:
                raise
            # Another epoch began meanwhile.


class _BrokerTopics(TopicSource):
    """The broker's topics, and, in a broker that is alone, all topics of its data folder."""

    def __init__(self, services: Services, *, has_others: bool) -> None:
        self._services = services
        self._topics = topics = services.topics
        self._loop = asyncio.get_running_loop()
        #: Catalog and store of the whole data folder; None: the broker has no such folder.
        self._whole: tuple[Catalog, TopicStore] | None = None
        catalog, store = topics.catalog, topics.store
        if not has_others and isinstance(catalog, Catalog) and isinstance(store, TopicStore):
            self._whole = catalog, store

    def full_name(self, topic: str) -> str:
        """The full name. Raises InvalidTopicNameError."""
        return str(TopicName.parse(topic))

    def log(self, topic: str) -> TopicLog | CompactedLog:
        """The log or compacted form that readers get. Raises TopicNotFoundError."""
        return self._opened(topic).read_log

    def _opened(self, topic: str) -> Topic:
        known = self._topics.open_topics.get(topic)
        if known is not None:  # the usual case: no call to the event loop is needed
            return known
        return asyncio.run_coroutine_threadsafe(self._open(topic), self._loop).result()

    async def _open(self, topic: str) -> Topic:
        """On the event loop: the open topic. Raises TopicNotFoundError, ServerUnavailableError."""
        try:
            return await self._topics.open(TopicName.parse(topic), create=False)
        except RefusedError as refusal:
            raise refused_topic(topic, refusal) from refusal

    def ends(self, topic: str) -> LogEnds:
        """The end of a topic. Files lost after it were given up when it was opened.

        Raises TopicNotFoundError.
        """
        opened, catalog = self._opened(topic), self._topics.catalog
        log = opened.ledger
        if not isinstance(catalog, Catalog) or not isinstance(log, ManagedLedger):
            return ends_of(log, Expected())
        ends = ends_of(log, lost_head(log, catalog.segments(log.topic_id)))
        return replace(ends, has_holes=True) if opened.read_log is not log else ends

    async def reset_cursor(self, topic: str, subscription: str, position: Position) -> None:
        """See `TopicSource`."""
        opened = await self._open(topic)
        found = opened.subscriptions.get(subscription)
        if found is None:
            raise errors.SubscriptionNotFoundError(topic, subscription)
        try:
            target = SeekTarget(opened.clamp(position))
            await reset_subscription(found, target, then=lambda: None)
        except RefusedError as refusal:
            raise errors.CursorBusyError(topic, subscription) from refusal

    async def append_control(self, topic: str, request: ControlRequest) -> ControlAppended:
        """See `TopicSource`."""
        try:
            opened = await self._topics.open(TopicName.parse(topic), create=False)
            epochs = self._topics.leader_epochs
            await epochs.begin_if_due(opened)
            appended, epoch = await self._services.run_blocking(
                _append, opened.ledger, request, epochs.leader
            )
            await stored(appended)
        except RefusedError as refusal:
            if isinstance(refusal.__cause__, LedgerError):
                raise refusal.__cause__ from None
            if refusal.code in PASSING or refusal.code == ServerError.TopicNotFound:
                raise refused_topic(topic, refusal) from refusal
            raise errors.NotPossibleError(refusal.message) from refusal
        except StampError as error:
            raise errors.NotPossibleError(f"{topic}: {error}") from error
        return ControlAppended(appended.position, appended.index, appended.time_ms, epoch)

    async def audit(
        self, topic: str, by: Sequence[str], from_ms: int | None, to_ms: int | None
    ) -> Report:
        """See `TopicSource`."""
        auditor = self._services.auditor
        if not auditor.is_on:
            raise errors.NotPossibleError("this broker keeps no audit (pulsemarkAuditEnabled)")
        opened = await self._open(topic)
        try:
            return await auditor.report(opened, by, starting_time_ms=from_ms, ending_time_ms=to_ms)
        except RefusedError as refusal:
            raise refused_topic(topic, refusal) from refusal
        except AuditInputError as error:
            raise errors.InvalidFieldError(error.field, str(error)) from error

    # -- for followers --------------------------------------------------------------------------

    def state(self) -> StoreState:
        """The topics, values and subscriptions for a follower."""
        if self._whole is None:
            return super().state()
        catalog, store = self._whole
        return state_of(
            catalog.topics,
            lambda: self._logs(catalog),
            catalog.items,
            lambda: asyncio.run_coroutine_threadsafe(self._cursors(store), self._loop).result(),
            catalog.next_ledger_id,
        )

    def stored_log(self, name: str) -> TopicLog:
        """See `TopicSource`."""
        if self._whole is None:
            return super().stored_log(name)
        return self._whole[1].open_view(name, create=False)

    def _logs(self, catalog: Catalog) -> Mapping[str, TopicLog]:
        """Open the logs of all topics, which a follower needs even if no client uses them.

        It opens topics for a few seconds. The next calls open the rest.
        """
        logs: dict[str, TopicLog] = {}
        until_s = time.monotonic() + OPENING_S
        for name in filter(is_followed, catalog.topics()):
            if time.monotonic() > until_s:
                break
            with suppress(LedgerError, OSError):  # the follower reads it, and gets the error
                logs[name] = self.stored_log(name)
        return logs

    async def _cursors(self, store: TopicStore) -> list[CursorRecord]:
        found: list[CursorRecord] = []
        await self._topics.turns.work(map(found.append, store.cursors.snapshots()))
        return found


#: Refusals that say nothing about the topic: the same call may succeed a moment later.
PASSING = (ServerError.ServiceNotReady, ServerError.PersistenceError, ServerError.MetadataError)


def refused_topic(topic: str, refusal: RefusedError) -> Exception:
    """The error for a topic that cannot be opened."""
    is_passing = refusal.code in PASSING
    return unavailable(refusal.message) if is_passing else TopicNotFoundError(topic)


def unavailable(text: str) -> errors.ServerUnavailableError:
    """The error that asks a caller to try again."""
    return errors.ServerUnavailableError(grpc.StatusCode.UNAVAILABLE.name, text)


def forwarding_of(services: Services) -> Forwarding:
    """Make the forwarding of calls to the other brokers of the cluster."""

    async def find(topic: str, authoritative: bool) -> Owner | None:
        if services.cluster is None:
            raise unavailable("this broker is being started")
        try:
            return await _owner(services, topic, authoritative=authoritative)
        except RefusedError as refusal:
            raise refused_topic(topic, refusal) from refusal

    security = services.config.security
    return Forwarding(
        find,
        roots=lambda: _roots(security),
        asks_for_certificates=security.tls_require_trusted_client_cert_on_connect,
    )


async def _owner(services: Services, topic: str, *, authoritative: bool) -> Owner | None:
    """The broker that owns a topic; None: this one. Raises RefusedError, ServerUnavailableError."""
    cluster = services.cluster
    assert cluster is not None, "a broker alone answers every call"
    name: TopicName = services.topics.parse(topic)
    if cluster.owns(name):
        return None
    found = await cluster.find(name, authoritative=authoritative)
    if found.broker_id == cluster.broker_id:
        return None
    owner = (await cluster.brokers()).get(found.broker_id)
    if owner is None:
        raise unavailable(f"{found.broker_id}, which served {topic}, has ended")
    chosen = found.redirect and found.authoritative
    place = owner.grpc
    return Owner(found.broker_id, place.target, place.tls_target, authoritative=chosen)


def _roots(config: SecurityConfig) -> bytes | None:
    """The CA certificates by which other brokers are checked, as in the brokers' HTTP calls."""
    files = (config.tls_certificate_file, config.tls_trust_certs_file)
    found = [Path(file).read_bytes() for file in files if file is not None]
    return b"\n".join(found) if found else None


_READ = topic("PEEK_MESSAGES")
#: The permission that each call needs. Others, such as reflection, need only a role.
NEEDS: Mapping[str, Need] = {
    "SeekByTime": _READ,
    "SeekByIndex": _READ,
    "Range": _READ,
    "ReadEntries": _READ,
    "Epochs": _READ,
    "FollowState": broker("FOLLOW"),
    "Audit": topic("GET_STATS"),
    "ResetCursor": topic("RESET_CURSOR"),
    # It begins leader epochs, so it is for the tenant's administrators.
    "AppendControl": topic("APPEND_CONTROL"),
}


def admitting(authenticator: Authenticator, authorizer: Authorizer, config: BrokerConfig) -> Admit:
    """Checks a call before it begins."""

    async def admit(caller: Caller, request: Any) -> float | None:
        name = caller.common_name
        certificate = None if name is None else {"subject": ((("commonName", name),),)}
        try:
            principal, expires_at_ms = await identify_request(
                authenticator, config.security, caller.headers, certificate
            )
        except (AuthenticationFailed, InvalidRoles) as refusal:
            log.info("%s: gRPC call refused: %s", caller.method, refusal)
            text = "credentials are needed in 'authorization', or wrong"
            raise CallRefusedError(grpc.StatusCode.UNAUTHENTICATED, text) from refusal
        need = NEEDS.get(caller.method, AUTHENTICATED)
        if not authorizer.allows(principal, need, _target(request)):
            text = f"this role may not call {caller.method} for this topic"
            raise CallRefusedError(grpc.StatusCode.PERMISSION_DENIED, text)
        if expires_at_ms is None:
            return None
        return max(0.0, (expires_at_ms - config.clock.now_ms()) / 1000)

    return admit


def _target(request: Any) -> Target:
    """The topic that a request names. Without a valid name only super users are let in."""
    try:
        name = TopicName.parse(getattr(request, "topic", ""))
    except InvalidTopicNameError:
        return Target()
    return Target.of_topic(name, getattr(request, "subscription", None) or None)
