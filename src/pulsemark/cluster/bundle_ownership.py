"""The bundles that this broker owns, by ephemeral nodes, and their stores.

    /namespace/TENANT/NAMESPACE/0x00000000_0x40000000   the owner's URLs; `disabled` while it leaves

A node is only a hint: it says which broker clients should ask. What keeps two brokers from writing
to one topic is the store, whose opening fences the owner before. So a bundle is taken over in this
order: create the node, open the store, look whether the node is still there (if the session was
lost meanwhile, another broker may be asked to take the bundle), serve. It is given away in the
other order: refuse topics, mark the node as disabled, close topics and store, delete the node.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from ..broker.cooperative import Background
from ..broker.errors import RefusedError
from ..broker.ownership import Found
from ..broker.topics.topic_names import NameLocks
from ..coordination import Coordination, CoordinationError, NodeExistsError, NodeMissingError, State
from ..ledger import LedgerError, TopicStore
from ..proto.pulsar_api_pb2 import ServerError

ROOT = "/namespace"
#: Names in the nodes (Pulsar's NamespaceEphemeralData) and what they are in `Found`.
FIELDS = {
    "nativeUrl": "service_url",
    "nativeUrlTls": "service_url_tls",
    "httpUrl": "http_url",
    "httpUrlTls": "http_url_tls",
}

log = logging.getLogger(__name__)


class Stores(Protocol):
    """Opens and closes the stores of bundles."""

    are_shared: bool
    """Whether another broker can take a bundle over."""

    async def open(self, bundle: str) -> TopicStore:
        """Open a bundle's store. From now on no other broker can write to it."""

    async def close(self, bundle: str, store: TopicStore, *, is_lost: bool) -> None:
        """Close a bundle's store. `is_lost`: another broker owns the bundle already."""

    def finish(self) -> None:
        """Close what `close` leaves open, when the broker ends. Blocks."""

    def bad_copies(self) -> dict[str, int]:
        """The number of damaged copies of entries that each bookie has sent."""


CloseTopics = Callable[[str, bool], Awaitable[int]]
"""Closes the open topics of a bundle; the second argument says whether the bundle is lost."""


