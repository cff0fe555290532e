"""`Coordination` on ZooKeeper, through kazoo.

kazoo works in threads of its own. Its answers and events come to the event loop by
`call_soon_threadsafe`; nothing here blocks the loop or runs in kazoo's threads but that.

ZooKeeper's watches report once. After each report the watch is set again, and then the users look:
so no change between two reports is missed. kazoo reports all watches when the connection is lost,
and they are set again with the next one.

kazoo keeps the function that a watch calls until the node changes. So all watches of one node share
one function, and one that is opened and closed again and again leaves nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from ..extras import install_command
from . import (
    ANY_VERSION,
    OF_STATE,
    ConnectionLossError,
    Coordination,
    CoordinationClosedError,
    CoordinationError,
    CoordinationUnavailableError,
    Create,
    Delete,
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    Operation,
    ParentEphemeralError,
    Place,
    SessionExpiredError,
    Set,
    Stat,
    State,
    VersionConflictError,
    Versioned,
    Watch,
    Watches,
    parent_of,
)

log = logging.getLogger(__name__)

ERRORS: dict[str, type[CoordinationError]] = {
    "NoNodeError": NodeMissingError,
    "NodeExistsError": NodeExistsError,
    "BadVersionError": VersionConflictError,
    "NotEmptyError": NotEmptyError,
    "NoChildrenForEphemeralsError": ParentEphemeralError,
    "ConnectionLoss": ConnectionLossError,
    "OperationTimeoutError": ConnectionLossError,
    "ConnectionDropped": ConnectionLossError,
    "SessionExpiredError": SessionExpiredError,
    "SessionMovedError": SessionExpiredError,
    "ConnectionClosedError": CoordinationClosedError,
}
"""By kazoo's names, because kazoo is imported only to connect."""
SAID = {
    State.CONNECTED: "connected again",
    State.SUSPENDED: "the connection is lost",
    State.LOST: "the session is lost",
}
NOT_TO_BLAME = ("RolledBackError", "RuntimeInconsistency")
"""Errors of a transaction's operations, that another one of it has failed."""


