"""The transaction coordinator of Pulsar's clients (PIP-31).

A transaction sends messages to topics and acknowledges messages of subscriptions: all of it counts,
or nothing. Its messages are entries with the transaction's id in their stamps
(`ledger.transactions`); consumers get them after the commit. Its acknowledgements are pending until
then (`subscriptions.pending_acks`).

The end of a transaction, in steps; each is repeated after a crash, until the next one is durable:

1. the decision is stored: from then on the transaction cannot end otherwise;
2. each of its topics gets a control entry with the decision, and each of its subscriptions the
   acknowledgements, if it was committed (`participants`);
3. the stored transaction is removed, and the client gets its answer.

There is one coordinator, with the id 0. In a cluster it is at the broker that owns the bundle of
the topic `COORDINATOR`, which clients look up; transactions are stored in this bundle's store. So
the next owner goes on (`Coordination`), and a former one can store nothing. Its late messages do no
harm, since no transaction's id is used again.

A transaction is stored as a whole, under its number. Changes that come while another one is being
stored are stored together.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any, cast

from ...ledger import Position
from ...ledger.store import MetadataStore
from ...proto.broker_entry_pb2 import BrokerEntryMetadata
from ...proto.pulsar_api_pb2 import MessageIdData, ServerError
from ...wire import TopicName
from ..configuration.config import BrokerConfig
from ..cooperative import Background
from ..errors import RefusedError
from ..ownership import Cluster, InnerCalls
from ..storage import persisting
from ..subscriptions.pending_acks import check_cumulative, covers
from ..subscriptions.seek import position_of
from ..subscriptions.subscription import SHARING, Subscription
from .participants import Participants
from .registry import RunBlocking, Topics
from .topic import Topic

log = logging.getLogger(__name__)

#: The partition that clients look up to find the coordinator.
COORDINATOR = TopicName.parse(
    "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
)
#: Questions between brokers: whether a transaction is open, for a topic or subscription that is
#: to be in it; and to ask this for a topic, since a client will send to it.
JOIN, ANNOUNCE = "transaction to join", "announced transaction"
TRANSACTION_PROPERTY_KIND = "pulsar-transactions"
#: The key of the lowest number that was never given.
NEXT_KEY = "next"
NUMBERS_AT_ONCE = 1_000
#: The most topics and subscriptions of one transaction.
MAX_PLACES = 1_000
#: The most entries of a subscription that one transaction acknowledges.
MAX_ACKS = 100_000

#: After these a transaction is never open again.
FINAL = (ServerError.TransactionNotFound, ServerError.InvalidTxnStatus, ServerError.NotAllowedError)

Place = tuple[str, str]
"""A topic's full name, and a subscription."""


class Status(StrEnum):
    """The state of a transaction, by Pulsar's names."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"


@dataclass(slots=True)
class Transaction:
    """A transaction that has not ended."""

    number: int
    opened_ms: int
    timeout_ms: int
    #: The role of the client that began it; None without authentication.
    owner: str | None = None
    status: Status = Status.OPEN
    #: Its topics and subscriptions, each with the topic's name as the client gave it.
    topics: dict[str, str] = field(default_factory=dict)
    subscriptions: dict[Place, str] = field(default_factory=dict)
    #: The decision how it ends, while that is stored, and the steps after it, while they are made.
    deciding: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    #: The last change that is not durable yet.
    unstored: object = None

    def __str__(self) -> str:
        return id_text(0, self.number)

    @property
    def is_decided(self) -> bool:
        """Whether the decision is durable. Before that no step of the end may be made."""
        return self.status is not Status.OPEN and (self.deciding is None or self.deciding.done())

    @property
    def expires_ms(self) -> int:
        """The time at which it is aborted if it is still open."""
        return self.opened_ms + self.timeout_ms


def id_text(most: int, least: int) -> str:
    """A transaction's id, as Pulsar writes it and as stamps have it: ``(0,17)``."""
    return "({},{})".format(*(each - (each >> 63 << 64) for each in (most, least)))


