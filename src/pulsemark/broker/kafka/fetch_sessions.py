"""The state kept for a client's fetches: fetch sessions (KIP-227), and unsent records.

A fetch session keeps what a client fetches, so that a request names only changes. A request with
epoch 0 names all its partitions and begins a session; its answer has the session's
id. Each further request has the next epoch, the partitions that are new or have another offset, and
those to forget. Its answer has the partitions with records, with an error, with another high
watermark or log start, and those that are new in the session. A client that lost count gets 70
(there is no such session) or 71 (another epoch is due), and begins again with epoch 0.

Sessions outlive their connections, as in Kafka. Their number and that of all their partitions are
bounded: a new session takes the place of one that was not used for `EVICTABLE_AFTER_S`, or of one
that is as old and not larger. If there is no such session, the client gets none: id 0, and it names
all its partitions in each request.

An answer has limits, so it may leave out records of some partitions (`UnsentRecords`). Kafka's Java
client asks next for the partitions of which it has used up the answer, with the rest still in its
buffer. If those have nothing new, that fetch would wait up to `max_wait_ms`, 500 ms by default;
meanwhile the client uses up its buffer and waits, too, with most of the log still to read. So such
a fetch is answered after a short time, without records, and the client asks again, for all
partitions that it can take by then. The times grow from one such answer to the next. What a client
does not ask for within `REMEMBERED_S` is forgotten: it has paused those partitions, or is so slow
that a wait makes no difference.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from ...kafka.errors import Code, KafkaError
from .reading import Asked, Read

NO_SESSION = 0
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
INT_MAX = 2**31 - 1
#: Kafka's time, which is not a setting there either.
EVICTABLE_AFTER_S = 120.0
#: A name that is longer than a topic's can be counts as several partitions.
NAME_BYTES_PER_PARTITION = 256
#: The wait of a fetch whose client has unsent records: the first, by how much each next one is
#: longer, and the longest.
FIRST_WAIT_MS, GROWTH, MAX_WAIT_MS = 5, 1.5, 20
#: For how long unsent records count.
REMEMBERED_S = 5.0
#: More partitions are not remembered: one is enough to let a fetch wait shortly.
MAX_REMEMBERED = 1_000
#: A fetch of more partitions waits as it says: the loop has no time to compare so many.
MAX_ASKED = 5_000

Key = tuple[str, int]
"""Topic and partition."""


class Wanted(NamedTuple):
    """The offset, size limit and leader epoch with which a client fetches one partition."""

    offset: int
    max_bytes: int
    leader_epoch: int


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions that one client fetches, and what it knows of each (KIP-227)."""

    #: The client that began the session; others may not use it.
    principal: Any = None
    #: `NO_SESSION` until the session is kept.
    id: int = NO_SESSION
    began_s: float = 0.0
    used_s: float = 0.0
    #: The epoch of the next request.
    epoch: int = INITIAL_EPOCH + 1
    #: Partitions that gave records are moved to the end: so all get their turn in full answers.
    wanted: dict[Key, Wanted] = field(default_factory=dict)
    #: The high watermark and the log start that the client knows.
    answered: dict[Key, tuple[int, int]] = field(default_factory=dict)
    #: The number of partitions that the session counts as.
    weight: int = 0

    def update(self, wanted: dict[Key, Wanted], forgotten: Iterable[Key]) -> None:
        """Add the request's partitions, then remove those that it forgets, in Kafka's order."""
        for key, place in wanted.items():
            if key not in self.wanted:
                self.weight += _weight(key)
            self.wanted[key] = place
        for key in forgotten:
            if self.wanted.pop(key, None) is not None:
                self.weight -= _weight(key)
                self.answered.pop(key, None)

    def must_answer(self, key: Key, read: Read) -> bool:
        """Remember what an answer says of a partition; return whether it must be in the answer."""
        if key not in self.wanted:  # forgotten by a later request
            return True
        if read.parts and self.id != NO_SESSION:
            self.wanted[key] = self.wanted.pop(key)
        if read.code is not Code.NONE:
            self.answered.pop(key, None)  # it is answered again when the error is over
            return True
        now = read.high_watermark, read.first_offset
        if self.answered.get(key) == now:
            return bool(read.parts)
        self.answered[key] = now
        return True


def _weight(key: Key) -> int:
    return 1 + len(key[0]) // NAME_BYTES_PER_PARTITION


class FetchContext:
    """The partitions that one request reads, and which of them the answer has."""

    def __init__(
        self, sessions: FetchSessions, session: FetchSession, *, begins: bool = False
    ) -> None:
        """`begins`: the session is kept when all partitions are answered."""
        self._sessions, self._session, self._begins = sessions, session, begins
        self._epoch = session.epoch
        #: All partitions of the session, in the order in which they are read.
        self.wanted = list(session.wanted.items())
        #: Whether the answer has this partition. Called once for each, in order.
        self.must_answer = session.must_answer

    @property
    def code(self) -> Code:
        """INVALID_FETCH_SESSION_EPOCH (71) if the session's next request came meanwhile."""
        is_last = self._session.epoch == self._epoch
        return Code.NONE if is_last else Code.INVALID_FETCH_SESSION_EPOCH

    def session_id(self) -> int:
        """Return the session's id, after all partitions are answered. A new session begins here."""
        if self._begins and not self._sessions.add(self._session):
            return NO_SESSION
        return self._session.id


