"""The topics that take part in transactions, of Pulsar's clients and of Kafka's.

The coordinator of a transaction may be another broker. It decides how the transaction ends, and
then has each topic told (`end`): the broker that serves a topic ends the transaction there. This is
repeated until it has succeeded, and done twice it does no harm: no transaction's id is used again.

A topic refuses messages of a transaction until the coordinator has registered the topic in it:
otherwise nobody would end it there. So before the first message it asks the coordinator (`join`).
The answer is ignored if the transaction has ended meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING

from ...ledger import LedgerError
from ...proto.broker_entry_pb2 import CONTROL_TXN_ABORT, CONTROL_TXN_COMMIT
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import TopicName
from ..errors import RefusedError
from ..storage import stored
from .topic_names import NameLocks

if TYPE_CHECKING:
    from ..ownership import InnerCalls
    from .registry import RunBlocking, Topics
    from .topic import Topic

END = "end of a transaction"
"""The kind of question by which a coordinator tells the broker of a topic."""


class Joined:
    """The transactions that may write to an open topic, as their coordinator said."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, str] = {}
        self._asking = 0
        self._ended_meanwhile: set[str] = set()

    def get(self, key: Hashable) -> str | None:
        """The id of the transaction that is registered under this key."""
        return self._ids.get(key)

    async def join(self, key: Hashable, ask: Callable[[], Awaitable[str]]) -> None:
        """Let a transaction write, if its coordinator names it. Raises what ``ask`` raises."""
        self._asking += 1
        try:
            transaction = await ask()
            if transaction not in self._ended_meanwhile:
                self._ids[key] = transaction
        finally:
            self._asking -= 1
            if not self._asking:
                self._ended_meanwhile.clear()

    def ended(self, transaction: str) -> None:
        """A transaction writes no more."""
        if self._asking:
            self._ended_meanwhile.add(transaction)
        self._ids = {key: each for key, each in self._ids.items() if each != transaction}


class Participants:
    """The topics of all brokers, as a coordinator reaches them."""

    def __init__(self, topics: Topics, inner: InnerCalls, run_blocking: RunBlocking) -> None:
        self._topics, self._run_blocking = topics, run_blocking
        self._ask = inner.ask
        self._ending = NameLocks()
        inner.answering[END] = self._end_here

    async def end(
        self, name: TopicName, transaction: str, *, commits: bool, subscription: str | None = None
    ) -> None:
        """End a transaction in a topic, or in one of its subscriptions; durable on return.

        Nothing happens if there is no such topic any more. Raises `RefusedError`.
        """
        facts = {"transaction": transaction, "commits": commits, "subscription": subscription}
        await self._ask(name, END, **facts)

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
            await self.end_in(topic, transaction, commits=commits)
        elif (one := topic.subscriptions.get(subscription)) is not None:
            await one.transaction_ended(transaction, committed=commits)

    async def end_in(self, topic: Topic, transaction: str, *, commits: bool) -> None:
        """Append the control entry that ends a transaction, if it is open in the topic."""
        topic.joined.ended(transaction)
        # Who asks again meanwhile gets no answer before the entry is durable.
        async with self._ending.held(f"{topic.name} {transaction}"):
            await self._end_alone(topic, transaction, commits=commits)

    async def _end_alone(self, topic: Topic, transaction: str, *, commits: bool) -> None:
        ledger = topic.ledger
        if ledger.transactions is None or not ledger.transactions.is_open(transaction, ledger):
            return
        await self._topics.leader_epochs.begin_if_due(topic)
        kind = CONTROL_TXN_COMMIT if commits else CONTROL_TXN_ABORT
        try:
            await stored(await self._run_blocking(ledger.append_control, kind, transaction))
        except (LedgerError, OSError) as error:
            raise RefusedError(ServerError.PersistenceError, str(error)) from error
        if commits:
            topic.counters.committed_transactions += 1
        else:
            topic.counters.aborted_transactions += 1
