"""Producers, consumers, subscriptions and topics begin once and end once."""

from __future__ import annotations

import asyncio

import pytest

from pulsemark.broker.cooperative import at_once
from pulsemark.broker.errors import RefusedError
from pulsemark.broker.topics.topic import TopicInUseError
from pulsemark.broker.topics.topic_names import NameLocks
from pulsemark.proto.pulsar_api_pb2 import (
    CommandError,
    CommandSubscribe,
    ProducerAccessMode,
    ServerError,
)
from pulsemark.wire import MessageId, TopicName, commands
from tests.support.simulated_broker import SimulatedBroker

TOPIC = "persistent://public/default/t"
Exclusive = ProducerAccessMode.Exclusive
WaitForExclusive = ProducerAccessMode.WaitForExclusive
BROKEN = bytes.fromhex("00000000")


@pytest.fixture
def broker(tmp_path):
    """A broker whose every step is controlled by the test."""
    simulated = SimulatedBroker(tmp_path / "data")
    yield simulated
    simulated.end()


def opened(client, broker, number, name="", topic=TOPIC, **options):
    """Open a producer and let everything happen; its last answer."""
    client.send(client.open_producer(number, topic, name, **options))
    broker.quiesce()
    return [answer for answers in client.answers.values() for answer in answers][-1]


def topic_of(broker, name=TOPIC):
    """The open topic."""
    return broker.topics.open_topics[name]


# -- producers ------------------------------------------------------------------------------------


def test_an_heir_on_a_lost_connection_does_not_inherit(broker):
    """Holder and successors of one connection go with it; the topic and their names are free."""
    first, other = broker.connect(), broker.connect()
    opened(first, broker, 1, "holder", access_mode=Exclusive)
    opened(first, broker, 2, "successor", access_mode=WaitForExclusive)
    opened(first, broker, 3, "successor's successor", access_mode=WaitForExclusive)
    broker.loop.do(first.ended)
    broker.quiesce()
    producers = topic_of(broker).producers
    assert (producers.by_name, producers.waiting, producers.exclusive) == ({}, {}, None)
    assert opened(other, broker, 1, "successor").producer_name == "successor"
    assert set(other.producers) == {1}


def test_an_heir_that_leaves_while_its_epoch_is_stored_is_passed_over(broker):
    """The next one that waits gets the topic, with an epoch of its own."""
    first, second, third = (broker.connect() for _ in range(3))
    opened(first, broker, 1, "holder", access_mode=Exclusive)
    opened(second, broker, 1, "successor", access_mode=WaitForExclusive)
    opened(third, broker, 1, "next", access_mode=WaitForExclusive)
    first.send(first.close_producer(1))
    broker.loop.settle()
    assert len(broker.work) == 1
    broker.loop.do(second.ended)
    broker.quiesce()
    assert topic_of(broker).producers.exclusive.name == "next"
    last = [answer for answers in third.answers.values() for answer in answers][-1]
    assert (last.producer_ready, last.topic_epoch) == (True, 2)


def test_an_owner_that_leaves_while_its_epoch_is_stored_lets_the_queue_move(broker):
    """A cancelled PRODUCER does not block the waiting producers: the next one is added."""
    first, second = broker.connect(), broker.connect()
    opened(second, broker, 1, "before")
    second.send(second.close_producer(1))
    broker.quiesce()
    first.send(first.open_producer(1, TOPIC, "owner", access_mode=Exclusive))
    broker.loop.settle()
    assert len(broker.work) == 1
    second.send(second.open_producer(2, TOPIC, "successor", access_mode=WaitForExclusive))
    broker.loop.settle()
    assert [each.name for each in topic_of(broker).producers.waiting] == ["successor"]
    broker.loop.do(first.ended)
    broker.quiesce()
    assert topic_of(broker).producers.exclusive.name == "successor"


