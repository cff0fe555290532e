import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.metadata import (
    BrokerEntryMetadata,
    PrefixError,
    add_application_tags,
    application_tags,
    pack,
    peek,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.binary(max_size=8)))
def test_round_trip(tags):
    """Tags that are added, packed and read back are the same tags, in the order of their names."""
    metadata = BrokerEntryMetadata(index=1)
    add_application_tags(metadata, tags)
    read = application_tags(peek(pack(metadata)))
    assert read == tags
    assert list(read) == sorted(tags)


def test_none():
    """No prefix and a prefix without tags both have no tags."""
    assert application_tags(None) == {}
    assert application_tags(BrokerEntryMetadata(index=1)) == {}


def test_adding_replaces_by_name():
    """A name is there once: adding it again gives it the new value and keeps the others."""
    metadata = BrokerEntryMetadata()
    add_application_tags(metadata, {"b": b"1", "c": b"1"})
    add_application_tags(metadata, {"b": b"2", "a": b"2"})
    assert application_tags(metadata) == {"a": b"2", "b": b"2", "c": b"1"}
    assert [tag.key for tag in metadata.application_tags] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("tags_hex", "reason"),
    [
        ("ea0603 0a0161", "lacks"),
        ("ea0603 120161", "lacks"),
        ("ea0606 0a01ff 120131", "UTF-8"),
        ("ea0606 0a0161 120131 ea0606 0a0161 120132", "twice"),
    ],
)
def test_bad_tags(tags_hex, reason):
    """Tags that protobuf lets pass and the registry forbids are PrefixErrors when read."""
    metadata = BrokerEntryMetadata.FromString(bytes.fromhex("0801" + tags_hex))
    assert metadata.broker_timestamp == 1
    with pytest.raises(PrefixError, match=reason):
        application_tags(metadata)
    with pytest.raises(PrefixError, match=reason):
        add_application_tags(metadata, {"z": b""})
