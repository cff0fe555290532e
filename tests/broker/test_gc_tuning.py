"""The garbage collector does not block the loop, and ended objects need no collector."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import urllib.request
from contextlib import contextmanager

import pytest

from pulsemark.broker import gc_tuning
from pulsemark.broker.connection.session import Session
from pulsemark.broker.gc_tuning import Collector
from pulsemark.broker.subscriptions.consumer import Consumer
from pulsemark.broker.subscriptions.dispatcher import Dispatcher
from pulsemark.broker.subscriptions.subscription import Subscription
from pulsemark.broker.topics.producers import Producer
from pulsemark.broker.topics.topic import Topic
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient, running_broker

KINDS = (Session, Producer, Consumer, Dispatcher, Subscription, Topic)
TYPES = (
    CommandSubscribe.Exclusive,
    CommandSubscribe.Shared,
    CommandSubscribe.Failover,
    CommandSubscribe.Key_Shared,
)


@contextmanager
def collections():
    """How often each generation is collected meanwhile."""
    seen = []

    def note(phase, info):
        if phase == "stop":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)


@pytest.fixture
def quick(monkeypatch):
    """Small figures: a few objects are many."""
    monkeypatch.setattr(gc_tuning, "INTERVAL_S", 0.01)
    monkeypatch.setattr(gc_tuning, "YOUNG_OBJECTS", 200)
    monkeypatch.setattr(gc_tuning, "OLD_OBJECTS", 500)
    monkeypatch.setattr(gc_tuning, "MAX_OLD_OBJECTS", 5_000)


class Circle:
    """Something that only the collector frees."""

    alive = 0

    def __init__(self):
        self.itself = self
        Circle.alive += 1

    def __del__(self):
        Circle.alive -= 1


def test_counting_does_not_disturb_what_other_threads_make():
    """Other threads make tuples of generators, step by step, while old objects are counted."""
    is_over, made, errors = threading.Event(), [0], []

    def make():
        while not is_over.is_set():
            try:
                tuple([number] for number in range(50))
            except SystemError as error:
                errors.append(error)
                return
            made[0] += 1

    threads = [threading.Thread(target=make) for _ in range(2)]
    before, kept = sys.getswitchinterval(), [[number] for number in range(20_000)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(100):
            gc.collect(1)
            gc_tuning.old_objects()
    finally:
        sys.setswitchinterval(before)
        is_over.set()
        for thread in threads:
            thread.join()
    assert (errors, made[0] > 0, len(kept)) == ([], True, 20_000)


async def test_full_collections_do_not_begin_by_themselves(quick):
    """However much is allocated, no full collection starts without a turn of the loop."""
    async with Collector(lambda: False):
        with collections() as seen:
            kept = [[number] for number in range(50_000)]
        assert seen.count(2) == 0
        assert seen.count(1) > 10
        # What grew old in one go was put aside without being looked at.
        assert gc_tuning.old_objects() <= 3 * gc_tuning.MAX_OLD_OBJECTS
        assert len(kept) == 50_000


async def test_what_survives_is_not_looked_at_again(quick):
    """Old objects are collected once in a while, and then frozen."""
    async with Collector(lambda: False):
        frozen = gc.get_freeze_count()
        kept = [[number] for number in range(2_000)]
        with collections() as seen:
            for _ in range(3_000):
                await asyncio.sleep(0.01)
                if 2 in seen:
                    break
        assert 2 in seen
        assert gc_tuning.old_objects() < gc_tuning.OLD_OBJECTS
        # Some of what was frozen before may have been freed meanwhile.
        assert gc.get_freeze_count() >= frozen + len(kept) // 2


async def test_without_clients_everything_is_collected(quick):
    """A circle that was frozen is found when no one is connected any more."""
    is_idle = False
    async with Collector(lambda: is_idle):
        kept = [Circle() for _ in range(5_000)]
        await asyncio.sleep(0.1)
        kept.clear()
        await asyncio.sleep(0.1)
        assert Circle.alive > 1_000
        is_idle = True
        await asyncio.sleep(0.1)
        assert not Circle.alive


async def test_the_collector_is_left_as_it_was_found():
    """Its thresholds and callbacks are restored, and nothing stays frozen."""
    before = gc.get_threshold(), len(gc.callbacks)
    async with Collector(lambda: False):
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() != before[0]
    assert (gc.get_threshold(), len(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0


def living(*kinds):
    """Objects of these kinds that are there."""
    return [found for found in gc.get_objects() if isinstance(found, kinds)]


def use(broker, number):
    """A connection with everything, that ends; then its topics are deleted."""
    with RawClient.from_url(broker.service_url) as client:
        topics = [f"persistent://public/default/{number}-{sub_type}" for sub_type in TYPES]
        for sub_type, topic in zip(TYPES, topics, strict=True):
            producer = client.create_producer(topic)
            for subscription, durable in (("s", True), ("reader", False)):
                consumer = client.subscribe(
                    topic, subscription, sub_type=sub_type, durable=durable, earliest=True
                )
                consumer.flow(10)
                producer.send(b"x")
                consumer.receive()
            consumer.redeliver()
            consumer.receive()
    for topic in topics:
        path = f"/admin/v2/{topic.replace('://', '/')}?force=true"
        request = urllib.request.Request(broker.http_url + path, method="DELETE")
        urllib.request.urlopen(request).close()


def test_what_the_broker_lets_go_of_needs_no_collector():
    """Sessions, producers, consumers, subscriptions and topics are in no circles when they end."""
    with running_broker() as broker:
        use(broker, 0)
        gc.collect()
        gc.disable()
        try:
            before = {id(found) for found in living(*KINDS)}
            for number in range(1, 4):
                use(broker, number)

            async def settled(_):
                for _ in range(100):
                    if all(id(found) in before for found in living(*KINDS)):
                        return True
                    await asyncio.sleep(0.05)
                return False

            is_settled = broker.call(settled)
            left = [type(found).__name__ for found in living(*KINDS) if id(found) not in before]
        finally:
            gc.enable()
    assert is_settled, left
