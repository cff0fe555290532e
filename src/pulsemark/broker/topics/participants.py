"""Ends transactions in the topics that take part in them, of Pulsar's clients and of Kafka's.

The coordinator of a transaction may be another broker. It decides how the transaction ends, and
then tells each topic (`end`): the broker that serves a topic ends the transaction there. This is
repeated until it succeeds; a repetition does no harm, since no transaction's id is used again.

A topic refuses messages of a transaction until the coordinator has registered the topic in it:
otherwise nobody would end it there. So before the first message, or the first acknowledgement, it
asks the coordinator (`join`). The answer is ignored if the transaction has ended meanwhile.

A broker that opens a topic asks about its open transactions, and aborts those that their
coordinator does not know. Where brokers share topics, each also asks now and then (`check_time`).
So a coordinator whose broker has died is taken over by another one, though no client asks for it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING

from ...ledger.store import PENDING_ACKS_KIND
from ...proto.broker_entry_pb2 import CONTROL_TXN_ABORT, CONTROL_TXN_COMMIT
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import TopicName
from ..cooperative import Background
from ..errors import RefusedError
from ..storage import persisting, stored
from ..subscriptions.pending_acks import PendingAcks
from .topic_names import NameLocks

if TYPE_CHECKING:
    from ..ownership import InnerCalls
    from .registry import Topics
    from .topic import Topic

CHECK_INTERVAL_S = 10.0
#: Refused transactions of a topic that are remembered; others are asked about again.
REFUSED_MAX = 1_000
#: The kind of message by which a coordinator tells a topic's broker the end.
END = "end of a transaction"


class Joined:
    """The transactions that may write to an open topic, as their coordinators said."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, str] = {}
        #: By the transaction's id.
        self._keys: dict[str, set[Hashable]] = {}
        self._refused: dict[Hashable, str] = {}
        #: For each open question, the transactions that have ended since.
        self._asked: dict[object, set[str]] = {}

    def get(self, key: Hashable) -> str | None:
        """The id of the transaction that is registered under this key."""
        return self._ids.get(key)

    async def join(self, key: Hashable, ask: Callable[[], Awaitable[str]]) -> None:
        """Register a transaction, if its coordinator answers with its id; raises as ``ask``."""
        question = object()
        ended = self._asked[question] = set[str]()
        try:
            transaction = await ask()
        finally:
            del self._asked[question]
        if transaction not in ended:
            self._ids[key] = transaction
            self._keys.setdefault(transaction, set()).add(key)

    def refusal(self, key: Hashable) -> str:
        """The reason why a transaction may never write again; "": it may."""
        return self._refused.get(key, "")

    def refuse(self, key: Hashable, reason: str) -> None:
        """Remember that a transaction may never write again."""
        if len(self._refused) >= REFUSED_MAX:
            self._refused.clear()
        self._refused[key] = reason

    def ended(self, transaction: str) -> None:
        """Forget a transaction that has ended."""
        for ended in self._asked.values():
            ended.add(transaction)
        for key in self._keys.pop(transaction, ()):
            if self._ids[key] == transaction:
                del self._ids[key]


