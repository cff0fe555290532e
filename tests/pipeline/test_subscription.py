"""A stream's subscription in a real broker: it follows the checkpoint, and holds what is unread."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.client import AdminClient, RawProducer
from pulsemark.ledger import FolderReader, StoreOptions
from pulsemark.pipeline.errors import JobFailedError, OptionError
from pulsemark.pipeline.options import StreamOptions
from pulsemark.pipeline.source import LedgerSource
from pulsemark.testing.raw_messages import BatchMember, batched_message

TOPIC = "persistent://public/default/orders"


class World:
    """A broker, its folder, and a stream of one topic."""

    def __init__(self, broker: BrokerThread, folder: Path, tools: Any) -> None:
        self.broker = broker
        self.folder = folder
        self.admin = AdminClient(broker.http_url)
        self._tools = tools

    def publish(self, count: int, *, batch: int = 1) -> None:
        """Entries of `batch` messages each."""
        body = batched_message([BatchMember(payload=b"x")] * batch, publish_time_ms=1)
        with RawProducer(self.broker.service_url, TOPIC) as producer:
            for _ in range(count):
                producer.publish(body, num_messages=batch)
            producer.flush()

    def reader(self, **options: str) -> Any:
        """The stream's reader, as after a start of the driver."""
        given = {"path": str(self.folder), "topic": "orders", "columns": "__index"}
        given |= {"startingOffsets": "earliest", "adminUrl": self.broker.http_url, **options}
        if "predefinedSubscription" not in given:
            given["subscriptionName"] = "spark"
        if "topicsPattern" in given:
            del given["topic"]
        return LedgerSource(given).streamReader(self._tools.spark_schema(["__index"]))

    def backlog(self) -> int:
        """As the tools show it."""
        return self.admin.backlog(TOPIC, "spark")


@pytest.fixture
def world(tmp_path: Path, tools: Any) -> Iterator[World]:
    """With a topic that has no message."""
    folder = tmp_path / "data"
    config = BrokerConfig(
        data_dir=folder, port=0, http_port=0, store_options=StoreOptions(ledger_entries=4)
    )
    with BrokerThread(config) as broker:
        found = World(broker, folder, tools)
        found.admin.create_topic(TOPIC)
        yield found


