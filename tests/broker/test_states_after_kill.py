"""Kill -9 of a broker with clients in every state; then what each of them finds.

The broker is filled once and killed once. Each test has a topic of its own in it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.client.errors import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, Schema
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import MessageId

PROGRAM = """
import asyncio, json, sys, pathlib
from pulsemark.broker import Broker, BrokerConfig

async def main():
    config = BrokerConfig(
        data_dir=pathlib.Path(sys.argv[1]), port=0, http_port=0,
        broker_deduplication_enabled=True, force_delete_namespace_allowed=True,
    )
    async with Broker(config) as broker:
        print(json.dumps([broker.service_url, broker.http_url]), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
NAMESPACE = "persistent://public/default/"
KEYS = ("a", "b", "c", "d")
RECORD = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "string"}]}
#: A limit that differs from all others.
RATE = {"dispatchThrottlingRateInMsg": 77}


class Process:
    """A broker in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.service_url, self.http_url = json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        """Kill -9."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def rest(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer of a request about a topic or a namespace."""
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.http_url}/admin/v2/{path.replace('://', '/')}"
        request = urllib.request.Request(url, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read()
        return status, json.loads(text) if text else None

    def client(self) -> Any:
        """A raw client."""
        return RawClient.from_url(self.service_url)


def schema(*fields: dict[str, Any]) -> Schema:
    """An Avro schema with a field, and more of them."""
    definition = {**RECORD, "fields": [*RECORD["fields"], *fields]}
    return Schema(name="s", type=Schema.Avro, schema_data=json.dumps(definition).encode())


def numbered(sequence_id: int) -> bytes:
    """A message of the producer `p`."""
    return unbatched_message(b"x", publish_time_ms=1, sequence_id=sequence_id, producer_name="p")


def fill(broker: Process, client: Any) -> list[MessageId]:
    """Bring topics and clients into their states; the ids of the messages of `held`."""
    producer = client.create_producer(f"{NAMESPACE}sending", producer_name="p")
    for number in range(50):
        producer.post(numbered(number), sequence_id=number)
    producer.receipts(5)
    held = client.create_producer(f"{NAMESPACE}held")
    ids = [MessageId(*held.send(b"x", key=KEYS[n % 4])[1:3]) for n in range(12)]
    for name, kind in (("shared", CommandSubscribe.Shared), ("keys", CommandSubscribe.Key_Shared)):
        consumer = client.subscribe(f"{NAMESPACE}held", name, sub_type=kind, earliest=True)
        consumer.flow(100)
        consumer.receive_many(12)
        consumer.ack(ids[1], ids[4])
    later = client.create_producer(f"{NAMESPACE}delayed")
    later.send(b"x", deliver_at_time=4_102_444_800_000)
    later.send(b"x", deliver_at_time=1)
    ended = client.create_producer(f"{NAMESPACE}ended")
    ended.send(b"last")
    assert broker.rest("POST", f"{NAMESPACE}ended/terminate")[0] == 200
    described = {"producer_name": "p", "schema": schema()}
    client.create_producer(f"{NAMESPACE}described", **described).send(b"x")
    full = f"{NAMESPACE}full"
    client.subscribe(full, "s").close()
    filling = client.create_producer(full)
    quota = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    assert (
        broker.rest(
            "POST", f"{full}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        )[0]
        == 204
    )
    assert broker.rest("POST", f"{full}/backlogQuota", quota)[0] == 204
    for _ in range(3):
        filling.send(b"x" * 1000)
    assert broker.rest("POST", f"{full}/s/dispatchRate", RATE)[0] == 204
    assert broker.rest("POST", f"{full}/messageTTL?messageTTL=7")[0] == 204
    client.create_producer(f"{NAMESPACE}gone").send(b"x")
    assert broker.rest("DELETE", f"{NAMESPACE}gone?force=true")[0] == 204
    return ids


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, list[MessageId]]]:
    """The broker after the kill, and the ids of the messages of `held`."""
    folder = tmp_path_factory.mktemp("killed")
    first = Process(folder)
    try:
        with first.client() as client:
            ids = fill(first, client)
            first.kill()
    finally:
        first.kill()
    second = Process(folder)
    yield second, ids
    second.kill()


def stored(broker: Process, topic: str) -> int:
    """The entries of a topic."""
    with broker.client() as client:
        client.create_producer(f"{NAMESPACE}{topic}").close()
    found: int = broker.rest("GET", f"{NAMESPACE}{topic}/internalStats")[1]["numberOfEntries"]
    return found


def test_a_producer_that_was_sending(killed: tuple[Process, list[MessageId]]) -> None:
    """It sends everything again, and each message is stored once, whatever was acknowledged."""
    broker, _ = killed
    with broker.client() as client:
        producer = client.create_producer(f"{NAMESPACE}sending", producer_name="p")
        assert 4 <= producer.last_sequence_id <= 49
        for number in range(50):
            producer.post(numbered(number), sequence_id=number)
        receipts = producer.receipts(50)
    duplicates = [each for each in receipts if each.entry_id in (-1, 2**64 - 1)]
    assert len(duplicates) >= 5
    assert broker.rest("GET", f"{NAMESPACE}sending/internalStats")[1]["numberOfEntries"] == 50