class Participants:
    """The topics of all brokers, as a coordinator sees them."""

    def __init__(self, topics: Topics, inner: InnerCalls) -> None:
        self._topics, self._inner, self._run_blocking = topics, inner, topics.run_blocking
        self._ending, self._keeping = NameLocks(), NameLocks()
        self._background = Background()
        self._checked_at_s = 0.0
        #: Whether to ask in the next turn: a topic was opened, or a coordinator was not ready.
        self._is_due = False
        self._asking: asyncio.Task[None] | None = None
        #: Each says whether a transaction has ended that is open in a topic: True, False, or None
        #: if the transaction is not of its kind. It raises `RefusedError` if that is not known.
        self.coordinators: list[Callable[[Topic, str], Awaitable[bool | None]]] = []
        inner.answering[END] = self._end_here
        topics.on_open.append(self._topic_opened)

    async def end(
        self, name: TopicName, transaction: str, *, commits: bool, subscription: str | None = None
    ) -> None:
        """End a transaction in a topic, or in one of its subscriptions; durable on return.

        Nothing happens if there is no such topic any more. Raises `RefusedError`.
        """
        facts = {"transaction": transaction, "commits": commits, "subscription": subscription}
        await self._inner.ask(name, END, **facts)

    async def _end_here(
        self, name: TopicName, *, transaction: str, commits: bool, subscription: str | None
    ) -> None:
        try:
            topic = await self._topics.open(name, create=False)
        except RefusedError as refusal:
            if refusal.code in (ServerError.TopicNotFound, ServerError.NotAllowedError):
                return  # it was deleted
            raise
        if subscription is None:
            await self._end_in(topic, transaction, commits=commits)
            return
        topic.joined.ended(transaction)
        if (one := topic.subscriptions.get(subscription)) is not None:
            await one.transaction_ended(transaction, committed=commits)
        if topic.pending_acks_stored is not None:
            await self.keep_pending(topic)

    async def _end_in(self, topic: Topic, transaction: str, *, commits: bool) -> None:
        """Append the control entry that ends a transaction, if it is open in the topic."""
        topic.joined.ended(transaction)
        # A repeated request is answered only when the entry is durable.
        async with self._ending.held(f"{topic.name} {transaction}"):
            await self._end_alone(topic, transaction, commits=commits)

    async def _end_alone(self, topic: Topic, transaction: str, *, commits: bool) -> None:
        ledger = topic.ledger
        if ledger.transactions is None or not ledger.transactions.is_open(transaction, ledger):
            return
        await self._topics.leader_epochs.begin_if_due(topic)
        kind = CONTROL_TXN_COMMIT if commits else CONTROL_TXN_ABORT
        with persisting():
            await stored(await self._run_blocking(ledger.append_control, kind, transaction))
        if commits:
            topic.counters.committed_transactions += 1
        else:
            topic.counters.aborted_transactions += 1

    # -- pending acknowledgements ---------------------------------------------------------------

    async def restore(self, topic: Topic) -> None:
        """Restore the pending acknowledgements of an opening topic's subscriptions."""
        ledger = topic.ledger
        with persisting():
            stored = await self._run_blocking(
                ledger.store.catalog.get, PENDING_ACKS_KIND, str(ledger.topic_id)
            )
        topic.pending_acks_stored = stored
        for name, row in json.loads(stored or b"{}").items():
            if name in topic.subscriptions:
                topic.subscriptions[name].pending_acks = PendingAcks.of(row)

    async def keep_pending(self, topic: Topic) -> None:
        """Store the pending acknowledgements of a topic; durable on return.

        Acknowledgements that come meanwhile are stored together. Raises `RefusedError`.
        """
        topic.keeps_asked += 1
        # Also if the client goes away: else a later write might be made before this one.
        await self._background.run_to_end(self._keep(topic, topic.keeps_asked))

    async def _keep(self, topic: Topic, number: int) -> None:
        async with self._keeping.held(topic.name):
            if topic.keeps_done >= number:
                return
            asked = topic.keeps_asked
            ones = topic.subscriptions.values()
            rows = {one.name: one.pending_acks.row() for one in ones if one.pending_acks}
            value = json.dumps(rows, separators=(",", ":")).encode() if rows else None
            if value != topic.pending_acks_stored:
                ledger = topic.ledger
                change = PENDING_ACKS_KIND, str(ledger.topic_id), value
                with persisting():
                    await self._run_blocking(ledger.store.catalog.write, [change])
                topic.pending_acks_stored = value
            topic.keeps_done = asked

    # -- what nobody has ended ------------------------------------------------------------------

    def _topic_opened(self, topic: Topic) -> None:
        known = topic.ledger.transactions
        if known is None or not known.open:
            return
        self._is_due = True
        if self._inner.cluster is None:  # nobody else is asked
            for transaction in tuple(known.open):
                self._background.start(self._check(topic, transaction))

    def check_time(self, now_s: float) -> None:
        """Ask about the first open transaction of each topic, every few seconds."""
        if self._inner.cluster is None or (self._asking and not self._asking.done()):
            return
        if self._is_due or now_s >= self._checked_at_s + CHECK_INTERVAL_S:
            self._checked_at_s, self._is_due = now_s, False
            self._asking = self._background.start(self._check_all())

    async def _check_all(self) -> None:
        firsts: list[tuple[Topic, str]] = []
        for topic in self._topics.open_topics.values():
            known, ledger = topic.ledger.transactions, topic.ledger
            if known is not None and known.stable_end(ledger) < ledger.end_position:
                firsts += [(topic, transaction) for transaction in (*known.open,)[:1]]
            for one in topic.subscriptions.values():
                if one.pending_acks:
                    firsts.append((topic, next(iter(one.pending_acks.transactions))))
        await asyncio.gather(*(self._check(*each) for each in firsts))

    async def _check(self, topic: Topic, transaction: str) -> None:
        """Ask whether a transaction that is open in a topic has ended; if so, abort it here."""
        try:
            for has_ended in self.coordinators:
                if await has_ended(topic, transaction):
                    await self._end_in(topic, transaction, commits=False)
                    for one in tuple(topic.subscriptions.values()):
                        await one.transaction_ended(transaction, committed=False)
                    await self.keep_pending(topic)
                    return
        except RefusedError:
            self._is_due = True

    async def settled(self) -> None:
        """Return when no question is open."""
        await self._background.settled()
