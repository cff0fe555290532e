"""Which bookies get a ledger: any that are writable, by chance, as BookKeeper's default policy."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

from .errors import NotEnoughBookiesError


def replacements(
    count: int,
    writable: Iterable[str],
    *,
    excluded: Collection[str],
    suspected: Collection[str],
    random: random.Random,
) -> list[str]:
    """Up to `count` bookies that are not excluded; suspected ones only where others are too few."""
    usable = [one for one in writable if one not in excluded]
    random.shuffle(usable)
    usable.sort(key=lambda one: one in suspected)
    return usable[:count]


def new_ensemble(
    size: int, writable: Collection[str], *, suspected: Collection[str], random: random.Random
) -> tuple[str, ...]:
    """The bookies of a new ledger. Raises NotEnoughBookiesError."""
    chosen = replacements(size, writable, excluded=(), suspected=suspected, random=random)
    if len(chosen) < size:
        raise NotEnoughBookiesError(f"{size} writable ones are needed, {len(writable)} are there")
    # Those that were sorted to the end must not always be last.
    random.shuffle(chosen)
    return tuple(chosen)
