"""Which runs make a topic's log, and how many of their entries count: by their headers alone.

All engines and every reader come to the same answer by this rule. It goes from the newest ledger
back: each names the previous ledger, and how many of its entries count. A ledger that no later one
names had nothing durable (its first write failed and another ledger took its place) and is left
out; so are entries beyond the count. Going back ends where the named ledger does not exist: it was
trimmed. If it is known to be lost through damage, the newest of the older ledgers is next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .run import RunHeader

H = TypeVar("H", bound=RunHeader)

UNKNOWN_COUNT = -1
"""``previous_entry_count`` if it was lost with the header. Never on disk."""


@dataclass(frozen=True, slots=True)
class Link(Generic[H]):
    """A run of the chain."""

    header: H
    end_entry_id: int | None
    """Where its entries end, by the next header; None: no header says it."""
    end_index: int | None
    """Index of the first message after them; None: no header says it."""


def chain_of(headers: Iterable[H], lost: Collection[int] = ()) -> list[Link[H]]:
    """The runs that belong to a topic's log, oldest first, by their headers.

    ``lost`` are ledgers that should be there, and are missing or have no usable header.
    """
    ledgers: dict[int, list[H]] = {}
    for header in sorted(headers, key=lambda h: (h.ledger_id, h.first_entry_id, h.segment_no)):
        ledgers.setdefault(header.ledger_id, []).append(header)
    newest_first: list[list[Link[H]]] = []
    ledger_id = max(ledgers, default=-1)
    count = end_index = None
    while ledger_id in ledgers:
        members = ledgers.pop(ledger_id)
        newest_first.append(_ledger(members, count, end_index))
        first = members[0]
        ledger_id, count, end_index = first.previous_ledger_id, first.previous_entry_count, None
        if first.first_entry_id == 0:
            end_index = first.first_index
        if count == UNKNOWN_COUNT:
            count = None
        if ledger_id not in ledgers and ledger_id in lost:
            ledger_id = max((other for other in ledgers if other < ledger_id), default=-1)
            count = end_index = None
    return [link for links in reversed(newest_first) for link in links]


def _ledger(members: Sequence[H], count: int | None, end_index: int | None) -> list[Link[H]]:
    """The runs of one ledger of which ``count`` entries count (None: as many as there are)."""
    links = []
    for number, header in enumerate(members):
        end, index = count, end_index
        if number + 1 < len(members):
            following = members[number + 1]
            if count is None or following.first_entry_id <= count:
                end, index = following.first_entry_id, following.first_index
        if end is None or end > header.first_entry_id:
            links.append(Link(header, end, index))
    return links
