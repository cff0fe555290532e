import base64
import itertools
import struct
from typing import Any

import crcmod.predefined
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark import messages_of
from pulsemark.metadata import (
    MESSAGE_METADATA_SIZE_MAX_BYTES,
    BrokerEntryMetadata,
    ChecksumError,
    Message,
    MessageFormatError,
    compression_of,
    entry_time_ms,
    has_checksum,
    message_count_of,
    message_index,
    pack_stamp,
    partition_key_of,
    payload_of,
    read_message_metadata,
    verify_checksum,
)
from pulsemark.metadata.compression import DecompressionError, compress
from pulsemark.metadata.message import batch_members, check_batch_end, pack_batch_member
from pulsemark.proto.pulsar_api_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata
from pulsemark.testing.raw_messages import seal

# An implementation of CRC32C that shares nothing with the one in use.
oracle_crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

PAYLOAD = b"a payload of some bytes"
READERS = (read_message_metadata, payload_of)


def message(metadata, payload=PAYLOAD, *, checksum=True):
    """Headers and payload as a producer sends them; `metadata` is a message or raw bytes."""
    protobuf = metadata if isinstance(metadata, bytes) else metadata.SerializeToString()
    rest = struct.pack(">I", len(protobuf)) + protobuf + payload
    return (struct.pack(">HI", 0x0E01, oracle_crc32c(rest)) if checksum else b"") + rest


def simple_metadata(**fields):
    """The required fields, and more if given."""
    required: dict[str, Any] = {
        "producer_name": "p-1",
        "sequence_id": 7,
        "publish_time": 1_700_000_000_000,
    }
    return MessageMetadata(**(required | fields))


uint64s = st.integers(0, 2**64 - 1)
metadatas = st.builds(
    lambda required, optional: MessageMetadata(**required, **optional),
    st.fixed_dictionaries(
        {"producer_name": st.text(max_size=8), "sequence_id": uint64s, "publish_time": uint64s}
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "properties": st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=4), "value": st.text(max_size=4)}),
                max_size=3,
            ),
            "partition_key": st.text(max_size=8),
            "compression": st.sampled_from([0, 1, 2, 3, 4]),
            "num_messages_in_batch": st.integers(-(2**31), 2**31 - 1),
            "ordering_key": st.binary(max_size=8),
            "null_value": st.booleans(),
        },
    ),
)


class TestReading:
    @settings(deadline=None)
    @given(metadatas, st.binary(max_size=64), st.booleans())
    def test_round_trip(self, metadata, payload, checksum):
        """Metadata and payload read back as sent, with and without magic and checksum."""
        sent = message(metadata, payload, checksum=checksum)
        assert read_message_metadata(sent) == metadata
        assert payload_of(sent) == payload
        assert has_checksum(sent) == checksum
        assert verify_checksum(sent) == checksum

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_every_kind_of_buffer(self, kind):
        """Bytes, bytearrays and memoryviews read alike."""
        sent = kind(message(simple_metadata()))
        assert verify_checksum(sent)
        assert read_message_metadata(sent) == simple_metadata()
        assert payload_of(sent) == PAYLOAD

    @pytest.mark.parametrize("checksum", [True, False])
    def test_the_payload_is_not_copied(self, checksum):
        """The payload's view lies in the message itself."""
        sent = message(simple_metadata(), checksum=checksum)
        assert payload_of(sent).obj is sent
        assert payload_of(memoryview(sent)).obj is sent

    def test_empty_payload(self):
        """A message may have no payload at all."""
        assert bytes(payload_of(message(simple_metadata(), b""))) == b""