class ZooKeeperCoordination(Coordination):
    """A session with ZooKeeper. Made by `connect`."""

    def __init__(self, client: Any, hosts: str, session_timeout_ms: int) -> None:
        self._client = client
        self._hosts = hosts
        self._loop = asyncio.get_running_loop()
        self.session_timeout_ms = session_timeout_ms
        self.state = State.CONNECTED
        self._is_closed = False
        self._listeners: Watches = {}
        self._watches: Watches = {}
        self._reports: dict[Place, Callable[[object], None]] = {}
        """The function that kazoo calls, for each watch that is set at the server."""
        self._arming: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(cls, hosts: str, *, session_timeout_ms: int, connect_timeout_ms: int) -> Self:
        """Open a session. Raises CoordinationUnavailableError."""
        try:
            from kazoo.client import KazooClient
            from kazoo.retry import KazooRetry
        except ImportError as error:
            reason = f"needs kazoo ({install_command('bookkeeper')}): {error}"
            raise CoordinationUnavailableError("", reason) from error
        client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            logger=_kazoo_log(),
            # kazoo reconnects without end, with at most a quarter of a second between attempts.
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=0.25),
        )
        self = cls(client, hosts, session_timeout_ms)
        client.add_listener(self._on_kazoo_state)
        started = client.start_async()
        try:
            is_up = await asyncio.to_thread(started.wait, connect_timeout_ms / 1000)
        except BaseException:
            await asyncio.to_thread(self._stop)
            raise
        if not is_up:
            self._is_closed = True
            await asyncio.to_thread(self._stop)
            reason = f"no server of {hosts} answered within {connect_timeout_ms} ms"
            raise CoordinationUnavailableError("", reason)
        # The server may have granted another timeout than was asked for.
        self.session_timeout_ms = int(client._session_timeout)
        return self

    # -- the session's state ----------------------------------------------------------------------

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """The session's id and password: with these another connection can take it over."""
        identity: tuple[int, bytes] | None = self._client.client_id
        return identity

    @property
    def session_id(self) -> int:
        identity = self.client_id
        return 0 if identity is None else int(identity[0])

    def listen(self, changed: Callable[[State], None]) -> Watch:
        return Watch(self._listeners, OF_STATE, changed)

    def _on_kazoo_state(self, kazoo_state: str) -> None:
        """Pass a new state to the loop. Called in kazoo's thread."""
        self._on_loop(self._become, State(kazoo_state.lower()))

    def _become(self, state: State) -> None:
        if state is self.state:
            return
        self.state = state
        if not self._is_closed:
            level = logging.INFO if state is State.CONNECTED else logging.WARNING
            log.log(level, "ZooKeeper at %s: %s", self._hosts, SAID[state])
        if state is State.CONNECTED:
            for place in tuple(self._watches):
                self._arm_later(place)
        for listener in tuple(self._listeners.get(OF_STATE, ())):
            listener.run(state)

    def _on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    # -- requests ---------------------------------------------------------------------------------

    async def get(self, path: str) -> Versioned:
        data, stat = await self._ask(path, "get_async", path)
        return Versioned(data, stat.version)

    async def exists(self, path: str) -> Stat | None:
        stat = await self._ask(path, "exists_async", path)
        if stat is None:
            return None
        return Stat(stat.version, stat.ephemeralOwner, stat.numChildren)

    async def children(self, path: str) -> list[str]:
        return sorted(await self._ask(path, "get_children_async", path))

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        arguments = (path, data, None, ephemeral, sequence)
        try:
            return str(await self._ask(path, "create_async", *arguments))
        except NodeMissingError:
            if not make_parents:
                raise NodeMissingError(parent_of(path)) from None
        with suppress(NodeExistsError):  # Somebody else has made it meanwhile.
            await self.create(parent_of(path), make_parents=True)
        return str(await self._ask(path, "create_async", *arguments))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        stat = await self._ask(path, "set_async", path, data, version)
        return int(stat.version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._ask(path, "delete_async", path, version)

    async def transaction(self, operations: Sequence[Operation]) -> list[str | int | None]:
        request = self._client.transaction()
        for one in operations:
            if isinstance(one, Create):
                request.create(one.path, one.data, None, one.ephemeral, one.sequence)
            elif isinstance(one, Set):
                request.set_data(one.path, one.data, one.version)
            elif isinstance(one, Delete):
                request.delete(one.path, one.version)
            else:
                request.check(one.path, one.version)
        path = operations[0].path if operations else ""
        results = await self._answer(path, request.commit_async)
        for one, result in zip(operations, results, strict=True):
            # The result of the failed one; the others' results only say that one has failed.
            if isinstance(result, Exception) and type(result).__name__ not in NOT_TO_BLAME:
                raise _typed(result, one.path)
        return [self._result(one, result) for one, result in zip(operations, results, strict=True)]

    def _result(self, operation: Operation, result: Any) -> str | int | None:
        if isinstance(operation, Create):
            return str(self._client.unchroot(result))
        return int(result.version) if isinstance(operation, Set) else None

    async def _ask(self, path: str, method: str, *arguments: object) -> Any:
        return await self._answer(path, getattr(self._client, method), *arguments)

    async def _answer(self, path: str, method: Callable[..., Any], *arguments: object) -> Any:
        """Call kazoo. Raises typed errors; ConnectionLossError after twice the timeout."""
        if self._is_closed:
            raise CoordinationClosedError(path)
        if self.state is State.SUSPENDED:
            raise ConnectionLossError(path, "not connected")
        answer: asyncio.Future[Any] = self._loop.create_future()
        method(*arguments).rawlink(lambda result: self._on_loop(_resolve, answer, result, path))
        try:
            async with asyncio.timeout(2 * self.session_timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise ConnectionLossError(path, "no answer in time") from None

    # -- watches ----------------------------------------------------------------------------------

    async def watch(
        self, path: str, look_again: Callable[[], None], *, children: bool = False
    ) -> Watch:
        place = path, children
        watch = Watch(self._watches, place, look_again)
        try:
            await self._arm(place)
        except BaseException:
            watch.close()
            raise
        return watch

    async def _arm(self, place: Place) -> None:
        """Have ZooKeeper report the next change."""
        report = self._reports.get(place)
        if report is None:

            def report(_event: object) -> None:
                """In kazoo's thread. A lost connection is reported, too: `_become` sees to that."""
                self._on_loop(self._on_report, place)

            self._reports[place] = report
        path, is_list = place
        await self._ask(path, "get_children_async" if is_list else "exists_async", path, report)

    def _on_report(self, place: Place) -> None:
        if place not in self._watches:
            self._reports.pop(place, None)
        elif self.state is State.CONNECTED:
            self._arm_later(place)

    def _arm_later(self, place: Place) -> None:
        if place not in self._watches or self._is_closed:
            return
        task = self._loop.create_task(self._arm_and_look(place))
        self._arming.add(task)
        task.add_done_callback(self._arming.discard)

    async def _arm_and_look(self, place: Place) -> None:
        try:
            await self._arm(place)
        except CoordinationError as error:
            # The next connection sets it again. If a list's node is gone, there are no changes.
            log.debug("watch of %s not set: %s", place[0], error)
        for watch in tuple(self._watches.get(place, ())):
            watch.run()

    # -- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watches.clear()
        for task in self._arming:
            task.cancel()
        await asyncio.to_thread(self._stop)
        self._become(State.LOST)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()


def _kazoo_log() -> logging.Logger:
    """kazoo's log, silent by default: each attempt to connect is two lines."""
    kazoo_log = logging.getLogger(f"{__name__}.kazoo")
    if kazoo_log.level == logging.NOTSET:
        kazoo_log.setLevel(logging.ERROR)
    return kazoo_log


def _resolve(answer: asyncio.Future[Any], result: Any, path: str) -> None:
    """On the loop: what kazoo's result says."""
    if answer.done():
        return
    if result.exception is None:
        answer.set_result(result.value)
    else:
        answer.set_exception(_typed(result.exception, path))


def _typed(error: Exception, path: str) -> Exception:
    name = type(error).__name__
    return ERRORS.get(name, CoordinationError)(path, str(error) or name)