def batch(reader: Any, start: Any) -> Any:
    """Where the next micro-batch ends; offsets go through JSON, as in a checkpoint."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert reader.partitions(start, end) or end == start
    return json.loads(json.dumps(end))


def test_it_follows_the_checkpoint_and_is_never_ahead(world: World) -> None:
    """Created where the query starts; moved once Spark goes on; also after a kill."""
    world.publish(10)
    reader = world.reader(maxOffsetsPerTrigger="4")
    start = reader.initialOffset()
    assert world.backlog() == 10
    first = batch(reader, start)
    assert world.backlog() == 10  # the batch may run, and is in no checkpoint
    second = batch(reader, first)
    assert world.backlog() == 6
    reader.commit(second)
    assert world.backlog() == 2
    again = world.reader()
    assert again.partitions(first, second)  # the last batch runs again
    assert world.backlog() == 2
    third = batch(again, second)
    again.commit(third)
    assert world.backlog() == 0
    world.publish(3)
    assert world.backlog() == 3
    assert batch(again, third)[TOPIC]["index"] == 13


def test_a_place_inside_a_batch_is_its_beginning(world: World) -> None:
    """What is half read is not acknowledged."""
    world.publish(3, batch=5)
    reader = world.reader(startingOffsets="7")
    start = reader.initialOffset()
    assert world.backlog() == 2  # entries
    reader.commit({TOPIC: {**start[TOPIC], "index": 10}})
    assert world.backlog() == 1
    reader.commit({TOPIC: {**start[TOPIC], "index": 14}})
    assert world.backlog() == 1
    reader.commit({TOPIC: {**start[TOPIC], "index": 15}})
    assert world.backlog() == 0


def test_a_new_query_moves_it_and_a_new_topic_has_it(world: World) -> None:
    """To where that query starts, forth and back; a topic that appears is held from its first."""
    world.publish(10)
    world.reader(startingOffsets="latest").initialOffset()
    assert world.backlog() == 0
    reader = world.reader(topicsPattern="orders.*", startingOffsets='{"orders": 4}')
    start = reader.initialOffset()
    assert world.backlog() == 6
    other = f"{TOPIC}-2"
    world.admin.create_topic(other)
    end = batch(reader, start)
    assert world.admin.subscriptions(other) == ["spark"]
    assert other not in end  # it has no message yet


def test_a_predefined_one_has_to_exist(world: World) -> None:
    """In each topic; it is moved, and not created."""
    with pytest.raises(OptionError, match=r"predefinedSubscription = 'spark': .*/orders has no"):
        world.reader(predefinedSubscription="spark").initialOffset()
    assert world.admin.subscriptions(TOPIC) == []
    world.admin.create_subscription(TOPIC, "spark")
    world.publish(5)
    reader = world.reader(predefinedSubscription="spark", startingOffsets="2")
    reader.initialOffset()
    assert world.backlog() == 3


def test_a_broker_that_is_away_does_not_stop_a_running_query(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A new one needs it; a running one logs, and moves it later, also if it was removed."""
    world.publish(6)
    with pytest.raises(JobFailedError, match="'spark' cannot be moved: cannot connect to"):
        world.reader(adminUrl="http://127.0.0.1:1").initialOffset()
    start = world.reader().initialOffset()
    away = world.reader(adminUrl="http://127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        end = batch(away, start)
        away.commit(end)
    assert "'spark' cannot be moved" in caplog.text
    reader = world.reader()
    world.admin.delete_subscription(TOPIC, "spark")
    batch(reader, end)
    assert world.backlog() == 0
    world.admin.delete_subscription(TOPIC, "spark")
    reader.commit(start)  # the first call finds that it is gone, the next one makes it again
    reader.commit(start)
    assert world.backlog() == 6


def test_retention_does_not_overtake_the_stream(world: World) -> None:
    """What no subscription needs is removed; what the query has not read yet stays."""
    resource = "persistent/public/default/orders"
    reader = world.reader(maxOffsetsPerTrigger="9")
    assert reader.initialOffset() == {}
    world.publish(30)
    seen: list[int] = []
    offset: Any = {}
    while len(seen) < 30:
        world.admin.request("POST", f"{resource}/trim")
        end = batch(reader, offset)
        for part in reader.partitions(offset, end):
            seen += [n for rows in reader.read(part) for n in rows["__index"].to_pylist()]
        offset = end
    assert seen == list(range(30))
    reader.commit(offset)
    world.admin.request("POST", f"{resource}/trim")
    with FolderReader(world.folder) as folder:
        assert folder.log(TOPIC).first_index > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscriptionName": "s"}, "adminUrl: is required with subscriptionName: http://HOST"),
        ({"predefinedSubscription": "s"}, "adminUrl: is required with predefinedSubscription"),
        ({"adminUrl": "http://h:1"}, "needs the option subscriptionName or predefinedSubscription"),
        ({"admin.url": "pulsar://h:1", "subscriptionName": "s"}, "'pulsar://h:1': is not of the"),
        ({"subscriptionName": " ", "adminUrl": "http://h:1"}, "subscriptionName = ' ': is empty"),
        ({"subscriptionName": "s", "predefinedSubscription": "p"}, "excludes subscriptionName"),
        ({"token": "t"}, "token = 't': needs the option grpcUrl"),
    ],
)
def test_wrong_options_name_the_right_ones(options: dict[str, str], message: str) -> None:
    """Before anything is read."""
    with pytest.raises(OptionError, match=message):
        StreamOptions.parse({"path": "/x", "topic": "a", **options})
