"""Fields found, named and selected, also those without a known name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.metadata import (
    BrokerEntryMetadata,
    PrefixError,
    client_prefix,
    field_number_of,
    field_numbers,
    pack,
    pack_for_client,
    pack_stamp,
    peek,
    prefix_fields,
    printable,
    tags_of,
)
from pulsemark.metadata.prefix import pack_encoded
from pulsemark.proto.broker_entry_pb2 import CONTROL

NOW_MS = 1_700_000_000_000

# Fields 1000 (varint 7), 1001 ("text"), 1002 (bytes), 1003 (64 bits), 1004 (32 bits),
# 1005 (a group that holds a group), 1000 again.
VARINT = bytes.fromhex("c03e07")
TEXT = bytes.fromhex("ca3e04") + b"text"
BYTES = bytes.fromhex("d23e02fffe")
FIXED64 = bytes.fromhex("d93e0100000000000000")
FIXED32 = bytes.fromhex("e53e02000000")
GROUP = bytes.fromhex("eb3e0b08010cec3e")
FOREIGN = VARINT + TEXT + BYTES + FIXED64 + FIXED32 + GROUP


def full():
    """Metadata with fields of every origin."""
    metadata = BrokerEntryMetadata(
        broker_timestamp=NOW_MS, index=41, entry_kind=CONTROL, producer_name="p", has_keys=True
    )
    metadata.application_tags.add(key="region", value=b"eu")
    metadata.application_tags.add(key="raw", value=b"\xff")
    metadata.MergeFromString(FOREIGN)
    return metadata


PREFIX = pack(full())


def test_every_field_by_its_best_name():
    """The registry's fields by name, tags by theirs, unknown ones by number."""
    assert prefix_fields(PREFIX) == {
        "broker_timestamp": NOW_MS,
        "index": 41,
        "entry_kind": "CONTROL",
        "has_keys": True,
        "application_tags": {"region": "eu", "raw": b"\xff"},
        "producer_name": "p",
        "1000": 7,
        "1001": "text",
        "1002": b"\xff\xfe",
        "1003": 1,
        "1004": 2,
        "1005": "a group",
    }
    assert prefix_fields(b"") == {}


def test_an_unknown_field_twice():
    """All values of an unknown number are shown."""
    assert prefix_fields(pack_encoded(VARINT + VARINT + BYTES))["1000"] == "7; 7"


def test_tags():
    """Everything beyond time and index is a tag, application tags under their own names."""
    tags = tags_of(PREFIX)
    assert tags["region"] == "eu"
    assert (tags["producer_name"], tags["1000"], tags["entry_kind"]) == ("p", 7, "CONTROL")
    assert not {"index", "broker_timestamp", "application_tags"} & set(tags)
    assert tags_of(pack_stamp(NOW_MS, 41)) == tags_of(b"") == {}


def test_a_property_cannot_pass_for_a_system_tag():
    """An application tag with the name of a registered or present field is left out."""
    metadata = BrokerEntryMetadata()
    metadata.MergeFromString(VARINT)
    for name in ("producer_name", "broker_name", "1000", "mine"):
        metadata.application_tags.add(key=name, value=b"forged")
    assert tags_of(pack(metadata)) == {"mine": "forged", "1000": 7}


def test_printable():
    """Bytes are shown in hexadecimal, all else as it is."""
    assert [printable(value) for value in (b"\xff", "a", 1, True)] == ["ff", "a", 1, True]


def test_numbers():
    """All numbers of an encoded message are found, known and unknown ones."""
    assert field_numbers(PREFIX[6:]) == {1, 2, 101, 106, 109, 110, *range(1000, 1006)}
    assert field_numbers(b"") == frozenset()


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=300), st.booleans())
def test_numbers_of_any_values(time_ms, index, value, keys):
    """Values of any length do not lead the walk astray."""
    metadata = BrokerEntryMetadata(
        broker_timestamp=time_ms, index=index, has_keys=keys, broker_name=value.hex()
    )
    assert field_numbers(metadata.SerializeToString()) == {1, 2, 106, 112}


@pytest.mark.parametrize(
    "damaged",
    [
        b"\xc0",
        b"\x08",
        b"\x08" + b"\xff" * 10,
        b"\x0a\x05abc",
        b"\x09abc",
        b"\x0dabc",
        b"\x07\x00",
        b"\x00\x00",
        b"\xeb\x3e",
        b"\xec\x3e",
        b"\x0b" * 200,
        bytes.fromhex("eb3e08010c"),
    ],
)
def test_damage(damaged):
    """What is not protobuf raises PrefixError, and nothing else."""
    with pytest.raises(PrefixError):
        field_numbers(damaged)
    with pytest.raises(PrefixError):
        client_prefix(pack_encoded(damaged), {109})


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes(encoded):
    """Any bytes are either split completely or refused with a PrefixError."""
    try:
        numbers = field_numbers(encoded)
    except PrefixError:
        return
    assert all(number > 0 for number in numbers)


class TestForClients:
    def test_time_and_index_by_default(self):
        """Unless a policy says otherwise clients get fields 1 and 2 (PIP-90)."""
        assert client_prefix(PREFIX) == pack_stamp(NOW_MS, 41) == pack_for_client(peek(PREFIX))
        assert client_prefix(b"") == b""

    @pytest.mark.parametrize("numbers", [{109}, {110, 106}, {1000}, {1001, 1005}, {999}])
    def test_what_is_named(self, numbers):
        """Named fields come along byte by byte, ours and unknown ones, and no other."""
        delivered = client_prefix(PREFIX, frozenset(numbers))
        assert field_numbers(delivered[6:]) == {1, 2, *(numbers & field_numbers(PREFIX[6:]))}
        assert prefix_fields(delivered).items() <= prefix_fields(PREFIX).items()

    def test_nothing_to_hand_on(self):
        """An entry without any of the fields has no prefix for clients."""
        assert client_prefix(pack_encoded(VARINT), frozenset({109})) == b""


def test_names_to_numbers():
    """A field is named as in the registry, or by its number."""
    names = ("application_tags", "index", "1000", "0", "", "room", "-1", "9" * 30)
    assert [field_number_of(name) for name in names] == [109, 2, 1000, *[None] * 5]
