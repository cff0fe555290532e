"""The whole suite, in one class."""

from __future__ import annotations

from .appending import Appending
from .model import Modelled
from .owning import Owning
from .removing import Removing
from .subscribing import Subscribing


class LedgerStoreConformance(Appending, Owning, Removing, Subscribing, Modelled):
    """What every engine has to do. A subclass gives the fixture ``make_engine``."""