class FetchSessions:
    """The sessions of one endpoint."""

    def __init__(self, now_s: Callable[[], float], max_sessions: int, max_partitions: int) -> None:
        self._now_s = now_s
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        #: The least recently used session is first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.partitions = 0
        """Of all sessions."""
        #: Sessions that began, and those that had to make room for others.
        self.begun = self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def context(
        self,
        principal: Any,
        session_id: int,
        epoch: int,
        wanted: dict[Key, Wanted],
        forgotten: Iterable[Key],
    ) -> FetchContext:
        """The context of a request. Raises KafkaError: 70 or 71."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            known = self._sessions.get(session_id)
            if known is not None and known.principal == principal:
                self._remove(known)
            made = FetchSession(principal)
            made.update(wanted, ())
            return FetchContext(self, made, begins=epoch == INITIAL_EPOCH)
        session = self._sessions.get(session_id)
        if session is None or session.principal != principal:
            raise KafkaError(Code.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
        if session.epoch != epoch:
            raise KafkaError(
                Code.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}",
            )
        return self._next(session, wanted, forgotten)

    def _next(
        self, session: FetchSession, wanted: dict[Key, Wanted], forgotten: Iterable[Key]
    ) -> FetchContext:
        before = session.weight
        session.update(wanted, forgotten)
        self.partitions += session.weight - before
        session.used_s = self._now_s()
        self._sessions.move_to_end(session.id)
        if not session.wanted:
            self._remove(session)
            return FetchContext(self, FetchSession())
        if not self._has_room(session.weight, self._max_sessions, beside=session):
            self._remove(session)
            raise KafkaError(Code.FETCH_SESSION_ID_NOT_FOUND, "the session has grown too large")
        session.epoch = session.epoch % INT_MAX + 1
        return FetchContext(self, session)

    def add(self, session: FetchSession) -> bool:
        """Keep a session. Return False if there is no room for it."""
        fits = session.weight <= self._max_partitions
        if not fits or not self._has_room(session.weight, self._max_sessions - 1):
            return False
        while not session.id or session.id in self._sessions:
            session.id = random.SystemRandom().randint(1, INT_MAX)
        session.began_s = session.used_s = self._now_s()
        self.begun += 1
        self._sessions[session.id] = session
        self.partitions += session.weight
        return True

    def _has_room(self, weight: int, max_sessions: int, beside: FetchSession | None = None) -> bool:
        """Evict others until there are at most `max_sessions` and the partitions fit."""
        new_weight = weight if beside is None else 0
        while (
            len(self._sessions) > max_sessions
            or self.partitions + new_weight > self._max_partitions
        ):
            evicted = self._evictable(weight, beside)
            if evicted is None:
                return False
            self._remove(evicted)
            self.evictions += 1
        return True

    def _evictable(self, weight: int, beside: FetchSession | None) -> FetchSession | None:
        """A session that makes room for one of this weight, as Kafka chooses it."""
        now_s = self._now_s()
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return None
        if oldest is not beside and now_s - oldest.used_s > EVICTABLE_AFTER_S:
            return oldest
        old = [
            each
            for each in self._sessions.values()
            if now_s - each.began_s > EVICTABLE_AFTER_S and each is not beside
        ]
        least = min(old, key=lambda each: (each.weight, each.id), default=None)
        return least if least is not None and least.weight <= weight else None

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self.partitions -= session.weight


class UnsentRecords:
    """The partitions of one connection whose records were left out of an answer."""

    def __init__(self) -> None:
        self._left: set[tuple[str, int]] = set()
        self._until_s = 0.0
        self._wait_ms = float(FIRST_WAIT_MS)

    def wait_ms(self, asked: Sequence[Asked], max_wait_ms: int, now_s: float) -> int:
        """How long a fetch may wait: `max_wait_ms`, or less with unsent records."""
        if now_s >= self._until_s:
            self._left.clear()
        if not self._left or len(asked) > MAX_ASKED:
            return max_wait_ms
        if self._left <= {(each.topic, each.index) for each in asked}:
            return max_wait_ms
        wait_ms, self._wait_ms = self._wait_ms, min(self._wait_ms * GROWTH, MAX_WAIT_MS)
        return min(int(wait_ms), max_wait_ms)

    def answered(self, asked: Sequence[Asked], reads: Sequence[Read], now_s: float) -> None:
        """Remember the partitions whose records an answer leaves out."""
        if len(asked) > MAX_ASKED:
            self._left.clear()
            return
        parts = zip(asked, reads, strict=True)
        left = {(each.topic, each.index) for each, read in parts if read.has_more}
        if self._left:
            self._left.difference_update((each.topic, each.index) for each in asked)
        if left:
            self._until_s = now_s + REMEMBERED_S
            self._left.update(islice(left, MAX_REMEMBERED - len(self._left)))
        if any(read.parts for read in reads):
            self._wait_ms = float(FIRST_WAIT_MS)
