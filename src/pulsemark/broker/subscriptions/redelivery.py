"""Delivers many entries again, in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from ...ledger import Position
from ..cooperative import PIECE_IDS

if TYPE_CHECKING:
    from .consumer import Consumer
    from .subscription import Subscription

__all__ = ["redeliver_pieces"]


def redeliver_pieces(
    subscription: Subscription, consumer: Consumer, positions: Iterable[Position]
) -> Iterator[None]:
    """Deliver many entries again, in pieces.

    A position that is named twice is delivered again and counted only once.
    """
    remaining = iter(positions)
    named: set[Position] = set()
    while piece := list(islice(remaining, PIECE_IDS)):
        subscription.redeliver(consumer, [one for one in piece if one not in named])
        named.update(piece)
        yield
