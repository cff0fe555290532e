"""Key_Shared: one consumer per key, in order, while consumers come and leave."""

from __future__ import annotations

import gc
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pulsar
import pytest

from pulsemark.broker.subscriptions.consumer import Consumer
from pulsemark.broker.subscriptions.sticky_keys import (
    AutoSplit,
    StickyRanges,
    murmur3_32,
    sticky_hash,
)
from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe, IntRange, KeySharedMeta, KeySharedMode
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import MessageId

Key_Shared = CommandSubscribe.Key_Shared


@pytest.fixture
def other(broker):
    """A second connection."""
    with RawClient.from_url(broker.service_url) as connection:
        yield connection


def sticky(*ranges):
    """STICKY settings with these ranges."""
    return KeySharedMeta(
        keySharedMode=KeySharedMode.STICKY,
        hashRanges=[IntRange(start=start, end=end) for start, end in ranges],
    )


AUTO = KeySharedMeta(keySharedMode=KeySharedMode.AUTO_SPLIT)


def subscribe(client, topic, meta=AUTO, **options):
    """A Key_Shared consumer with many permits."""
    consumer = client.subscribe(
        topic, "s", sub_type=Key_Shared, keySharedMeta=meta, earliest=True, **options
    )
    consumer.flow(10_000)
    return consumer


def entry_ids(messages):
    """Entry ids of frames."""
    return [message.message_id.entry_id for message in messages]


