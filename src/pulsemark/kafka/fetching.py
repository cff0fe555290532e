"""Reads one Fetch request's partitions, and waits for new entries.

A fetch that finds fewer than `min_bytes` waits until a commit adds entries to one of its
partitions, or until its time is over. It registers with its partitions, and has one deadline among
all deadlines of the endpoint: no thread and no timer for each client. The connection takes no other
request meanwhile, so a client has one waiting fetch on each connection.

Reading is done in pieces (`reading`). They run at once while this turn of the event loop has time
for them (`ports.Turns`), and otherwise in later turns, which all clients share. So hundreds of
clients that fetch much hold up the others no longer than one does.

An entry that is large and has to be converted would hold up all other clients for seconds. It is
converted in a thread (`Conversions`): reading stops before it, and if it is the first one, the
partitions are read again when it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from .access import Operation
from .deadlines import Deadline
from .errors import Code, KafkaError
from .reading import Asked, PartitionsReader, Read
from .records import max_magic_of
from .shown_entries import ShownEntries

if TYPE_CHECKING:
    from .session import KafkaSession

__all__ = ["AT_ONCE_PARTITIONS", "FetchWork"]

log = logging.getLogger(__name__)

#: With more partitions, they are looked up in turns.
AT_ONCE_PARTITIONS = 200
#: After a look that found too little, a fetch waits for so many times as long as the look took.
LOOKS_SHARE = 10


class FetchWork:
    """One Fetch request."""

    def __init__(
        self,
        session: KafkaSession,
        version: int,
        asked: list[Asked],
        max_bytes: int,
        min_bytes: int,
        answer: Callable[[list[Read]], Coroutine[Any, Any, None] | None],
    ) -> None:
        self._session = session
        self._shown = ShownEntries(session.endpoint.figures, max_magic_of(version))
        self.asked = asked
        limit_bytes = min(max_bytes, session.options.max_fetch_bytes)
        output = session.endpoint.ports.output
        self._reader = PartitionsReader(
            lambda: session.access, self._shown, output, version, asked, limit_bytes
        )
        self._min_bytes = min_bytes
        self._answer = answer
        self._deadline: Deadline | None = None
        self._is_woken = False
        #: Reads in later turns, or converts a large entry.
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._is_answered = False

    def needs_no_wait(self) -> bool:
        """Whether all partitions are open, and so few that they are looked up at once."""
        if len(self.asked) > AT_ONCE_PARTITIONS:
            return False
        get = self._session.endpoint.partitions.get
        for asked in self.asked:
            if self._may_read(asked):
                asked.partition = get(asked.topic, asked.index)
        return all(asked.partition is not None for asked in self.asked)

    def _may_read(self, asked: Asked) -> bool:
        return self._session.access.may(Operation.READ, asked.topic)

    async def open(self) -> None:
        """Open the partitions. Those that cannot be opened are answered with an error."""
        turns = self._session.endpoint.ports.turns
        for asked in self.asked:
            if not turns.has_time():
                await turns.next()
            if asked.partition is None and self._may_read(asked):
                try:
                    asked.partition = await self._session.endpoint.partitions.open(
                        asked.topic, asked.index
                    )
                except KafkaError as refusal:
                    if refusal.code is Code.NOT_LEADER_OR_FOLLOWER:
                        asked.refusal = refusal.code
                    log.debug("%s: %s", self._session.address, refusal)

    # -- waiting --------------------------------------------------------------------------------

    def begin(self, max_wait_ms: int) -> bool:
        """Answer if there is enough, or something is wrong; else begin to wait.

        Return whether it was answered.
        """
        deadlines = self._session.endpoint.deadlines
        left_out = self._session.left_out
        max_wait_ms = left_out.wait_ms(self.asked, max_wait_ms, deadlines.now_s())
        if max_wait_ms > 0:
            self._deadline = deadlines.after(max_wait_ms / 1000, self._over)
        else:
            self._is_over = True
        self._look()
        return self._is_answered and self._task is None

    def _look(self) -> None:
        """Read all partitions, at once or in turns; then answer, convert or wait."""
        self._is_woken = False
        if self._task is not None or self._is_answered:
            return
        reads: list[Read] = []
        pieces = self._reader.read_all(reads)
        turns = self._session.endpoint.ports.turns
        if turns.run_now(pieces):
            self._looked(reads)
        else:
            self._start(self._look_in_turns(pieces, reads))

    async def _look_in_turns(self, pieces: Iterator[object], reads: list[Read]) -> None:
        await self._session.endpoint.ports.turns.work(pieces)
        self._task = None
        self._looked(reads)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._task = task = asyncio.get_running_loop().create_task(work)
        # Cancelled before its first step, the coroutine never begins.
        task.add_done_callback(lambda _: work.close())
        return task

    def _looked(self, reads: list[Read]) -> None:
        if self._reader.large is not None:
            self._start(self._convert_and_answer())
        elif self._is_over or self._is_enough(reads):
            self._finish(reads)
            return
        # What was read is dropped, and read again after the wait.
        self._reader.release()
        if any(
            asked.partition is not None and asked.partition.end_offset != read.high_watermark
            for asked, read in zip(self.asked, reads, strict=True)
        ):
            self._wake()  # a commit came while they were read
        else:
            for asked in self.asked:
                assert asked.partition is not None
                asked.partition.waiting[self] = self._wake

    def _is_enough(self, reads: list[Read]) -> bool:
        if self._reader.is_cut or any(read.code is not Code.NONE for read in reads) or not reads:
            return True
        return sum(read.size_bytes for read in reads) >= self._min_bytes

    def _wake(self) -> None:
        """A commit added entries: look again in the next turn, once for many commits."""
        if not self._is_woken and not self._is_answered:
            self._is_woken = True
            # A client that waits for many bytes has them read again at each look.
            delay_s = 0.0 if self._min_bytes <= 1 else LOOKS_SHARE * self._reader.look_s
            self._session.endpoint.deadlines.after(delay_s, self._look)

    def _over(self) -> None:
        """The time is over: answer what there is."""
        self._is_over = True
        self._look()

    def _finish(self, reads: list[Read]) -> None:
        self._stop_waiting()
        now_s = self._session.endpoint.deadlines.now_s()
        self._session.left_out.answered(self.asked, reads, now_s)
        work = None
        try:
            work = self._answer(reads)
        finally:
            if work is None:
                self._reader.release()
        if work is not None:
            self._start(work).add_done_callback(lambda _: self._reader.release())

    def give_up(self) -> None:
        """The connection is lost: stop."""
        self._stop_waiting()
        if self._task is not None:
            self._task.cancel()
        self._reader.release()

    def _stop_waiting(self) -> None:
        self._is_answered = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for asked in self.asked:
            if asked.partition is not None:
                asked.partition.waiting.pop(self, None)

    # -- large entries --------------------------------------------------------------------------

    async def _convert_and_answer(self) -> None:
        """Convert the first entry in a thread, read all again, and answer."""
        ports = self._session.endpoint.ports
        reads: list[Read] = []
        while (large := self._reader.large) is not None:
            self._reader.release()
            made = await self._session.endpoint.conversions.result(large.place, large.make)
            # Only the first entry of an answer is converted here: one at a time is kept.
            self._shown.made = {large.place: made}
            reads = []
            await ports.turns.work(self._reader.read_all(reads))
        self._shown.made = {}
        self._task = None
        self._finish(reads)
