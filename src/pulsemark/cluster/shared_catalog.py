"""The settings that all brokers of a cluster share: a `MetadataStore` in the coordination service.

Each value is a node, `/pulsemark/catalog/KIND/-KEY`, and each broker has all of them in memory. A
change is one transaction: the values, each only if it has still the version that this broker knew
when it computed the new ones, and a record that names them, `/pulsemark/changes/c-NUMBER`. Every
broker watches the list of these records, and reads what they name. So a change is in force
everywhere within moments, and of two brokers that change the same value at once the second fails
and computes its change again.

A removed value's node stays for a while, with `REMOVED` in it: a node that is made anew has the
versions of the one before, and a broker that has not heard of the removal would replace the new
value as if it were the old one. Such nodes are removed with the records that name them.

Records are removed when there are many newer ones. A broker that missed some reads everything. So
does one that does not find the record it has read last: the service was restored from a copy that
is older, and gives the same numbers to other changes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ..broker.cooperative import Background
from ..coordination import (
    ConnectionLossError,
    Coordination,
    CoordinationError,
    Create,
    NodeExistsError,
    NodeMissingError,
    Operation,
    SessionExpiredError,
    Set,
    VersionConflictError,
    Watch,
)
from ..ledger import CatalogError
from ..ledger.errors import ChangedElsewhereError
from ..ledger.store import MetadataStore

ROOT = "/pulsemark/catalog"
CHANGES = "/pulsemark/changes"
MAX_VALUE_BYTES = 900_000
"""ZooKeeper takes a little more than a million bytes in one request."""
REMOVED = b"\0pulsemark: removed"
"""In the node of a value that was removed; no value is like it."""
TRIES = 5
"""How often a change is tried whose values have other versions, and are what they were."""
KEPT_CHANGES = 1_000
KEPT_MOMENTS = 10_000
"""Values that other brokers have changed, of which it is known when."""

log = logging.getLogger(__name__)

Place = tuple[str, str]
"""Kind and key."""
Change = tuple[str, str, bytes | None]
Seen = tuple[int, str]
"""Number and mark of the newest record that was read. No two records have one mark."""
NO_RECORD: Seen = -1, ""
Known = tuple[bytes | None, int]
"""A value and its node's version; None and -1 if there is no node."""
Hearer = Callable[[str, str, bytes | None], None]


