"""The rate limit of a task, and what the target refuses."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.client import RawProducer, Service
from pulsemark.metadata.schema_list import pack_schemas
from pulsemark.pipeline.errors import JobFailedError, ReplayError
from pulsemark.pipeline.replay import ReplayOptions
from pulsemark.pipeline.replay.options import shared_by
from pulsemark.pipeline.replay.stream import Outgoing, Paces
from pulsemark.proto.pulsar_api_pb2 import Schema

URL = "pulsar://127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "tasks", "gone"),
    [
        ({"messages_per_s": 100.0}, 1, 100 * 11 // 2),
        ({"messages_per_s": 100.0}, 4, 25 * 11 // 2),
        ({"bytes_per_s": 1000.0}, 2, 5 * 11),
        ({"messages_per_s": 100.0, "bytes_per_s": 500.0}, 1, 5 * 11),
        ({"messages_per_s": 1.0}, 4, 3),
    ],
)
def test_all_tasks_together_keep_the_limit(options: Any, tasks: int, gone: int) -> None:
    """In ten seconds eleven seconds' worth of a task's share goes: entries of 100 bytes, 2 each."""
    now_s = 0.0
    paces = Paces(shared_by(tasks, ReplayOptions(service_url=URL, **options)), lambda: now_s)
    entry, count = Outgoing(0, 1, bytes(100)), 0
    while now_s < 10:
        if wait_s := paces.wait_s():
            now_s += wait_s
        else:
            paces.spend(entry)
            count += 1
    assert gone - 1 <= count <= gone + 1


def post(url: str, content: object, method: str = "POST") -> None:
    """A REST call."""
    request = urllib.request.Request(
        url, json.dumps(content).encode(), {"Content-Type": "application/json"}, method=method
    )
    urllib.request.urlopen(request, timeout=10).close()


def test_a_quota_of_the_target(folder: Any, target: BrokerThread, kit: Any, tmp_path: Path) -> None:
    """A refusal that lasts is one error with the target's reason."""
    topic = folder.topic("a")
    for _ in range(3):
        topic.single(b"x" * 2000)
    namespace = f"{target.http_url}/admin/v2/namespaces/public/default"
    post(f"{namespace}/maxProducersPerTopic", 1)
    from pulsemark.client import RawProducer

    with (
        RawProducer(target.service_url, topic.name),
        pytest.raises(ReplayError, match=r"for 0\.2 s: ProducerBusy.*max producers"),
    ):
        kit.replayed(folder.path, target.service_url, tmp_path / "cp", reconnect_s=0.2)
    done = kit.replayed(folder.path, target.service_url, tmp_path / "cp")
    assert done.messages == 3


def test_permissions_of_the_target(folder: Any, kit: Any, tmp_path: Path) -> None:
    """A replay needs both: to produce, and to consume, because it looks at what is there."""
    from tests.support.secured import secured_broker, set_up, token_of

    topic = folder.topic("a")
    topic.single(b"x")
    with secured_broker(broker_deduplication_enabled=True) as broker:
        set_up(broker)
        goal = {"target_topic": "persistent://acme/ns/t"}
        for number, role in enumerate(("reader", "writer", "stranger")):
            with pytest.raises((ReplayError, JobFailedError), match="Authorization"):
                kit.replayed(
                    folder.path,
                    broker.service_url,
                    tmp_path / f"cp{number}",
                    token=token_of(role),
                    **goal,
                )
        with pytest.raises(JobFailedError, match="Authentication"):
            kit.replayed(
                folder.path, broker.service_url, tmp_path / "cp8", token="nonsense", **goal
            )
        done = kit.replayed(
            folder.path, broker.service_url, tmp_path / "cp9", token=token_of("both"), **goal
        )
        assert done.messages == 1
    assert not [p for p in tmp_path.rglob("*.json") if token_of("both") in p.read_text()]


def test_a_message_that_is_too_large(folder: Any, kit: Any, tmp_path: Path) -> None:
    """The error names the topic and the size; what was before it is there."""
    from pulsemark.broker import BrokerConfig

    topic = folder.topic("a")
    topic.single(b"small")
    topic.single(b"x" * 200_000)
    config = BrokerConfig(
        data_dir=tmp_path / "t",
        port=0,
        http_port=0,
        broker_deduplication_enabled=True,
        max_message_size_bytes=100_000,
    )
    with BrokerThread(config) as broker, pytest.raises(ReplayError, match="does not take it"):
        kit.replayed(folder.path, broker.service_url, tmp_path / "cp")
    assert kit.bodies(tmp_path / "t", topic.name) == kit.bodies(folder.path, topic.name)[:1]


TOPIC = "persistent://public/default/a"


def avro(*fields: str) -> Schema:
    """An Avro schema of optional texts."""
    listed = [{"name": name, "type": ["null", "string"], "default": None} for name in fields]
    record = {"type": "record", "name": "R", "fields": listed}
    return Schema(name="R", type=Schema.Avro, schema_data=json.dumps(record).encode())


@pytest.fixture
def source(folder: Any) -> Any:
    """Entries of versions 0 and 1; partition 0 has the schemas of its topic."""
    topic = folder.topic("a", partition=0)
    schemas = pack_schemas([avro("x"), avro("x", "y")])
    folder.store.catalog.put("schema", TOPIC, schemas)
    for version in (0, 0, 1):
        topic.single(b"x", schema_version=version.to_bytes(8, "big"))
    topic.single(b"without")
    topic.single(b"strange", schema_version=b"abc")
    return folder


def test_schemas_come_along(source: Any, target: BrokerThread, kit: Any, tmp_path: Path) -> None:
    """They are registered in their order, before the entries that need them."""
    done = kit.replayed(source.path, target.service_url, tmp_path / "cp")
    assert done.messages == 5
    with Service(target.service_url) as service:
        connection = service.connection(f"{TOPIC}-partition-0")
        for number, expected in enumerate((avro("x"), avro("x", "y"))):
            found, _ = connection.schema(TOPIC, number.to_bytes(8, "big"))
            assert found.schema_data == expected.schema_data


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (avro("x", "y"), "schema version 0: it has the number 1 in the target"),
        (
            Schema(name="s", type=Schema.String, schema_data=b""),
            "schema version 0: the target does not take it",
        ),
    ],
)
def test_another_schema_in_the_target(
    source: Any, target: BrokerThread, kit: Any, tmp_path: Path, there: Schema, reason: str
) -> None:
    """The replay stops before an entry that consumers would read with the wrong one."""
    with RawProducer(target.service_url, f"{TOPIC}-partition-0", schema=there):
        pass
    with pytest.raises(ReplayError, match=reason):
        kit.replayed(source.path, target.service_url, tmp_path / "cp")
    target.close()
    with pytest.raises(Exception, match="partition-0"):
        kit.bodies(tmp_path / "target", f"{TOPIC}-partition-0")


def test_a_schema_that_the_source_has_not(
    folder: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """Without it the number has no meaning."""
    folder.topic("a").single(b"x", schema_version=(3).to_bytes(8, "big"))
    with pytest.raises(ReplayError, match="schema version 0: the source's catalog does not have"):
        kit.replayed(folder.path, target.service_url, tmp_path / "cp")
