"""The policy `leaderEpochs`: an epoch begins when a broker takes a topic over, and only then."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import Broker, BrokerThread
from pulsemark.broker.policies.own_policies import EPOCHS
from pulsemark.client import RequestRefusedError
from pulsemark.ledger import CatalogError, FolderReader, MemoryFolder
from pulsemark.ledger.store import CONTROL_NOTE_KIND
from pulsemark.proto.pulsar_api_pb2 import ServerError
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/orders"


def path_of(topic: str, rest: str = "") -> str:
    """The admin interface's path of a topic."""
    return f"/admin/v2/{topic.replace('://', '/')}{rest}"


def ask(broker: Any, method: str, path: str, value: Any = None) -> Any:
    """The broker's JSON answer."""
    body = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(broker.http_url + path, body, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def epochs(broker: Any, topic: str = TOPIC) -> list[tuple[int, int]]:
    """Epochs and first indexes."""
    found = ask(broker, "GET", path_of(topic, "/epochs"))["epochs"]
    return [(each["epoch"], each["firstIndex"]) for each in found]


def publish(broker: Any, count: int = 3, topic: str = TOPIC) -> None:
    """Publish some messages."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        for number in range(count):
            producer.send(b"%d" % number)


class Process:
    """A broker in a process of its own, which can be killed."""

    def __init__(self, folder: Path) -> None:
        command = [
            sys.executable, "-m", "pulsemark", "standalone", "--port", "0", "--http-port", "0",
            "--json", "--leader-epochs", "--data-dir", str(folder),
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.service_url, self.http_url = ready["service_url"], ready["http_url"]

    def end(self, *, orderly: bool) -> None:
        """By SIGTERM or by SIGKILL."""
        self.process.terminate() if orderly else self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "killed"])
def test_each_process_that_takes_over_begins_an_epoch(tmp_path: Path, orderly: bool) -> None:
    """Before it takes another entry, however the process before it ended; the creator begins none.

    Messages and backlogs are those of the producers.
    """
    expected = [(0, 0)]
    for number in range(3):
        broker = Process(tmp_path / "data")
        try:
            if not number:
                with RawClient.from_url(broker.service_url) as client:
                    client.subscribe(TOPIC, "s", earliest=True)
            else:
                expected.append((number, 4 * number - 1))
            assert epochs(broker) == (expected if number else [])
            publish(broker)
            assert epochs(broker) == expected
            stats = ask(broker, "GET", path_of(TOPIC, "/stats"))
            assert stats["subscriptions"]["s"]["msgBacklog"] == 3 * (number + 1)
        finally:
            broker.end(orderly=orderly)
    with FolderReader(tmp_path / "data") as reader:
        leaders = [each.leader for each in reader.log(TOPIC).epochs]
    assert leaders[0] == ""
    assert len(set(leaders)) == 3


def test_off_by_default_nothing_is_added(tmp_path: Path) -> None:
    """A restarted broker adds no entry, and no index is missing."""
    for _ in range(2):
        with running_broker(data_dir=tmp_path / "data") as broker:
            publish(broker)
            assert epochs(broker) == [(0, 0)]
    with FolderReader(tmp_path / "data") as reader:
        assert reader.log(TOPIC).next_index == 6


def test_a_topic_that_is_opened_again_by_the_same_broker_goes_on(tmp_path: Path) -> None:
    """After a topic is deleted and created again, its epochs start again."""
    with running_broker(leader_epochs_enabled=True, data_dir=tmp_path / "data") as broker:
        publish(broker)
    with running_broker(leader_epochs_enabled=True, data_dir=tmp_path / "data") as broker:
        publish(broker)
        publish(broker)
        assert epochs(broker) == [(0, 0), (1, 3)]
        ask(broker, "DELETE", path_of(TOPIC, "?force=true"))
        publish(broker)
        assert epochs(broker) == [(0, 0)]


def test_in_memory_too() -> None:
    """A broker that takes over a folder in memory begins an epoch."""
    memory = MemoryFolder()
    for number in range(3):
        with running_broker(storage="memory", memory=memory, leader_epochs_enabled=True) as broker:
            publish(broker)
            assert epochs(broker)[-1] == (number, max(4 * number - 1, 0))


@pytest.fixture
def taken_over(tmp_path: Path) -> Iterator[BrokerThread]:
    """A broker that took three topics over: two of one namespace, one of them partitioned."""
    with running_broker(data_dir=tmp_path / "data") as before:
        ask(before, "PUT", path_of(TOPIC, "-parts/partitions"), 2)
        publish(before)
        for part in range(2):
            publish(before, topic=f"{TOPIC}-parts-partition-{part}")
    with running_broker(data_dir=tmp_path / "data") as broker:
        yield broker


def test_switched_on_for_an_open_topic(taken_over: BrokerThread) -> None:
    """The epoch begins at once if the broker took the topic over, and only once."""
    assert epochs(taken_over) == [(0, 0)]
    for _ in range(2):
        ask(taken_over, "POST", path_of(TOPIC, "/leaderEpochs"), True)
        assert epochs(taken_over) == [(0, 0), (1, 3)]
        ask(taken_over, "POST", path_of(TOPIC, "/leaderEpochs"), False)
    part = f"{TOPIC}-parts-partition-1"
    ask(taken_over, "POST", path_of(TOPIC, "-parts/leaderEpochs"), True)
    assert epochs(taken_over, part) == [(0, 0), (1, 3)]


def test_three_levels(taken_over: BrokerThread, tmp_path: Path) -> None:
    """The topic's policy, else the namespace's, else the broker's; over a restart."""
    namespace = "/admin/v2/namespaces/public/default/leaderEpochs"
    topic, applied = path_of(TOPIC, "/leaderEpochs"), path_of(TOPIC, "/leaderEpochs?applied=true")
    assert ask(taken_over, "GET", namespace) is None
    assert ask(taken_over, "GET", topic) is None
    assert ask(taken_over, "GET", applied) is False
    assert epochs(taken_over, f"{TOPIC}-parts-partition-0") == [(0, 0)]
    ask(taken_over, "POST", topic, False)
    ask(taken_over, "POST", namespace, True)
    assert ask(taken_over, "GET", namespace) is True
    assert ask(taken_over, "GET", applied) is False
    assert epochs(taken_over) == [(0, 0)]
    assert epochs(taken_over, f"{TOPIC}-parts-partition-0") == [(0, 0), (1, 3)]
    ask(taken_over, "DELETE", topic)
    assert ask(taken_over, "GET", applied) is True
    assert epochs(taken_over) == [(0, 0), (1, 3)]
    taken_over.close()
    with running_broker(data_dir=tmp_path / "data") as after:
        assert epochs(after) == [(0, 0), (1, 3), (2, 4)]
        ask(after, "DELETE", namespace)
        assert ask(after, "GET", applied) is False


@pytest.mark.parametrize("value", ["yes", 1, 0, None, [], {"enabled": True}])
def test_a_bad_value_is_refused(broker: BrokerThread, http: Callable[..., Any], value: Any) -> None:
    """400 with the policy's name, for namespaces, topics and new namespaces."""
    publish(broker)
    body = json.dumps(value).encode()
    for path in ("/admin/v2/namespaces/public/default", path_of(TOPIC)):
        answer = http("POST", f"{path}/leaderEpochs", raw_body=body)
        assert (answer.status, answer.json["reason"][:13]) == (400, "leaderEpochs:")
    if value is not None:
        settings = {"leaderEpochs": value}
        answer = http("PUT", "/admin/v2/namespaces/public/unmade", settings)
        assert answer.status == 400
    assert http("GET", "/admin/v2/namespaces/public/unmade").status == 404


def test_paths_that_have_no_policy(broker: BrokerThread, http: Callable[..., Any]) -> None:
    """Topics and namespaces that do not exist, partitions, and the log of a partitioned topic."""
    assert http("GET", path_of(TOPIC, "-absent/leaderEpochs")).status == 404
    assert http("GET", path_of(TOPIC, "-absent/epochs")).status == 404
    assert http("POST", "/admin/v2/namespaces/public/absent/leaderEpochs", True).status == 404
    assert http("PUT", path_of(TOPIC, "-parted/partitions"), 2).status == 204
    assert http("POST", path_of(TOPIC, "-parted-partition-0/leaderEpochs"), True).status == 412
    assert http("GET", path_of(TOPIC, "-parted/epochs")).status == 405
    assert http("PUT", "/admin/v2/namespaces/public/epochs", {"leaderEpochs": True}).status == 204


def test_if_the_epoch_cannot_begin_only_producers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers read; a producer gets in as soon as the control entry can be stored."""
    with running_broker(data_dir=tmp_path / "data") as broker:
        publish(broker)
    with (
        running_broker(data_dir=tmp_path / "data", leader_epochs_enabled=True) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):

        def full(*_: object) -> None:
            raise CatalogError(tmp_path, "full")

        catalog = type(broker.broker.store.catalog)
        with monkeypatch.context() as patch:
            patch.setattr(catalog, "put", full)
            consumer = client.subscribe(TOPIC, "s", earliest=True)
            consumer.flow(10)
            assert len(consumer.receive_many(3)) == 3
            with pytest.raises(RequestRefusedError) as refused:
                client.create_producer(TOPIC)
            assert refused.value.error == ServerError.PersistenceError
            assert "leader epoch" in str(refused.value)
            assert epochs(broker) == [(0, 0)]
        client.create_producer(TOPIC).send(b"x")
        assert epochs(broker) == [(0, 0), (1, 3)]
        assert len(consumer.receive_many(1)) == 1


def test_producers_that_are_open_are_refused_too(
    taken_over: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the mark cannot be stored when the policy is set, they must open again to publish."""
    catalog = type(taken_over.broker.store.catalog)
    put = catalog.put

    def full(self: Any, kind: str, *arguments: Any) -> Any:
        if kind == CONTROL_NOTE_KIND:
            raise CatalogError(Path("catalog"), "full")
        return put(self, kind, *arguments)

    with RawClient.from_url(taken_over.service_url) as client:
        producer = client.create_producer(TOPIC)
        with monkeypatch.context() as patch:
            patch.setattr(catalog, "put", full)
            ask(taken_over, "POST", path_of(TOPIC, "/leaderEpochs"), True)
            assert ask(taken_over, "GET", path_of(TOPIC, "/stats"))["publishers"] == []
            producer.post(unbatched_message(b"late", publish_time_ms=1))
        client.create_producer(TOPIC).send(b"x")
    assert epochs(taken_over) == [(0, 0), (1, 3)]
    assert ask(taken_over, "GET", path_of(TOPIC, "/epochs"))["nextIndex"] == 5


def test_a_caller_that_goes_away_leaves_the_beginning_to_the_next_one(
    taken_over: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One epoch begins, and the producer that comes meanwhile is not refused."""
    epochs(taken_over)  # opens the topic
    catalog = type(taken_over.broker.store.catalog)
    is_storing, may_store = threading.Event(), threading.Event()
    put = catalog.put

    def slow(*arguments: Any, **options: Any) -> Any:
        is_storing.set()
        assert may_store.wait(60)
        return put(*arguments, **options)

    async def begin_twice(running: Broker) -> None:
        topics = running.services.topics
        topics.policies[EPOCHS].default = True
        topic = topics.open_topics[TOPIC]
        monkeypatch.setattr(catalog, "put", slow)
        gone = asyncio.ensure_future(topics.leader_epochs.begin_if_due(topic))
        assert await asyncio.to_thread(is_storing.wait, 60)
        gone.cancel()
        following = asyncio.ensure_future(topics.leader_epochs.begin_if_due(topic))
        await asyncio.sleep(0.05)
        may_store.set()
        await following

    taken_over.call(begin_twice)
    assert epochs(taken_over) == [(0, 0), (1, 3)]


def test_a_broker_with_many_topics_opens_only_those_in_use(tmp_path: Path) -> None:
    """A policy for a namespace begins epochs in open topics; others follow when they are opened."""
    with running_broker(data_dir=tmp_path / "data") as broker:
        for number in range(5):
            publish(broker, 1, f"{TOPIC}{number}")
    with running_broker(data_dir=tmp_path / "data") as broker:
        publish(broker, 1, f"{TOPIC}0")
        ask(broker, "POST", "/admin/v2/namespaces/public/default/leaderEpochs", True)

        async def opened(running: Broker) -> int:
            return len(running.services.topics.open_topics)

        assert broker.call(opened) == 1
        assert epochs(broker, f"{TOPIC}0") == [(0, 0), (1, 2)]
        assert epochs(broker, f"{TOPIC}1") == [(0, 0), (1, 1)]
