"""Subscriptions follow a mirror: what was read in the source is not read again in the target."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsemark.broker import BrokerThread
from pulsemark.ledger import LocalStore, Position
from pulsemark.metadata import control_of
from pulsemark.mirror import (
    EndpointError,
    MirrorRun,
    Options,
    Pace,
    Report,
    Selection,
    open_carrier,
    open_source,
    open_target,
)
from pulsemark.testing import PulsarBroker, RawClient, running_broker

from .conftest import CLUSTER, TOPIC, message, publish

SUB = "billing"


def carry(source: str, target: str, **options: Any) -> None:
    """Mirror once, with the subscriptions."""
    chosen = Options(source_cluster=CLUSTER, **options)
    opened = open_target(target, chosen)
    run = MirrorRun(
        open_source(source, chosen), opened, Selection((TOPIC,)), Pace(None),
        Report(lambda _: None), once=True, carrier=open_carrier(source, opened, chosen),
    )  # fmt: skip
    assert run.run()


def read(broker: BrokerThread, count: int, name: str = SUB) -> list[int]:
    """Receive and acknowledge so many messages of a subscription; their numbers."""
    with RawClient.from_url(broker.service_url) as client:
        consumer = client.subscribe(TOPIC, name, earliest=True)
        consumer.flow(count)
        found = []
        for _ in range(count):
            got = consumer.receive()
            found.append(int(bytes(got.headers_and_payload).rsplit(b" ", 1)[1]))
            consumer.ack(got.message_id, cumulative=True, wait=True)
        consumer.close()
    return found


def send(broker: BrokerThread, numbers: range) -> None:
    """Publish single messages with numbers."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC)
        for number in numbers:
            producer.send_raw(message(number))


def urls(source: BrokerThread, target: BrokerThread) -> dict[str, str]:
    """The options for two brokers."""
    return {
        "source_grpc": f"grpc://{source.grpc_url}",
        "target_grpc": f"grpc://{target.grpc_url}",
    }


def test_from_broker_to_broker_over_restarts(tmp_path: Path) -> None:
    """A consumer goes on in the target where it was in the source, though indexes differ: after
    each run, after restarts of both sides, forwards and back.
    """
    with ExitStack() as stack:

        def start(name: str) -> PulsarBroker:
            return stack.enter_context(running_broker(
                data_dir=tmp_path / name, grpc_port=0, leader_epochs_enabled=True,
                mirror_sources=(CLUSTER,),
            ))  # fmt: skip

        source, target = start("a"), start("b")
        send(source, range(20))
        assert read(source, 7) == list(range(7))
        carry(source.service_url, target.service_url, **urls(source, target))
        assert read(target, 3) == [7, 8, 9]  # a try of the failover
        assert read(source, 5) == list(range(7, 12))
        source.stop()
        source = start("a")  # begins an epoch: its indexes shift
        send(source, range(20, 30))
        carry(source.service_url, target.service_url, **urls(source, target))
        target.stop()
        target = start("b")
        assert read(target, 1) == [12]
        assert read(source, 18) == list(range(12, 30))
        carry(source.service_url, target.service_url, **urls(source, target))
        send(source, range(30, 33))
        carry(source.service_url, target.service_url, **urls(source, target))
        assert read(target, 3) == [30, 31, 32]


def test_from_folder_to_folder_at_every_position(tmp_path: Path) -> None:
    """Wherever the subscription is, the copy's next entry is the copy of its next one."""
    with LocalStore.open(tmp_path / "a") as store:
        log = store.open_topic(TOPIC)
        for number in range(9):
            if number % 3 == 2:
                log.begin_epoch(log.epoch + 1, leader="a").commit.wait(10)
            log.append(message(number)).commit.wait(10)
        entries = log.read(Position(0, 0))
        for number in range(len(entries) + 1):
            after = entries[number - 1].position if number else Position(0, -1)
            cursor = log.open_cursor(f"{SUB}-{number}", initial=after.following)
            cursor.reset(after.following)
            cursor.persist().wait(10)
    carry(str(tmp_path / "a"), str(tmp_path / "b"))
    with LocalStore.open(tmp_path / "b") as store:
        log = store.open_topic(TOPIC)
        bodies = [bytes(entry.body) for entry in log.read(Position(0, 0))]
        assert len(bodies) == 9
        for number in range(len(entries) + 1):
            left = [e for e in entries[number:] if control_of(e.prefix) is None]
            at = log.cursors[f"{SUB}-{number}"].mark_delete.following
            assert [bytes(e.body) for e in log.read(at)] == [bytes(e.body) for e in left]


def test_a_subscription_with_consumers_stays(tmp_path: Path) -> None:
    """Who reads in the target already is not disturbed; the others are moved."""
    with (
        running_broker(data_dir=tmp_path / "a", grpc_port=0) as source,
        running_broker(grpc_port=0, mirror_sources=(CLUSTER,)) as target,
        closing(pulsar.Client(target.service_url)) as client,
    ):
        send(source, range(9))
        assert read(source, 2) == [0, 1]
        assert read(source, 3, "other") == [0, 1, 2]
        carry(source.service_url, target.service_url, **urls(source, target))
        consumer = client.subscribe(TOPIC, SUB)
        assert read(source, 4) == [2, 3, 4, 5]
        assert read(source, 1, "other") == [3]
        carry(source.service_url, target.service_url, **urls(source, target))
        consumer.close()
        assert read(target, 1) == [2]
        assert read(target, 1, "other") == [4]


@pytest.mark.parametrize("missing", ["source", "target"])
def test_a_broker_needs_its_grpc_port(
    source: BrokerThread, target: BrokerThread, missing: str
) -> None:
    """The error names the option."""
    publish(source, range(2))
    given = {} if missing == "source" else {"source_grpc": "grpc://127.0.0.1:1"}
    with pytest.raises(EndpointError, match=f"--{missing}-grpc"):
        carry(source.service_url, target.service_url, **given)