class Transactions:
    """The coordinator while this broker has it: all transactions that have not ended."""

    def __init__(
        self,
        metadata: MetadataStore,
        participants: Participants,
        config: BrokerConfig,
        run_blocking: RunBlocking,
    ) -> None:
        """`metadata`: stores the transactions."""
        self.by_number: dict[int, Transaction] = {}
        #: The next number.
        self.next_number = 0
        #: When the stored transactions were read.
        self.loading_began_ms = self.loaded_ms = config.clock.now_ms()
        self.metadata = metadata
        self._participants, self._config, self._run_blocking = participants, config, run_blocking
        self._reserved = 0
        self._background = Background()
        self._changed: dict[str, bytes | None] = {}
        self._storing: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._is_over = False

    # -- start and end --------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the stored transactions. Raises CatalogError."""
        for key, value in await self._run_blocking(self.metadata.items, TRANSACTION_PROPERTY_KIND):
            if key == NEXT_KEY:
                self.next_number = self._reserved = int(value)
            else:
                self.by_number[int(key)] = _restored(int(key), json.loads(value))
        self.loaded_ms = self._config.clock.now_ms()

    def close(self) -> None:
        """Stop storing: another broker has the coordinator."""
        self._is_over = True

    async def settled(self) -> None:
        """Return when no transaction is being ended or stored."""
        await self._background.settled()

    # -- what clients do ------------------------------------------------------------------------

    @staticmethod
    def check_id(coordinator_id: int) -> None:
        """Raise `RefusedError` unless this is the coordinator's id, 0."""
        if coordinator_id:
            raise _not_found(coordinator_id)

    def get(self, most: int, least: int) -> Transaction:
        """The transaction with this id. Raises `RefusedError`."""
        self.check_id(most)
        found = self.by_number.get(least)
        if found is None:
            text = f"The transaction with this txdID `{id_text(most, least)}`not found "
            raise RefusedError(ServerError.TransactionNotFound, text)
        return found

    def open_one(self, most: int, least: int) -> Transaction:
        """The open transaction with this id. Raises `RefusedError`."""
        transaction = self.get(most, least)
        if transaction.status is not Status.OPEN:
            raise _wrong_state(transaction, "OPEN")
        return transaction

    async def begin(self, timeout_ms: int, owner: str | None) -> Transaction:
        """Begin a transaction; durable on return. Raises `RefusedError`."""
        if (count := len(self.by_number)) >= self._config.max_active_transactions_per_coordinator:
            text = f"there are {count} transactions, the most that "
            raise RefusedError(
                ServerError.NotAllowedError, f"{text}maxActiveTransactionsPerCoordinator allows"
            )
        number, self.next_number = self.next_number, self.next_number + 1
        if self.next_number > self._reserved:
            self._reserved = self.next_number + NUMBERS_AT_ONCE
            self._changed[NEXT_KEY] = str(self._reserved).encode()
        now_ms = self._config.clock.now_ms()
        transaction = Transaction(number, now_ms, timeout_ms, owner)
        self.by_number[number] = transaction
        try:
            await self._store(transaction)
        except BaseException:
            # The transaction may be stored all the same; then it expires after the next start.
            self.by_number.pop(number, None)
            self._reserved = min(self._reserved, number)
            raise
        return transaction

    async def add_topics(
        self, transaction: Transaction, names: Iterable[tuple[TopicName, str]]
    ) -> None:
        """Register topics, each with the client's name of it; durable on return.

        Raises `RefusedError`.
        """
        _add(transaction.topics, ((str(name), given) for name, given in names))
        await self._store(transaction)

    async def add_subscriptions(
        self, transaction: Transaction, places: Iterable[tuple[Place, str]]
    ) -> None:
        """Register subscriptions that it will acknowledge; durable on return."""
        _add(transaction.subscriptions, places)
        await self._store(transaction)

    async def join(self, most: int, least: int, topic: str, subscription: str | None = None) -> str:
        """Register a topic or subscription in an open transaction, and return its id.

        As in Pulsar, clients need not have said so before. Raises `RefusedError`.
        """
        transaction = self.open_one(most, least)
        # Its topics and subscriptions may not be durable yet.
        if subscription is None:
            if transaction.unstored or topic not in transaction.topics:
                await self.add_topics(transaction, [(TopicName.parse(topic), topic)])
        elif transaction.unstored or (topic, subscription) not in transaction.subscriptions:
            await self.add_subscriptions(transaction, [((topic, subscription), topic)])
        return str(self.open_one(most, least))

    async def end(self, transaction: Transaction, *, committed: bool) -> None:
        """End a transaction; on return all of it counts, or nothing. Raises `RefusedError`."""
        wanted = Status.COMMITTING if committed else Status.ABORTING
        if transaction.status is Status.OPEN:
            transaction.status = wanted
            # One task for all callers; it goes on if the client goes away.
            transaction.deciding = self._background.start(self._decide(transaction))
        elif transaction.status is not wanted:
            raise _wrong_state(transaction, f"OPEN, {wanted}")
        if transaction.deciding is not None:
            await asyncio.shield(transaction.deciding)
        await asyncio.shield(self._finish(transaction))

    async def _decide(self, transaction: Transaction) -> None:
        try:
            await self._store(transaction)
        except BaseException:
            transaction.status = Status.OPEN
            raise

    def check_time(self) -> None:
        """Begin to abort expired transactions, and to end those that failed to end."""
        now_ms = self._config.clock.now_ms()
        for transaction in tuple(self.by_number.values()):
            # A clock that steps back must not keep the transaction open.
            transaction.opened_ms = min(transaction.opened_ms, now_ms)
            if transaction.is_decided:
                self._finish(transaction)
            elif transaction.status is Status.OPEN and transaction.expires_ms <= now_ms:
                log.info("transaction %s is aborted: its time is over", transaction)
                self._background.start(self.end(transaction, committed=False))

    async def checked(self) -> None:
        """As `check_time`; returns when it is done."""
        self.check_time()
        await self._background.settled()

    # -- the end --------------------------------------------------------------------------------

    def _finish(self, transaction: Transaction) -> asyncio.Task[None]:
        """Run the steps after the decision, once at a time."""
        if transaction.ending is None or transaction.ending.done():
            transaction.ending = self._background.start(self._make_steps(transaction))
        return transaction.ending

    async def _make_steps(self, transaction: Transaction) -> None:
        end = partial(
            self._participants.end,
            transaction=str(transaction),
            commits=transaction.status is Status.COMMITTING,
        )
        topics = [end(TopicName.parse(name)) for name in transaction.topics]
        places = tuple(transaction.subscriptions)
        # The messages first: who has acknowledged their inputs then finds them.
        await asyncio.gather(*topics)
        await asyncio.gather(*(end(TopicName.parse(at), subscription=one) for at, one in places))
        await self._store(transaction, is_over=True)
        self.by_number.pop(transaction.number, None)

    # -- storing --------------------------------------------------------------------------------

    async def _store(self, transaction: Transaction, *, is_over: bool = False) -> None:
        value = None if is_over else json.dumps(_row(transaction), separators=(",", ":")).encode()
        self._changed[str(transaction.number)] = value
        change = transaction.unstored = object()
        if self._storing is None:
            self._storing = self._background.start(self._store_changed())
        with persisting():
            await asyncio.shield(self._storing)
        if transaction.unstored is change:
            transaction.unstored = None

    async def _store_changed(self) -> None:
        async with self._writing:
            changed = self._changed.items()
            changes = [(TRANSACTION_PROPERTY_KIND, key, value) for key, value in changed]
            self._changed.clear()
            self._storing = None  # what changes from now on is stored later
            if self._is_over:
                raise RefusedError(ServerError.ServiceNotReady, "the coordinator has moved")
            try:
                await self._run_blocking(self.metadata.write, changes)
            except BaseException:
                # Numbers given meanwhile must not be stored without the next number.
                self._changed[NEXT_KEY] = str(max(self._reserved, self.next_number)).encode()
                raise