class TestChecksum:
    def test_every_flipped_bit_is_seen(self):
        """Any single flipped bit after the magic is a ChecksumError that names both sums."""
        sent = message(simple_metadata())
        right = oracle_crc32c(sent[6:])
        for place, bit in itertools.product(range(2, len(sent)), range(8)):
            damaged = bytearray(sent)
            damaged[place] ^= 1 << bit
            with pytest.raises(ChecksumError) as caught:
                verify_checksum(damaged)
            assert caught.value.expected != caught.value.actual
            assert caught.value.expected == struct.unpack_from(">I", damaged, 2)[0]
            assert (caught.value.actual == right) == (place < 6)

    @pytest.mark.parametrize("sent", [b"", b"\x0e", message(simple_metadata(), checksum=False)])
    def test_none_to_check(self, sent):
        """Without the magic there is no checksum: False, not an error."""
        assert verify_checksum(sent) is False

    @pytest.mark.parametrize("length", range(2, 10))
    def test_cut_header(self, length):
        """A header cut off after its magic is an error, not a missing checksum."""
        with pytest.raises(MessageFormatError):
            verify_checksum(message(simple_metadata())[:length])


class TestDamage:
    @pytest.mark.parametrize("checksum", [True, False])
    def test_every_truncation(self, checksum):
        """Cut inside header or metadata is MessageFormatError; cut in the payload is its rest."""
        sent = message(simple_metadata(), checksum=checksum)
        payload_start = len(sent) - len(PAYLOAD)
        for length in range(len(sent)):
            cut = sent[:length]
            if length < payload_start:
                for read in READERS:
                    with pytest.raises(MessageFormatError):
                        read(cut)
            else:
                assert read_message_metadata(cut) == simple_metadata()
                assert payload_of(cut) == sent[payload_start:length]

    @pytest.mark.parametrize("checksum", [True, False])
    def test_every_flipped_bit(self, checksum):
        """After any flipped bit each reader gives MessageFormatError or an answer."""
        metadata = simple_metadata(
            partition_key="k", properties=[{"key": "a", "value": "b"}], compression=1
        )
        sent = message(metadata, checksum=checksum)
        refused = []
        for place, bit in itertools.product(range(len(sent)), range(8)):
            damaged = bytearray(sent)
            damaged[place] ^= 1 << bit
            try:
                assert bytes(damaged).endswith(bytes(payload_of(damaged)))
                read = read_message_metadata(damaged)
                assert isinstance(read.producer_name, str)
                assert entry_time_ms(None, damaged) == read.publish_time
                assert isinstance(partition_key_of(read), bytes | None)
                assert compression_of(read) in CompressionType.values()
            except MessageFormatError as error:
                refused.append(error)
        assert refused
        assert all(0 <= error.offset < len(sent) and error.reason for error in refused)

    @settings(deadline=None)
    @given(
        st.binary(max_size=80), st.sampled_from([b"", b"\x0e\x01", b"\x0e\x01\0\0\0\0\0\0\0\x08"])
    )
    def test_any_bytes(self, rest, front):
        """Garbage raises the typed errors or is read, and nothing else happens."""
        sent = front + rest
        for read in (*READERS, verify_checksum, lambda sent: entry_time_ms(None, sent)):
            try:
                read(sent)
            except (MessageFormatError, ChecksumError):
                continue

    @pytest.mark.parametrize("size_bytes", [1, 2**31 - 1, 2**31, 2**32 - 1])
    def test_size_beyond_the_end(self, size_bytes):
        """A metadata size that reaches beyond the message is refused, however absurd."""
        for front, offset in ((b"", 0), (b"\x0e\x01\0\0\0\0", 6)):
            for read in READERS:
                with pytest.raises(MessageFormatError) as caught:
                    read(front + struct.pack(">I", size_bytes))
                assert caught.value.offset == offset

    def test_size_limit(self):
        """Metadata at the limit is read; beyond it, it is refused before parsing."""
        overhead = simple_metadata(ordering_key=bytes(1_000_000)).ByteSize() - 1_000_000
        filling = bytes(MESSAGE_METADATA_SIZE_MAX_BYTES - overhead)
        metadata = simple_metadata(ordering_key=filling)
        assert metadata.ByteSize() == MESSAGE_METADATA_SIZE_MAX_BYTES
        assert read_message_metadata(message(metadata)) == metadata
        metadata.ordering_key += b"\0"
        too_large = message(metadata)
        with pytest.raises(MessageFormatError, match="limit"):
            read_message_metadata(too_large)
        with pytest.raises(MessageFormatError, match="limit"):
            entry_time_ms(None, too_large)
        assert payload_of(too_large) == PAYLOAD

    def test_own_size_limit(self):
        """A caller may set a limit of its own."""
        sent = message(simple_metadata())
        size_bytes = simple_metadata().ByteSize()
        assert read_message_metadata(sent, size_max_bytes=size_bytes) == simple_metadata()
        with pytest.raises(MessageFormatError):
            read_message_metadata(sent, size_max_bytes=size_bytes - 1)

    def test_an_entry_with_its_prefix(self):
        """An entry that was not stripped is refused with a reason that says so."""
        for read in READERS:
            with pytest.raises(MessageFormatError, match="0x0e02"):
                read(pack_stamp(1, 2) + message(simple_metadata()))


