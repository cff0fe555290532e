"""The transaction coordinator of Pulsar's clients (PIP-31).

A transaction sends messages to topics and acknowledges messages of subscriptions, and all of it
counts, or nothing. Its messages are entries like any other, with the transaction's id in their
stamps (`ledger.transactions`): consumers get them when it was committed. Its acknowledgements are
pending until then (`subscriptions.pending_acks`).

The end of a transaction, in steps; each is repeated after a crash, until the next one is durable:

1. the decision is stored in the catalog: from then on the transaction cannot end otherwise;
2. each of its topics gets a control entry with the decision, and each of its subscriptions the
   acknowledgements, if it was committed;
3. the transaction is removed from the catalog, and the client gets its answer.

A topic may have messages of a transaction that the coordinator does not know any more, or never
knew to be there (the broker was killed before it was stored). That is settled when the topic is
opened: an open transaction is told of the topic, any other one is aborted there.

What is stored is the whole of a transaction, under its number. Changes that come while another
one is being stored are stored together.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, islice
from typing import Any

from ...ledger import CatalogError, LedgerError, Position
from ...proto.broker_entry_pb2 import CONTROL_TXN_ABORT, CONTROL_TXN_COMMIT, BrokerEntryMetadata
from ...proto.pulsar_api_pb2 import MessageIdData, ServerError
from ...wire import TopicName
from ..configuration.config import BrokerConfig
from ..cooperative import Background
from ..errors import RefusedError
from ..storage import stored
from ..subscriptions.pending_acks import NONE, Acked, Part, PendingAcks
from ..subscriptions.seek import position_of
from ..subscriptions.subscription import SHARING, Subscription
from .registry import RunBlocking, Topics
from .topic import Topic

log = logging.getLogger(__name__)

TRANSACTION_PROPERTY_KIND = "pulsar-transactions"
#: The key of the first number that was never given.
NEXT_KEY = "next"
NUMBERS_AT_ONCE = 1_000
#: Topics and subscriptions of one transaction.
MAX_PLACES = 1_000
#: Entries that one transaction acknowledges.
MAX_ACKS = 100_000

Place = tuple[str, str]
"""A topic's full name, and a subscription."""


class Status(StrEnum):
    """Where a transaction stands, as Pulsar shows it."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"


@dataclass(slots=True)
class Transaction:
    """A transaction that has not ended."""

    number: int
    opened_ms: int
    timeout_ms: int
    #: Who has begun it; None without authentication.
    owner: str | None = None
    status: Status = Status.OPEN
    #: Its topics and subscriptions, each with the topic's name as the client gave it.
    topics: dict[str, str] = field(default_factory=dict)
    subscriptions: dict[Place, str] = field(default_factory=dict)
    acks: dict[Place, Acked] = field(default_factory=dict)
    #: Up to where subscriptions are acknowledged.
    acked_to: dict[Place, Position] = field(default_factory=dict)
    ack_count: int = 0
    #: Its end, while the steps are made.
    ending: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return id_text(0, self.number)

    @property
    def expires_ms(self) -> int:
        """When it is aborted if it is still open."""
        return self.opened_ms + self.timeout_ms


def id_text(most: int, least: int) -> str:
    """A transaction's id, as Pulsar writes it and as stamps have it: ``(0,17)``."""
    return f"({most},{least})"


