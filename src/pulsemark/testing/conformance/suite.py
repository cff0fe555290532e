"""The whole suite, in one class."""

from __future__ import annotations

from .appending import Appending
from .model import Modelled
from .owning import Owning
from .removing import Removing
from .subscribing import Subscribing


class LedgerStoreConformance(Appending, Owning, Removing, Subscribing, Modelled):
    """The tests that every engine must pass. A subclass provides ``make_engine``."""