@pytest.mark.parametrize(
    ("key", "full_hash"),
    [
        # Published test vectors of MurmurHash3_x86_32 with seed 0.
        (b"", 0),
        (b"test", 0xBA6BD213),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_the_hash_is_murmur3_cut_to_31_bits(key, full_hash):
    """Clients compute the same."""
    assert full_hash & 0x7FFFFFFF == murmur3_32(key)


def test_the_sticky_key_of_an_entry():
    """Ordering key before partition key (decoded where encoded) before producer and sequence."""
    plain = unbatched_message(b"x", publish_time_ms=1, key="k")
    encoded = unbatched_message(b"x", publish_time_ms=1, key="aw==", partition_key_b64_encoded=True)
    ordered = unbatched_message(b"x", publish_time_ms=1, key="other", ordering_key=b"k")
    bare = unbatched_message(b"x", publish_time_ms=1, producer_name="p", sequence_id=7)
    expected = murmur3_32(b"k") % 65536
    assert [expected] * 3 == [sticky_hash(body) % 65536 for body in (plain, encoded, ordered)]
    assert murmur3_32(b"p-7") == sticky_hash(bare)


def test_each_key_goes_to_one_consumer_in_order(raw, other, topic, drain):
    """300 messages of 20 keys, two consumers: no key on both, in order, nothing lost."""
    consumers = [subscribe(raw, topic), subscribe(other, topic)]
    producer = raw.create_producer(topic)
    for n in range(300):
        producer.post(unbatched_message(b"%d" % n, publish_time_ms=1, key=f"k{n % 20}"))
    producer.receipts(300)
    seen: list[dict[int, list[Any]]] = [defaultdict(list), defaultdict(list)]
    for place, consumer in enumerate(consumers):
        for entry_id in entry_ids(drain(consumer)):
            seen[place][entry_id % 20].append(entry_id)
    assert all(seen)
    assert not set(seen[0]) & set(seen[1])
    for key in range(20):
        assert list(range(key, 300, 20)) == (seen[0] | seen[1])[key]


def test_a_key_that_moves_waits_for_its_old_consumer(raw, other, topic, drain):
    """A newcomer gets a key's messages only after the old consumer has acknowledged its own."""
    first = subscribe(raw, topic, consumer_name="first")
    producer = raw.create_producer(topic)
    for n in range(40):
        producer.send(b"x", key=f"k{n}")
    old = {m.message_id.entry_id: m for m in drain(first)}
    assert len(old) == 40
    second = subscribe(other, topic, consumer_name="second")
    for n in range(40):
        producer.send(b"x", key=f"k{n}")
    stayed = entry_ids(drain(first))
    assert drain(second) == []
    assert 0 < len(stayed) < 40
    moved = sorted(set(range(40, 80)) - set(stayed))
    first.ack(*(old[entry_id - 40].message_id for entry_id in moved[:3]))
    assert moved[:3] == entry_ids(drain(second))
    first.ack(*(message.message_id for message in old.values()))
    assert moved[3:] == entry_ids(drain(second))


def test_a_consumer_that_leaves_hands_its_keys_on_in_order(raw, other, topic, drain):
    """The entries that it held come first, then new ones."""
    first = subscribe(raw, topic)
    second = subscribe(other, topic)
    producer = raw.create_producer(topic)
    for n in range(60):
        producer.send(b"x", key=f"k{n % 6}")
    lost = entry_ids(drain(first))
    kept = entry_ids(drain(second))
    first.close()
    assert sorted(lost) == entry_ids(drain(second))
    assert list(range(60)) == sorted(lost + kept)


def test_a_consumer_without_permits_holds_up_its_own_keys_only(raw, other, topic, drain):
    """The other consumer gets its messages; the waiting keys come later, in order."""
    stopped = raw.subscribe(topic, "s", sub_type=Key_Shared, keySharedMeta=sticky((0, 32767)))
    running = subscribe(other, topic, sticky((32768, 65535)))
    producer = raw.create_producer(topic)
    slots = []
    for n in range(100):
        body = unbatched_message(b"x", publish_time_ms=1, key=f"k{n % 10}")
        slots.append(sticky_hash(body) % 65536)
        producer.send_raw(body)
    assert [n for n in range(100) if slots[n] > 32767] == entry_ids(drain(running))
    stopped.flow(1000)
    assert [n for n in range(100) if slots[n] <= 32767] == entry_ids(drain(stopped))


def test_redelivery_keeps_the_key_on_its_consumer(raw, other, topic, drain):
    """A message given back comes again to the same consumer, counted."""
    first = subscribe(raw, topic, sticky((0, 32767)))
    second = subscribe(other, topic, sticky((32768, 65535)))
    producer = raw.create_producer(topic)
    for n in range(10):
        producer.send(b"x", key=f"k{n}")
    got = drain(first)
    assert got
    first.redeliver(got[0].message_id)
    (again,) = drain(first)
    assert (got[0].message_id, 1) == (again.message_id, again.command.redelivery_count)
    assert 10 - len(got) == len(drain(second))


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (sticky((0, 100)), sticky((100, 200)), "ConsumerAssignError"),
        (sticky((0, 100)), sticky((50, 60)), "ConsumerAssignError"),
        (sticky((0, 100)), AUTO, "ConsumerBusy"),
        (AUTO, sticky((0, 100)), "ConsumerBusy"),
        (sticky((0, 100)), sticky((5, 3)), "ConsumerAssignError"),
        (sticky((0, 100)), sticky(), "ConsumerAssignError"),
        (sticky((0, 100)), sticky((200, 300), (250, 260)), "ConsumerAssignError"),
        (sticky((0, 1)), sticky(*((n, n) for n in range(2, 1003))), "ConsumerAssignError"),
    ],
)
def test_ranges_must_fit_together(raw, other, topic, first, second, error):
    """Overlaps, invalid ranges and mixed modes are refused; the first consumer stays."""
    consumer = subscribe(raw, topic, first)
    with pytest.raises(RequestRefusedError) as caught:
        subscribe(other, topic, second)
    assert error == caught.value.error_name
    consumer.get_last_message_id()


def test_an_acknowledged_message_does_not_come_again(raw, topic, drain):
    """After a restart of the only consumer the rest comes, in order."""
    consumer = subscribe(raw, topic)
    producer = raw.create_producer(topic)
    ids = [MessageId(*producer.send(b"x", key=f"k{n % 3}")[1:3]) for n in range(9)]
    drain(consumer)
    consumer.ack(ids[1], ids[4])
    consumer.close()
    assert [n for n in range(9) if n not in (1, 4)] == entry_ids(drain(subscribe(raw, topic)))


