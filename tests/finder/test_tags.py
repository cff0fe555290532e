"""ReadEntries tells tags by name."""

from __future__ import annotations

import pytest

from pulsemark.finder import SeekClient
from pulsemark.finder.messages import tag_messages, tags_from
from pulsemark.metadata import BrokerEntryMetadata, pack
from pulsemark.metadata.prefix import pack_encoded
from pulsemark.proto import seek_pb2 as pb
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import batched_message

TOPIC = "persistent://public/default/tagged"


def test_from_a_broker() -> None:
    """The entries of a topic with tags come with them, with bodies and without."""
    stampers = ("broker-time", "index", "message-count", "producer", "property-tags:region")
    with running_broker(stampers=stampers, grpc_port=0) as broker:
        with RawClient.from_url(broker.service_url) as client:
            producer = client.create_producer(
                TOPIC, properties={"region": "eu"}, producer_name="till"
            )
            producer.send_raw(batched_message([b"1", b"2"], publish_time_ms=1), num_messages=2)
        with SeekClient(broker.grpc_url) as seek:
            for prefixes_only in (False, True):
                (entry,) = seek.read_entries(TOPIC, prefixes_only=prefixes_only)
                assert entry.tags == {"message_count": 2, "region": "eu", "producer_name": "till"}
                assert entry.prefix


def test_values_of_every_kind() -> None:
    """Text, bytes, numbers and flags cross the wire as what they are."""
    metadata = BrokerEntryMetadata(has_keys=True, raw_size_bytes=2**64 - 1, broker_name="é")
    metadata.application_tags.add(key="raw", value=b"\xff")
    metadata.MergeFromString(bytes.fromhex("c03e07"))
    shown = tags_from(tag_messages(pack(metadata)))
    assert shown == {
        "has_keys": True, "raw_size_bytes": 2**64 - 1, "broker_name": "é", "raw": b"\xff", "1000": 7
    }  # fmt: skip
    assert shown["has_keys"] is True


@pytest.mark.parametrize("prefix", [b"", pack_encoded(b"\xff\xff")])
def test_no_tags(prefix: bytes) -> None:
    """What has no prefix, or one that cannot be read, has no tags and is not an error here."""
    assert tag_messages(prefix) == []


def test_a_tag_of_a_later_version() -> None:
    """A tag whose value this client does not know is left out."""
    assert tags_from([pb.Tag(name="new"), pb.Tag(name="old", text="v")]) == {"old": "v"}
