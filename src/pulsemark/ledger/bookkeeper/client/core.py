"""What the parts of one client share."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .bookies import Bookies
from .ledger_nodes import LedgerNodes
from .options import ClientOptions
from .registry import BookieRegistry


@dataclass(frozen=True, slots=True)
class ClientCore:
    """Metadata, bookies and settings of a client."""

    nodes: LedgerNodes
    registry: BookieRegistry
    bookies: Bookies
    options: ClientOptions
    random: random.Random