def test_the_official_clients_key_shared_consumers(client, topic):
    """Two official consumers: every key on one of them, all messages there."""
    consumers = [
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.KeyShared) for _ in range(2)
    ]
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased
    )
    for n in range(200):
        producer.send_async(b"%d" % n, lambda *_: None, partition_key=f"k{n % 10}")
    producer.flush()
    keys = []
    for consumer in consumers:
        seen = defaultdict(list)
        while True:
            try:
                message = consumer.receive(300)
            except pulsar.Timeout:
                break
            seen[message.partition_key()].append(int(message.data()))
            consumer.acknowledge(message)
        keys.append(seen)
    assert not set(keys[0]) & set(keys[1])
    merged = keys[0] | keys[1]
    assert {f"k{k}": list(range(k, 200, 10)) for k in range(10)} == merged


# -- what it costs --------------------------------------------------------------------------------


@dataclass(eq=False)
class SelectorsView:
    """A consumer as the selectors see it."""

    name: str
    key_shared_meta: KeySharedMeta


def member_named(name: str, key_shared_meta: KeySharedMeta = AUTO) -> Consumer:
    """A consumer that has only what the selectors look at."""
    return cast("Consumer", SelectorsView(name, key_shared_meta))


def join_and_leave(selector, consumer):
    """One consumer comes and goes."""
    selector.add(consumer)
    selector.remove((consumer,))


