"""The system tags: what each stamper writes, from where, and how often the header is parsed."""

import pytest

from pulsemark.metadata import (
    BrokerEntryMetadata,
    MessageMetadata,
    Sender,
    StamperChain,
    StamperLoadError,
    StampingError,
    headers_parsed,
    pack_stamp,
    peek,
)
from pulsemark.metadata.builtin_stampers import BUILT_IN, STAMPERS, load_stampers
from pulsemark.metadata.compression import compress
from pulsemark.metadata.message import pack_batch_member
from pulsemark.proto.broker_entry_pb2 import CONTROL, SOURCE_KAFKA_MAGIC_2, SourceFormat
from pulsemark.proto.pulsar_api_pb2 import (
    LZ4,
    ZLIB,
    CompressionType,
    KeyValue,
    SingleMessageMetadata,
)

TOPIC = "persistent://public/default/letters"
NOW_MS = 1_700_000_000_000
SENDER = Sender("by-connection", {"service": "shop"})
SYSTEM_TAGS = ("message-count", "has-keys", "raw-size", "producer", "send-time", "broker")
FROM_THE_HEADER = (
    "has-keys", "raw-size", "send-time", "property-tags:service", "tombstone:gone"
)  # fmt: skip
WITH_ARGUMENT = ("property-tags", "tombstone")


def message(payload=b"payload", **fields):
    """Headers and payload without checksum."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=77, **fields)
    return metadata.ByteSize().to_bytes(4, "big") + metadata.SerializeToString() + payload


def stamped(names, body, *, count=1, base=None, sender=SENDER, broker="broker:6650"):
    """What a chain of these names writes, by the fields' names."""
    chain = StamperChain.from_names(names).at_broker(broker)
    prefix = chain.prefix(TOPIC, NOW_MS, 41, count, body, base=base, sender=sender)
    metadata = peek(prefix)
    return {} if metadata is None else {f.name: value for f, value in metadata.ListFields()}


def test_all_of_them():
    """Every system tag that the entry, the connection and the broker know is written."""
    body = message(partition_key="k", compression=LZ4, uncompressed_size=900)
    assert stamped(["broker-time", "index", *SYSTEM_TAGS], body, count=3) == {
        "broker_timestamp": NOW_MS,
        "index": 41,
        "message_count": 3,
        "has_keys": True,
        "raw_size_bytes": 900,
        "producer_name": "by-connection",
        "send_time_ms": 77,
        "broker_name": "broker:6650",
    }


@pytest.mark.parametrize(("magic", "at", "time_ms"), [(0, 18, 0), (1, 18, 77), (2, 35, 77)])
def test_the_send_time_of_a_kafka_set(magic, at, time_ms):
    """Its header has it, but for magic 0; a time that no producer gave is left out."""
    source = SourceFormat.Name(SOURCE_KAFKA_MAGIC_2 - 2 + magic)
    for sent_ms, written_ms in ((77, time_ms), (-1, 0)):
        body = bytes(at) + sent_ms.to_bytes(8, "big", signed=True) + bytes(40)
        base = BrokerEntryMetadata(source_format=source)
        found = stamped(["send-time"], body, base=base)
        assert found.get("send_time_ms", 0) == written_ms


def test_time_and_index_stay_in_front():
    """Beside system tags time and index have the bytes that they have alone."""
    for names in (["broker-time", "index", *SYSTEM_TAGS], [*SYSTEM_TAGS, "index", "broker-time"]):
        prefix = StamperChain.from_names(names).prefix(TOPIC, NOW_MS, 41, 1, message())
        stamp = pack_stamp(NOW_MS, 41)
        assert prefix[6 : len(stamp)] == stamp[6:]


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        ({}, {}),
        ({"partition_key": ""}, {"has_keys": True}),
        ({"ordering_key": b"\x00"}, {"has_keys": True}),
        ({"partition_key": "k", "num_messages_in_batch": 9}, {"has_keys": True}),
    ],
)
def test_has_keys(fields, known):
    """A key of either kind in the header counts; without one the field is left out."""
    assert stamped(["has-keys"], message(**fields)) == known


def batch(*keys, codec=CompressionType.NONE, **fields):
    """A batch whose messages have these keys, None for none; its header has no key."""
    members = (
        pack_batch_member(SingleMessageMetadata(partition_key=key), b"v" * 40) for key in keys
    )
    plain = b"".join(members)
    fields = {"num_messages_in_batch": len(keys), "uncompressed_size": len(plain)} | fields
    return message(compress(codec, plain), compression=codec, **fields)


