"""Terminated topics: no message follows, every reader reaches the end, also after a restart."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pulsemark.client import RequestRefusedError, SendRefusedError
from pulsemark.ledger import CatalogError, TopicTerminatedError
from pulsemark.proto.pulsar_api_pb2 import BaseCommand
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe as Sub
from pulsemark.testing import RawClient, running_broker

END = BaseCommand.REACHED_END_OF_TOPIC


def rest(broker, method, name, route=""):
    """Status and JSON of a topic's route."""
    url = f"{broker.http_url}/admin/v2/{name.replace('://', '/')}{route}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, method=method), timeout=30
        ) as answer:
            status, raw = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, raw = error.code, error.read()
    return status, json.loads(raw or b"null")


def test_no_producer_enters_a_terminated_topic(broker, raw, topic):
    """Producers are closed and refused; the answer is the last message's id, each time."""
    producer = raw.create_producer(topic)
    last = [producer.send(b"x") for _ in range(3)][-1]
    status, answer = rest(broker, "POST", topic, "/terminate")
    assert (status, answer["entryId"], answer["batchIndex"]) == (200, last.entry_id, -1)
    raw.wait_unsolicited(BaseCommand.CLOSE_PRODUCER)
    assert rest(broker, "POST", topic, "/terminate") == (200, answer)
    for mode in range(4):
        with pytest.raises(RequestRefusedError, match="TopicTerminatedError"):
            raw.create_producer(topic, access_mode=mode)


def test_a_send_that_comes_with_the_end_closes_its_producer_before_the_error(broker, raw, topic):
    """Clients that forget a producer with the error got its CLOSE_PRODUCER before."""
    producer = raw.create_producer(topic)
    stored = producer.send(b"before")

    async def stop(running: Any) -> None:
        running.services.topics.open_topics[topic].ledger.stop_appends()

    broker.call(stop)
    with pytest.raises(SendRefusedError, match="terminated"):
        producer.send(b"after")
    assert raw.wait_unsolicited(BaseCommand.CLOSE_PRODUCER).producer_id == producer.producer_id
    assert rest(broker, "POST", topic, "/terminate")[1]["entryId"] == stored.entry_id


def test_consumers_learn_that_they_have_read_it_all(broker, raw, topic):
    """With the end, with a FLOW, and with the last acknowledgement, and not before."""
    producer = raw.create_producer(topic)
    producer.send(b"0")
    producer.send(b"1")
    behind = raw.subscribe(topic, "behind", sub_type=Sub.Shared, earliest=True)
    raw.subscribe(topic, "caught-up")
    behind.flow(10)
    first, second = behind.receive_many(2)
    rest(broker, "POST", topic, "/terminate")
    assert raw.wait_unsolicited(END).consumer_id != behind.consumer_id
    behind.ack(first.message_id)
    behind.ack(second.message_id)
    assert raw.wait_unsolicited(END).consumer_id == behind.consumer_id
    late = raw.subscribe(topic, "late")
    late.flow(1)
    assert raw.wait_unsolicited(END).consumer_id == late.consumer_id


def test_the_end_is_durable(tmp_path, topic):
    """After a restart the topic is readable and still ended; a deleted one may begin again."""
    for generation in range(2):
        with (
            running_broker(data_dir=tmp_path / "data") as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            if not generation:
                client.create_producer(topic).send(b"x")
                answer = rest(broker, "POST", topic, "/terminate")
                continue
            with pytest.raises(RequestRefusedError, match="TopicTerminatedError"):
                client.create_producer(topic)
            assert rest(broker, "POST", topic, "/terminate") == answer
            assert rest(broker, "GET", topic, "/internalStats")[1]["state"] == "Terminated"
            consumer = client.subscribe(topic, "s", earliest=True)
            consumer.flow(1)
            assert bytes(consumer.receive().headers_and_payload).endswith(b"x")
            assert rest(broker, "DELETE", topic, "?force=true")[0] == 204
            client.create_producer(topic).send(b"y")


def test_an_end_that_cannot_be_stored_ends_nothing(broker, raw, topic):
    """If the catalog refuses the end, producers go on as before."""
    producer = raw.create_producer(topic)

    async def failing(running):
        topics = running.services.topics
        writer = topics.catalog_writer
        opened = topics.open_topics[topic]

        async def refuse(*_: object, **__: object) -> None:
            raise CatalogError(Path("catalog"), "refused")

        writer.write, kept = refuse, writer.write
        try:
            with pytest.raises(CatalogError):
                await topics.terminate(opened)
        finally:
            writer.write = kept
        return opened.terminated_at

    assert broker.call(failing) is None
    assert producer.send(b"still there").entry_id == 0


def test_appends_from_anywhere_are_refused(broker, raw, topic):
    """Also code that appends without a producer gets a typed error."""
    raw.create_producer(topic)
    rest(broker, "POST", topic, "/terminate")

    async def append(running):
        with pytest.raises(TopicTerminatedError):
            running.services.topics.open_topics[topic].ledger.append(b"x")

    broker.call(append)


def test_partitions_end_together(broker, raw, topic):
    """A partitioned topic has a route of its own; the plain one refuses it, and the other way."""
    status, _ = put(broker, topic, "/partitions", 2)
    assert status == 204
    raw.create_producer(f"{topic}-partition-0").send(b"x")
    assert rest(broker, "POST", topic, "/terminate")[0] == 405
    status, ends = rest(broker, "POST", topic, "/terminate/partitions")
    assert (status, ends["0"]["entryId"], ends["1"]["entryId"]) == (200, 0, -1)
    assert rest(broker, "POST", f"{topic}-partition-0", "/terminate/partitions")[0] == 405
    with pytest.raises(RequestRefusedError, match="TopicTerminatedError"):
        raw.create_producer(f"{topic}-partition-1")


def put(broker, name, route, body):
    """A PUT with a JSON body."""
    url = f"{broker.http_url}/admin/v2/{name.replace('://', '/')}{route}"
    request = urllib.request.Request(url, json.dumps(body).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.read()


def test_new_partitions_get_the_subscriptions_of_the_first(broker, raw, topic):
    """What is sent to a new partition before consumers notice it waits for them."""
    put(broker, topic, "/partitions", 1)
    raw.subscribe(f"{topic}-partition-0", "s")
    raw.subscribe(f"{topic}-partition-0", "reader", durable=False)
    url = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    request = urllib.request.Request(url, b"3", {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 204
    raw.create_producer(f"{topic}-partition-2").send(b"early")
    assert rest(broker, "GET", f"{topic}-partition-2", "/subscriptions") == (200, ["s"])
    consumer = raw.subscribe(f"{topic}-partition-2", "s")
    consumer.flow(1)
    assert bytes(consumer.receive().headers_and_payload).endswith(b"early")
