"""The conformance suite of ledger engines: what every `LedgerStore` has to do.

    import pytest
    from pulsemark.testing.conformance import LedgerStoreConformance

    class TestMyEngine(LedgerStoreConformance):
        @pytest.fixture
        def make_engine(self, tmp_path):
            return lambda options: MyEngine(tmp_path, options)     # an `Engine`, see `engines`

pytest collects the claims as tests of the class. One of them is a model: hypothesis plays random
histories with failures and lost owners. Needs pytest and hypothesis.
"""

from .engines import Engine, FileEngine, MakeEngine, MemoryEngine
from .suite import LedgerStoreConformance

__all__ = ["Engine", "FileEngine", "LedgerStoreConformance", "MakeEngine", "MemoryEngine"]