def owners(selector):
    """The consumers of some slots."""
    return [selector.select(slot) for slot in range(0, 65536, 97)]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_ranges_are_what_select_answers(count):
    """Each slot from 1 on is in one range, that of its consumer; also after one has left."""
    selector = AutoSplit()
    members = [member_named(f"c{number}") for number in range(count + 1)]
    for member in members:
        selector.add(member)
    selector.remove(members[-1:])
    found = list(selector.ranges())
    for owner, first, last in found:
        assert {selector.select(slot) for slot in (first, (first + last) // 2, last)} == {owner}
    edges = [(first, last) for _, first, last in found]
    assert [first for first, _ in edges][:1] == [1][:count]
    assert [last for _, last in edges][-1:] == [65535][:count]
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(edges))
    assert all(one != other for (one, _, _), (other, _, _) in pairwise(found))


def test_a_join_costs_as_much_with_many_consumers_as_with_few(steps_of):
    """The points of others are not gone over when a consumer comes or goes."""
    selector = AutoSplit()
    counts = []
    for end in (20, 400):
        for number in range(end):
            selector.add(member_named(f"c{end}-{number}"))
        newcomer = member_named("newcomer")
        before = owners(selector)
        counts.append(steps_of(partial(join_and_leave, selector, newcomer)))
        assert owners(selector) == before
    assert counts[1] < 1.2 * counts[0]


def test_points_are_no_work_for_the_collector():
    """A full collection visits some objects for each consumer, and none for its 100 points."""
    selector = AutoSplit()
    members = [member_named(f"c{number}") for number in range(500)]
    gc.collect()
    before = len(gc.get_objects())
    for member in members:
        selector.add(member)
    gc.collect()
    assert len(gc.get_objects()) - before < 10 * len(members)


def test_consumers_of_one_name_all_have_slots_after_others_left():
    """A new consumer takes the points of the one that left, not of one that stays."""
    selector = AutoSplit()
    first, second, third = (member_named("same") for _ in range(3))
    selector.add(first)
    selector.add(second)
    selector.remove([first])
    selector.add(third)
    assert {second, third} == set(owners(selector))
    selector.remove([second])
    selector.remove([second])
    assert {third} == set(owners(selector))
    selector.remove([third])
    assert selector.select(5) is None


@pytest.mark.parametrize("going", [1, 5, 15, 29, 30])
def test_slots_are_the_same_whether_consumers_leave_together_or_one_by_one(going):
    """The slots of the remaining consumers do not depend on how the others left."""
    members = [member_named(f"c{number % 7}") for number in range(30)]
    together, single = AutoSplit(), AutoSplit()
    for member in members:
        together.add(member)
        single.add(member)
    leaving = members[::-1][:going]
    together.remove([*leaving, leaving[0]])
    for member in leaving:
        single.remove([member])
    assert owners(together) == owners(single)
    for newcomer in (member_named("c3"), member_named("new")):
        together.add(newcomer)
        single.add(newcomer)
    assert owners(together) == owners(single)


def test_many_sticky_ranges_go_together():
    """Others keep theirs, and those that were given back can be taken."""
    members = [member_named(str(n), sticky((10 * n, 10 * n + 9))) for n in range(300)]
    selector = StickyRanges()
    for member in members:
        selector.add(member)
    selector.remove(members[1::2])
    assert [selector.select(slot) for slot in range(0, 3000, 10)] == [
        None if number % 2 else member for number, member in enumerate(members)
    ]
    for member in members[1::2]:
        selector.add(member)
    assert [selector.select(slot) for slot in range(5, 3000, 10)] == members


def test_sticky_ranges_come_and_go():
    """A freed range can be used by another consumer; slots between ranges have none."""
    selector = StickyRanges()
    low, high = (
        member_named("low", sticky((0, 9), (30, 39))),
        member_named("high", sticky((10, 19))),
    )
    selector.add(low)
    selector.add(high)
    found = [selector.select(slot) for slot in (0, 9, 10, 19, 20, 29, 30, 39, 40)]
    assert found == [low, low, high, high, None, None, low, low, None]
    selector.remove([low])
    selector.remove([low])
    assert [selector.select(slot) for slot in (0, 10, 30)] == [None, high, None]
    selector.add(low)
    assert selector.select(35) is low


def test_what_a_consumer_left_unacknowledged_comes_at_the_others_pace(
    raw, other, broker, topic, steps_of, drain
):
    """A dispatch of ten of many waiting entries takes no more steps than ten of few."""
    counts = []
    for total in (1_000, 6_000):
        name = f"{topic}-{total}"
        leaving = subscribe(raw, name)
        staying = other.subscribe(name, "s", sub_type=Key_Shared, keySharedMeta=AUTO)
        producer = raw.create_producer(name)
        bodies = [
            unbatched_message(b"x", publish_time_ms=1, key=f"k{n % 200}") for n in range(total)
        ]
        producer.send_many(bodies)
        drain(leaving)
        leaving.close()

        async def send_ten(running, name=name):
            subscription = running.services.topics.open_topics[name].subscriptions["s"]
            (consumer,) = subscription.consumers
            waiting = len(subscription.dispatcher.waiting)
            return waiting, steps_of(lambda: subscription.flow(consumer, 10))

        waiting, steps = broker.call(send_ten)
        assert waiting > total // 4
        assert len(staying.receive_many(10)) == 10
        counts.append(steps)
    assert counts[1] < 1.5 * counts[0]


def test_auto_split_gives_each_key_to_the_consumer_that_pulsar_chooses():
    """Keys key-0 to key-29 over consumers a, b and c, as Apache Pulsar 4.0.8 distributed them."""
    seen = {
        "a": [1, 5, 6, 7, 11, 12, 14, 17, 18, 21, 22, 24, 26],
        "b": [0, 2, 3, 4, 9, 10, 15, 16, 19, 23, 25, 28],
        "c": [8, 13, 20, 27, 29],
    }
    selector = AutoSplit()
    for name in seen:
        selector.add(member_named(name))
    chosen: dict[str, list[int]] = {name: [] for name in seen}
    for number in range(30):
        slot = selector.slot_of(murmur3_32(f"key-{number}".encode()))
        if (consumer := selector.select(slot)) is not None:
            chosen[consumer.name].append(number)
    assert chosen == seen


def test_rules_of_a_consumer_that_differ_from_the_firsts_are_named(raw, other, topic):
    """Mode and out-of-order delivery; the text says what each of both asks for."""
    subscribe(raw, topic, sticky((0, 100)))
    asked = sticky((200, 300))
    asked.allowOutOfOrderDelivery = True
    for meta, text in (
        (AUTO, "key_shared mode of 'STICKY' is different than"),
        (asked, "does not allow out of order delivery while the connecting consumer allows it"),
    ):
        with pytest.raises(RequestRefusedError, match=text) as caught:
            subscribe(other, topic, meta)
        assert caught.value.error_name == "ConsumerBusy"