class SharedCatalog(MetadataStore):
    """The shared values. `get` and `items` read memory; changes block, and not on the loop."""

    def __init__(self, session: Coordination) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, tuple[bytes, int]]] = {}
        self._known_kinds: set[str] = set()
        self._moment = 0
        """Counts the changes of other brokers that were taken over."""
        self._changed_at: OrderedDict[Place, int] = OrderedDict()
        """The moments at which other brokers' last changes were taken over; the newest is last."""
        self._forgotten = 0
        """At this moment or before it also other values were changed."""
        self._seen = NO_RECORD
        self._origin = os.urandom(8).hex()
        self._change_count = 0
        self._watch: Watch | None = None
        self._following = asyncio.Lock()
        self._background = Background()
        self.name = Path("the cluster's metadata")
        #: Called on the loop with each value that another broker has changed.
        self.on_change: list[Hearer] = []

    async def load(self) -> None:
        """Read all values, and follow changes from now on. Raises CoordinationError."""
        for path in (ROOT, CHANGES):
            await _ensure(self._session, path)

        def look() -> None:
            self._background.start(_logged(self._follow()))

        self._watch = await self._session.watch(CHANGES, look, children=True)
        async with self._following:
            await self._read_all()

    def close(self) -> None:
        """Stop following changes."""
        if self._watch is not None:
            self._watch.close()
        self._background.cancel()

    # -- reading ----------------------------------------------------------------------------------

    def topics(self) -> dict[str, int]:
        """Always empty: the stores keep topics' ids."""
        return {}

    def get(self, kind: str, key: str) -> bytes | None:
        """The value stored under (kind, key), or None."""
        with self._lock:
            found = self._values.get(kind, {}).get(key)
            return None if found is None else found[0]

    def items(self, kind: str) -> list[tuple[str, bytes]]:
        """All (key, value) pairs of a kind, ordered by key."""
        with self._lock:
            return sorted((key, value) for key, (value, _) in self._values.get(kind, {}).items())

    # -- changing ---------------------------------------------------------------------------------

    def create_topics(self, names: Sequence[str]) -> dict[str, int]:
        """Not available here."""
        raise NotImplementedError("topics' ids are a matter of the stores")

    def reserve_ledger_ids(self, count: int) -> int:
        """Not available here."""
        raise NotImplementedError("ledgers' ids are a matter of the stores")

    def write(self, changes: Iterable[Change]) -> None:
        """Store or remove (None) values at once, whatever is stored now. As `write_since`."""
        self.write_since(self.moment(), changes)

    def moment(self) -> int:
        """As `MetadataStore.moment`. On the loop, all earlier changes are visible."""
        with self._lock:
            return self._moment

    def write_since(self, moment: int, changes: Iterable[Change]) -> None:
        """As `write`, if unchanged since ``moment``. Raises ChangedElsewhereError, CatalogError."""
        wanted = {
            (kind, key): None if value is None else bytes(value) for kind, key, value in changes
        }
        for (kind, key), value in wanted.items():
            if value is not None and len(value) > MAX_VALUE_BYTES:
                reason = f"{kind} {key!r} has {len(value)} bytes, above {MAX_VALUE_BYTES}"
                raise CatalogError(self.name, reason)
            if value == REMOVED:
                raise CatalogError(self.name, f"{kind} {key!r} cannot be {value!r}")
        work = self._write(wanted, self._known(wanted, moment))
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except CoordinationError as error:
            raise CatalogError(self.name, str(error)) from error

    def _known(self, places: Iterable[Place], moment: int) -> dict[Place, Known]:
        """The values at a moment. Raises ChangedElsewhereError if one is no longer known."""
        with self._lock:
            for place in places:
                if self._changed_at.get(place, self._forgotten) > moment:
                    reason = f"another broker has changed {place[0]} {place[1]!r} meanwhile"
                    raise ChangedElsewhereError(self.name, f"{reason}; try again")
            return {
                place: self._values.get(place[0], {}).get(place[1], (None, -1)) for place in places
            }

    def report_since(self, moment: int, places: Iterable[Place]) -> None:
        """As `MetadataStore.report_since`, on the loop."""
        for place in places:
            with self._lock:
                is_changed = self._changed_at.get(place, self._forgotten) > moment
            if is_changed:
                value = self.get(*place)
                for notify in self.on_change:
                    notify(*place, value)

    async def _write(self, wanted: dict[Place, bytes | None], known: dict[Place, Known]) -> None:
        for kind in sorted({kind for kind, _ in wanted} - self._known_kinds):
            await _ensure(self._session, f"{ROOT}/{kind}")
            self._known_kinds.add(kind)
        for _ in range(TRIES):
            error = await self._try(wanted, known)
            if error is None:
                return
            stored = {place: await self._stored(place) for place in wanted}
            if any(stored[place][0] != known[place][0] for place in wanted):
                break
            known = stored  # only a removed value's node has come or gone
        await self._read(wanted)
        raise ChangedElsewhereError(
            self.name, f"another broker has changed it meanwhile ({error}); try again"
        ) from error

    async def _try(
        self, wanted: dict[Place, bytes | None], known: dict[Place, Known]
    ) -> CoordinationError | None:
        """Write if the values have these versions. Return the error if they have not."""
        operations = {
            place: _operation(place, value, known[place][1])
            for place, value in wanted.items()
            if value is not None or known[place][0] is not None
        }
        if not operations:
            return None
        removed = [place for place in operations if wanted[place] is None]
        self._change_count += 1
        mark = f"{self._origin}-{self._change_count}"
        content = json.dumps([mark, list(wanted), removed]).encode()
        record = Create(f"{CHANGES}/c-", content, sequence=True)
        try:
            results = await self._session.transaction([*operations.values(), record])
        except (VersionConflictError, NodeExistsError, NodeMissingError) as error:
            return error
        except ConnectionLossError as error:
            # If the change was made after all, treat its record as another broker's.
            self._origin = os.urandom(8).hex()
            await self._find_out(wanted, error)
            return None
        for place, result in zip(operations, results, strict=False):
            self._take(place, wanted[place], result if isinstance(result, int) else 0)
        self._trim(_number(str(results[-1])))
        return None

    async def _find_out(
        self, wanted: dict[Place, bytes | None], error: ConnectionLossError
    ) -> None:
        """Read the stored values after a change of unknown outcome."""
        for place, value in wanted.items():
            stored, version = await self._stored(place)
            if stored != value:
                raise CatalogError(self.name, str(error)) from error
            self._take(place, value, version)

    def _trim(self, number: int) -> None:
        """Remove the oldest records, from time to time."""
        if number % (KEPT_CHANGES // 4) == 0 and number:
            self._background.start(_logged(self._remove_before(number - KEPT_CHANGES)))

    async def _remove_before(self, limit: int) -> None:
        for name in await self._session.children(CHANGES):
            if _number(name) < limit:
                with suppress(NodeMissingError):  # another broker removes records, too
                    data, _ = await self._session.get(f"{CHANGES}/{name}")
                    for kind, key in json.loads(data)[2]:
                        await self._remove_node((kind, key))
                    await self._session.delete(f"{CHANGES}/{name}")

    async def _remove_node(self, place: Place) -> None:
        """Remove the node of a removed value, unless it has a value again."""
        value, version = await self._stored(place)
        if value is None and version >= 0:
            with suppress(NodeMissingError, VersionConflictError):
                await self._session.delete(_path(place), version)

    # -- following --------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Read the values whose changes were recorded since the last call."""
        async with self._following:
            numbers = sorted(_number(name) for name in await self._session.children(CHANGES))
            new = [number for number in numbers if number > self._seen[0]]
            if self._seen != NO_RECORD and (
                await self._mark_of(self._seen[0]) != self._seen[1]
                or (new and new[0] != self._seen[0] + 1)
            ):
                await self._read_all()
                return
            for number in new:
                try:
                    data, _ = await self._session.get(_record(number))
                except NodeMissingError:
                    await self._read_all()
                    return
                mark, places, _ = json.loads(data)
                if mark.rpartition("-")[0] != self._origin:
                    await self._read([(kind, key) for kind, key in places])
                self._seen = number, mark

    async def _mark_of(self, number: int) -> str | None:
        """The mark of a record; None if the record is gone."""
        try:
            data, _ = await self._session.get(_record(number))
        except NodeMissingError:
            return None
        return str(json.loads(data)[0])

    async def _read_all(self) -> None:
        """Read every value that is stored or known. The caller holds `_following`."""
        newest = max(map(_number, await self._session.children(CHANGES)), default=-1)
        mark = await self._mark_of(newest) if newest >= 0 else None
        places = {(kind, key) for kind, values in self._values.items() for key in values}
        self._known_kinds = set(await self._session.children(ROOT))
        for kind in sorted(self._known_kinds):
            for name in await self._session.children(f"{ROOT}/{kind}"):
                places.add((kind, unquote(name[1:])))
        ordered = sorted(places)
        for at in range(0, len(ordered), 256):
            await self._read(ordered[at : at + 256])
        self._seen = NO_RECORD if mark is None else (newest, mark)

    async def _stored(self, place: Place) -> Known:
        try:
            value, version = await self._session.get(_path(place))
        except NodeMissingError:
            return None, -1
        return None if value == REMOVED else value, version

    async def _read(self, places: Iterable[Place]) -> None:
        """Read these values, and report those that others have changed."""
        await asyncio.gather(*(self._read_one(place) for place in places))

    async def _read_one(self, place: Place) -> None:
        # Taken at once: a change of this broker's own may be answered before the other reads are.
        value, version = await self._stored(place)
        if self._take(place, value, version, is_heard=True) != value:
            for notify in self.on_change:
                notify(*place, value)

    def _take(
        self, place: Place, value: bytes | None, version: int, *, is_heard: bool = False
    ) -> bytes | None:
        """Keep a value and return the former one. `is_heard`: report it if it is new."""
        with self._lock:
            values = self._values.setdefault(place[0], {})
            before = values.pop(place[1], None)
            if value is not None:
                values[place[1]] = (value, version)
            if is_heard and before != values.get(place[1]):
                self._heard(place)
            return None if before is None else before[0]

    def _heard(self, place: Place) -> None:
        self._moment += 1
        self._changed_at[place] = self._moment
        self._changed_at.move_to_end(place)
        if len(self._changed_at) > KEPT_MOMENTS:
            _, self._forgotten = self._changed_at.popitem(last=False)


def _operation(place: Place, value: bytes | None, version: int) -> Operation:
    path, stored = _path(place), REMOVED if value is None else value
    return Create(path, stored) if version < 0 else Set(path, stored, version)


def _path(place: Place) -> str:
    return f"{ROOT}/{place[0]}/-{quote(place[1], safe='')}"


def _record(number: int) -> str:
    return f"{CHANGES}/c-{number:010d}"


def _number(record: str) -> int:
    """The number of a record, from its name or path."""
    return int(record[-10:])


async def _ensure(session: Coordination, path: str) -> None:
    try:
        await session.create(path, make_parents=True)
    except NodeExistsError:
        return


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except SessionExpiredError as error:
        log.info("changes of the cluster's metadata were not read: %s", error)  # one for each
    except CoordinationError as error:
        # With the next connection the watch reports again.
        log.warning("changes of the cluster's metadata were not read: %s", error)
    except Exception:
        log.exception("changes of the cluster's metadata could not be applied")
