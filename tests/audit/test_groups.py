"""An entry's audit time and tag values, from its prefix."""

from __future__ import annotations

import pytest

from pulsemark.audit.counts import Grouping
from pulsemark.metadata import BrokerEntryMetadata, pack, tags_of
from pulsemark.proto.broker_entry_pb2 import CONTROL

TAGS = ("producer_name", "service", "send_time_ms", "has_keys", "entry_kind", "1000", "index")


def prefixes() -> list[bytes]:
    """Prefixes with all kinds of tags."""
    full = BrokerEntryMetadata(
        broker_timestamp=5, index=7, producer_name="bü", send_time_ms=9, has_keys=True
    )
    full.application_tags.add(key="service", value="ü".encode())
    control = BrokerEntryMetadata(broker_timestamp=5, index=8, entry_kind=CONTROL)
    odd = BrokerEntryMetadata(index=9)
    odd.application_tags.add(key="service", value=b"\xff")
    odd.application_tags.add(key="producer_name", value=b"forged")
    foreign = pack(BrokerEntryMetadata(broker_timestamp=5))[6:] + b"\xc0\x3e\x05"
    return [
        pack(full),
        pack(control),
        pack(odd),
        b"\x0e\x02" + len(foreign).to_bytes(4, "big") + foreign,
        b"",
    ]


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("prefix", prefixes())
def test_values_are_those_of_the_entry(tag: str, prefix: bytes) -> None:
    """As `tags_of` names them, alone and beside others, remembered or not."""
    known = tags_of(prefix).get(tag)
    shown = known.hex() if isinstance(known, bytes) else known
    expected = None if shown is None else str(shown).lower() if shown is True else str(shown)
    for tags in ((tag,), (tag, "service")):
        grouping = Grouping(tags)
        for _ in range(2):
            assert grouping.group(prefix)[0] == expected


def test_a_property_cannot_pass_for_the_producers_name() -> None:
    """An application tag with a system tag's name is not that tag."""
    assert Grouping(("producer_name",)).group(prefixes()[2]) == (None,)


@pytest.mark.parametrize(
    ("prefix", "time_ms"),
    [
        (pack(BrokerEntryMetadata(broker_timestamp=5, index=1)), 5),
        (pack(BrokerEntryMetadata(index=1)), 77),
        (pack(BrokerEntryMetadata(broker_timestamp=2**62)), 77),
        (b"", 77),
        (b"\x0e\x02\x00\x00\x00\x01\xff", 77),
    ],
)
def test_the_time_is_the_stamps_or_the_append_time(prefix: bytes, time_ms: int) -> None:
    """Also for a stamp beyond all times, and for a prefix that is not a prefix."""
    assert Grouping(()).place(prefix, 77) == (time_ms, ())


def test_what_is_remembered_is_bounded() -> None:
    """Very many different tags are still found right."""
    grouping = Grouping(("producer_name",))
    for number in range(10_000):
        prefix = pack(BrokerEntryMetadata(producer_name=str(number)))
        assert grouping.group(prefix) == (str(number),)
