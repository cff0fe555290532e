"""Consume, transform, produce: each input once in the committed output, whatever is killed."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType

import pytest

from pulsemark.ledger import EARLIEST, EntryKind, FolderReader
from pulsemark.testing import BrokerProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_exactly_once.py"
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
