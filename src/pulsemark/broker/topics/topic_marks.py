"""What the catalog has about a topic beside its policies: its epoch, and where it was terminated.

A topic's epoch counts its exclusive producers. A terminated topic can be read, and never gets
another message. Both go with the topic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ...ledger import Position
from ..subscriptions.subscription import tell_if_ended
from .catalog_writer import CatalogWriter, Change
from .producers import CLAIMED_EPOCH_MAX

if TYPE_CHECKING:
    from ...ledger.store import MetadataStore
    from ..cooperative import Turns
    from .name_locks import NameLocks
    from .topic import Topic
    from .topic_names import TopicNames

__all__ = ["TopicMarks"]

EPOCH_KIND = "topic-epoch"
TERMINATED_KIND = "terminated-topic"


class TopicMarks:
    """The epochs and the ends of one registry's topics."""

    def __init__(self, writer: CatalogWriter, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._writer = writer
        self._run_blocking = run_blocking
        self._epochs: dict[str, int] = {}
        self._ends: dict[str, Position] = {}

    def load(self, catalog: MetadataStore, names: TopicNames) -> None:
        """Read the catalog; what a crash has left of deleted topics is removed. Blocks."""
        for kind in (EPOCH_KIND, TERMINATED_KIND):
            for key, value in catalog.items(kind):
                if key not in names:
                    catalog.delete(kind, key)
                else:
                    self.take(kind, key, value)

    def take(self, kind: str, key: str, value: bytes | None) -> None:
        """Know what the catalog has of a topic, or that it has nothing."""
        known: dict[str, Any] = self._epochs if kind == EPOCH_KIND else self._ends
        if value is None:
            known.pop(key, None)
        elif kind == EPOCH_KIND:
            # Earlier versions stored any epoch that a client claimed.
            epoch = int(value)
            self._epochs[key] = epoch if epoch < 1 << 63 else CLAIMED_EPOCH_MAX
        else:
            ledger_id, _, entry_id = value.decode().partition(":")
            self._ends[key] = Position(int(ledger_id), int(entry_id))

    def epoch_of(self, name: str) -> int | None:
        """The topic's epoch; None if it never had an exclusive producer."""
        return self._epochs.get(name)

    async def store_epoch(self, name: str, epoch: int) -> None:
        """Store a topic's epoch; durable on return."""

        def show() -> None:
            self._epochs[name] = epoch

        await self._writer.put(EPOCH_KIND, name, str(epoch).encode(), show)

    async def take_over(self, topic: Topic) -> None:
        """A topic is being opened: it stays terminated, if it was."""
        end = self._ends.get(topic.name)
        if end is not None:
            await self._run_blocking(topic.ledger.stop_appends)
            topic.terminated_at = end
            topic.producers.is_terminated = True

    async def terminate(self, topic: Topic) -> Position:
        """Terminate a topic after the entries that it has; the last one's position.

        First no entry is accepted any more, then all are made durable, then the end is stored, and
        then shown. If storing fails, entries are accepted again. The caller disconnects producers.
        Raises `LedgerError`.
        """
        if topic.terminated_at is not None:
            return topic.terminated_at
        ledger = topic.ledger
        await self._run_blocking(ledger.stop_appends)
        last = ledger.last_position
        end = Position(ledger.end_position.ledger_id, -1) if last is None else last
        stored = f"{end.ledger_id}:{end.entry_id}".encode()

        def show() -> None:
            self._ends[topic.name] = end
            topic.terminated_at = end
            topic.producers.is_terminated = True

        try:
            await self._writer.put(TERMINATED_KIND, topic.name, stored, show)
        except BaseException:
            if topic.terminated_at is None:
                ledger.allow_appends()
            raise
        return end

    async def end(self, topic: Topic, locks: NameLocks, turns: Turns) -> Position:
        """As `terminate`, alone with the topic; then close producers and notify consumers."""
        async with locks.held(topic.name):
            topic.check_is_open()
            end = await self.terminate(topic)
            await turns.work(topic.producers.disconnecting())
            for subscription in tuple(topic.subscriptions.values()):
                tell_if_ended(subscription)
            return end

    async def forget(self, name: str, *others: Change) -> None:
        """Forget what was kept of a deleted topic; `others` are made in the same transaction."""

        async def turn() -> None:
            marks = (EPOCH_KIND, name, None), (TERMINATED_KIND, name, None)
            await self._writer.write(*marks, *others)
            self._epochs.pop(name, None)
            self._ends.pop(name, None)

        await self._writer.in_turn(turn)