class BundleOwnership:
    """The bundles that this broker owns. On the event loop."""

    def __init__(
        self,
        session: Coordination,
        me: Found,
        stores: Stores,
        shown: dict[str, TopicStore],
        close_topics: CloseTopics,
    ) -> None:
        """`shown` holds the store of each owned bundle."""
        self.me = me
        self._session = session
        self._stores = stores
        self._owned = shown
        self._close_topics = close_topics
        self._locks = NameLocks()
        #: Bundles that are being given away; their topics are refused.
        self.leaving: set[str] = set()
        #: Called after each change of what is owned.
        self.on_change: list[Callable[[], object]] = []
        self.is_over = False
        #: Bundles that are not owned, though their nodes may still say so.
        self._stale: set[str] = set()
        self._background = Background()

    def owns(self, bundle: str) -> bool:
        """Whether this broker serves the bundle's topics now."""
        return bundle in self._owned and bundle not in self.leaving

    def bundles(self) -> list[str]:
        """The bundles that this broker owns, sorted."""
        return sorted(bundle for bundle in self._owned if bundle not in self.leaving)

    # -- asking -----------------------------------------------------------------------------------

    async def owner(self, bundle: str) -> Found | None:
        """The owner of a bundle. Raises RefusedError while it is being given away."""
        if self.owns(bundle):
            return self.me
        path = _path(bundle)
        try:
            (data, _), stat = await self._session.get(path), await self._session.exists(path)
        except NodeMissingError:
            return None
        if stat is None:
            return None
        node = json.loads(data)
        if node.get("disabled"):
            raise RefusedError(
                ServerError.ServiceNotReady, f"Namespace bundle {bundle} is being unloaded"
            )
        if stat.ephemeral_owner == self._session.session_id:
            # This broker's node, without an open store: a takeover runs, or has failed.
            return self.me
        urls: dict[str, Any] = {value: node.get(name) or "" for name, value in FIELDS.items()}
        url = urls["http_url"] or urls["service_url"]
        return Found(node.get("brokerId") or url.partition("://")[2], **urls)

    # -- taking -----------------------------------------------------------------------------------

    async def take(self, bundle: str) -> Found:
        """Take over a bundle without an owner. Return its owner, which may be another broker.

        It runs to its end if the caller is cancelled, such as a client's lookup: a store that is
        being opened must not be left behind. Raises RefusedError (ServiceNotReady).
        """
        return await self._background.run_to_end(self._take(bundle))

    async def _take(self, bundle: str) -> Found:
        async with self._locks.held(bundle):
            other = await self.owner(bundle)
            if other is not None and (other is not self.me or self.owns(bundle)):
                return other
            if self.is_over:
                raise RefusedError(ServerError.ServiceNotReady, "the broker is being closed")
            try:
                await self._create_node(bundle)
            except NodeExistsError:
                other = await self.owner(bundle)
                if other is not None and other is not self.me:
                    return other
                raise RefusedError(
                    ServerError.ServiceNotReady, f"Namespace bundle {bundle} is being taken over"
                ) from None
            except CoordinationError:
                self._stale.add(bundle)
                raise
            await self._open_store(bundle)
        for call in self.on_change:
            call()
        return self.me

    async def _create_node(self, bundle: str) -> None:
        path, data = _path(bundle), self._node()
        stat = await self._session.exists(path)
        if stat is not None and stat.ephemeral_owner == self._session.session_id:
            await self._session.set(path, data)
        else:
            await self._session.create(path, data, ephemeral=True, make_parents=True)

    def _node(self, *, disabled: bool = False) -> bytes:
        urls = {name: getattr(self.me, value) or None for name, value in FIELDS.items()}
        others = {"advertisedListeners": {}, "brokerId": self.me.broker_id}
        return json.dumps({**urls, "disabled": disabled, **others}).encode()

    async def _open_store(self, bundle: str) -> None:
        try:
            store = await self._stores.open(bundle)
        except (LedgerError, OSError) as error:
            log.exception("bundle %s could not be taken over", bundle)
            await self._delete_node(bundle)
            text = f"Namespace bundle {bundle} could not be taken over: {error}"
            raise RefusedError(ServerError.ServiceNotReady, text) from error
        try:
            stat = await self._session.exists(_path(bundle))
        except CoordinationError:
            await self._withdraw(bundle, store)
            raise
        if stat is None or stat.ephemeral_owner != self._session.session_id:
            await self._withdraw(bundle, store)
            text = f"Namespace bundle {bundle}: the session was lost while it was taken over"
            raise RefusedError(ServerError.ServiceNotReady, text)
        self._owned[bundle] = store
        log.info("%s owns bundle %s", self.me.broker_id, bundle)

    async def _withdraw(self, bundle: str, store: TopicStore) -> None:
        """Close a store that was opened and not yet served, since the bundle may be lost."""
        log.warning("%s has lost %s while it took it over", self.me.broker_id, bundle)
        await self._close_store(bundle, store, is_lost=True)
        await self._delete_node(bundle)

    # -- giving -----------------------------------------------------------------------------------

    async def give(self, bundle: str) -> None:
        """Give a bundle away in good order, if this broker owns it. Runs to its end."""
        await self._background.run_to_end(self._leave(bundle, is_lost=False))

    async def give_all(self) -> None:
        """Give all bundles away, also those being taken. Call it when `is_over` is set."""
        for _ in range(2):
            await asyncio.gather(*(self.give(bundle) for bundle in self.bundles()))
            await self._background.settled()

    async def lose(self, bundle: str) -> None:
        """Close a bundle that another broker owns or may own, and store nothing."""
        await self._background.run_to_end(self._leave(bundle, is_lost=True))

    async def _leave(self, bundle: str, *, is_lost: bool) -> None:
        async with self._locks.held(bundle):
            if bundle not in self._owned:
                return
            if is_lost:
                text = "%s may have lost bundle %s to another broker, and closes its topics"
                log.warning(text, self.me.broker_id, bundle)
            self.leaving.add(bundle)
            try:
                if not is_lost:
                    await self._mark_disabled(bundle)
                await self._close_topics(bundle, is_lost)
                await self._close_store(bundle, self._owned[bundle], is_lost=is_lost)
            finally:
                self._owned.pop(bundle, None)
                self.leaving.discard(bundle)
                await self._delete_node(bundle)
        if not is_lost:
            log.info("%s has given bundle %s away", self.me.broker_id, bundle)
        for call in self.on_change:
            call()

    async def _mark_disabled(self, bundle: str) -> None:
        try:
            await self._session.set(_path(bundle), self._node(disabled=True))
        except CoordinationError as error:
            log.warning("bundle %s was not marked as leaving: %s", bundle, error)

    async def _close_store(self, bundle: str, store: TopicStore, *, is_lost: bool) -> None:
        try:
            await self._stores.close(bundle, store, is_lost=is_lost)
        except (LedgerError, OSError) as error:
            log.log(
                logging.INFO if is_lost else logging.WARNING,
                "the store of bundle %s was not closed in good order: %s",
                bundle,
                error,
            )

    async def _delete_node(self, bundle: str) -> None:
        """Delete the bundle's node, if it belongs to this session."""
        try:
            stat = await self._session.exists(_path(bundle))
            if stat is not None and stat.ephemeral_owner == self._session.session_id:
                await self._session.delete(_path(bundle))
        except CoordinationError as error:
            log.debug("the node of bundle %s was not deleted: %s", bundle, error)
            self._stale.add(bundle)
        else:
            self._stale.discard(bundle)

    async def forget_stale(self) -> None:
        """Delete this broker's nodes of bundles that it does not own."""
        for bundle in tuple(self._stale):
            async with self._locks.held(bundle):
                if bundle in self._owned:
                    self._stale.discard(bundle)
                elif self._session.state is State.CONNECTED:
                    await self._delete_node(bundle)


def with_redirect(found: Found, *, authoritative: bool) -> Found:
    """Make the lookup answer that sends a client to that broker."""
    return replace(found, redirect=True, authoritative=authoritative)


def _path(bundle: str) -> str:
    return f"{ROOT}/{bundle}"
