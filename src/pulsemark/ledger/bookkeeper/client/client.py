"""The client: creates, opens and deletes ledgers of an Apache BookKeeper cluster."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping

from ....coordination import Coordination
from .bookies import Bookies
from .entries import DigestType, digest_of
from .errors import WrongKeyError
from .frames import read_lac_request
from .ledger_nodes import LedgerNodes, check_ledger_id
from .metadata import LedgerMetadata, Segment
from .options import ClientOptions
from .reader import LedgerReader, read_last_confirmed
from .recovery import RecoveryRules, recover
from .registry import BookieRegistry, ClientCore, new_ensemble
from .tls import BookieTls
from .writer import LedgerWriter

_KNOWN_MS = 500
"""So long bookies are asked whether they know of ledgers."""


class BookKeeperClient:
    """A client of one cluster, for one event loop. It does not close the coordination session.

    ``random`` chooses bookies and makes tokens; it is seeded in simulations. ``rules`` are changed
    only by control runs that must lose entries. Raises TlsFilesError if ``tls`` cannot be used.
    """

    def __init__(
        self,
        coordination: Coordination,
        root: str = "/ledgers",
        *,
        options: ClientOptions | None = None,
        random: random.Random | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        tls: BookieTls | None = None,
        rules: RecoveryRules | None = None,
    ) -> None:
        options = options or ClientOptions()
        chance = random or _system_random()
        registry = BookieRegistry(coordination, root, options)
        self._core = ClientCore(
            nodes=LedgerNodes(coordination, root, options, chance),
            registry=registry,
            bookies=Bookies(registry.address, options, tls.renewed() if tls else None),
            options=options,
            random=chance,
        )
        self._clock_ms = clock_ms
        self._rules = rules or RecoveryRules()

    async def check_cluster(self) -> None:
        """Check that there is a cluster. Raises UnknownLayoutError."""
        await self._core.nodes.check_layout()

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
    ) -> LedgerWriter:
        """Create a ledger, with a new id or the one given, and return its only writer.

        Raises NotEnoughBookiesError, LedgerExistsError, InvalidRequestError, UnknownLayoutError.
        """
        core = self._core
        if ledger_id is not None:
            check_ledger_id(ledger_id)
        await core.nodes.check_layout()
        # Checked before an id is taken, and before bookies are looked for.
        unplaced = LedgerMetadata(
            ledger_id=ledger_id or 0,
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            segments=(Segment(0, ("",) * ensemble_size),),
            digest_type=digest_type,
            password=password,
            created_ms=self._clock_ms(),
            custom_metadata=dict(custom_metadata or {}),
            creation_token=core.nodes.new_token(),
        )
        ensemble = new_ensemble(
            ensemble_size,
            await core.registry.writable(),
            suspected=core.bookies.suspected(),
            random=core.random,
        )
        if ledger_id is None:
            ledger_id = await core.nodes.new_ledger_id()
        created = await core.nodes.create(unplaced.placed(ledger_id, ensemble))
        return LedgerWriter(core, created, password)

    async def open_ledger(self, ledger_id: int, *, password: bytes = b"") -> LedgerReader:
        """Open a ledger to read all of it. One that is not closed is recovered: its writer is
        fenced, and the ledger is closed after its last entry.

        Raises LedgerMissingError, WrongKeyError, RecoveryFailedError (try later), MetadataError.
        """
        await self._core.nodes.check_layout()
        found = await recover(self._core, ledger_id, password, self._rules)
        _check_password(found.metadata, password)
        return LedgerReader(self._core, found, password, found.metadata.last_entry_id)

    async def open_ledger_no_recovery(
        self, ledger_id: int, *, password: bytes = b""
    ) -> LedgerReader:
        """Open a ledger to read its confirmed entries. It is neither fenced nor changed.

        Raises LedgerMissingError, WrongKeyError, NotEnoughBookiesError, MetadataError.
        """
        await self._core.nodes.check_layout()
        found = await self._core.nodes.read(ledger_id)
        _check_password(found.metadata, password)
        if found.metadata.is_closed:
            return LedgerReader(self._core, found, password, found.metadata.last_entry_id)
        digest = digest_of(found.metadata.digest_type, password)
        last = await read_last_confirmed(self._core, found.metadata, digest)
        return LedgerReader(self._core, found, password, last)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's metadata. Raises LedgerMissingError, MetadataError."""
        check_ledger_id(ledger_id)
        return (await self._core.nodes.read(ledger_id)).metadata

    async def has_any(self, ledger_ids: Iterable[int]) -> bool:
        """Whether a bookie, of those that answer at once, has entries of these ledgers."""
        bookies, ids = await self._core.registry.readable(), tuple(ledger_ids)
        asked = [
            asyncio.ensure_future(
                self._core.bookies.ask(bookie, read_lac_request(each, timeout_ms=_KNOWN_MS))
            )
            for bookie in bookies
            for each in ids
        ]
        done, late = await asyncio.wait(asked, timeout=_KNOWN_MS / 1000) if asked else ((), ())
        for one in late:
            one.cancel()
        # For an unknown ledger a bookie answers that there is no entry.
        return None in [one.exception() for one in done]

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a closed ledger; bookies drop its entries later. Raises LedgerMissingError."""
        await self._core.nodes.delete(ledger_id)

    async def close(self) -> None:
        """End all connections. Pending requests fail; ledgers stay as they are."""
        await self._core.bookies.close()


def _system_random() -> random.Random:
    return random.Random()  # noqa: S311  chooses bookies, keeps no secret


def _check_password(metadata: LedgerMetadata, password: bytes) -> None:
    """Raises WrongKeyError."""
    if metadata.password != password:
        raise WrongKeyError("the metadata has another password", ledger_id=metadata.ledger_id)
