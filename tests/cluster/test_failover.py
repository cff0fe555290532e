"""Brokers that end, are killed, or are paused while another takes over."""

import threading

import pulsar

TOPIC = "persistent://public/default/orders"


def other_than(brokers, owner):
    """The other one of two brokers."""
    return next(one for one in brokers.running if one is not owner)


def test_an_orderly_end_hands_over(brokers, eventually):
    """A broker that ends gives its bundles away first: the client goes on at the other broker, with
    its subscription's place, and indexes go on.
    """
    brokers.start(), brokers.start()
    owner = brokers.owner(TOPIC)
    client = brokers.client()
    producer, consumer = client.create_producer(TOPIC), client.subscribe(TOPIC, "s")
    for number in range(5):
        producer.send(str(number).encode())
        consumer.acknowledge(consumer.receive(20_000))
    (subscription,) = owner.broker.services.topics.open_topics[TOPIC].subscriptions.values()
    eventually(lambda: subscription.backlog_entries == 0, "all is acknowledged")
    owner.close()
    brokers.running.remove(owner)
    producer.send(b"5")
    assert consumer.receive(20_000).data() == b"5"
    (survivor,) = brokers.running
    (opened,) = survivor.broker.services.topics.open_topics.values()
    assert opened.ledger.next_index == 6


def test_a_paused_owner_cannot_write(brokers, eventually):
    """An owner whose session ends while it is cut off loses its topics to another broker. What its
    producer sends to it then is refused, and nothing of it is stored twice or lost.
    """
    brokers.start(), brokers.start()
    owner = brokers.owner(TOPIC)
    survivor = other_than(brokers, owner)
    client = brokers.client(owner)
    producer = client.create_producer(TOPIC, send_timeout_millis=0, batching_enabled=False)
    producer.send(b"before")
    session = owner.member.session
    owner.call(_doing(session.cut))
    session.end_silently()
    other_client = brokers.client(survivor)
    second = other_client.create_producer(TOPIC)
    second.send(b"after the takeover")
    # The first owner does not know yet: its store refuses, and the client gets the error.
    done = threading.Event()
    outcome = []

    def sent(result, _):
        outcome.append(result)
        done.set()

    producer.send_async(b"late", sent)
    eventually(lambda: not owner.member.ownership.bundles(), "the owner hears that it is fenced")
    owner.call(_doing(session.heal))
    assert done.wait(30), "the late message was neither stored nor refused"
    reader = other_client.create_reader(TOPIC, pulsar.MessageId.earliest)
    expected = [b"before", b"after the takeover"] + (
        [b"late"] if outcome == [pulsar.Result.Ok] else []
    )
    got = [reader.read_next(20_000).data() for _ in expected]
    assert got == expected
    assert not reader.has_message_available()


def _doing(function):
    """Something to be done on a broker's loop."""

    async def work(_broker):
        function()

    return work


def test_a_session_that_was_only_cut(brokers):
    """A broker whose connection to the others is lost for a moment goes on serving its clients."""
    brokers.start(), brokers.start()
    owner = brokers.owner(TOPIC)
    client = brokers.client()
    producer = client.create_producer(TOPIC)
    producer.send(b"1")
    owner.call(_doing(owner.member.session.cut))
    producer.send(b"2")
    owner.call(_doing(owner.member.session.heal))
    producer.send(b"3")
    assert brokers.owner(TOPIC) is owner


def test_a_lost_session(brokers, eventually):
    """A broker whose session has expired closes its topics, registers again, and serves again. A
    message whose receipt was lost with the first session is sent a second time, and none is lost.
    """
    brokers.start()
    (only,) = brokers.running
    client = brokers.client()
    producer = client.create_producer(TOPIC)
    producer.send(b"1")
    topics = only.broker.services.topics
    before = topics.open_topics[TOPIC]
    only.call(_doing(only.member.session.expire))
    producer.send(b"2")
    eventually(lambda: topics.open_topics.get(TOPIC) not in (None, before), "it is opened again")
    eventually(
        lambda: [*only.call(lambda _: only.member.brokers())] == [only.member.broker_id],
        "registered again",
    )
    producer.send(b"3")
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    got = [reader.read_next(20_000).data()]
    while got[-1] != b"3":
        got.append(reader.read_next(20_000).data())
    assert got in ([b"1", b"2", b"3"], [b"1", b"2", b"2", b"3"])


def test_balance(brokers):
    """A broker that joins later gets bundles: the fullest broker gives some away."""
    brokers.start()
    for number in range(16):
        brokers.owner(f"persistent://public/default/t-{number}")
    (first,) = brokers.running
    assert len(first.member.ownership.bundles()) == 4
    second = brokers.start()
    for _ in range(2):
        assert second.call(lambda _: second.member.placement.shed(second.member)) is None
        moved = first.call(lambda _: first.member.placement.shed(first.member))
        assert moved is not None
        assert moved not in first.member.ownership.bundles()
        for number in range(16):
            brokers.owner(f"persistent://public/default/t-{number}")
    assert len(second.member.ownership.bundles()) == 2
    assert first.call(lambda _: first.member.placement.shed(first.member)) is None
