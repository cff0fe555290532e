import pickle

import pytest

from pulsemark import metadata
from pulsemark.metadata import errors
from pulsemark.records import FactsError

EXAMPLES = [
    (errors.PrefixError("cut off", 2), {"reason": "cut off", "offset": 2}, "byte 2: cut off"),
    (
        errors.MessageFormatError("cut off", 6),
        {"reason": "cut off", "offset": 6},
        "byte 6: cut off",
    ),
    (errors.ChecksumError(1, 0xAB), {"expected": 1, "actual": 0xAB}, "0x000000ab"),
    (errors.DoubleStampError("t"), {"topic": "t"}, "0x0e02"),
    (errors.DuplicateStamperError("index"), {"name": "index"}, "'index'"),
    (errors.UnknownStamperError("x", ("a", "b")), {"name": "x", "known": ("a", "b")}, "a, b"),
    (errors.StamperLoadError("x", "why"), {"name": "x", "reason": "why"}, "why"),
    (
        errors.StamperFieldError("x", 5, "why"),
        {"name": "x", "field": 5, "reason": "why"},
        "field 5 is not stamper 'x''s own: why",
    ),
    (
        errors.ControlError("control_name", "a\nb", "why"),
        {"field": "control_name", "value": "a\nb", "reason": "why"},
        "control_name 'a\\nb': why",
    ),
    (
        errors.StampingError("x", "t", "why"),
        {"stamper": "x", "topic": "t", "reason": "why"},
        "t: stamper 'x' failed: why",
    ),
]


@pytest.mark.parametrize(("error", "facts", "words"), EXAMPLES)
def test_facts_survive_pickling(error, facts, words):
    """An error carries its facts as attributes and names them, also in another process."""
    for copy in (error, pickle.loads(pickle.dumps(error))):
        assert type(copy) is type(error)
        assert {name: getattr(copy, name) for name in facts} == facts
        assert words in str(copy)
        assert isinstance(copy, ValueError)


def test_every_error_has_an_example():
    """No error class is left out of the table above, and all are handed on by the package."""
    classes = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert classes - {FactsError, errors.StampError} == {type(error) for error, _, _ in EXAMPLES}
    assert {cls.__name__ for cls in classes - {FactsError}} <= set(metadata.__all__)


def test_exports():
    """Every name in __all__ exists, once."""
    assert len(set(metadata.__all__)) == len(metadata.__all__)
    assert set(metadata.__all__) <= set(dir(metadata))
