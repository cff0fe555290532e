"""Errors of the ledger: their texts, and their facts in another process."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import errors
from pulsemark.ledger.position import Position

EXAMPLES: dict[str, Any] = {
    "str": "word",
    "int": 5,
    "int | None": 7,
    "Path": Path("/data/catalog.sqlite"),
    "str | os.PathLike[str]": "zk://host//path",
    "Position": Position(1, 2),
    "object": None,
    "Any": None,
}
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, errors.LedgerError)])
def test_an_error_has_its_text_and_facts_in_another_process(kind: type[errors.LedgerError]) -> None:
    """A copy has the same facts; the text names no fact that the error does not have."""
    facts = {spec.name: EXAMPLES[spec.type] for spec in fields(kind)}  # type: ignore[index]
    error = kind(**facts)
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is kind
    assert vars(copied) == facts
    assert str(copied) == str(error)
    assert str(error) or not facts


def test_a_place_is_named_as_it_was_given() -> None:
    """A path would lose one of the slashes."""
    assert str(errors.CatalogError("zk://host/ledgers", "gone")) == "zk://host/ledgers: gone"


def test_facts_are_checked_as_arguments() -> None:
    """A fact that is missing, unknown or given twice is refused as with any class."""
    for given, named in (((), {}), (("t", "u"), {}), (("t",), {"topic": "t"}), (("t",), {"x": 1})):
        with pytest.raises(TypeError):
            errors.TopicNotFoundError(*given, **named)


def test_a_base_has_the_text_that_it_is_given() -> None:
    """An error without facts is one as any other."""
    copied = pickle.loads(pickle.dumps(errors.LedgerError("cannot be read")))
    assert (type(copied), str(copied)) == (errors.LedgerError, "cannot be read")
