"""The acknowledgements that open transactions have made on a subscription (PIP-31).

They are pending: no consumer gets these messages meanwhile, and they still count as the
subscription's backlog. When the transaction is committed they go to the cursor; when it is aborted
the messages are delivered again. A message that one transaction has acknowledged cannot be
acknowledged by another one. Of a batch single messages may be pending, each in a transaction of its
own. They are stored with the topic (`topics.participants`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ...ledger import Position
from ...ledger.cursors.ack_state import bits_of, words_of
from ...ledger.topic_log import UNKNOWN_COUNT
from ...proto.pulsar_api_pb2 import MessageIdData, ServerError
from ..errors import RefusedError
from .seek import position_of

if TYPE_CHECKING:
    from .subscription import Subscription

WORD_BITS = 64


class Part(NamedTuple):
    """Messages of one entry: bit n for message n, and the mask's length in words of 64 bits."""

    bits: int
    words: int

    @property
    def ack_set(self) -> list[int]:
        """The part as Pulsar's `ack_set`, in which a set bit is a message *not* in this part."""
        return words_of(~self.bits & ((1 << self.words * WORD_BITS) - 1))

    def joined(self, other: Part) -> Part:
        """The messages of both."""
        return Part(self.bits | other.bits, max(self.words, other.words))


#: All messages of an entry. It shares a bit with every other part.
WHOLE, NONE = Part(-1, 0), Part(0, 0)
Acked = dict[Position, Part]


class PendingAcks:
    """One subscription's acknowledgements by open transactions."""

    def __init__(self) -> None:
        #: Single acknowledgements, by the transaction's id.
        self.single: dict[str, Acked] = {}
        #: The transaction with a cumulative acknowledgement, and the position.
        self.cumulative: tuple[str, Position] | None = None
        self._bits: dict[Position, int] = {}

    def __bool__(self) -> bool:
        return bool(self.single) or self.cumulative is not None

    @property
    def transactions(self) -> set[str]:
        """The ids of the transactions that have acknowledged something."""
        return {*self.single, *(() if self.cumulative is None else self.cumulative[:1])}

    def row(self) -> dict[str, Any]:
        """The acknowledgements as they are stored; adjacent entries are one item."""
        single = {}
        for transaction, acked in self.single.items():
            runs = groupby(
                enumerate(sorted(acked.items())),
                lambda item: (item[1][0].ledger_id, item[1][0].entry_id - item[0], item[1][1]),
            )
            rows = single[transaction] = list[list[int]]()
            for (ledger_id, _, part), run in runs:
                ids = [position.entry_id for _, (position, _) in run]
                rows.append([ledger_id, ids[0], ids[-1], *part])
        return {"single": single, "cumulative": self.cumulative}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Make them from a stored `row`."""
        pending = cls()
        for transaction, rows in row["single"].items():
            acked = {
                Position(ledger_id, entry_id): Part(bits, words)
                for ledger_id, first, last, bits, words in rows
                for entry_id in range(first, last + 1)
            }
            pending.add(transaction, acked)
        if row["cumulative"] is not None:
            transaction, position = row["cumulative"]
            pending.cumulative = transaction, Position(*position)
        return pending

    def bits_in(self, position: Position) -> int:
        """The pending messages of an entry; all bits are set if all messages are."""
        if self.cumulative is not None and position <= self.cumulative[1]:
            return WHOLE.bits
        return self._bits.get(position, 0)

    def remaining(
        self, position: Position, remaining: Sequence[int] | None, messages: int
    ) -> list[int]:
        """The entry's ack set without what is pending; [] if nothing remains.

        `remaining` is the ack set of its cursor; None: nothing is acknowledged.
        """
        everything = (1 << max(messages, 1)) - 1
        left = everything if remaining is None else bits_of(remaining, max(messages, 1))
        return words_of(left & ~self.bits_in(position))

    def add(self, transaction: str, acked: Acked) -> None:
        """Add acknowledgements that `check_single` has allowed."""
        mine = self.single.setdefault(transaction, {})
        for position, part in acked.items():
            mine[position] = mine.get(position, NONE).joined(part)
            self._bits[position] = self._bits.get(position, 0) | part.bits

    def remove(self, transaction: str, acked: Iterable[Position]) -> None:
        """Take back some of a transaction's single acknowledgements."""
        mine = self.single.get(transaction, {})
        for position in acked:
            part = mine.pop(position, NONE)
            left = self._bits.pop(position, 0) & ~part.bits
            if left:
                self._bits[position] = left
        if not mine:
            self.single.pop(transaction, None)

    def made_by(self, transaction: str) -> tuple[Acked, Position | None]:
        """A transaction's single acknowledgements, and the end of its cumulative one."""
        acked = dict(self.single.get(transaction, {}))
        if self.cumulative is None or self.cumulative[0] != transaction:
            return acked, None
        return acked, self.cumulative[1]

    def forget(self, transaction: str) -> None:
        """Remove a transaction that has ended."""
        acked, up_to = self.made_by(transaction)
        self.remove(transaction, acked)
        if up_to is not None:
            self.cumulative = None