class TestWhatTheParserLetsPass:
    @pytest.mark.parametrize("field", ["producer_name", "sequence_id", "publish_time"])
    def test_missing_required_field(self, field):
        """A message that lacks a required field is refused, and the field is named."""
        metadata = simple_metadata()
        metadata.ClearField(field)
        with pytest.raises(MessageFormatError, match=field):
            read_message_metadata(message(metadata.SerializePartialToString()))

    def test_missing_required_field_inside(self):
        """So is one whose property lacks its value."""
        metadata = simple_metadata()
        metadata.properties.add(key="a")
        with pytest.raises(MessageFormatError, match="value"):
            read_message_metadata(message(metadata.SerializePartialToString()))

    def test_producer_name_not_utf_8(self):
        """A producer's name that is not UTF-8 is refused."""
        protobuf = simple_metadata().SerializeToString().replace(b"p-1", b"p\xff1")
        with pytest.raises(MessageFormatError, match="UTF-8"):
            read_message_metadata(message(protobuf))

    def test_partition_key(self):
        """A key is bytes: UTF-8 of a text, the very bytes of anything else, None if absent."""
        assert partition_key_of(simple_metadata()) is None
        assert partition_key_of(simple_metadata(partition_key="")) == b""
        assert partition_key_of(simple_metadata(partition_key="é")) == b"\xc3\xa9"
        protobuf = simple_metadata(partition_key="kk").SerializeToString().replace(b"kk", b"k\xff")
        assert partition_key_of(read_message_metadata(message(protobuf))) == b"k\xff"

    def test_compression(self):
        """Known methods are named, absence means no compression; an unknown one is an error."""
        assert compression_of(simple_metadata()) == CompressionType.Value("NONE")
        for name, number in CompressionType.items():
            assert compression_of(simple_metadata(compression=name)) == number
        protobuf = simple_metadata().SerializeToString() + bytes((8 << 3, 99))
        with pytest.raises(MessageFormatError, match="99"):
            compression_of(read_message_metadata(message(protobuf)))


class TestEntryTime:
    def test_broker_time_first(self):
        """The broker's time rules where there is one, even zero, and the message is not read."""
        for time_ms in (0, 1, 2**64 - 1):
            assert entry_time_ms(BrokerEntryMetadata(broker_timestamp=time_ms), b"") == time_ms

    @pytest.mark.parametrize(
        "metadata", [None, BrokerEntryMetadata(), BrokerEntryMetadata(index=3)]
    )
    @pytest.mark.parametrize("checksum", [True, False])
    def test_publish_time_else(self, metadata, checksum):
        """Without broker time (no prefix, or an index alone) the publish time takes its place."""
        sent = message(simple_metadata(publish_time=123), checksum=checksum)
        assert entry_time_ms(metadata, sent) == 123

    def test_neither(self):
        """With no time to be had there is an error, never a zero."""
        metadata = simple_metadata()
        metadata.ClearField("publish_time")
        with pytest.raises(MessageFormatError, match="publish_time"):
            entry_time_ms(None, message(metadata.SerializePartialToString()))
        with pytest.raises(MessageFormatError):
            entry_time_ms(None, b"")


class TestMessageCount:
    @pytest.mark.parametrize(("field", "count"), [(None, 1), (1, 1), (100, 100), (0, 0), (-5, 0)])
    def test_count(self, field, count):
        """An absent number means one message; nonsense below zero counts nothing."""
        fields = {} if field is None else {"num_messages_in_batch": field}
        assert message_count_of(simple_metadata(**fields)) == count


