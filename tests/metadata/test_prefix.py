import itertools
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.metadata import (
    PREFIX_METADATA_SIZE_MAX_BYTES,
    BrokerEntryMetadata,
    PrefixError,
    add_application_tags,
    application_tags,
    has_prefix,
    pack,
    pack_for_client,
    pack_stamp,
    peek,
    prefix_size_bytes,
    split,
    strip,
)
from pulsemark.metadata import prefix as prefix_module
from pulsemark.proto.broker_entry_pb2 import CONTROL, CONTROL_TXN_ABORT, SOURCE_KAFKA_MAGIC_2

UINT64_MAX = 2**64 - 1
# Where a varint grows by a byte, and the ends of the range.
EDGES = sorted(
    {0, 1, UINT64_MAX, 2**63 - 1, 2**63}
    | {2 ** (7 * groups) + near for groups in range(1, 10) for near in (-1, 0, 1)}
)
BODY = bytes.fromhex("0e01") + b"what the producer sent"

uint64s = st.integers(0, UINT64_MAX)


@st.composite
def metadatas(draw):
    """Any metadata that a writer may produce; each field present or absent."""
    fields = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "broker_timestamp": uint64s,
                "index": uint64s,
                "message_count": st.integers(0, 2**32 - 1),
                "entry_kind": st.sampled_from([0, 1]),
                "control_type": st.sampled_from([0, 1, 2, 3, 4]),
                "leader_epoch": uint64s,
                "source_format": st.sampled_from([0, 1, 2, 3]),
                "relative_offset_honoured": st.booleans(),
                "has_keys": st.booleans(),
                "raw_size_bytes": uint64s,
                "tombstone": st.booleans(),
                "application_tags": st.lists(
                    st.fixed_dictionaries({"key": st.text(max_size=8), "value": st.binary()}),
                    max_size=3,
                ),
            },
        )
    )
    return BrokerEntryMetadata(**fields)


def full_metadata():
    """One value in every field."""
    return BrokerEntryMetadata(
        broker_timestamp=1_700_000_000_000,
        index=41,
        message_count=7,
        entry_kind=CONTROL,
        control_type=CONTROL_TXN_ABORT,
        leader_epoch=3,
        source_format=SOURCE_KAFKA_MAGIC_2,
        relative_offset_honoured=True,
        has_keys=True,
        raw_size_bytes=1000,
        tombstone=True,
        application_tags=[{"key": "region", "value": b"\x00\xff"}],
    )


BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "view of a part of a bytearray": lambda data: memoryview(bytearray(b"<" + data + b">"))[1:-1],
}


@pytest.fixture(params=list(BUFFERS.values()), ids=list(BUFFERS))
def buffer(request):
    """A constructor of each kind of buffer that entries come in."""
    return request.param


class TestLayout:
    def test_bytes_by_hand(self):
        """The prefix of a time and an index is the magic, a big-endian size and two varints."""
        assert pack(BrokerEntryMetadata(broker_timestamp=300, index=5)) == bytes.fromhex(
            "0e02 00000005 08ac02 1005"
        )

    def test_empty_metadata(self):
        """Metadata without a field makes six bytes of prefix, which read as present and empty."""
        packed = pack(BrokerEntryMetadata())
        assert packed == bytes.fromhex("0e02 00000000")
        metadata, body = split(packed + BODY)
        assert metadata is not None
        assert metadata.ListFields() == []
        assert body == BODY

    def test_zero_is_not_absent(self):
        """A field that is written as zero differs from one that is not written."""
        metadata = peek(pack(BrokerEntryMetadata(index=0)))
        assert metadata is not None
        assert metadata.HasField("index")
        assert not metadata.HasField("broker_timestamp")

    @settings(deadline=None)
    @given(metadatas(), st.binary(max_size=64))
    def test_round_trip(self, metadata, body):
        """What is packed in front of any body is what peek, split and strip read back."""
        packed = pack(metadata)
        entry = packed + body
        assert has_prefix(entry)
        assert peek(entry) == metadata
        assert split(entry) == (metadata, body)
        assert strip(entry) == body
        assert prefix_size_bytes(entry) == len(packed)

    def test_unknown_fields_survive(self):
        """A field of a later version is skipped by readers and kept by those who pack again."""
        protobuf = bytes.fromhex("0801 1002") + bytes.fromhex("c03e 07")  # field 1000, varint 7
        entry = struct.pack(">HI", 0x0E02, len(protobuf)) + protobuf
        metadata = peek(entry)
        assert metadata is not None
        assert (metadata.broker_timestamp, metadata.index) == (1, 2)
        assert pack(metadata) == entry


