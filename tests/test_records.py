"""Records behave as the dataclasses that they stand for."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.records import FactsError, record


@record(frozen=True)
class Frozen:
    number: int
    text: str = "none"
    parts: tuple[int, ...] = field(default_factory=tuple)
    secret: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class FrozenPeer:
    number: int
    text: str = "none"
    parts: tuple[int, ...] = field(default_factory=tuple)
    secret: str = field(default="", repr=False, compare=False)


@record
class Counted:
    count: int = 0
    seen: list[int] = field(default_factory=list)


@record(frozen=True, kw_only=True)
class Derived(Frozen):
    unit: str = "ms"
    shown: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown", f"{self.number} {self.unit}")


NAMES = st.sampled_from(["number", "text", "parts", "secret", "other"])
VALUES = st.integers(0, 2)
ARGUMENTS = st.tuples(st.lists(VALUES, max_size=5), st.dictionaries(NAMES, VALUES))


def outcome(kind: Any, given: list[int], named: dict[str, int]) -> Any:
    """The made object's fields, or the kind of error."""
    try:
        made = kind(*given, **named)
    except TypeError:
        return TypeError
    shown = repr(made).replace("FrozenPeer", "Frozen")
    return asdict(made), shown, hash(made)


@given(ARGUMENTS)
def test_a_record_takes_what_its_dataclass_takes(
    arguments: tuple[list[int], dict[str, int]],
) -> None:
    """The same arguments make the same fields, text and hash, or are refused."""
    assert outcome(Frozen, *arguments) == outcome(FrozenPeer, *arguments)


@given(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))
def test_records_are_equal_as_dataclasses_are(number: int, other: int, secret: int) -> None:
    """By the fields that are compared, and only to one of the same class."""
    mine, theirs = Frozen(number, secret=str(secret)), Frozen(other)
    assert (mine == theirs) is (FrozenPeer(number, secret=str(secret)) == FrozenPeer(other))
    assert mine != FrozenPeer(number)  # type: ignore[comparison-overlap]
    assert mine != Derived(number)


def test_a_frozen_record_refuses_changes() -> None:
    """Of its fields and of any other attribute; a copy with a change is made by `replace`."""
    made = Frozen(1)
    for name in ("number", "other"):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(made, name, 2)
    with pytest.raises(FrozenInstanceError):
        del made.number
    assert replace(made, number=2) == Frozen(2)


@pytest.mark.parametrize("made", [Frozen(1, "a", (2,), "s"), Derived(number=3, unit="s")])
def test_records_are_copied_and_pickled(made: Any) -> None:
    """Also what is not compared comes along, as a data frame's workers need it."""
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other == made
        assert other.secret == made.secret


def test_a_record_may_change_and_has_slots() -> None:
    """Without `frozen`: each has its own default; what it does not declare it cannot have."""
    one, other = Counted(), Counted()
    one.count += 1
    one.seen.append(1)
    assert (one, other) == (Counted(1, [1]), Counted())
    with pytest.raises(AttributeError):
        one.unknown = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_a_record_may_have_a_base_and_fields_that_it_sets_itself() -> None:
    """The base's fields come first; `__post_init__` sees all of them."""
    assert [spec.name for spec in fields(Derived)] == [
        "number", "text", "parts", "secret", "unit", "shown",
    ]  # fmt: skip
    assert Derived(number=5).shown == "5 ms"
    with pytest.raises(TypeError, match="shown"):
        Derived(number=5, shown="x")  # type: ignore[call-arg]


def test_a_record_shows_its_signature() -> None:
    """`help` shows the fields and their defaults, as for a dataclass."""
    assert str(inspect.signature(Frozen)) == str(inspect.signature(FrozenPeer))
    assert list(inspect.signature(Derived).parameters)[-1] == "unit"


class LackError(FactsError, text="{what} is missing"):
    """An error with a fact."""

    what: str


class BoltLackError(LackError):
    """One that says its fact itself, as programs that derive from a public error may."""

    def __init__(self, length_mm: int) -> None:
        super().__init__(f"a bolt of {length_mm} mm")
        self.length_mm = length_mm


def test_an_error_may_have_its_own_constructor() -> None:
    """It is called, and shown by `inspect.signature`; the base's sets the facts."""
    error = BoltLackError(40)
    assert (error.what, error.length_mm) == ("a bolt of 40 mm", 40)
    assert str(error) == "a bolt of 40 mm is missing"
    assert [*inspect.signature(BoltLackError).parameters] == ["length_mm"]
    assert [*inspect.signature(LackError).parameters] == ["what"]
