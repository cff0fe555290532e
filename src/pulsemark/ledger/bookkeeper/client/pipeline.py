"""Entries on their way to bookies: replicas, quorums, confirmation in order, ensemble changes.

A ledger's writer and recovery share this code, with two differences: recovery's adds pass a fence,
and its ensemble changes stay in memory until the ledger is closed.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import accumulate

from ....coordination import CoordinationError
from ....metadata.crc import Buffer
from .adds import AddEncoder, AddRun
from .connection import Answer
from .entries import HEADER, NO_ENTRY, digest_of, master_key, pack_entries, pack_last_confirmed
from .errors import (
    BackPressureError,
    BookKeeperError,
    EntryTooLargeError,
    LedgerFencedError,
    NotEnoughBookiesError,
    WrongKeyError,
)
from .frames import write_lac_request
from .metadata import LedgerMetadata
from .registry import ClientCore, replacements

# Entries on their way to their bookies: how many of them each one holds.
#
# Only the first entries up to one that is not answered count as held. So what a quorum holds of the
# entries is a number, too, and what is confirmed has no gap.


class PendingEntries:
    """Consecutive entries with the same write set, of which some are not confirmed."""

    __slots__ = ("bodies", "confirmed", "ends", "first_id", "future", "held", "size_bytes")

    def __init__(
        self,
        first_id: int,
        ends: Sequence[int],
        bodies: Sequence[Sequence[Buffer]],
        ensemble_size: int,
    ) -> None:
        self.first_id = first_id
        self.ends = ends
        """The ledger's length with each of them."""
        self.bodies = bodies
        self.held = [0] * ensemble_size
        """Of each place in the ensemble: how many of the first entries its bookie holds."""
        self.confirmed = 0
        """How many of the first entries are confirmed."""
        self.size_bytes = 0
        self.future: asyncio.Future[int] | None = None
        """Done when all of them are confirmed."""

    def held_by(self, quorum: int) -> int:
        """The number of first entries that `quorum` bookies hold."""
        return sorted(self.held)[-quorum]


# Tells bookies the last confirmed entry when no entry follows it.
#
# Readers hear of an entry's confirmation with the entry after it. So the last entry of a writer
# that is idle would stay unseen. As with Java's explicitLacInterval, such a writer sends the number
# alone.


