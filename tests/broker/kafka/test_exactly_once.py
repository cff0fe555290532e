"""Consume, transform, produce: each input once in the committed output, whatever is killed."""

from __future__ import annotations

import copy
import importlib.util
import random
from pathlib import Path
from types import ModuleType

import pytest

from pulsemark.ledger import EARLIEST, EntryKind, FolderReader
from pulsemark.testing import BrokerProcess
from pulsemark.testing.raw_kafka import RawKafka

from .conftest import records_of
from .handlers.test_transactions import Producer, fetch, make, offset_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "kafka_exactly_once.py"
COUNT = 100


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example's worker and reader."""
    spec = importlib.util.spec_from_file_location("kafka_exactly_once", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_order_is_settled_once_though_broker_and_worker_are_killed(example):
    """kill -9 of either or both, wherever they are; committed readers see no aborted record."""
    chance = random.Random(5)
    with BrokerProcess(kafka=True) as broker:
        example.publish_orders(broker.kafka_url, COUNT)
        worker = example.start_worker(broker.kafka_url)
        for kill, what in enumerate((1, 2, 0)):
            example.settlements(broker.kafka_url, kill * COUNT // 4 + chance.randrange(20))
            if what:
                worker.kill()
                worker.wait()
                worker = example.start_worker(broker.kafka_url)
            if what != 1:
                broker.kill()
                broker.start()
        found = example.settlements(broker.kafka_url, COUNT)
        worker.kill()
        worker.wait()
        assert sorted(found) == list(range(COUNT))
        broker.stop()
        with FolderReader(broker.data_dir) as reader:
            log = reader.log(f"{example.SETTLED}-partition-0")
            shown = log.read_stable(EARLIEST, max_entries=100_000)
            data = [each for each in shown if each.kind is EntryKind.DATA]
            assert sum(each.message_count for each in data) == COUNT


STEPS = {
    "a batch": lambda one: one.send("orders", b"a", b"b", version=12),
    "offsets": lambda one: one.commit_offset("g", "orders", 3, version=5),
    "a commit": lambda one: one.end(commits=True, version=5),
    "the next batch": lambda one: one.send("orders", b"c", version=12),
    "an abort": lambda one: one.end(commits=False, version=5),
    "the next epoch": lambda one: one.init(claims=True),
}
"""Two transactions of a client of Kafka 4 (KIP-890)."""


def test_a_broker_that_is_killed_after_each_step_has_each_step_once():
    """kill -9 after each step; the client has no answer, and sends that step again."""
    with BrokerProcess(kafka=True) as broker:
        raw = RawKafka.from_url(broker.kafka_url)
        producer = Producer(raw, "t")
        assert producer.init() == 0
        make(raw, "orders")
        for name, step in STEPS.items():
            before = copy.copy(producer)
            before.sequences = dict(producer.sequences)
            assert step(producer) == 0
            raw.close()
            broker.kill()
            broker.start()
            after = producer.producer_id, producer.epoch
            raw = before.raw = RawKafka.from_url(broker.kafka_url)
            producer = before
            make(raw, "orders")
            while (code := step(producer)) == 51:
                pass
            assert code == 0, name
            assert (producer.producer_id, producer.epoch) == after, name
        assert producer.send("orders", b"d", version=12) == 0
        assert producer.end(commits=True, version=5) == 0
        got = fetch(raw, "orders")
        values = [value for _, value in records_of(got.records) if len(value) == 1]
        assert values == [b"a", b"b", b"c", b"d"]
        assert len(got.aborted_transactions) == 1
        assert got.last_stable_offset == got.high_watermark
        assert offset_of(raw, "g", "orders", stable=True) == (0, 3)
        raw.close()