class TestNoPrefix:
    @pytest.mark.parametrize(
        "entry", [b"", b"\x0e", BODY, b"\x0e\x03\x00\x00\x00\x00", b"\x0f\x02"]
    )
    def test_not_an_error(self, buffer, entry):
        """An entry that does not begin with the magic has no prefix, and all of it is body."""
        given_entry = buffer(entry)
        assert not has_prefix(given_entry)
        assert prefix_size_bytes(given_entry) == 0
        assert peek(given_entry) is None
        assert split(given_entry) == (None, entry)
        assert strip(given_entry) == entry

    @settings(deadline=None)
    @given(st.binary(max_size=64).filter(lambda entry: entry[:2] != b"\x0e\x02"))
    def test_any_bytes(self, entry):
        """Whatever the bytes are, without the magic they come back whole."""
        assert split(entry) == (None, entry)


class TestZeroCopy:
    def test_every_kind_of_buffer(self, buffer):
        """All readers take bytes, bytearrays and memoryviews alike."""
        entry = buffer(pack(full_metadata()) + BODY)
        assert peek(entry) == full_metadata()
        metadata, body = split(entry)
        assert (metadata, bytes(body)) == (full_metadata(), BODY)
        assert strip(entry) == BODY

    @pytest.mark.parametrize("front", [pack(full_metadata()), b""], ids=["stamped", "plain"])
    @pytest.mark.parametrize("kind", [bytes, bytearray])
    def test_the_body_is_the_entrys_memory(self, kind, front: bytes):
        """The views that split and strip return lie in the entry itself."""
        entry = kind(front + BODY)
        whole = memoryview(entry)
        for view in (split(entry)[1], strip(entry), split(whole)[1], strip(whole)):
            assert view.obj is entry

    def test_a_change_shows_through(self):
        """A byte changed in the entry is changed in the view of its body."""
        entry = bytearray(pack_stamp(1, 2) + BODY)
        body = strip(entry)
        entry[-1] ^= 0xFF
        assert body[-1] == BODY[-1] ^ 0xFF


class TestDamage:
    def test_every_truncation(self, buffer):
        """Cut off after its magic a prefix raises PrefixError; before that, there is no prefix."""
        packed = pack(full_metadata())
        for length in range(len(packed)):
            entry = buffer(packed[:length])
            if length < 2:
                assert peek(entry) is None
                continue
            for read in (peek, split, strip, prefix_size_bytes):
                with pytest.raises(PrefixError):
                    read(entry)

    @pytest.mark.parametrize("packed", [pack(full_metadata()), pack_stamp(1_700_000_000_000, 9)])
    def test_every_flipped_bit(self, packed):
        """After any flipped bit a reader gives PrefixError or a view of the entry's own end."""
        refused = []
        for place, bit in itertools.product(range(len(packed)), range(8)):
            entry = bytearray(packed + BODY)
            entry[place] ^= 1 << bit
            try:
                metadata, body = split(entry)
            except PrefixError as error:
                refused.append(error)
            else:
                assert (metadata is None) == (place < 2)
                assert bytes(entry).endswith(bytes(body))
                assert strip(entry) == body
        assert refused
        assert all(0 <= error.offset < len(packed) and error.reason for error in refused)

    @settings(deadline=None)
    @given(st.binary(max_size=80), st.booleans())
    def test_any_bytes_behind_the_magic(self, rest, honest_size):
        """Garbage after the magic raises PrefixError or is read, and nothing else happens."""
        size = struct.pack(">I", len(rest)) if honest_size else b""
        entry = b"\x0e\x02" + size + rest
        try:
            metadata, body = split(entry)
        except PrefixError:
            return
        assert metadata is not None
        assert body == entry[prefix_size_bytes(entry) :]

    @pytest.mark.parametrize("size_bytes", [18, 2**31 - 1, 2**31, 2**32 - 1])
    def test_size_beyond_the_entry(self, size_bytes):
        """A size that reaches beyond the entry is refused, however absurd."""
        entry = struct.pack(">HI", 0x0E02, size_bytes) + bytes(17)
        with pytest.raises(PrefixError) as caught:
            strip(entry)
        assert caught.value.offset == 2

    def test_size_limit(self):
        """A prefix at the limit is read; one byte more is refused without being parsed."""
        overhead = BrokerEntryMetadata(application_tags=[{"key": "", "value": bytes(65000)}])
        filling = 65000 + PREFIX_METADATA_SIZE_MAX_BYTES - overhead.ByteSize()
        largest = BrokerEntryMetadata(application_tags=[{"key": "", "value": bytes(filling)}])
        assert largest.ByteSize() == PREFIX_METADATA_SIZE_MAX_BYTES
        assert peek(pack(largest) + BODY) == largest
        largest.application_tags[0].value += b"\0"
        with pytest.raises(PrefixError, match="limit") as packing:
            pack(largest)
        protobuf = largest.SerializeToString()
        with pytest.raises(PrefixError, match="limit") as reading:
            strip(struct.pack(">HI", 0x0E02, len(protobuf)) + protobuf + BODY)
        assert packing.value.offset == reading.value.offset == 2

    def test_not_a_protobuf(self):
        """Bytes that are not protobuf are refused by readers that parse; strip does not look."""
        entry = struct.pack(">HI", 0x0E02, 2) + b"\x08\xff" + BODY
        for read in (peek, split):
            with pytest.raises(PrefixError) as caught:
                read(entry)
            assert caught.value.offset == 6
        assert strip(entry) == BODY

    def test_packing_a_half_tag(self):
        """A tag without value cannot be packed."""
        metadata = BrokerEntryMetadata(application_tags=[{"key": "region"}])
        with pytest.raises(PrefixError, match="value"):
            pack(metadata)