class ConfirmedNotice:
    """Tells a ledger's bookies the last confirmed entry."""

    def __init__(self, pipeline: WritePipeline, password: bytes) -> None:
        self._pipeline = pipeline
        self._digest = digest_of(pipeline.metadata.digest_type, password)
        self._key = master_key(password)
        self._seen = NO_ENTRY
        self._timer: asyncio.TimerHandle | None = None
        self.told = NO_ENTRY
        """What the last entry, or the last notice, said."""

    def confirmed(self) -> None:
        """Tell the bookies after a while, unless other entries follow."""
        if self._timer is None:
            self._seen = self._pipeline.last_confirmed
            self._start()

    def _start(self) -> None:
        options = self._pipeline.core.options
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(options.explicit_lac_ms / 1000, self._look)

    def _look(self) -> None:
        pipeline, self._timer = self._pipeline, None
        if pipeline.error is not None or pipeline.last_confirmed <= self.told:
            return
        if pipeline.last_confirmed > self._seen:
            self._seen = pipeline.last_confirmed  # it is not idle: look again later
            self._start()
            return
        self.told = pipeline.last_confirmed
        ledger_id = pipeline.metadata.ledger_id
        request = write_lac_request(
            ledger_id,
            self.told,
            self._key,
            pack_last_confirmed(self._digest, ledger_id, self.told),
            timeout_ms=pipeline.core.options.add_timeout_ms,
        )
        for bookie in pipeline.working_bookies():
            pipeline.core.bookies.send(bookie, request, _ignored)

    def stop(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()


def _ignored(_: Answer) -> None:
    """Ignore the answer. Adds detect failed bookies, and readers ask several."""


# A frame's bytes beside an entry's body: length, header, ids, key and tags.
_FRAME_ROOM_BYTES = 128


class WritePipeline:
    """Writes entries of one ledger after ``confirmed``, where the ledger has ``length`` bytes.

    Recovery uses it to write entries again, past a fence.
    """

    _notice: ConfirmedNotice | None = None
    """Set for a writer; recovery does not tell bookies."""

    def __init__(
        self,
        core: ClientCore,
        metadata: LedgerMetadata,
        password: bytes,
        *,
        confirmed: int = -1,
        length: int = 0,
        recovery: bool = False,
    ) -> None:
        self.core = core
        self._loop = asyncio.get_running_loop()
        self.metadata = metadata
        self._recovery = recovery
        self._digest = digest_of(metadata.digest_type, password)
        self._encoder = self._make_encoder(password)
        self._max_body = core.options.max_frame_bytes - _FRAME_ROOM_BYTES
        self.last_confirmed = confirmed
        """The last entry that is confirmed, and all before it; -1: none."""
        self.length = length
        """Bytes of payload up to and with that entry."""
        self._start, self._next_id = confirmed, confirmed + 1
        self._end = length
        self._pending: deque[PendingEntries] = deque()
        self.in_flight_bytes = 0
        """Bytes of entries that are not confirmed, requests' own bytes with them."""
        self._room = asyncio.Event()
        self._room.set()
        self.error: BookKeeperError | None = None
        """Why no more entries are taken; None while they are."""
        self._ensemble = metadata.last_segment.bookies
        self._down: set[int] = set()
        """Places whose bookies failed; nothing is sent there until they are replaced."""
        self._has_news = False
        """A place came to `_down` that no ensemble change has seen yet."""
        self._change: asyncio.Task[None] | None = None
        self._is_frozen = False
        """A new segment is being written, which begins after what is confirmed now."""
        self._is_ending = False
        self._again: asyncio.TimerHandle | None = None

    def _make_encoder(self, password: bytes) -> AddEncoder:
        return AddEncoder(
            self.metadata.ledger_id,
            master_key(password),
            timeout_ms=self.core.options.add_timeout_ms,
            recovery=self._recovery,
        )

    # -- writing ----------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self.metadata.ledger_id

    def append_all(
        self, payloads: Sequence[Sequence[Buffer]], before: int | None = None
    ) -> asyncio.Future[int]:
        """Add one or more entries, each given by its buffers: cheaper than one by one.

        ``before`` is the ledger's length before them, by default after the last entry. Returns a
        future of the last entry's id, done when all are confirmed. If it fails, the first of them
        may be confirmed. Raises ``error``, BackPressureError or EntryTooLargeError; nothing is sent
        then.
        """
        if self.error is not None:
            raise copy.copy(self.error)
        metadata, first_id = self.metadata, self._next_id
        if self.in_flight_bytes >= self.core.options.max_in_flight_bytes:
            raise BackPressureError(f"{self.in_flight_bytes} bytes", ledger_id=metadata.ledger_id)
        sizes = [sum(map(len, payload)) for payload in payloads]
        self._check_sizes(first_id, sizes)
        ends = [*accumulate(sizes, initial=self._end if before is None else before)][1:]
        # Only recovery knows the ensembles of entries it confirms, until the ledger is closed.
        # If it ends early, the next one must not take these entries for confirmed.
        last_confirmed = self._start if self._recovery else self.last_confirmed
        if self._notice is not None:
            self._notice.told = last_confirmed
        bodies = pack_entries(
            self._digest, metadata.ledger_id, first_id, last_confirmed, ends, payloads
        )
        self._next_id, self._end = first_id + len(bodies), ends[-1]
        # If each entry has a write set of its own, each is sent by itself.
        step = len(bodies) if metadata.write_quorum_size == metadata.ensemble_size else 1
        for at in range(0, len(bodies), step):
            until = at + step
            pending = PendingEntries(
                first_id + at, ends[at:until], bodies[at:until], metadata.ensemble_size
            )
            self._pending.append(pending)
            self._send(pending, metadata.write_set(pending.first_id))
        # Entries are confirmed in order: with the last one all of them are.
        future = pending.future = self._loop.create_future()
        if self.in_flight_bytes >= self.core.options.max_in_flight_bytes:
            self._room.clear()
        return future

    def _check_sizes(self, first_id: int, sizes: Sequence[int]) -> None:
        """Raise EntryTooLargeError if an entry exceeds a frame."""
        largest = max(sizes)
        if largest + HEADER.size + self._digest.size_bytes > self._max_body:
            raise EntryTooLargeError(
                f"{largest} bytes do not fit into a frame of {self.core.options.max_frame_bytes}",
                ledger_id=self.metadata.ledger_id,
                entry_id=first_id + sizes.index(largest),
            )

    async def ready(self) -> None:
        """Wait until entries are taken again. Raises ``error``."""
        await self._room.wait()
        if self.error is not None:
            raise copy.copy(self.error)

    def working_bookies(self) -> list[str]:
        """The bookies of the ensemble that have not failed."""
        return [one for place, one in enumerate(self._ensemble) if place not in self._down]

    def _send(self, pending: PendingEntries, places: Iterable[int]) -> None:
        """Send entries to bookies that hold none of them yet, the same bytes to each."""
        run = self._encoded(pending, 0)
        pending.size_bytes = run.size_bytes
        self.in_flight_bytes += run.size_bytes
        for place in places:
            self._send_run(run, pending, place, 0)

    def _send_again(self, pending: PendingEntries, place: int) -> None:
        """Send the entries that a bookie is not known to hold."""
        first = pending.held[place]
        if first < len(pending.bodies):
            self._send_run(self._encoded(pending, first), pending, place, first)

    def _encoded(self, pending: PendingEntries, first: int) -> AddRun:
        bodies = pending.bodies[first:] if first else pending.bodies
        number = self.core.bookies.numbers.take(len(bodies))
        return self._encoder.encode(pending.first_id + first, number, bodies)

    def _send_run(self, run: AddRun, pending: PendingEntries, place: int, first: int) -> None:
        if place in self._down:
            return
        bookie = self._ensemble[place]
        done = partial(self._answered, pending, place, bookie, first)
        self.core.bookies.send_adds(bookie, run, done)

    # -- answers ----------------------------------------------------------------------------------

    def _answered(
        self,
        pending: PendingEntries,
        place: int,
        bookie: str,
        first: int,
        answer: int | BookKeeperError,
    ) -> None:
        """Count an answer, held entries or an error, of a bookie that is still in the ensemble."""
        if self.error is not None or self._ensemble[place] != bookie:
            return
        if not isinstance(answer, BookKeeperError):
            pending.held[place] = max(pending.held[place], first + answer)
            if pending is self._head():
                self._confirm()
        elif isinstance(answer, LedgerFencedError | WrongKeyError):
            self.fail(answer)
        else:
            self.core.bookies.suspect(bookie)
            self._bookie_failed(place)

    def _head(self) -> PendingEntries | None:
        return self._pending[0] if self._pending else None

    def _confirm(self) -> None:
        """Confirm the first entries that have their quorum, unless a segment is being written.

        The new segment begins after the last confirmed entry, so that must not change. While
        bookies for it are still being chosen, nothing has to wait.
        """
        if self._is_frozen:
            return
        quorum, before = self.metadata.ack_quorum_size, self.last_confirmed
        while self._pending:
            pending = self._pending[0]
            held = pending.held_by(quorum)
            if held > pending.confirmed:
                pending.confirmed = held
                self.last_confirmed = pending.first_id + held - 1
                self.length = pending.ends[held - 1]
            if held < len(pending.bodies):
                break
            self._pending.popleft()
            self.in_flight_bytes -= pending.size_bytes
            if pending.future is not None and not pending.future.done():
                pending.future.set_result(self.last_confirmed)
        if self.in_flight_bytes < self.core.options.max_in_flight_bytes:
            self._room.set()
        if self._notice is not None and self.last_confirmed > before:
            self._notice.confirmed()

    def fail(self, error: BookKeeperError) -> None:
        """End the pipeline. Pending entries fail with an unknown outcome."""
        if self.error is not None:
            return
        self.error = error
        if self._again is not None:
            self._again.cancel()
        if self._notice is not None:
            self._notice.stop()
        pending, self._pending = self._pending, deque()
        self.in_flight_bytes = 0
        self._room.set()
        for entry in pending:
            if entry.future is not None and not entry.future.done():
                # A copy for each: a traceback grows with each place that raises it.
                entry.future.set_exception(copy.copy(error))
                # A caller that does not wait for this entry gets the error from the next append.
                entry.future.exception()

    async def end(self, error: BookKeeperError) -> None:
        """Fail pending entries, after a running ensemble change has written its metadata."""
        self._is_ending = True
        if self._change is not None:
            if not self._is_frozen:
                self._change.cancel()
            await asyncio.wait([self._change])
        self.fail(error)

    # -- ensemble changes -------------------------------------------------------------------------

    def _bookie_failed(self, place: int) -> None:
        """Replace a bookie that failed an add, now or together with others."""
        if place in self._down:
            return
        self._down.add(place)
        self._has_news = True
        if self._change is None and not self._is_ending:
            self._start_change()

    def _start_change(self, is_retry: bool = False) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._change = asyncio.ensure_future(self._change_ensemble(is_retry))
        self._change.add_done_callback(self._change_ended)

    def _change_ended(self, task: asyncio.Task[None]) -> None:
        self._change, self._is_frozen = None, False
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, BookKeeperError):
            self.fail(error)
        elif error is not None:
            reason = f"the ensemble could not be changed: {error}"
            self.fail(NotEnoughBookiesError(reason, ledger_id=self.metadata.ledger_id))
        if self.error is not None or self._is_ending:
            return
        if self._has_news:
            self._start_change()
            return
        self._confirm()
        if self._down:
            delay_s = self.core.options.replace_delay_ms / 1000
            self._again = self._loop.call_later(delay_s, self._start_change, True)

    async def _change_ensemble(self, is_retry: bool) -> None:
        """Replace failed bookies as far as there are others, and go on without the rest.

        A retry also sends again to failed bookies that are registered and have no replacement. This
        is not done directly after a failure, which would never end.
        """
        self._has_news = False
        down = sorted(self._down)
        writable = await self._writable()
        chosen = replacements(
            len(down),
            writable,
            excluded=self._ensemble,
            suspected=self.core.bookies.suspected(),
            random=self.core.random,
        )
        replaced = dict(zip(down, chosen, strict=False))
        left = down[len(chosen) :]
        again = {one for one in left if is_retry and self._ensemble[one] in writable}
        self._check_quorums(set(down) - replaced.keys() - again)
        if replaced and self.error is None:
            ensemble = tuple(replaced.get(i, one) for i, one in enumerate(self._ensemble))
            self._is_frozen = True
            changed = self.metadata.with_ensemble(self.last_confirmed + 1, ensemble)
            self.metadata = await self.commit_ensemble(changed)
            self._ensemble = ensemble
        if self.error is None:
            self._down -= replaced.keys() | again
            self._resend(replaced.keys(), again)

    async def commit_ensemble(self, changed: LedgerMetadata) -> LedgerMetadata:
        """Store a new ensemble before anything is written to it. Return the metadata in force.

        Recovery stores its ensembles when it closes the ledger.
        """
        return changed

    async def _writable(self) -> list[str]:
        """The bookies that may be chosen; none if the registry does not answer."""
        try:
            return await self.core.registry.writable()
        except CoordinationError:
            return []

    def _check_quorums(self, without: AbstractSet[int]) -> None:
        """Raise NotEnoughBookiesError if an entry could get its quorum no more."""
        metadata = self.metadata
        for entry_id in range(metadata.ensemble_size):
            left = [place for place in metadata.write_set(entry_id) if place not in without]
            if len(left) < metadata.ack_quorum_size:
                failed = ", ".join(self._ensemble[place] for place in sorted(without))
                reason = f"there is no replacement for {failed}"
                raise NotEnoughBookiesError(reason, ledger_id=metadata.ledger_id)

    def _resend(self, replaced: AbstractSet[int], again: AbstractSet[int]) -> None:
        """Send pending entries to new bookies, and to those that are tried again."""
        for pending in self._pending:
            for place in self.metadata.write_set(pending.first_id):
                if place in replaced:
                    # An ack from the earlier bookie does not hold for the new one, whose segment
                    # begins after what is confirmed.
                    pending.held[place] = pending.confirmed
                    self._send_again(pending, place)
                elif place in again:
                    self._send_again(pending, place)