class Coordination:
    """The coordinator if this broker has it, and the topics' way to it."""

    def __init__(self, topics: Topics, participants: Participants, inner: InnerCalls) -> None:
        self._topics, self._participants, self._inner = topics, participants, inner
        self._config, self._run_blocking = topics.config, topics.run_blocking
        self._here: Transactions | None = None
        self._loading: asyncio.Task[None] | None = None
        self._background = Background()
        inner.answering[JOIN] = self._answer_join
        inner.answering[ANNOUNCE] = self._announced
        participants.coordinators.append(self._has_ended)
        topics.before_open.append(participants.restore)

    # -- where the coordinator is ---------------------------------------------------------------

    @property
    def _is_here(self) -> bool:
        return self._inner.cluster is None or self._inner.cluster.owns(COORDINATOR)

    @property
    def coordinator(self) -> Transactions:
        """The coordinator. Raises `RefusedError` if another broker has it, or while it is read."""
        if self._here is None or not self._is_here:
            raise _not_found(0)
        return self._here

    def follow(self, cluster: Cluster) -> None:
        """Have the coordinator while this broker owns its bundle."""
        cluster.follow(self._moved)
        self._moved()

    def _moved(self) -> None:
        if self._here is not None and not self._is_here:
            self._here.close()
            self._here = None
        elif self._here is None and self._is_here and self._loading is None:
            self._loading = self._background.start(self.load())

    async def load(self) -> None:
        """Read the stored transactions, and end those being ended. Raises CatalogError."""
        try:
            metadata = self._topics.store.metadata_of(str(COORDINATOR))
            found = Transactions(metadata, self._participants, self._config, self._run_blocking)
            await found.load()
            if self._is_here and self._topics.store.metadata_of(str(COORDINATOR)) is metadata:
                self._here = found
        finally:
            self._loading = None

    def check_time(self, _now_s: float = 0) -> None:
        """Called about once a second."""
        self._moved()
        if self._here is not None:
            self._here.check_time()

    async def checked(self) -> None:
        """As `check_time`; returns when what it has begun is done."""
        self.check_time()
        await self.settled()

    async def settled(self) -> None:
        """Return when no transaction is being asked about, ended or stored."""
        await self._background.settled()
        if self._here is not None:
            await self._here.settled()

    # -- how a topic comes to a transaction -----------------------------------------------------

    async def _answer_join(self, _: TopicName, **facts: Any) -> str:
        return await self.coordinator.join(**facts)

    async def announce(self, most: int, least: int, names: Iterable[TopicName]) -> None:
        """Tell the topics' brokers that a client will send to them in a transaction.

        A broker that cannot be told refuses the first message until it has asked.
        """
        if self._inner.cluster is not None:
            ask = partial(self._inner.ask, what=ANNOUNCE, most=most, least=least)
            await asyncio.gather(*map(ask, names), return_exceptions=True)

    async def _announced(self, name: TopicName, *, most: int, least: int) -> None:
        await self._join(await self._topics.open(name, create=False), most, least)

    async def _join(self, topic: Topic, most: int, least: int, name: str | None = None) -> None:
        """Ask whether a transaction may send to a topic, or acknowledge. Raises `RefusedError`."""
        facts = {"most": most, "least": least, "topic": topic.name, "subscription": name}
        ask = partial(self._inner.ask, COORDINATOR, JOIN, **facts)
        await topic.joined.join((id_text(most, least), name), ask)

    def stamp_of(self, most: int, least: int, topic: Topic) -> BrokerEntryMetadata:
        """The transaction field for a message's stamp. Raises `RefusedError`.

        After NotAllowedError clients give the message up; after any other code they open the
        producer again, and send the message once more.
        """
        key = id_text(most, least), None
        if topic.joined.get(key) is None:
            if refusal := topic.joined.refusal(key):
                raise RefusedError(ServerError.NotAllowedError, refusal)
            if self._inner.cluster is not None:
                self._background.start(self._try_to_join(topic, most, least))
                raise RefusedError(ServerError.ServiceNotReady, f"{key[0]} is being looked up")
            self._add_here(most, least, topic)
        return BrokerEntryMetadata(transaction=key[0])

    def _add_here(self, most: int, least: int, topic: Topic) -> None:
        """Join on a broker alone, where topic and coordinator end together."""
        try:
            transaction = self.coordinator.open_one(most, least)
            if topic.name not in transaction.topics:
                _add(transaction.topics, ((topic.name, topic.name),))
        except RefusedError as refusal:
            raise RefusedError(ServerError.NotAllowedError, refusal.message) from None

    async def _try_to_join(self, topic: Topic, most: int, least: int) -> None:
        try:
            await self._join(topic, most, least)
        except RefusedError as refusal:
            if refusal.code in FINAL:
                topic.joined.refuse((id_text(most, least), None), refusal.message)

    async def _has_ended(self, topic: Topic, transaction: str) -> bool | None:
        number = _number_of(transaction)
        if number is None:
            return None  # not one of Pulsar's clients
        try:
            await self._join(topic, 0, number)
        except RefusedError as refusal:
            if refusal.code == ServerError.InvalidTxnStatus:
                return False  # the coordinator ends it
            if refusal.code != ServerError.TransactionNotFound:
                raise
            return True
        return False

    # -- acknowledgements -----------------------------------------------------------------------

    async def ack(
        self,
        most: int,
        least: int,
        subscription: Subscription,
        ids: Sequence[MessageIdData],
        *,
        goes_on: bool = False,
    ) -> None:
        """Acknowledge messages; durable on return. Raises `RefusedError` (TransactionConflict).

        ``goes_on``: as in `pending_acks.check_single`.
        """
        transaction, topic = await self._joined(most, least, subscription)
        pending = subscription.pending_acks
        count = 0 if pending is None else len(pending.single.get(transaction, ()))
        if count + len(ids) > MAX_ACKS:
            text = f"transaction {transaction} acknowledges more than {MAX_ACKS} entries"
            raise RefusedError(ServerError.NotAllowedError, text)
        acked = await subscription.ack_pending(transaction, ids, goes_on=goes_on)
        try:
            if topic.joined.get((transaction, subscription.name)) is None:
                raise RefusedError(ServerError.InvalidTxnStatus, f"{transaction} is being ended")
            await self._participants.keep_pending(topic)
        except BaseException:
            subscription.give_back_pending(transaction, acked)
            raise

    async def ack_up_to(
        self, most: int, least: int, subscription: Subscription, message_id: MessageIdData
    ) -> None:
        """In a transaction, ack up to a message; not if Shared. Raises `RefusedError`."""
        transaction, topic = await self._joined(most, least, subscription)
        if subscription.sub_type in SHARING:
            return
        position = position_of(message_id)
        if message_id.ack_set:  # of this batch only some messages
            position = Position(position.ledger_id, position.entry_id - 1)
            if not covers(subscription, transaction, position):
                check_cumulative(subscription, transaction, position)
            await self.ack(most, least, subscription, [message_id], goes_on=True)
            if covers(subscription, transaction, position):
                return
        before = subscription.ack_pending_up_to(transaction, position)
        try:
            await self._participants.keep_pending(topic)
        except BaseException:
            subscription.pending_up_to(transaction, before)
            raise

    async def _joined(self, most: int, least: int, subscription: Subscription) -> tuple[str, Topic]:
        transaction, topic = id_text(most, least), cast("Topic", subscription.topic)
        key = transaction, subscription.name
        if topic.joined.get(key) is None:
            await self._join(topic, most, least, subscription.name)
            if topic.joined.get(key) is None:
                raise RefusedError(ServerError.InvalidTxnStatus, f"{transaction} is being ended")
        return transaction, topic


