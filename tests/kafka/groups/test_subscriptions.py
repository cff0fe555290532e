"""What the metadata of a consumer group's members says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka.protocol.consumer import ConsumerProtocolSubscription

from pulsemark.kafka.groups.subscriptions import subscribes


def member(*metadata):
    """A member with this metadata for each of its protocols."""
    return SimpleNamespace(joining=SimpleNamespace(protocols=[("p", each) for each in metadata]))


@pytest.mark.parametrize("version", range(4))
def test_topics_of_a_subscription_in_every_version(version):
    """Those that are named, and no others."""
    fields = {"topics": ["a", "b"], "user_data": b"x", "owned_partitions": [], "generation_id": 1}
    metadata = ConsumerProtocolSubscription(version=version, **fields, rack_id=None).encode()
    assert subscribes(member(metadata), "b")
    assert not subscribes(member(metadata), "c")


@pytest.mark.parametrize("metadata", [b"", b"\x00", b"meta", b"\x00\x00\x7f\xff\xff\xff"])
def test_metadata_that_cannot_be_read_may_be_of_any_topic(metadata):
    """Offsets are rather kept than removed while they are used."""
    assert subscribes(member(metadata), "a")
