"""Which topics are mirrored: names, patterns, partitions."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.mirror import NoTopicsError, PartitionCountError, Selection
from pulsemark.testing import running_broker
from pulsemark.wire import InvalidTopicNameError

from .conftest import CLUSTER, Mirror, bodies_of, fill, message, publish

BASE = "persistent://public/default/"


def make_partitioned(broker: BrokerThread, topic: str, count: int, method: str = "PUT") -> None:
    """Create a partitioned topic; with POST it gets more partitions."""
    url = f"{broker.http_url}/admin/v2/persistent/public/default/{topic}/partitions"
    request = urllib.request.Request(url, json.dumps(count).encode(), method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 204


def test_a_pattern_brings_what_matches(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """A regular expression must match the whole name, as in Pulsar."""
    for name in ("orders-eu", "orders-us", "old-orders-eu", "invoices"):
        publish(source, range(1, 4), BASE + name)
    done = mirror(source.service_url, target.service_url, BASE + "orders-.*", regex=True)
    assert sorted(done.report.topics) == [BASE + "orders-eu", BASE + "orders-us"]
    assert done.entries == 6
    for name in ("orders-eu", "orders-us"):
        assert bodies_of(target.data_dir, BASE + name) == bodies_of(source.data_dir, BASE + name)


def test_several_names(tmp_path: Path, mirror: Mirror) -> None:
    """A list of names, in short and full form; each is mirrored once."""
    for name in ("a", "b", "c"):
        fill(tmp_path / "from", [(message(1), 1)], topic=BASE + name)
    done = mirror(tmp_path / "from", tmp_path / "to", "b", BASE + "a", "public/default/b")
    assert list(done.report.topics) == [BASE + "b", BASE + "a"]


def test_no_topic_matches(source: BrokerThread, tmp_path: Path, mirror: Mirror) -> None:
    """A pattern without a topic is an error that names the pattern."""
    publish(source, range(1))
    with pytest.raises(NoTopicsError, match=r"nothing-\.\*"):
        mirror(source.service_url, tmp_path / "b", "nothing-.*", regex=True)


@pytest.mark.parametrize(
    ("name", "regex", "reason"),
    [
        ("non-persistent://public/default/t", False, "persistent"),
        ("public/default/", False, "empty"),
        ("public/default/([", True, "not a pattern"),
    ],
)
def test_bad_names(name: str, regex: bool, reason: str) -> None:
    """What is no topic's name, or no pattern, is an error with the reason."""
    with pytest.raises(InvalidTopicNameError, match=reason):
        Selection((name,), is_regex=regex)


def test_partitions_go_one_by_one(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """A partitioned topic brings all its partitions; another number of them is refused first."""
    make_partitioned(source, "orders", 3)
    for index in range(3):
        publish(source, range(1, 3 + index), f"{BASE}orders-partition-{index}")
    with pytest.raises(PartitionCountError, match="3 partitions in the source and 0 in the target"):
        mirror(source.service_url, target.service_url, "orders")
    make_partitioned(target, "orders", 3)
    assert mirror(source.service_url, target.service_url, "orders").entries == 9
    for index in range(3):
        topic = f"{BASE}orders-partition-{index}"
        assert bodies_of(target.data_dir, topic) == bodies_of(source.data_dir, topic)
    make_partitioned(target, "invoices", 2)
    make_partitioned(source, "invoices", 4)
    with pytest.raises(PartitionCountError, match="4 partitions in the source and 2 in the target"):
        mirror(source.service_url, target.service_url, "invoices")


def test_partitions_of_folders(source: BrokerThread, tmp_path: Path, mirror: Mirror) -> None:
    """A folder learns the number of partitions, and a broker over it serves all of them."""
    make_partitioned(source, "orders", 3)
    publish(source, range(1, 4), f"{BASE}orders-partition-1")
    mirror(source.service_url, tmp_path / "b", "orders")
    mirror(tmp_path / "b", tmp_path / "c", "orders")
    with running_broker(data_dir=tmp_path / "c", mirror_sources=(CLUSTER,)) as broker:
        url = f"{broker.http_url}/admin/v2/persistent/public/default/orders/partitions"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert json.loads(answer.read())["partitions"] == 3
        publish(source, range(4, 6), f"{BASE}orders-partition-2")
        assert mirror(source.service_url, broker.service_url, "orders", append=True).entries > 0


def test_new_topics_are_found_later(
    source: BrokerThread, target: BrokerThread, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror that follows a pattern also brings topics that come while it runs."""
    monkeypatch.setattr("pulsemark.mirror.run.DISCOVERY_S", 0.05)
    publish(source, range(1, 3), BASE + "orders-1")
    turns = iter(range(2000))
    wanted = [BASE + "orders-1", BASE + "orders-2"]

    def is_stopped() -> bool:
        turn = next(turns)
        if turn == 3:
            publish(source, range(1, 5), BASE + "orders-2")
        return turn > 20 and all(topic in mirrored(target) for topic in wanted)

    done = mirror(
        source.service_url,
        target.service_url,
        BASE + "orders-.*",
        regex=True,
        once=False,
        is_stopped=is_stopped,
    )
    assert sorted(done.report.topics) == wanted
    for topic in wanted:
        assert bodies_of(target.data_dir, topic) == bodies_of(source.data_dir, topic)


def test_new_partitions_wait_for_the_target(
    source: BrokerThread, target: BrokerThread, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the target has them too, the mirror says so once, and goes on without them."""
    monkeypatch.setattr("pulsemark.mirror.run.DISCOVERY_S", 0.05)
    parts = [f"{BASE}orders-partition-{index}" for index in range(3)]
    for broker in (source, target):
        make_partitioned(broker, "orders", 2)
    publish(source, range(1, 3), parts[0])
    lines: list[str] = []

    def story() -> Iterator[bool]:
        """What happens between the mirror's steps; true at its end."""
        while parts[0] not in mirrored(target):
            yield False
        make_partitioned(source, "orders", 3, "POST")
        publish(source, range(1, 5), parts[2])
        while not any(line.startswith("waits: ") for line in lines):
            yield False
        publish(source, range(1, 4), parts[1])
        while parts[1] not in mirrored(target):
            yield False
        make_partitioned(target, "orders", 3, "POST")
        while parts[2] not in mirrored(target):
            yield False
        while True:
            yield True

    mirror(
        source.service_url, target.service_url, "orders",
        once=False, is_stopped=story().__next__, lines=lines,
    )  # fmt: skip
    for part in parts:
        assert bodies_of(target.data_dir, part) == bodies_of(source.data_dir, part)
    told = [line for line in lines if line.startswith("waits: ")]
    assert len(told) == 1
    assert "3 partitions in the source and 2 in the target" in told[0]


def test_a_folder_gets_new_partitions(source: BrokerThread, tmp_path: Path, mirror: Mirror) -> None:
    """The next run brings them, and the folder knows their number."""
    make_partitioned(source, "orders", 2)
    publish(source, range(1, 3), f"{BASE}orders-partition-0")
    mirror(source.service_url, tmp_path / "b", "orders")
    make_partitioned(source, "orders", 3, "POST")
    publish(source, range(1, 5), f"{BASE}orders-partition-2")
    assert mirror(source.service_url, tmp_path / "b", "orders").entries == 4
    assert mirror(tmp_path / "b", tmp_path / "c", "orders").entries == 6


def mirrored(target: BrokerThread) -> list[str]:
    """Topics with entries in the target."""
    from pulsemark.ledger import FolderReader

    with FolderReader(target.data_dir) as reader:
        return reader.topics()