@pytest.mark.parametrize(
    ("body", "known"),
    [
        (message(), {"has_keys": False}),
        (message(partition_key="k"), {"has_keys": True}),
        (batch(None, None, "k"), {"has_keys": True}),
        (batch(None, "k", codec=ZLIB), {"has_keys": True}),
        (batch(None, None, codec=LZ4), {"has_keys": False}),
        (batch(None, "k", codec=ZLIB, uncompressed_size=9), {}),
        (batch(None, "k", num_messages_in_batch=3), {"has_keys": True}),
        (batch(None, num_messages_in_batch=3), {}),
        (batch(*[None] * 4000, "k"), {}),
        (batch(*[None] * 4000, "k", codec=ZLIB), {}),
    ],
)
def test_keys_of_a_whole_batch(body, known):
    """With `has-keys:any` one key of any message counts; what cannot be opened is not known."""
    assert stamped(["has-keys:any"], body) == known
    with pytest.raises(StamperLoadError, match="no argument but any"):
        load_stampers(["has-keys:first"])


@pytest.mark.parametrize(
    ("body", "size_bytes"),
    [
        (message(b"1234567"), 7),
        (message(b"1234567", uncompressed_size=9), 9),
        (message(b"12", compression=LZ4, uncompressed_size=9), 9),
        (message(b"12", compression=LZ4), None),
        (message(b""), None),
    ],
)
def test_raw_size(body, size_bytes):
    """The header's size, or the payload's own if it is plain; otherwise it is not known."""
    assert stamped(["raw-size"], body).get("raw_size_bytes") == size_bytes


def test_raw_size_of_what_is_encrypted():
    """An encrypted payload's own size says nothing."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=77)
    metadata.encryption_keys.add(key="k", value=b"v")
    body = metadata.ByteSize().to_bytes(4, "big") + metadata.SerializeToString() + b"x" * 50
    assert stamped(["raw-size"], body) == {}


def test_the_producers_name_is_the_connections():
    """A header cannot name somebody else; without a connection the header is believed."""
    assert stamped(["producer"], message()) == {"producer_name": "by-connection"}
    assert stamped(["producer"], message(), sender=None) == {"producer_name": "p"}
    assert stamped(["producer"], b"no message") == {"producer_name": "by-connection"}


def test_a_broker_without_name():
    """A ledger that no broker opened has no broker name to write."""
    assert stamped(["broker"], message(), broker="") == {}


@pytest.mark.parametrize("spec", FROM_THE_HEADER)
def test_what_has_no_header(spec):
    """Control entries and other formats get no tag from a header; other bodies are refused."""
    for base in (
        BrokerEntryMetadata(entry_kind=CONTROL),
        BrokerEntryMetadata(source_format=SOURCE_KAFKA_MAGIC_2),
    ):
        expected = {f.name: value for f, value in base.ListFields()}
        assert stamped([spec], b"\x00", base=base, sender=None) == expected
    with pytest.raises(StampingError) as caught:
        stamped([spec], b"\x00\x00")
    assert caught.value.stamper == spec.partition(":")[0]


def test_control_entries():
    """A control entry gets time, index, count and broker, and nothing of a producer's."""
    written = stamped(
        [name for name in BUILT_IN if name not in WITH_ARGUMENT],
        b"",
        base=BrokerEntryMetadata(entry_kind=CONTROL),
    )
    assert set(written) == {
        "broker_timestamp", "index", "message_count", "broker_name", "entry_kind"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "parses"),
    [
        (["broker-time", "index"], 0),
        (["broker-time", "index", "message-count", "producer", "broker"], 0),
        *((["broker-time", "index", name], 1) for name in FROM_THE_HEADER),
        (["broker-time", "index", *SYSTEM_TAGS, "property-tags:service"], 1),
    ],
)
def test_the_header_is_parsed_at_most_once(names, parses):
    """No stamper that can do without the producer's header has it parsed, all others share one."""
    chain, body = StamperChain.from_names(names), message()
    before = headers_parsed()
    for _ in range(10):
        chain.prefix(TOPIC, NOW_MS, 41, 1, body, sender=SENDER)
    assert headers_parsed() - before == 10 * parses


@pytest.mark.parametrize("kind", STAMPERS)
def test_each_says_what_it_writes(kind):
    """A built-in stamper writes the fields that it declares, and no other."""
    spec = f"{kind.name}:service" if kind.name in WITH_ARGUMENT else kind.name
    numbers = BrokerEntryMetadata.DESCRIPTOR.fields_by_name
    body = message(partition_key="k", properties=[KeyValue(key="service", value="true")])
    written = stamped([spec], body)
    assert {numbers[name].number for name in written} == set(kind.fields)


@pytest.mark.parametrize(
    ("values", "is_tombstone"),
    [([], False), (["true"], True), (["false"], False), (["1"], False), (["true", ""], False),
     (["", "true"], True), (["True"], False)],
)  # fmt: skip
def test_tombstones(values, is_tombstone):
    """The last value of the named property counts, and only "true" deletes."""
    body = message(properties=[KeyValue(key="gone", value=value) for value in values])
    assert stamped(["tombstone:gone"], body) == ({"tombstone": True} if is_tombstone else {})
    other = Sender("p", {"gone": "true"})
    assert stamped(["tombstone:gone"], message(), sender=other) == {}