class TestPackStamp:
    @pytest.mark.parametrize("time_ms", EDGES)
    def test_edges(self, time_ms):
        """By hand and by protobuf are the same bytes at every edge of the varint's length."""
        for index in EDGES:
            expected = pack(BrokerEntryMetadata(broker_timestamp=time_ms, index=index))
            assert pack_stamp(time_ms, index) == expected

    @settings(deadline=None)
    @given(st.lists(st.tuples(uint64s, uint64s), max_size=20))
    def test_any_sequence(self, stamps):
        """What is remembered from earlier stamps never shows in later ones."""
        for time_ms, index in stamps + stamps[::-1]:
            expected = pack(BrokerEntryMetadata(broker_timestamp=time_ms, index=index))
            assert pack_stamp(time_ms, index) == expected

    def test_memory_is_bounded(self):
        """Stamps of ever new topics do not fill the memory."""
        for high in range(1, 10_000):
            pack_stamp(1_700_000_000_000, high << 14)
        assert len(prefix_module._high_groups) <= prefix_module._HIGH_GROUPS_MAX_COUNT
        stamp = peek(pack_stamp(1_700_000_000_000, 5 << 14))
        assert stamp is not None
        assert stamp.index == 5 << 14

    @pytest.mark.parametrize("number", [-1, -(2**14), -(2**70), 2**64, 2**70])
    def test_out_of_range(self, number):
        """A number that is no uint64 is refused, in either place, and leaves no trace."""
        with pytest.raises(ValueError, match="0 to 18446744073709551615"):
            pack_stamp(number, 0)
        with pytest.raises(ValueError, match="0 to 18446744073709551615"):
            pack_stamp(0, number)
        assert pack_stamp(0, 0) == bytes.fromhex("0e02 00000004 0800 1000")

    def test_threads(self):
        """Threads that stamp at different times never get each other's bytes."""
        wrong: list[Any] = []

        def stamp(time_ms):
            expected = pack(BrokerEntryMetadata(broker_timestamp=time_ms, index=77))
            packed = {pack_stamp(time_ms, 77) for _ in range(3000)}
            wrong.extend(packed - {expected})

        threads = [threading.Thread(target=stamp, args=(2 ** (10 * n),)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestPackForClient:
    @settings(deadline=None)
    @given(metadatas())
    def test_fields_1_and_2_only(self, metadata):
        """Clients get time and index, present or absent, and nothing of ours (PIP-90)."""
        packed = pack_for_client(metadata)
        wanted = {
            field.name: value
            for field, value in metadata.ListFields()
            if field.name in ("broker_timestamp", "index")
        }
        assert packed == (pack(BrokerEntryMetadata(**wanted)) if wanted else b"")

    def test_nothing_to_hand_on(self):
        """No prefix, and a prefix of our fields alone, give clients none."""
        assert pack_for_client(None) == b""
        assert pack_for_client(BrokerEntryMetadata(tombstone=True)) == b""

    def test_unknown_fields_stay_here(self):
        """Fields of third parties are not handed on either."""
        metadata = BrokerEntryMetadata.FromString(bytes.fromhex("0801 c03e07"))
        assert pack_for_client(metadata) == bytes.fromhex("0e02 00000002 0801")


# -- indexes, tags


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
