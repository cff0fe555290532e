"""The broker and its Kafka endpoint: loaded only if asked for, and safe from kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from pulsemark.broker import BrokerConfig, ConfigError, PortInUseError
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

LOADED = """
import asyncio, sys
from pulsemark.broker import Broker, BrokerConfig

async def main():
    async with Broker(BrokerConfig(port=0, http_port=0, storage="memory", {setting})):
        rooms = "kafka.", "pulsemark.kafka.", "pulsemark.broker.kafka."
        print(sum(f"{{name}}.".startswith(rooms) for name in sys.modules
                  if name != "pulsemark.broker.kafka"))

asyncio.run(main())
"""


def modules_loaded(setting):
    """How many modules of kafka-python and of the endpoint a broker loads."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(setting=setting)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return int(done.stdout)


def test_without_a_port_nothing_of_kafka_is_loaded():
    """Neither kafka-python nor the endpoint; with a port both."""
    assert modules_loaded("") == 0
    assert modules_loaded("kafka_port=0") > 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kafka_port", 70_000),
        ("kafka_port", "x"),
        ("kafka_namespace", "public"),
        ("kafka_namespace", None),
        ("kafka_default_partitions", 0),
        ("kafka_message_format_version", "9"),
        ("kafka_message_format_version", 2),
        ("kafka_group_initial_rebalance_delay_ms", -1),
        ("kafka_group_min_session_timeout_ms", 0),
        ("kafka_group_max_session_timeout_ms", 5_999),
        ("max_kafka_groups", 0),
    ],
)
def test_wrong_settings_are_named(field, value):
    """The error has the field and the value."""
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(**{field: value})
    assert (refused.value.field, refused.value.value) == (field, value)


def test_without_kafka_python_the_setting_says_what_is_missing():
    """A broker that cannot serve Kafka's clients does not start as if it could."""
    program = "import sys\nsys.modules['kafka.protocol'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", program + LOADED.format(setting="kafka_port=0")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "ConfigError" in done.stderr
    assert "checkout[kafka]" in done.stderr


def test_a_port_in_use_is_found_before_anything_is_changed(tmp_path):
    """The second broker does not start, and makes no data folder."""
    with running_broker(storage="memory", kafka_port=0, http_port=None) as first:
        port = int(first.kafka_url.rpartition(":")[2])
        folder = tmp_path / "data"
        with (
            pytest.raises(PortInUseError) as refused,
            running_broker(data_dir=folder, kafka_port=port, http_port=None),
        ):
            pass
        assert refused.value.port == port
        assert not folder.exists()


def test_topics_of_another_namespace(tmp_path):
    """Kafka's clients see the topics of `kafka_namespace`, and no others."""
    with running_broker(
        storage="memory", kafka_port=0, http_port=None, kafka_namespace="public/default"
    ) as broker:
        topics = broker.broker.services.topics

        async def create(_):
            from pulsemark.wire import TopicName

            await topics.namespaces.put("public/other", {})
            await topics.open(TopicName.parse("public/other/hidden"), create=True)
            await topics.open(TopicName.parse("public/default/seen"), create=True)

        broker.call(create)
        with RawKafka.from_url(broker.kafka_url) as client:
            listed = client.call(MetadataRequest, 1, topics=None)
    assert [each.name for each in listed.topics] == ["seen"]


def record_set(value):
    """A set with one record."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    builder.append(timestamp=1, key=None, value=value)
    builder.close()
    return bytes(builder.buffer())


def started(folder):
    """A broker process that serves Kafka's clients: the process, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pulsemark", "standalone", "--json", "--port", "0",
         "--http-port", "0", "--kafka-port", "0", "--data-dir", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["kafka_url"]


def committed(client, offset):
    """Commit an offset of partition 0 of topic t for the group g; the code."""
    of = OffsetCommitRequest.OffsetCommitRequestTopic
    part = of.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    answer = client.call(
        OffsetCommitRequest,
        2,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=-1,
        topics=[of(name="t", partitions=[part])],
    )
    return answer.topics[0].partitions[0].error_code


def test_producer_ids_are_not_given_again_after_the_catalog_was_lost(tmp_path):
    """Else a new producer's first batch would be taken for one that the log already has."""
    folder, ids = tmp_path / "data", []
    fields = {"transactional_id": None, "transaction_timeout_ms": 1}
    for _ in range(2):
        with (
            running_broker(data_dir=folder, kafka_port=0, http_port=None) as broker,
            RawKafka.from_url(broker.kafka_url) as client,
        ):
            ids += [client.call(InitProducerIdRequest, 0, **fields).producer_id for _ in range(2)]
        for name in folder.glob("catalog.sqlite*"):
            name.unlink()
    assert ids == sorted(set(ids))


def kill_after(process, enough):
    """Kill a process once there was enough."""
    enough.wait(60)
    os.kill(process.pid, signal.SIGKILL)


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    """Records and committed offsets alike, several times, while clients write."""
    folder = tmp_path / "data"
    sent, offset = 0, -1
    for _ in range(3):
        process, url = started(folder)
        client = RawKafka.from_url(url)
        topic = MetadataRequest.MetadataRequestTopic(name="t")
        client.call(MetadataRequest, 1, topics=[topic])
        assert client.fetch("t", 0).high_watermark >= sent
        if offset >= 0:
            of = OffsetFetchRequest.OffsetFetchRequestTopic
            fetched = client.call(
                OffsetFetchRequest,
                1,
                group_id="g",
                topics=[of(name="t", partition_indexes=[0])],
            )
            assert fetched.topics[0].partitions[0].committed_offset >= offset
        enough = threading.Event()
        killer = threading.Thread(target=kill_after, args=(process, enough))
        killer.start()
        begun = sent
        try:
            while True:
                answer = client.produce("t", record_set(b"%d" % sent))
                assert answer.error_code == 0
                sent = answer.base_offset + 1
                assert committed(client, sent) == 0
                offset = sent
                if sent >= begun + 30:
                    enough.set()
        except OSError:
            assert enough.is_set()
        finally:
            enough.set()
            client.close()
            killer.join(60)
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()
    process, url = started(folder)
    try:
        with RawKafka.from_url(url) as client:
            assert client.fetch("t", 0).high_watermark >= sent >= 90
    finally:
        process.terminate()
        assert process.wait(60) == 0
        if process.stdout is not None:
            process.stdout.close()