@pytest.mark.parametrize(
    ("name", "kind"), [("shared", CommandSubscribe.Shared), ("keys", CommandSubscribe.Key_Shared)]
)
def test_a_consumer_that_held_messages(
    killed: tuple[Process, list[MessageId]], name: str, kind: Any
) -> None:
    """What was acknowledged does not come; the rest comes once, in the order of each key."""
    broker, ids = killed
    with broker.client() as client:
        consumers = [
            client.subscribe(f"{NAMESPACE}held", name, sub_type=kind, consumer_name=f"c{n}")
            for n in range(2)
        ]
        for consumer in consumers:
            consumer.flow(100)
        came = [[m.message_id.entry_id for m in _until_quiet(one, client)] for one in consumers]
    left = [each.entry_id for each in ids if each.entry_id not in (1, 4)]
    assert sorted(came[0] + came[1]) == left
    if name == "keys":
        for mine in came:
            for key in range(4):
                of_key = [entry for entry in mine if entry % 4 == key]
                assert of_key in ([], [entry for entry in left if entry % 4 == key])


def _until_quiet(consumer: Any, client: Any) -> list[Any]:
    """What has arrived once ten round trips brought nothing more."""
    found: list[Any] = []
    quiet = 0
    while quiet < 10:
        client.ping()
        arrived = consumer.arrived()
        found += arrived
        quiet = 0 if arrived else quiet + 1
    return found


def test_delayed_messages(killed: tuple[Process, list[MessageId]]) -> None:
    """The one that is due comes, the other one waits on."""
    broker, _ = killed
    with broker.client() as client:
        consumer = client.subscribe(
            f"{NAMESPACE}delayed", "s", sub_type=CommandSubscribe.Shared, earliest=True
        )
        consumer.flow(10)
        assert consumer.receive().message_id.entry_id == 1
        assert _until_quiet(consumer, client) == []


def test_a_topic_that_was_terminated(killed: tuple[Process, list[MessageId]]) -> None:
    """No producer gets in, and a consumer learns that it has read everything."""
    broker, _ = killed
    with broker.client() as client:
        with pytest.raises(RequestRefusedError, match="terminated"):
            client.create_producer(f"{NAMESPACE}ended")
        consumer = client.subscribe(f"{NAMESPACE}ended", "s", earliest=True)
        consumer.flow(10)
        message = consumer.receive()
        consumer.ack(MessageId(message.message_id.ledger_id, message.message_id.entry_id))
        client.wait_unsolicited(BaseCommand.REACHED_END_OF_TOPIC)


def test_a_schema(killed: tuple[Process, list[MessageId]]) -> None:
    """The same one keeps its version, one that does not fit is refused, a fitting one is next."""
    broker, _ = killed
    topic = f"{NAMESPACE}described"
    versions = []
    with broker.client() as client:
        for number, fields in enumerate(((), ({"name": "m", "type": "int", "default": 0},))):
            producer = client.create_producer(
                topic, producer_name=f"q{number}", schema=schema(*fields)
            )
            versions.append(int.from_bytes(producer.schema_version, "big"))
        with pytest.raises(RequestRefusedError) as refused:
            client.create_producer(topic, schema=schema({"name": "z", "type": "int"}))
    assert versions == [0, 1]
    assert refused.value.error_name == "IncompatibleSchema"


def test_policies_and_a_full_topic(killed: tuple[Process, list[MessageId]]) -> None:
    """Policies are as they were, and the backlog that is over its quota refuses producers."""
    broker, _ = killed
    full = f"{NAMESPACE}full"
    assert broker.rest("GET", f"{full}/messageTTL")[1] == 7
    assert broker.rest("GET", f"{full}/s/dispatchRate")[1]["dispatchThrottlingRateInMsg"] == 77
    with broker.client() as client:
        client.subscribe(full, "s").close()
        assert broker.rest("GET", "brokers/backlog-quota-check")[0] in (200, 204)
        with pytest.raises(RequestRefusedError) as refused:
            client.create_producer(full)
    assert refused.value.error_name == "ProducerBlockedQuotaExceededException"
    assert broker.rest("POST", f"{full}/subscription/s/skip_all")[0] == 204
    assert broker.rest("GET", "brokers/backlog-quota-check")[0] in (200, 204)
    with broker.client() as client:
        client.create_producer(full)


def test_a_topic_that_was_deleted(killed: tuple[Process, list[MessageId]]) -> None:
    """It does not come back, and one that is created again is empty."""
    broker, _ = killed
    assert f"{NAMESPACE}gone" not in broker.rest("GET", "persistent/public/default")[1]
    assert stored(broker, "gone") == 0