# -- Walking through a batch's messages


def packed(*payloads: bytes) -> bytes:
    """A batch of these payloads, whose sequence ids count up."""
    return b"".join(
        pack_batch_member(SingleMessageMetadata(sequence_id=number), payload)
        for number, payload in enumerate(payloads)
    )


@given(payloads=st.lists(st.binary(max_size=40), max_size=20))
def test_members_are_where_they_were_put(payloads: list[bytes]) -> None:
    """Each member has its number, header and payload, and begins where the last one ended."""
    batch = packed(*payloads)
    end = 0
    members = list(batch_members(batch, len(payloads)))
    for place, (member, payload) in enumerate(zip(members, payloads, strict=True)):
        assert (member.place, member.header.sequence_id, member.start) == (place, place, end)
        assert batch[member.payload_start : member.end] == payload
        end = member.end
    check_batch_end(batch, len(payloads), end)


@given(
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=5), cut=st.integers(1, 10_000)
)
def test_a_batch_that_is_cut_gives_its_whole_members(payloads: list[bytes], cut: int) -> None:
    """Members before the cut are given; the one that is not whole is an error with its number."""
    batch = packed(*payloads)
    batch = batch[: len(batch) - 1 - cut % len(batch)]
    whole: list[bytes] = []
    with pytest.raises(MessageFormatError) as raised:
        whole.extend(batch[m.payload_start : m.end] for m in batch_members(batch, len(payloads)))
    assert whole == payloads[: len(whole)]
    assert f"message {len(whole)} of {len(payloads)}:" in raised.value.reason


def test_bytes_after_the_last_member() -> None:
    """Are an error for those who ask; the walk itself does not look at them."""
    batch = packed(b"a") + b"xyz"
    (member,) = batch_members(batch, 1)
    with pytest.raises(MessageFormatError, match="3 bytes after its 1 messages"):
        check_batch_end(batch, 1, member.end)


# -- indexes, tags


@given(st.integers(0, 2**63), st.integers(1, 100_000))
def test_neighbours(first, count):
    """An entry's messages have the indexes from its first to the one it is stamped with."""
    last = first + count - 1
    assert message_index(last, count, 0) == first
    assert message_index(last, count, count - 1) == last


def test_an_entry_of_its_own():
    """A message without a batch index has its entry's index."""
    assert message_index(7, 1) == message_index(7, 1, -1) == message_index(7, 1, 0) == 7


@pytest.mark.parametrize(
    "wrong", [(7, 0, 0), (7, -1, 0), (1, 3, 0), (7, 3, 3), (7, 3, -1), (7, 1, 1), (7, 1, -2)]
)
def test_what_cannot_be(wrong):
    """Numbers that belong to no message are refused, not calculated with."""
    with pytest.raises(ValueError, match=r"no entry|has no message"):
        message_index(*wrong)


# -- Splitting entries into messages


def header(**fields):
    """A producer's header."""
    made = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_000)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def member(payload, **fields):
    """One message in a batch's payload."""
    own = SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()
    return len(own).to_bytes(4, "big") + own + payload


def batch(*members, count=None, compression=CompressionType.NONE):
    """A batch as an entry."""
    payload = b"".join(members)
    made = header(
        num_messages_in_batch=len(members) if count is None else count,
        compression=compression,
        uncompressed_size=len(payload),
    )
    return seal(made.SerializeToString(), compress(compression, payload))


@given(
    values=st.lists(st.binary(max_size=50), min_size=1, max_size=20),
    compression=st.sampled_from(CompressionType.values()),
)
def test_a_batch_of_any_values(values, compression):
    """Comes apart into these, in their order, whatever its compression."""
    found = messages_of(batch(*map(member, values), compression=compression))
    assert [each.value for each in found] == values
    assert [each.batch_index for each in found] == list(range(len(values)))
    assert [each.sequence_id for each in found] == list(range(7, 7 + len(values)))


