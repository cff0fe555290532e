"""The conformance suite of ledger engines: what every `LedgerStore` has to do.

    import pytest
    from pulsemark.testing.conformance import LedgerStoreConformance

    class TestMyEngine(LedgerStoreConformance):
        @pytest.fixture
        def make_engine(self, tmp_path):
            return lambda options: MyEngine(tmp_path, options)     # an `Engine`, see `base`

pytest collects the claims as tests of the class. One of them is a model: hypothesis plays random
histories with failures and lost owners. Needs pytest and hypothesis.
"""

from .appending import Appending
from .base import Engine, MakeEngine
from .model import Modelled
from .owning import Owning
from .removing import Removing
from .subscribing import Subscribing

__all__ = ["Engine", "LedgerStoreConformance", "MakeEngine"]


class LedgerStoreConformance(Appending, Owning, Removing, Subscribing, Modelled):
    """The tests that every engine must pass. A subclass provides ``make_engine``."""
