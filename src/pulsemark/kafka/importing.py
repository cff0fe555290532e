"""Importing kafka-python where warnings are errors, as in many tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["importing_kafka"]


@contextmanager
def importing_kafka() -> Iterator[None]:
    """Import kafka-python in this block.

    It reads its schemas in a way that Python 3.11 and 3.12 call deprecated.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
        yield
