"""When enough of an ensemble has answered."""

from __future__ import annotations

from collections.abc import Collection

from .metadata import LedgerMetadata


def enough_answers(metadata: LedgerMetadata, answered: Collection[int]) -> bool:
    """Whether no entry can have its ack quorum among the places that have not answered.

    Of every write set, fewer places than the ack quorum are then unknown.
    """
    return all(
        sum(place not in answered for place in metadata.write_set(first)) < metadata.ack_quorum_size
        for first in range(metadata.ensemble_size)
    )
