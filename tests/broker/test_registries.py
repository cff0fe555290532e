"""The broker's registries in any order of connect, command, disconnect, delete, unload, restart.

Hypothesis drives a simulated broker: its sessions, topics and ledgers are real, and the test
controls time, blocking work and connections. After each step the broker's registries must agree
with each other. When nothing is in progress they must also agree with the answers that clients got.

PULSEMARK_REGISTRY_EXAMPLES=5000 makes a campaign of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsemark.broker.cooperative import at_once
from pulsemark.broker.errors import RefusedError
from pulsemark.broker.topics.topic import TopicInUseError
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe, ProducerAccessMode
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import MessageId, TopicName, commands
from tests.support.simulated_broker import SimulatedBroker

EXAMPLES = int(os.environ.get("PULSEMARK_REGISTRY_EXAMPLES", "0"))
BASE = "persistent://public/default/"
PARENT = BASE + "p"
#: Mostly the same one: what matters is what meets there.
TOPICS = (BASE + "a", BASE + "a", BASE + "a", PARENT + "-partition-0", PARENT + "-partition-1")
NAMES = ("", "n", "m")
MODES = tuple(ProducerAccessMode.values())
TYPES = (
    CommandSubscribe.Exclusive,
    CommandSubscribe.Shared,
    CommandSubscribe.Failover,
    CommandSubscribe.Key_Shared,
)
GOOD = unbatched_message(b"x", publish_time_ms=1)
CLIENTS_MAX = 4
#: The catalog is a real file, whose syncs would take most of the time.
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None

which = st.integers(0, CLIENTS_MAX - 1)
producer_ids = st.integers(0, 2)
consumer_ids = st.integers(10, 12)
#: What follows a command: nothing yet, a few turns of the loop, rest, or the connection's end.
afterwards = st.sampled_from(("at once", "turn", "rest", "rest", "lost"))


class Registries(RuleBasedStateMachine):
    """Clients, an operator, and a broker that is restarted and killed."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="pulsemark-registries-", dir=MEMORY))
        self.broker = SimulatedBroker(self.folder / "data")
        self.broker.producer_confirmed = self.producer_confirmed
        self.broker.confirmed = self.confirmed
        self.broker.removed = self.removed
        #: What the operator asked for, and the topics that it may delete.
        self.works = []
        #: The highest epoch that an owner got, by topic; forgotten when it is deleted.
        self.epochs = {}
        #: Durable subscriptions that must be there: confirmed, and no client asked for their end.
        self.kept = {}
        #: Properties that each subscription may have: those of the ones who may have made it.
        self.offered = {}
        self.sequence_id = 0
        for _ in range(2):
            self.broker.connect()
        self.begin(self.broker.topics.open(TopicName.parse(TOPICS[0]), create=True))
        self.broker.quiesce()

    def teardown(self):
        """Every run ends at rest, and after one more restart."""
        try:
            self.come_to_rest()
            self.restart(kill=False)
        finally:
            self.broker.end()
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- what the model remembers -----------------------------------------------------------------

    def producer_confirmed(self, asked, body):
        """An exclusive owner's epoch never lies below one that an owner had before."""
        is_told = body.producer_ready and body.HasField("topic_epoch")
        if is_told and not self.may_be_deleted(asked.topic):
            assert body.topic_epoch >= self.epochs.get(asked.topic, 0)
            self.epochs[asked.topic] = body.topic_epoch

    def confirmed(self, asked):
        """A durable subscription was confirmed."""
        if asked.name.startswith("durable") and not self.may_be_deleted(asked.topic):
            self.kept[asked.topic, asked.name] = True

    def removed(self, asked):
        """The removal of a subscription was confirmed; a client may have created it again since."""
        self.kept.pop((asked.topic, asked.name), None)

    def may_be_deleted(self, topic):
        """Whether a deletion is under way that may come to the topic."""
        return any(topic in topics and not work.done() for work, topics in self.works)

    def begin(self, work, *deleted):
        """Do something of the operator's; what was known of topics that it may delete is over."""
        self.forget(deleted)
        self.works.append((self.broker.start(work), deleted))
        # Beginning it took a turn, in which clients may have got answers.
        self.forget(deleted)

    def forget(self, topics):
        """Nothing is known of these topics."""
        self.epochs = {key: value for key, value in self.epochs.items() if key not in topics}
        self.kept = {key: value for key, value in self.kept.items() if key[0] not in topics}

    # -- clients ----------------------------------------------------------------------------------

    def client(self, index):
        """One of the connected clients."""
        living = [client for client in self.broker.clients if client.is_connected]
        return living[index % len(living)] if living else self.broker.connect()

    def pick(self, held, number):
        """One of the ids in use, or the number itself if there are none."""
        return sorted(held)[number % len(held)] if held else number

    def send(self, client, frame, after):
        """Send, and what follows."""
        client.send(frame, then_lost=after == "lost")
        if after == "turn":
            self.broker.loop.turn()
        elif after == "rest":
            self.broker.loop.settle()

    @precondition(lambda self: sum(c.is_connected for c in self.broker.clients) < CLIENTS_MAX)
    @rule()
    def connect(self):
        """Another client."""
        self.broker.connect()

    @rule(index=which, number=producer_ids, topic=st.sampled_from(TOPICS),
          name=st.sampled_from(NAMES), mode=st.sampled_from(MODES),
          epoch=st.sampled_from((None, None, 0, 1, (1 << 64) - 1)), after=afterwards,
          initial=st.sampled_from(("", "", "durable-0")))  # fmt: skip
    def open_producer(self, index, number, topic, name, mode, epoch, after, initial):
        """PRODUCER, under an id that is free."""
        client = self.client(index)
        if number in client.producers or client.is_opening(number):
            return
        if initial:
            self.offered.setdefault((topic, initial), []).append({})
        self.send(client, client.open_producer(number, topic, name, access_mode=mode,
                  topic_epoch=epoch, initial_subscription_name=initial or None), after)  # fmt: skip

    @rule(index=which, number=consumer_ids, topic=st.sampled_from(TOPICS),
          name=st.sampled_from(("durable-0", "durable-1", "reader")),
          sub_type=st.sampled_from(TYPES), said=st.sampled_from(("", "x", "y")),
          after=afterwards)  # fmt: skip
    def subscribe(self, index, number, topic, name, sub_type, said, after):
        """SUBSCRIBE, under an id that is free."""
        client = self.client(index)
        if number in client.consumers or client.is_opening(number):
            return
        properties = {"said": said} if said else {}
        self.offered.setdefault((topic, name), []).append(properties)
        self.send(client, client.subscribe(number, topic, name, sub_type=sub_type,
                  durable=name != "reader", subscription_properties=properties), after)  # fmt: skip

    @rule(index=which, number=producer_ids, after=afterwards)
    def close_producer(self, index, number, after):
        """CLOSE_PRODUCER, also while it is being opened."""
        client = self.client(index)
        self.send(client, client.close_producer(number), after)

    @rule(index=which, number=consumer_ids, after=afterwards)
    def close_consumer(self, index, number, after):
        """CLOSE_CONSUMER, also while it is being opened."""
        client = self.client(index)
        self.send(client, client.close_consumer(number), after)

    @rule(index=which, number=consumer_ids, after=afterwards)
    def unsubscribe(self, index, number, after):
        """UNSUBSCRIBE."""
        client = self.client(index)
        number = self.pick(client.consumers, number)
        asked = client.consumers.get(number)
        if asked is not None:
            self.kept.pop((asked.topic, asked.name), None)
            self.send(client, client.unsubscribe(number), after)

    @rule(index=which, number=consumer_ids, after=afterwards)
    def seek(self, index, number, after):
        """SEEK to the beginning, after acknowledging something."""
        client = self.client(index)
        number = self.pick(client.consumers, number)
        if number in client.consumers:
            place = MessageId(0, 0)
            self.send(client, commands.flow(number, 5) + commands.ack(number, [place])
                      + commands.seek(number, self.broker.new_request_id(), message_id=place),
                      after)  # fmt: skip

    @rule(index=which, number=producer_ids, after=afterwards)
    def publish(self, index, number, after):
        """SEND, also from a producer that was fenced and does not know it."""
        client = self.client(index)
        number = self.pick(client.producers, number)
        if number in client.producers:
            self.sequence_id += 1
            frame = b"".join(bytes(b) for b in commands.send(number, self.sequence_id, GOOD))
            self.send(client, frame, after)

    @rule(index=which)
    def lose(self, index):
        """A connection ends."""
        self.broker.loop.do(self.client(index).ended)

    @rule(index=which)
    def fall_asleep(self, index):
        """A client does not answer any more, and does not know it."""
        self.client(index).is_awake = False

    # -- the operator -----------------------------------------------------------------------------

    @rule(index=which, number=consumer_ids, sub_type=st.sampled_from(TYPES), opens=st.booleans(),
          mode=st.sampled_from(MODES), turns=st.integers(0, 3), force=st.booleans())  # fmt: skip
    def open_beside_a_delete(self, index, number, sub_type, opens, mode, turns, force):
        """The same topic is used and deleted, at every distance from each other."""
        if opens:
            self.open_producer(index, number - 10, TOPICS[0], "", mode, None, "at once", "")
        else:
            self.subscribe(index, number, TOPICS[0], "durable-0", sub_type, "", "at once")
        for _ in range(turns):
            self.broker.loop.turn()
        self.delete_topic(TOPICS[0], force)

    @rule(topic=st.sampled_from(TOPICS), force=st.booleans())
    def delete_topic(self, topic, force):
        """Delete a topic."""
        name = TopicName.parse(topic)
        if self.broker.topics.exists(name):
            self.begin(self.broker.topics.delete(name, force=force), topic)

    @rule(topic=st.sampled_from(TOPICS))
    def unload(self, topic):
        """Disconnect all clients."""
        opened = self.broker.topics.open_topics.get(topic)
        if opened is not None:
            self.broker.loop.do(lambda: at_once(opened.disconnect()))

    @rule()
    def create_partitioned(self):
        """Make the partitioned topic: its first partition's subscriptions are shared."""
        self.share_offers()
        self.begin(self.broker.topics.create_partitioned(TopicName.parse(PARENT), 2))

    def share_offers(self):
        """The second partition's subscriptions may be copies of the first one's."""
        first, second = TOPICS[3:]
        for topic, name in list(self.offered):
            if topic == first:
                self.offered.setdefault((second, name), [])
                self.offered[second, name] += self.offered[first, name]

    @rule(force=st.booleans())
    def delete_partitioned(self, force):
        """Delete it with its partitions."""
        name = TopicName.parse(PARENT)
        if self.broker.topics.partitioned.count_of(name):
            self.begin(self.broker.topics.delete_partitioned(name, force=force), *TOPICS[3:])

    # -- the world --------------------------------------------------------------------------------

    @rule(number=st.integers(0, 7))
    def blocking_work_ends(self, number):
        """One piece, in any order."""
        if len(self.broker.work):
            self.broker.work.release(number % len(self.broker.work))
            self.broker.loop.turn()

    @rule()
    def commit(self):
        """The disk has taken everything."""
        self.broker.commit()

    @rule(seconds=st.sampled_from((0.5, 6.0)))
    def time_goes_by(self, seconds):
        """Timers fire."""
        self.broker.loop.advance(seconds)

    @rule()
    def come_to_rest(self):
        """Everything that can happen has happened: clients and broker agree."""
        self.broker.quiesce()
        for work, _ in self.works:
            assert work.done()
            error = None if work.cancelled() else work.exception()
            assert error is None or isinstance(error, TopicInUseError | RefusedError)
        self.works.clear()
        self.registries_agree()
        assert not len(self.broker.topics.locks)
        for client in self.broker.clients:
            if client.is_connected:
                assert client.unanswered() == []
                assert set(client.producers) == set(client.session.producers)
                assert set(client.consumers) == set(client.session.consumers)
                assert all(one.subscription for one in client.session.consumers.values())
                assert not any(p.is_disconnected for p, _ in client.session.producers.values())
        for topic in self.broker.topics.open_topics.values():
            assert topic.producers.by_name or not topic.producers.waiting
            for name, subscription in topic.subscriptions.items():
                assert subscription.properties in self.offered[topic.name, name]
        self.kept_is_there()

    @rule(kill=st.booleans())
    def restart(self, kill):
        """The broker ends, in order or by kill -9, and starts again."""
        self.broker.restart(kill=kill)
        self.works.clear()
        for topic in list(self.broker.topics.names):
            self.broker.start(self.broker.topics.open(TopicName.parse(topic), create=False))
        self.broker.quiesce()
        self.kept_is_there()

    def kept_is_there(self):
        """Confirmed subscriptions exist, and epochs continue from those that owners got."""
        for topic, name in self.kept:
            assert name in self.broker.topics.open_topics[topic].subscriptions
        for topic, epoch in self.epochs.items():
            assert self.broker.topics.open_topics[topic].producers.topic_epoch >= epoch

    # -- after each step --------------------------------------------------------------------------

    @invariant()
    def registries_agree(self):
        """Sessions, topics and subscriptions say the same of each producer and consumer."""
        topics = self.broker.topics.open_topics
        for topic in topics.values():
            assert topic.is_open
            producers = topic.producers
            for producer in (*producers.by_name.values(), *producers.waiting):
                assert producer.home is producers
                assert not producer.has_left
                assert not producer.connection.is_closed
                assert is_held(producer.connection, "producer", producer)
            if producers.exclusive is not None:
                assert list(producers.by_name.values()) == [producers.exclusive]
            assert producers.by_name or not producers.waiting
            for subscription in topic.subscriptions.values():
                self.subscription_agrees(subscription)
        for client in self.broker.clients:
            for producer, topic in client.session.producers.values():
                if producer.is_disconnected:
                    # Its client is notified in a later turn, and until then it is nowhere else.
                    assert producer.home is None
                    assert not producer.may_publish
                    continue
                assert producer.is_fenced or producer.home is topics[topic.name].producers
                assert producer.is_fenced or topic is topics[topic.name]
            for consumer in client.session.consumers.values():
                subscription = consumer.subscription
                # While a seek is being stored its consumers are connected to nothing.
                if subscription is not None:
                    assert consumer in subscription.consumers
                    topic = topics[subscription.topic.name]
                    assert topic.subscriptions[subscription.name] is subscription

    def subscription_agrees(self, subscription):
        """Each consumer is open; a reader's subscription has its reader."""
        for consumer in subscription.consumers:
            assert not consumer.has_left
            assert consumer.subscription is subscription
            assert consumer.connection.consumers[consumer.consumer_id] is consumer
        assert (
            subscription.durable
            or subscription.consumers
            or subscription.kept is not None
            or any(kind == "consumer" for c in self.broker.clients for kind, _ in c.session.opening)
        )


def is_held(session, kind, producer):
    """Whether a session has a producer, open or being opened."""
    known = session.producers.get(producer.producer_id)
    opening = session.opening.get((kind, producer.producer_id))
    return producer is opening or (known is not None and known[0] is producer)


class TestRegistries(Registries.TestCase):  # type: ignore[misc,valid-type]
    """The broker's state agrees with the answers that clients got, in any order of events."""

    settings = settings(
        max_examples=EXAMPLES or 60,
        stateful_step_count=60 if EXAMPLES else 40,
        derandomize=not EXAMPLES,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
