"""Both engines pass the public conformance suite."""

from __future__ import annotations

from itertools import count

import pytest

from pulsemark.testing.conformance import LedgerStoreConformance, MakeEngine
from tests.support.engines import FileEngine, MemoryEngine


class TestFiles(LedgerStoreConformance):
    """Ledgers in local files."""

    @pytest.fixture
    def make_engine(self, tmp_path) -> MakeEngine:
        """Each in a folder of its own."""
        numbers = count()
        return lambda options: FileEngine(tmp_path / f"data-{next(numbers)}", options)


class TestMemory(LedgerStoreConformance):
    """Ledgers in memory."""

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        """Each with a memory of its own."""
        return MemoryEngine