def check_single(
    subscription: Subscription, transaction: str, ids: Iterable[MessageIdData], *, goes_on: bool
) -> Acked:
    """Check a transaction's single acknowledgements, and return them. Nothing is changed.

    ``goes_on``: messages of a batch that the transaction has acknowledged may be named again.
    Raises `RefusedError` (TransactionConflict) if a message is acknowledged already.
    """
    pending, cursor, log = subscription.pending_acks, subscription.cursor, subscription.log
    found: Acked = {}
    for message_id in ids:
        position = position_of(message_id)
        count = None if cursor.is_acked(position) else log.known_message_count(position)
        if count is None:
            raise _conflict(subscription, transaction, message_id, "already acked before.")
        part, ack_set = WHOLE, message_id.ack_set
        if ack_set:
            count = WORD_BITS * len(ack_set) if count == UNKNOWN_COUNT else max(count, 1)
            part = Part(((1 << count) - 1) & ~bits_of(ack_set, count), len(ack_set))
            remaining = cursor.remaining_in_batch(position)
            if remaining is not None and not part.bits & bits_of(remaining, count):
                raise _conflict(subscription, transaction, message_id, "already acked before.")
        taken = found.get(position, NONE).bits | (0 if not pending else pending.bits_in(position))
        if goes_on and pending and part.words:
            mine = pending.single.get(transaction, {}).get(position, NONE).bits
            if part.bits & ~mine:
                part, taken = Part(part.bits & ~mine, part.words), taken & ~mine
        if part.bits & taken:
            raise _conflict(subscription, transaction, message_id, "in pending ack status.")
        found[position] = found.get(position, NONE).joined(part)
    return found


def covers(subscription: Subscription, transaction: str, position: Position) -> bool:
    """Whether all up to a position is acknowledged, for good or by this transaction."""
    pending = subscription.pending_acks
    mine = None if pending is None else pending.made_by(transaction)[1]
    return position <= subscription.cursor.mark_delete or (mine is not None and position <= mine)


def check_cumulative(subscription: Subscription, transaction: str, position: Position) -> None:
    """Raise `RefusedError` (TransactionConflict) if this may not be acknowledged cumulatively."""
    mark_delete = subscription.cursor.mark_delete
    if position <= mark_delete:
        where = f"{position} within range of cursor's markDeletePosition"
        raise _refusal(
            subscription, transaction, f"cumulative ack position: {where}: {mark_delete}"
        )
    pending = subscription.pending_acks
    if pending is not None and pending.cumulative is not None:
        holder, up_to = pending.cumulative
        if holder != transaction or position <= up_to:
            where = f"{position} within range of current currentPosition: {up_to}"
            raise _refusal(subscription, transaction, f"cumulative batch ack position: {where}")


def _conflict(
    subscription: Subscription, transaction: str, message_id: MessageIdData, what: str
) -> RefusedError:
    words = len(message_id.ack_set)
    kind, ack_set = ("batch ", f"with long[] size of {words}") if words else ("", "is null")
    at = f"{position_of(message_id)} (ackSet {ack_set})"
    return _refusal(subscription, transaction, f"ack {kind}message:{at} {what}")


def _refusal(subscription: Subscription, transaction: str, what: str) -> RefusedError:
    return RefusedError(
        ServerError.TransactionConflict,
        "org.apache.pulsar.transaction.common.exception.TransactionConflictException: "
        f"[{subscription.topic.name}][{subscription.name}] Transaction:{transaction} try to {what}",
    )