@pytest.mark.parametrize("claimed", [(1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_an_epoch_that_no_topic_can_have_given_is_refused(broker, claimed):
    """It is not stored, and the topic continues with its own count."""
    client = broker.connect()
    answer = opened(client, broker, 1, access_mode=Exclusive, topic_epoch=claimed)
    assert answer.error == ServerError.ProducerFenced
    assert str(claimed) in answer.message
    assert opened(client, broker, 1, access_mode=Exclusive).topic_epoch == 0
    broker.restart()
    assert opened(broker.connect(), broker, 1, access_mode=Exclusive).topic_epoch == 1


def test_the_highest_epoch_that_is_taken_over_leaves_room_to_count(broker):
    """A new topic takes over its returning owner's epoch, as in Pulsar, and can count on."""
    client = broker.connect()
    for claimed, given in [(1 << 62, 1 << 62), (None, (1 << 62) + 1), ((1 << 62) + 1,) * 2]:
        answer = opened(client, broker, 1, access_mode=Exclusive, topic_epoch=claimed)
        assert answer.topic_epoch == given
        broker.restart()
        client = broker.connect()


def test_a_poisoned_epoch_of_an_earlier_version_is_cut(broker):
    """Earlier versions stored any epoch; the topic can be owned again."""
    opened(broker.connect(), broker, 1)
    broker.store.catalog.put("topic-epoch", TOPIC, str((1 << 64) - 1).encode())
    broker.restart()
    answer = opened(broker.connect(), broker, 1, access_mode=Exclusive)
    assert answer.topic_epoch == (1 << 62) + 1


def test_an_epoch_that_cannot_be_stored_changes_nothing(broker):
    """Its owner is refused, the next one gets the same epoch, and the queue moves on."""
    client = broker.connect()
    opened(client, broker, 1)
    client.send(client.close_producer(1))
    broker.quiesce()
    write = broker.store.catalog.write

    def fail(*arguments):
        raise OSError("no room")

    broker.store.catalog.write = fail
    client.send(client.open_producer(2, TOPIC, "owner", access_mode=Exclusive))
    broker.loop.settle()
    other = broker.connect()
    other.send(other.open_producer(1, TOPIC, "successor", access_mode=WaitForExclusive))
    broker.loop.settle()
    broker.work.release()
    broker.store.catalog.write = write
    broker.quiesce()
    assert 2 not in client.producers
    assert topic_of(broker).producers.exclusive.name == "successor"
    assert topic_of(broker).producers.topic_epoch == 0


def test_a_producer_closed_by_the_broker_while_it_opens_is_refused(broker):
    """After unloading a topic the broker has no producer that its client does not know."""
    client = broker.connect()
    opened(client, broker, 1)
    client.send(client.close_producer(1))
    broker.quiesce()
    client.send(client.open_producer(2, TOPIC, "owner", access_mode=Exclusive))
    broker.loop.settle()
    broker.loop.do(lambda: at_once(topic_of(broker).disconnect()))
    broker.quiesce()
    last = [answer for answers in client.answers.values() for answer in answers][-1]
    assert last.error == ServerError.ServiceNotReady
    assert (client.session.producers, topic_of(broker).producers.by_name) == ({}, {})


# -- consumers ------------------------------------------------------------------------------------


def test_unsubscribe_takes_effect_before_the_connection_ends(broker):
    """UNSUBSCRIBE and what breaks the connection in one read: no ghost keeps the place."""
    client, other = broker.connect(), broker.connect()
    client.send(client.subscribe(10, TOPIC, "s"))
    broker.quiesce()
    client.send(client.unsubscribe(10) + BROKEN)
    broker.quiesce()
    assert not client.is_connected
    assert topic_of(broker).subscriptions == {}
    other.send(other.subscribe(10, TOPIC, "s"))
    broker.quiesce()
    assert set(other.consumers) == {10}


def test_unsubscribe_on_shared_gives_back_what_the_consumer_held(broker):
    """A forced unsubscribe notifies the other consumers of a Shared subscription."""
    client, other = broker.connect(), broker.connect()
    for one, number in ((client, 10), (other, 11)):
        one.send(one.subscribe(number, TOPIC, "s", sub_type=CommandSubscribe.Shared))
        broker.quiesce()
    client.send(client.unsubscribe(10) + BROKEN)
    broker.quiesce()
    assert (other.consumers, other.session.consumers) == ({}, {})


@pytest.mark.parametrize("what", ["ack", "seek"])
def test_a_removed_subscription_is_not_written_again(broker, what):
    """An acknowledgement or a seek under way does not bring it back at the next start."""
    client = broker.connect()
    client.send(client.subscribe(10, TOPIC, "s"))
    broker.quiesce()
    place = MessageId(0, 0)
    if what == "ack":
        frame = commands.ack(10, [place], request_id=901)
    else:
        frame = commands.seek(10, 901, publish_time_ms=5)
    client.send(frame + client.unsubscribe(10))
    broker.quiesce()
    broker.restart()
    opened(broker.connect(), broker, 1)
    assert topic_of(broker).subscriptions == {}


def test_a_consumer_waits_for_a_dead_holder_and_no_longer(broker):
    """Each silent holder of an Exclusive place is taken out; a living one keeps it."""
    dead, first, second = (broker.connect() for _ in range(3))
    dead.send(dead.subscribe(10, TOPIC, "s"))
    broker.quiesce()
    dead.is_awake = False
    for client in (first, second):
        client.send(client.subscribe(10, TOPIC, "s"))
    broker.quiesce()
    assert [set(client.consumers) for client in (dead, first, second)] == [set(), {10}, set()]


def test_a_subscription_that_is_not_stored_is_not_confirmed_to_the_second_either(broker):
    """A second SUBSCRIBE of a subscription that is being stored waits for the disk, too."""
    clients = [broker.connect() for _ in range(2)]
    opened(clients[0], broker, 1)
    for client in clients:
        client.send(client.subscribe(10, TOPIC, "s", sub_type=CommandSubscribe.Shared))
        broker.loop.settle()
    assert [set(client.consumers) for client in clients] == [set(), set()]
    broker.commit()
    assert [set(client.consumers) for client in clients] == [{10}, {10}]


# -- topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["producer", "exclusive", "waits for a name", "consumer"])
def test_who_races_a_delete_gets_the_new_topic_or_an_error(broker, what):
    """A topic object from before the deletion never gets a producer or consumer."""
    client, sleeper = broker.connect(), broker.connect()
    opened(client, broker, 1)
    client.send(client.close_producer(1))
    broker.quiesce()
    if what == "consumer":
        client.send(client.subscribe(10, TOPIC, "s"))
    elif what == "exclusive":
        client.send(client.open_producer(2, TOPIC, "p", access_mode=Exclusive))
    elif what == "producer":
        client.send(client.open_producer(2, TOPIC, "p", initial_subscription_name="s"))
    else:
        opened(sleeper, broker, 1, "p")
        sleeper.is_awake = False
        client.send(client.open_producer(2, TOPIC, "p"))
    broker.loop.settle()
    name = TopicName.parse(TOPIC)
    deleting = broker.start(broker.topics.delete(name, force=what != "consumer"))
    broker.quiesce()
    assert deleting.exception() is None
    last = [answer for answers in client.answers.values() for answer in answers][-1]
    assert last.error == ServerError.ServiceNotReady
    assert (client.session.producers, client.session.consumers) == ({}, {})
    assert not broker.topics.exists(name)
    again = opened(client, broker, 3)
    assert topic_of(broker).producers.by_name[again.producer_name].producer_id == 3


def test_a_topic_whose_only_producers_wait_is_in_use(broker):
    """While a waiting producer's epoch is stored, the topic needs force to be deleted."""
    first, second = broker.connect(), broker.connect()
    opened(first, broker, 1, access_mode=Exclusive)
    opened(second, broker, 1, access_mode=WaitForExclusive)
    first.send(first.close_producer(1))
    broker.loop.settle()
    deleting = broker.start(broker.topics.delete(TopicName.parse(TOPIC)))
    broker.quiesce()
    assert isinstance(deleting.exception(), TopicInUseError)


def test_a_topic_is_deleted_once(broker):
    """Of two deletions at a time the second finds nothing."""
    opened(broker.connect(), broker, 1)
    name = TopicName.parse(TOPIC)
    works = [broker.start(broker.topics.delete(name, force=True)) for _ in range(2)]
    broker.quiesce()
    assert works[0].exception() is None
    assert isinstance(works[1].exception(), RefusedError)
    assert works[1].exception().code == ServerError.TopicNotFound


def test_locks_are_there_only_while_somebody_needs_them(broker):
    """A thousand names that were looked up leave no lock."""
    for number in range(50):
        client = broker.connect()
        client.send(client.open_producer(1, f"{TOPIC}{number}", ""))
        client.send(client.open_producer(2, f"{TOPIC}{number}-partition-7", ""), then_lost=True)
    assert len(broker.topics.locks) > 0
    broker.quiesce()
    assert len(broker.topics.locks) == 0


async def test_a_lock_goes_with_the_last_who_waits():
    """Holders come one after the other; a cancelled one is passed over."""
    locks, order = NameLocks(), []

    async def work(number):
        async with locks.held("x"):
            order.append(number)
            await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(work(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 2, 3]
    assert len(locks) == 0


# -- subscriptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [False, True])
def test_subscription_properties_survive_a_restart(broker, kill):
    """They are stored with the cursor; a later SUBSCRIBE does not change them, as in Pulsar."""
    client = broker.connect()
    client.send(client.subscribe(10, TOPIC, "s", subscription_properties={"a": "1"}))
    broker.quiesce()
    for _ in range(2):
        broker.restart(kill=kill)
        client = broker.connect()
        client.send(client.subscribe(10, TOPIC, "s", subscription_properties={"b": "2"}))
        broker.quiesce()
        assert topic_of(broker).subscriptions["s"].properties == {"a": "1"}


def test_unload_ends_the_subscriptions_of_readers(broker):
    """A reader that reconnects creates its subscription again; the old one is removed."""
    client = broker.connect()
    client.send(client.subscribe(10, TOPIC, "reader", durable=False))
    client.send(client.subscribe(11, TOPIC, "durable"))
    broker.quiesce()
    broker.loop.do(lambda: at_once(topic_of(broker).disconnect()))
    assert set(topic_of(broker).subscriptions) == {"durable"}
    assert set(topic_of(broker).ledger.cursors) == {"durable"}
    assert client.consumers == {}


# -- partitioned topics ---------------------------------------------------------------------------


def partitioned(broker):
    """A partitioned topic with a producer on its first partition."""
    work = broker.start(broker.topics.create_partitioned(TopicName.parse(TOPIC), 2))
    broker.quiesce()
    assert work.exception() is None
    client = broker.connect()
    opened(client, broker, 1, topic=TOPIC + "-partition-0")
    return client


@pytest.mark.parametrize("when", ["meanwhile", "afterwards", "after a restart"])
def test_clients_that_come_back_make_no_orphans(broker, when):
    """A partition does not come into being again because its producer reconnects."""
    client = partitioned(broker)
    deleting = broker.start(broker.topics.delete_partitioned(TopicName.parse(TOPIC), force=True))
    broker.loop.settle()
    if when != "meanwhile":
        broker.quiesce()
    if when == "after a restart":
        broker.restart()
        client = broker.connect()
    client.send(client.open_producer(2, TOPIC + "-partition-0", ""))
    client.send(client.subscribe(10, TOPIC + "-partition-1", "s"))
    broker.quiesce()
    assert when == "after a restart" or deleting.exception() is None
    assert list(broker.topics.names) == []
    answers = [answer for some in client.answers.values() for answer in some]
    errors = [answer.error for answer in answers if isinstance(answer, CommandError)]
    assert errors == [ServerError.TopicNotFound] * 2


def test_a_partitioned_topic_can_be_made_again(broker):
    """Then its partitions are used like any others; and a partition can be made by name."""
    client = partitioned(broker)
    name = TopicName.parse(TOPIC)
    broker.start(broker.topics.delete_partitioned(name, force=True))
    broker.quiesce()
    making = broker.start(broker.topics.open(name.partition(1), create=True, explicit=True))
    broker.quiesce()
    assert making.exception() is None
    assert opened(client, broker, 2, topic=str(name.partition(1))).producer_ready
    broker.start(broker.topics.create_partitioned(name, 3))
    broker.quiesce()
    assert opened(client, broker, 3, topic=str(name.partition(2))).producer_ready
    broker.restart(kill=True)
    assert broker.topics.partitioned.count_of(name) == 3
    assert len(list(broker.topics.names)) == 3


def test_a_deletion_that_was_interrupted_is_finished(broker):
    """After a kill -9 in the middle, neither the topic nor a partition is left."""
    partitioned(broker)
    broker.start(broker.topics.delete_partitioned(TopicName.parse(TOPIC), force=True))
    while len(list(broker.store.topic_names())) == 2:
        broker.loop.settle()
        broker.work.release()
    broker.restart(kill=True)
    assert list(broker.topics.names) == []
    assert not broker.topics.exists(TopicName.parse(TOPIC))


def test_deleting_without_force_lets_no_client_in_between(broker):
    """Once the partitions are found unused no producer gets in and is thrown out again."""
    client = partitioned(broker)
    client.send(client.close_producer(1))
    broker.quiesce()
    deleting = broker.start(broker.topics.delete_partitioned(TopicName.parse(TOPIC)))
    client.send(client.open_producer(2, TOPIC + "-partition-1", "late"))
    broker.quiesce()
    assert deleting.exception() is None
    assert (client.producers, list(broker.topics.names)) == ({}, [])


# -- namespaces -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_late", [False, True])
def test_a_namespace_is_not_deleted_under_a_topic_that_is_being_made(broker, is_late):
    """The namespace stays, or the topic is refused; no topic is left without a namespace."""
    topic = "persistent://public/other/t"
    broker.start(broker.topics.namespaces.put("public/other", {}))
    broker.quiesce()
    client = broker.connect()
    if not is_late:
        client.send(client.open_producer(1, topic, ""))
        broker.loop.settle()
    deleting = broker.start(broker.topics.delete_namespace("public/other"))
    if is_late:
        client.send(client.open_producer(1, topic, ""))
    broker.quiesce()
    assert isinstance(deleting.exception(), RefusedError) is not is_late
    assert list(broker.topics.names) == ([] if is_late else [topic])
    assert ("public/other" in broker.topics.namespaces) is not is_late
    broker.restart()
    assert ("public/other" in broker.topics.namespaces) is not is_late


def test_who_subscribes_while_a_subscription_is_made_waits_for_the_topic_to_have_it(broker):
    """Its commit may be done before the topic is told; nobody is told that it was removed."""
    opened(broker.connect(), broker, 1)
    topic, created = topic_of(broker), topic_of(broker).subscription_created
    topic.subscription_created = lambda *told: broker.loop.call_later(0.5, created, *told)
    clients = [broker.connect() for _ in range(2)]
    for client in clients:
        client.send(client.subscribe(1, TOPIC, "s", sub_type=CommandSubscribe.Shared))
    broker.quiesce()
    assert [set(client.consumers) for client in clients] == [{1}, {1}]