def _wrong_state(transaction: Transaction, expected: str) -> RefusedError:
    return RefusedError(
        ServerError.InvalidTxnStatus,
        f"Expect transaction {transaction} to be in one of the states [{expected}], "
        f"but it is in {transaction.status} state",
    )


def _not_found(coordinator_id: int) -> RefusedError:
    text = f"Transaction coordinator with id {coordinator_id} not found!"
    return RefusedError(ServerError.TransactionCoordinatorNotFound, text)


def _add(known: dict[Any, str], more: Iterable[tuple[Any, str]]) -> None:
    new: dict[Any, str] = {}
    for place, given in islice(more, MAX_PLACES + 1):
        new.setdefault(place, given)
    if len(known.keys() | new.keys()) > MAX_PLACES:
        text = f"a transaction has at most {MAX_PLACES} topics, and as many subscriptions"
        raise RefusedError(ServerError.NotAllowedError, text)
    known.update({**new, **known})


def _number_of(transaction_id: str) -> int | None:
    most, _, least = transaction_id.removeprefix("(").removesuffix(")").partition(",")
    return int(least) if most == "0" and least.isdecimal() else None


def _row(transaction: Transaction) -> dict[str, Any]:
    """The stored form of a transaction."""
    return {
        "opened_ms": transaction.opened_ms,
        "timeout_ms": transaction.timeout_ms,
        "owner": transaction.owner,
        "status": transaction.status,
        "topics": [*transaction.topics.items()],
        "subscriptions": [[*place, given] for place, given in transaction.subscriptions.items()],
    }


def _restored(number: int, row: dict[str, Any]) -> Transaction:
    return Transaction(
        number,
        row["opened_ms"],
        row["timeout_ms"],
        row["owner"],
        Status(row["status"]),
        dict(row["topics"]),
        {(name, subscription): given for name, subscription, given in row["subscriptions"]},
    )