class Transactions:
    """The coordinator: all transactions of a broker that have not ended."""

    def __init__(self, topics: Topics, config: BrokerConfig, run_blocking: RunBlocking) -> None:
        self.by_number: dict[int, Transaction] = {}
        #: The next number.
        self.next_number = 0
        #: When what is stored was read.
        self.loading_began_ms = self.loaded_ms = config.clock.now_ms()
        self._topics, self._config, self._run_blocking = topics, config, run_blocking
        self._reserved = 0
        self._background = Background()
        self._changed: dict[str, bytes | None] = {}
        self._storing: asyncio.Task[None] | None = None

    # -- start and end --------------------------------------------------------------------------

    async def load(self) -> None:
        """Read what is stored. Raises CatalogError."""
        for key, value in await self._run_blocking(
            self._topics.catalog.items, TRANSACTION_PROPERTY_KIND
        ):
            if key == NEXT_KEY:
                self.next_number = self._reserved = int(value)
            else:
                self.by_number[int(key)] = _restored(int(key), json.loads(value))
        self._topics.on_open.append(self._topic_opened)
        self.loaded_ms = self._config.clock.now_ms()

    def start(self) -> None:
        """End what was being ended when the broker stopped."""
        for transaction in tuple(self.by_number.values()):
            if transaction.status is not Status.OPEN:
                self._finish(transaction)

    async def settled(self) -> None:
        """Return when nothing is being ended or stored any more."""
        await self._background.settled()

    def _topic_opened(self, topic: Topic) -> None:
        for transaction in self.by_number.values():
            for name, subscription in (*transaction.acks, *transaction.acked_to):
                one = topic.subscriptions.get(subscription)
                if name == topic.name and one is not None:
                    _restore(one, transaction, (name, subscription))
        known = topic.ledger.transactions
        for transaction_id in () if known is None else tuple(known.open):
            number = _number_of(transaction_id)
            if number is None:
                continue  # not one of Pulsar's clients
            found = self.by_number.get(number)
            if found is None:
                self._background.start(self._mark(topic, transaction_id, committed=False))
            elif topic.name not in found.topics and found.status is Status.OPEN:
                found.topics[topic.name] = topic.name

    # -- what clients do ------------------------------------------------------------------------

    @staticmethod
    def check_id(coordinator_id: int) -> None:
        """Raise `RefusedError` unless this is the coordinator's id, 0."""
        if coordinator_id:
            text = f"Transaction coordinator with id {coordinator_id} not found!"
            raise RefusedError(ServerError.TransactionCoordinatorNotFound, text)

    def get(self, most: int, least: int) -> Transaction:
        """The transaction with this id. Raises `RefusedError`."""
        self.check_id(most)
        found = self.by_number.get(least)
        if found is None:
            raise RefusedError(
                ServerError.TransactionNotFound,
                f"The transaction with this txdID `{id_text(most, least)}`not found ",
            )
        return found

    def open_one(self, most: int, least: int) -> Transaction:
        """The open transaction with this id. Raises `RefusedError`."""
        transaction = self.get(most, least)
        if transaction.status is not Status.OPEN:
            raise RefusedError(
                ServerError.InvalidTxnStatus,
                f"Expect transaction {transaction} to be in one of the states [OPEN], "
                f"but it is in {transaction.status} state",
            )
        return transaction

    async def begin(self, timeout_ms: int, owner: str | None) -> Transaction:
        """Begin a transaction; durable on return. Raises `RefusedError`."""
        if len(self.by_number) >= self._config.max_active_transactions_per_coordinator:
            raise RefusedError(
                ServerError.NotAllowedError,
                f"there are {len(self.by_number)} transactions, the most that "
                "maxActiveTransactionsPerCoordinator allows",
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
            # It may be stored all the same; then it expires after the next start.
            self.by_number.pop(number, None)
            self._reserved = min(self._reserved, number)
            raise
        return transaction

    async def add_topics(
        self, transaction: Transaction, names: Iterable[tuple[TopicName, str]]
    ) -> None:
        """It will send to these topics, which the client names so; durable on return.

        Raises `RefusedError`.
        """
        _add(transaction.topics, ((str(name), given) for name, given in names))
        await self._store(transaction)

    async def add_subscriptions(
        self, transaction: Transaction, places: Iterable[tuple[Place, str]]
    ) -> None:
        """It will acknowledge messages of these subscriptions; durable on return."""
        _add(transaction.subscriptions, places)
        await self._store(transaction)

    def stamp_of(self, most: int, least: int, topic: Topic) -> BrokerEntryMetadata:
        """What the stamp of a transaction's message says. Raises `RefusedError` (NotAllowedError).

        Clients need not have said before that it sends to the topic: Pulsar takes such messages,
        too.
        """
        try:
            transaction = self.open_one(most, least)
            if topic.name not in transaction.topics:
                _add(transaction.topics, ((topic.name, topic.name),))
        except RefusedError as refusal:
            # After any other code clients open the producer again and send the message once more.
            raise RefusedError(ServerError.NotAllowedError, refusal.message) from None
        return BrokerEntryMetadata(transaction=str(transaction))

    async def ack(
        self, transaction: Transaction, subscription: Subscription, ids: Sequence[MessageIdData]
    ) -> None:
        """Acknowledge messages; durable on return. Raises `RefusedError` (TransactionConflict)."""
        if transaction.ack_count + len(ids) > MAX_ACKS:
            text = f"transaction {transaction} acknowledges more than {MAX_ACKS} entries"
            raise RefusedError(ServerError.NotAllowedError, text)
        place = _place_of(subscription)
        acked = await subscription.ack_pending(str(transaction), ids)
        try:
            if transaction.status is not Status.OPEN:
                raise RefusedError(ServerError.InvalidTxnStatus, f"{transaction} is being ended")
            _add(transaction.subscriptions, ((place, place[0]),))
            mine = transaction.acks.setdefault(place, {})
            for position, part in acked.items():
                mine[position] = mine.get(position, NONE).joined(part)
            transaction.ack_count += len(acked)
            await self._store(transaction)
        except BaseException:
            subscription.give_back_pending(str(transaction), acked)
            pending = subscription.pending_acks
            left = {} if pending is None else pending.single.get(str(transaction), {})
            transaction.acks[place] = dict(left)
            transaction.ack_count = sum(map(len, transaction.acks.values()))
            raise

    async def ack_up_to(
        self, transaction: Transaction, subscription: Subscription, message_id: MessageIdData
    ) -> None:
        """Acknowledge all up to a message; durable on return. Raises `RefusedError`.

        Shared types ignore it, as in Pulsar.
        """
        if subscription.sub_type in SHARING:
            return
        position = position_of(message_id)
        if message_id.ack_set:  # of this batch only some messages
            await self.ack(transaction, subscription, [message_id])
            position = Position(position.ledger_id, position.entry_id - 1)
        place = _place_of(subscription)
        _add(transaction.subscriptions, ((place, place[0]),))
        before = subscription.ack_pending_up_to(str(transaction), position)
        transaction.acked_to[place] = position
        try:
            await self._store(transaction)
        except BaseException:
            subscription.pending_up_to(str(transaction), before)
            transaction.acked_to.pop(place, None)
            if before is not None:
                transaction.acked_to[place] = before
            raise

    async def end(self, transaction: Transaction, *, committed: bool) -> None:
        """End a transaction; on return all of it counts, or nothing. Raises `RefusedError`."""
        wanted = Status.COMMITTING if committed else Status.ABORTING
        if transaction.status is Status.OPEN:
            transaction.status = wanted
            try:
                await self._store(transaction)
            except BaseException:
                transaction.status = Status.OPEN
                raise
        elif transaction.status is not wanted:
            raise RefusedError(
                ServerError.InvalidTxnStatus,
                f"Expect transaction {transaction} to be in one of the states [OPEN, {wanted}], "
                f"but it is in {transaction.status} state",
            )
        await asyncio.shield(self._finish(transaction))

    def check_time(self) -> None:
        """Begin to abort what has expired, and to end what could not be ended before."""
        now_ms = self._config.clock.now_ms()
        for transaction in tuple(self.by_number.values()):
            if transaction.status is not Status.OPEN:
                self._finish(transaction)
            elif transaction.expires_ms <= now_ms:
                log.info("transaction %s is aborted: its time is over", transaction)
                self._background.start(self.end(transaction, committed=False))

    async def checked(self) -> None:
        """As `check_time`; returns when it is done."""
        self.check_time()
        await self._background.settled()

    # -- the end --------------------------------------------------------------------------------

    def _finish(self, transaction: Transaction) -> asyncio.Task[None]:
        """Make the steps after the decision, once at a time."""
        if transaction.ending is None or transaction.ending.done():
            transaction.ending = self._background.start(self._make_steps(transaction))
        return transaction.ending

    async def _make_steps(self, transaction: Transaction) -> None:
        committed = transaction.status is Status.COMMITTING
        for name in transaction.topics:
            topic = await self._topic(name)
            if topic is not None:
                await self._mark(topic, str(transaction), committed=committed)
        for name, subscription in {**transaction.subscriptions}:
            topic = await self._topic(name)
            one = None if topic is None else topic.subscriptions.get(subscription)
            if one is not None:
                await one.transaction_ended(str(transaction), committed=committed)
        await self._store(transaction, is_over=True)
        self.by_number.pop(transaction.number, None)

    async def _topic(self, name: str) -> Topic | None:
        """One of its topics; None: it was deleted meanwhile."""
        try:
            return await self._topics.open(TopicName.parse(name), create=False)
        except RefusedError as refusal:
            if refusal.code in (ServerError.TopicNotFound, ServerError.NotAllowedError):
                return None
            raise

    async def _mark(self, topic: Topic, transaction_id: str, *, committed: bool) -> None:
        """Append the control entry that ends a transaction in a topic; durable on return."""
        ledger = topic.ledger
        if ledger.transactions is None:
            return  # no message of any transaction ever came
        kind = CONTROL_TXN_COMMIT if committed else CONTROL_TXN_ABORT
        try:
            await stored(await self._run_blocking(ledger.append_control, kind, transaction_id))
        except (LedgerError, OSError) as error:
            raise RefusedError(ServerError.PersistenceError, str(error)) from error
        if committed:
            topic.counters.committed_transactions += 1
        else:
            topic.counters.aborted_transactions += 1

    # -- storing --------------------------------------------------------------------------------

    async def _store(self, transaction: Transaction, *, is_over: bool = False) -> None:
        value = None if is_over else json.dumps(_row(transaction), separators=(",", ":")).encode()
        self._changed[str(transaction.number)] = value
        if self._storing is None:
            self._storing = self._background.start(self._store_changed())
        try:
            await asyncio.shield(self._storing)
        except (CatalogError, OSError) as error:
            raise RefusedError(ServerError.PersistenceError, str(error)) from error

    async def _store_changed(self) -> None:
        async def change() -> None:
            changes = [
                (TRANSACTION_PROPERTY_KIND, key, value) for key, value in self._changed.items()
            ]
            self._changed.clear()
            self._storing = None  # what changes from now on is stored later
            await writer.write(*changes)

        writer = self._topics.catalog_writer
        await writer.in_turn(change)


def _add(known: dict[Any, str], more: Iterable[tuple[Any, str]]) -> None:
    new: dict[Any, str] = {}
    for place, given in islice(more, MAX_PLACES + 1):
        new.setdefault(place, given)
    if len(known.keys() | new.keys()) > MAX_PLACES:
        text = f"a transaction has at most {MAX_PLACES} topics, and as many subscriptions"
        raise RefusedError(ServerError.NotAllowedError, text)
    known.update({**new, **known})


def _place_of(subscription: Subscription) -> Place:
    return subscription.topic.name, subscription.name


def _number_of(transaction_id: str) -> int | None:
    most, _, least = transaction_id.removeprefix("(").removesuffix(")").partition(",")
    return int(least) if most == "0" and least.isdecimal() else None


def _restore(subscription: Subscription, transaction: Transaction, place: Place) -> None:
    pending = subscription.pending_acks = subscription.pending_acks or PendingAcks()
    if place in transaction.acks and str(transaction) not in pending.single:
        pending.add(str(transaction), transaction.acks[place])
    if place in transaction.acked_to:
        pending.cumulative = str(transaction), transaction.acked_to[place]


def _row(transaction: Transaction) -> dict[str, Any]:
    """A transaction as it is stored; entries that follow one another are one item."""
    acks = []
    for (name, subscription), acked in transaction.acks.items():
        parts = sorted(acked.items())
        runs = groupby(
            enumerate(parts),
            lambda item: (item[1][0].ledger_id, item[1][0].entry_id - item[0], item[1][1]),
        )
        rows = []
        for (ledger_id, _, part), run in runs:
            ids = [position.entry_id for _, (position, _) in run]
            rows.append([ledger_id, ids[0], ids[-1], *part])
        acks.append([name, subscription, rows])
    return {
        "opened_ms": transaction.opened_ms,
        "timeout_ms": transaction.timeout_ms,
        "owner": transaction.owner,
        "status": transaction.status,
        "topics": [*transaction.topics.items()],
        "subscriptions": [[*place, given] for place, given in transaction.subscriptions.items()],
        "acks": acks,
        "acked_to": [[*place, *position] for place, position in transaction.acked_to.items()],
    }


def _restored(number: int, row: dict[str, Any]) -> Transaction:
    transaction = Transaction(
        number,
        row["opened_ms"],
        row["timeout_ms"],
        row["owner"],
        Status(row["status"]),
        dict(row["topics"]),
        {(name, subscription): given for name, subscription, given in row["subscriptions"]},
    )
    for name, subscription, rows in row["acks"]:
        acked = transaction.acks[name, subscription] = {
            Position(ledger_id, entry_id): Part(bits, words)
            for ledger_id, first, last, bits, words in rows
            for entry_id in range(first, last + 1)
        }
        transaction.ack_count += len(acked)
    for name, subscription, ledger_id, entry_id in row["acked_to"]:
        transaction.acked_to[name, subscription] = Position(ledger_id, entry_id)
    return transaction
