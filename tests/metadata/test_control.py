"""Control entries: what they can say, and what is refused before anything is stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.metadata import ControlError, control_metadata, control_of, pack
from pulsemark.metadata.control import (
    CONTROL_TYPES,
    MAX_CONTROL_NAME_BYTES,
    MAX_CONTROL_TAG_BYTES,
    MAX_CONTROL_TAGS,
)
from pulsemark.proto.broker_entry_pb2 import (
    CONTROL_LEADER_CHANGE,
    CONTROL_TXN_START,
    CONTROL_UNSPECIFIED,
    CONTROL_USER,
)

NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=60)


@given(
    st.sampled_from(sorted(CONTROL_TYPES)),
    NAMES,
    st.dictionaries(NAMES.map("t.{}".format), st.binary(max_size=20), max_size=8),
    st.integers(0, 2**32 - 1),
)
def test_what_is_written_is_read(kind: str, name: str, tags: dict[str, bytes], epoch: int) -> None:
    """Type, name, tags and epoch of a control entry come back from its prefix."""
    found = control_of(pack(control_metadata(CONTROL_TYPES[kind], name, tags, leader_epoch=epoch)))
    assert found is not None
    assert (found.type_name, found.name, dict(found.tags)) == (kind, name, tags)
    assert found.leader_epoch == epoch


@pytest.mark.parametrize("name", ["", "x" * 256, "ü" * 128, "a\nb", "a\0", "\ud800", 7, None])
def test_a_bad_name_is_refused(name: object) -> None:
    """The error names the field and the value."""
    with pytest.raises(ControlError) as caught:
        control_metadata(CONTROL_TXN_START, name)  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.value) == ("control_name", name)
    assert str(caught.value).startswith("control_name ")


@pytest.mark.parametrize(
    ("tags", "field"),
    [
        ({"": b""}, "tag"),
        ({"x" * 256: b""}, "tag"),
        ({"a\tb": b""}, "tag"),
        ({"control_name": b""}, "tag"),
        ({"1000": b""}, "tag"),
        ({"a": "text"}, "tag a"),
        ({"a": b"x" * MAX_CONTROL_TAG_BYTES}, "tags"),
        ({str(n) + "t": b"" for n in range(MAX_CONTROL_TAGS + 1)}, "tags"),
    ],
)
def test_bad_tags_are_refused(tags: dict[str, bytes], field: str) -> None:
    """Too many, too large, not bytes, or with the name of a field of the prefix."""
    with pytest.raises(ControlError) as caught:
        control_metadata(CONTROL_USER, "mine", tags)
    assert caught.value.field == field


def test_the_limits_themselves_are_allowed() -> None:
    """A name and tags that are exactly as large as they may be."""
    tags = {"t": b"x" * (MAX_CONTROL_TAG_BYTES - 1)}
    metadata = control_metadata(CONTROL_USER, "n" * MAX_CONTROL_NAME_BYTES, tags)
    assert len(metadata.control_name) == MAX_CONTROL_NAME_BYTES


@pytest.mark.parametrize("control_type", [CONTROL_UNSPECIFIED, 99, -1])
def test_an_unknown_type_is_refused(control_type: int) -> None:
    """The error names the types there are."""
    with pytest.raises(ControlError, match="txn-start"):
        control_metadata(control_type, "x")  # type: ignore[arg-type]


def test_a_change_of_leader_may_have_no_name() -> None:
    """Earlier versions wrote it so."""
    assert control_metadata(CONTROL_LEADER_CHANGE).control_name == ""


def test_an_entry_of_a_producer_is_no_control_entry() -> None:
    """Neither is an entry without a prefix."""
    assert control_of(b"") is None
    assert control_of(b"\x0e\x02\0\0\0\2\x08\x05") is None