def test_a_message_alone():
    """Has the header's fields; those that are not set are None."""
    (found,) = messages_of(seal(header().SerializeToString(), b"value"))
    assert found == Message(b"value", None, "p", 7, 1_000, None, {})
    full = header(partition_key="k", event_time=5, deliver_at_time=9, schema_version=b"\0\1",
                  ordering_key=b"o", chunk_id=2)  # fmt: skip
    full.properties.add(key="a", value="1")
    full.properties.add(key="a", value="2")
    (found,) = messages_of(seal(full.SerializeToString(), b""))
    assert (found.key, found.event_time_ms, found.deliver_at_ms) == ("k", 5, 9)
    assert (found.schema_version, found.ordering_key, found.chunk_id) == (b"\0\1", b"o", 2)
    assert (found.properties, found.value) == ({"a": "2"}, b"")


def test_keys_of_bytes_and_null_values():
    """A key in base64 is decoded if it is text; a null value is None, an empty one is not."""
    coded = base64.b64encode("schlüssel".encode()).decode()
    raw = base64.b64encode(b"\xff\xfe").decode()
    found = messages_of(
        batch(
            member(b"", null_value=True),
            member(b""),
            member(b"x", partition_key=coded, partition_key_b64_encoded=True),
            member(b"x", partition_key=raw, partition_key_b64_encoded=True),
        )
    )
    assert [each.value for each in found] == [None, b"", b"x", b"x"]
    assert [each.key for each in found] == [None, None, "schlüssel", raw]


def test_texts_that_are_not_utf_8():
    """A key is shown in base64, a property with replacement characters: all of them are texts."""
    names = SingleMessageMetadata.DESCRIPTOR.fields_by_name
    key = bytes([names["partition_key"].number << 3 | 2, 2]) + b"\xff\xfe"
    pair = bytes([names["properties"].number << 3 | 2, 6]) + b"\x0a\x01\xff\x12\x01\xfe"
    own = SingleMessageMetadata(payload_size=0).SerializeToString() + key + pair
    (found,) = messages_of(batch(len(own).to_bytes(4, "big") + own))
    assert found.key == base64.b64encode(b"\xff\xfe").decode()
    assert found.properties == {"\ufffd": "\ufffd"}


def test_a_key_that_is_not_base64():
    """Is shown as it is, though its flag says base64."""
    entry = batch(
        *(member(b"", partition_key=key, partition_key_b64_encoded=True) for key in ("é", "a"))
    )
    assert [each.key for each in messages_of(entry)] == ["é", "a"]


def test_what_compaction_removed_is_left_out():
    """The others keep their places."""
    found = messages_of(batch(member(b"a"), member(b"", compacted_out=True), member(b"c")))
    assert [(each.batch_index, each.value) for each in found] == [(0, b"a"), (2, b"c")]


def test_an_encrypted_batch_is_not_opened():
    """It is one message, with its cipher text."""
    made = header(num_messages_in_batch=3, compression=CompressionType.LZ4, uncompressed_size=99)
    made.encryption_keys.add(key="k", value=b"v")
    (found,) = messages_of(seal(made.SerializeToString(), b"cipher"))
    assert (found.value, found.is_encrypted, found.batch_index) == (b"cipher", True, -1)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (batch(member(b"a"), count=2), "message 1 of 2: no metadata"),
        (batch(member(b"a"), count=0), "bytes after its 0 messages"),
        (batch(member(b"abc")[:-1], count=1), "its payload is cut off"),
        (batch(b"\xff\xff\xff\xffx", count=1), "message 0 of 1"),
        (b"nonsense", "bad message header"),
    ],
)
def test_what_is_no_message_is_an_error(entry, reason):
    """It names the message and what is wrong with it."""
    with pytest.raises(MessageFormatError, match=reason):
        messages_of(entry)


def test_a_bomb_is_not_opened():
    """A payload that states a larger size than allowed is refused before it is decompressed."""
    entry = batch(member(b"\0" * 100_000), compression=CompressionType.ZSTD)
    assert len(messages_of(entry)) == 1
    with pytest.raises(DecompressionError):
        messages_of(entry, max_bytes=1_000)
