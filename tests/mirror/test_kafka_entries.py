"""Record sets of Kafka's clients in the source: a mirror refuses them, and never converts them."""

from __future__ import annotations

import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from pulsemark.ledger import LocalStore, TopicNotFoundError
from pulsemark.metadata import StamperChain
from pulsemark.mirror import KafkaEntryError, Options, compare
from pulsemark.proto.broker_entry_pb2 import SOURCE_KAFKA_MAGIC_2, BrokerEntryMetadata
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

from .conftest import CLUSTER, TOPIC, Mirror, batch, bodies_of

KAFKA_TOPIC = f"{TOPIC}-partition-0"


def record_set() -> bytes:
    """One record."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    builder.append(timestamp=1_000, key=b"k", value=b"v")
    builder.close()
    return bytes(builder.buffer())


@pytest.mark.parametrize("shows_stamps", [False, True])
def test_a_mirror_of_a_broker_refuses_a_record_set(mirror: Mirror, tmp_path, shows_stamps):
    """The copy would be another entry: a Pulsar batch that no producer made."""
    shown = {"exposing_broker_entry_metadata_to_client_enabled": shows_stamps}
    with running_broker(kafka_port=0, **shown) as broker:
        with RawKafka.from_url(broker.kafka_url) as raw:
            wanted = MetadataRequest.MetadataRequestTopic(name="orders")
            raw.call(MetadataRequest, 1, topics=[wanted])
            assert raw.produce("orders", record_set()).error_code == 0
        target = tmp_path / "target"
        with pytest.raises(KafkaEntryError, match="record set of a Kafka client"):
            mirror(broker.service_url, target, KAFKA_TOPIC)
        with pytest.raises(TopicNotFoundError):
            bodies_of(target, KAFKA_TOPIC)
        options = Options(source_cluster=CLUSTER)
        with pytest.raises(KafkaEntryError, match="record set of a Kafka client"):
            compare(broker.service_url, broker.service_url, KAFKA_TOPIC, options)


def test_a_mirror_of_a_folder_refuses_a_record_set(mirror: Mirror, tmp_path):
    """Without its tag `source_format` the copy would be taken for a Pulsar message."""
    source, target = tmp_path / "source", tmp_path / "target"
    body, count = batch(b"a", b"b")
    with LocalStore.open(source) as store:
        ledger = store.open_topic(TOPIC)
        ledger.stampers = StamperChain.from_names(["broker-time", "index"])
        ledger.append(body, message_count=count).commit.wait()
        base = BrokerEntryMetadata(message_count=1, source_format=SOURCE_KAFKA_MAGIC_2)
        ledger.append(record_set(), message_count=1, base=base).commit.wait()
    with pytest.raises(KafkaEntryError, match="record set of a Kafka client"):
        mirror(source, target)
    assert bodies_of(target) == [body]
