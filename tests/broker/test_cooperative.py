"""Commands that name very many messages run in pieces."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from itertools import pairwise

import pytest

from pulsemark.broker import cooperative
from pulsemark.broker.connection import session as sessions
from pulsemark.broker.connection.session import LEFT_AT_ONCE, Session
from pulsemark.broker.cooperative import PIECE_IDS, TURN_S, Background, FairTurns, LongWork, Turns
from pulsemark.broker.errors import RefusedError
from pulsemark.broker.http import brokers
from pulsemark.broker.metrics import internal_stats, stats
from pulsemark.broker.subscriptions import consumer as consumers
from pulsemark.broker.subscriptions.consumer import CLOSED_AT_ONCE
from pulsemark.broker.subscriptions.subscription import Subscription
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe, ServerError
from pulsemark.testing import RawClient
from pulsemark.testing.raw_client import RawTimeoutError
from pulsemark.wire import MessageId

Shared = CommandSubscribe.Shared
Key_Shared = CommandSubscribe.Key_Shared


class Cpu:
    """A thread's CPU time, which the test moves."""

    now_s = 0.0

    def thread_time(self):
        """Instead of `time.thread_time`."""
        return self.now_s


@pytest.fixture
def cpu(monkeypatch):
    """The CPU time that fair turns see."""
    cpu = Cpu()
    monkeypatch.setattr(cooperative, "time", cpu)
    return cpu


async def test_many_calls_share_the_time_of_a_turn(cpu):
    """Sixty calls of 4 ms each take 12 ms of each turn, in their order, and none is left out."""
    turns = FairTurns.of_running_loop()
    done: list[int] = []
    of_turn: list[int] = []

    def call(number):
        cpu.now_s += 0.004
        done.append(number)

    for number in range(60):
        turns.later(partial(call, number))
    for _ in range(60):
        await asyncio.sleep(0)
        of_turn.append(len(done))
    assert done == [*range(60)]
    assert max(after - before for before, after in pairwise([0, *of_turn])) == 3


async def test_who_comes_late_in_a_turn_waits_for_the_next_one(cpu):
    """Time that some use up is not there for others in the same turn; who has waited has time."""
    turns = FairTurns.of_running_loop()
    has_time: list[bool] = []
    assert turns.has_time()
    cpu.now_s += TURN_S
    assert not turns.has_time()
    assert turns.is_over
    turns.later(lambda: has_time.append(turns.has_time()))
    await asyncio.sleep(0)
    assert has_time == [True]
    await asyncio.sleep(0)
    assert turns.has_time()


async def test_what_a_client_asks_does_not_wait_for_all_deliveries(cpu):
    """A client's call comes after one delivery, however many deliveries wait."""
    turns = FairTurns.of_running_loop()
    done: list[str] = []

    def call(name):
        cpu.now_s += TURN_S
        done.append(name)

    for _ in range(50):
        turns.later(partial(call, "delivery"))
    turns.later(partial(call, "client"), of_client=True)
    for _ in range(2):
        await asyncio.sleep(0)
    assert "client" in done
    assert done.count("delivery") <= 1


async def test_a_call_that_fails_or_is_cancelled_stops_no_other():
    """Those after it are called all the same."""
    turns = FairTurns.of_running_loop()
    done: list[int] = []
    asyncio.get_running_loop().set_exception_handler(lambda *_: done.append(-1))
    turns.later(lambda: print(done[7]))  # raises IndexError
    turns.later(partial(done.append, 0)).cancel()
    turns.later(partial(done.append, 1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == [-1, 1]


async def test_others_have_a_turn_between_two_pieces():
    """Each turn of the loop does one piece, and what came first is done first."""
    work = LongWork()
    log: list[str] = []

    def pieces(name):
        for _ in range(3):
            log.append(name)
            yield

    work.add(pieces("a"), lambda: log.append("a done"))
    work.add(pieces("b"), lambda: log.append("b done"))
    while work:
        log.append("turn")
        await asyncio.sleep(0)
    expected = ["a", "a", "a", "a done", "b", "b", "b", "b done"]
    assert [event for event in log if event != "turn"] == expected
    assert log.count("turn") >= 6


async def test_the_rest_can_be_done_at_once():
    """finish() leaves nothing, and calls what follows."""
    work = LongWork()
    done: list[int] = []
    for number in range(3):
        work.add(iter([None] * 5), partial(done.append, number))
    work.finish()
    assert done == [0, 1, 2]
    await asyncio.sleep(0)
    assert not work


async def test_a_piece_that_fails_does_not_stop_what_comes_after(caplog):
    """The error is logged, the rest of that work is skipped, and the next work runs."""
    work, done = LongWork(), []

    def failing():
        raise RuntimeError("broken")
        yield

    work.add(failing(), lambda: done.append("failed"))
    work.add(iter([None]), lambda: done.append("next"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not work
    assert done == ["failed", "next"]
    assert "a step of long work failed" in caplog.text


@pytest.mark.parametrize("sub_type", [Shared, Key_Shared])
def test_an_acknowledgement_of_very_many_messages(raw, broker, topic, sub_type):
    """It is answered when all of it is durable; another client is served before it is done."""
    producer = raw.create_producer(topic)
    count = 6 * PIECE_IDS
    receipts = producer.send_many([b"\x00\x00\x00\x00x"] * count)
    consumer = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
    consumer.flow(count)
    consumer.receive_many(count)
    ids = [MessageId(r.ledger_id, r.entry_id) for r in receipts]
    seen = broker.call(watch_acks(topic))
    with RawClient.from_url(broker.service_url) as other:
        consumer.redeliver(*ids[: 3 * PIECE_IDS])
        consumer.flow(count)
        consumer.ack(*ids[1::2], *ids[::2], wait=False)
        other.ping()
        consumer.ack(ids[-1])
    assert max(seen) <= PIECE_IDS
    assert sum(seen) == count + 1
    assert consumer.get_last_message_id()[1].entry_id == count - 1


def watch_acks(topic):
    """A coroutine function: the list that gets the number of ids of each piece from now on."""

    async def arm(broker):
        subscription = broker.services.topics.open_topics[topic].subscriptions["s"]
        ack_piece, sizes = subscription.ack_piece, []

        def counting(consumer, ids):
            sizes.append(len(ids))
            ack_piece(consumer, ids)

        subscription.ack_piece = counting
        return sizes

    return arm


def test_what_was_sent_before_a_disconnect_is_acknowledged(broker, topic):
    """The client closes right after a long ACK: all of it counts."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        count = 4 * PIECE_IDS
        receipts = producer.send_many([b"\x00\x00\x00\x00x"] * count)
        consumer = client.subscribe(topic, "s", sub_type=Shared, earliest=True)
        consumer.ack(*(MessageId(r.ledger_id, r.entry_id) for r in receipts), wait=False)
        client.ping()
    with RawClient.from_url(broker.service_url) as client:
        consumer = client.subscribe(topic, "s", sub_type=Shared)
        _, mark_delete = consumer.get_last_message_id()
        assert mark_delete is not None
        assert mark_delete.entry_id == count - 1


@pytest.mark.parametrize("sub_type", [Shared, Key_Shared])
def test_a_consumer_that_leaves_with_very_much_gives_it_back_in_pieces(
    raw, broker, topic, sub_type
):
    """One turn gives back a piece; in the end the other consumer gets every message, in order."""
    count = 5 * PIECE_IDS
    raw.create_producer(topic).send_many([b"\x00\x00\x00\x00x"] * count)
    with RawClient.from_url(broker.service_url) as other:
        leaving = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
        leaving.flow(count)
        leaving.receive_many(count)
        staying = other.subscribe(topic, "s", sub_type=sub_type)
        staying.flow(count)

        async def leave(running):
            subscription = running.services.topics.open_topics[topic].subscriptions["s"]
            consumer = next(c for c in subscription.consumers if c.pending)
            subscription.remove_consumers([consumer])
            return len(consumer.pending)

        assert broker.call(leave) == count - PIECE_IDS
        got = [message.message_id.entry_id for message in staying.receive_many(count)]
        assert got == list(range(count))


@pytest.mark.parametrize("sub_type", [Shared, Key_Shared])
def test_a_seek_in_the_middle_of_giving_back_wins(raw, broker, topic, sub_type):
    """After a seek, entries that a consumer had not given back yet are not sent in addition."""
    count = 5 * PIECE_IDS
    receipts = raw.create_producer(topic).send_many([b"\x00\x00\x00\x00x"] * count)
    with RawClient.from_url(broker.service_url) as other:
        leaving = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
        leaving.flow(count)
        leaving.receive_many(count)
        staying = other.subscribe(topic, "s", sub_type=sub_type)
        staying.flow(count)

        async def leave_and_detach(running):
            subscription = running.services.topics.open_topics[topic].subscriptions["s"]
            dispatcher = subscription.dispatcher
            subscription.remove_consumers([next(c for c in subscription.consumers if c.pending)])
            (consumer,) = subscription.fence()
            consumer.connection.close_consumer(consumer)
            subscription.unfence()
            sent = subscription.messages_out
            subscription.work.finish()
            dispatcher.dispatch()
            return subscription.messages_out - sent

        assert broker.call(leave_and_detach) == 0
        other.ping()
        staying.resubscribe()
        last = receipts[-10]
        staying.seek(message_id=MessageId(last.ledger_id, last.entry_id))
        staying.resubscribe()
        staying.flow(count)
        got = [message.message_id.entry_id for message in staying.receive_many(10)]
        assert got == list(range(count - 10, count))


class TurnCounter:
    """In which turns of a broker's loop something happened."""

    def __init__(self, broker):
        self.seen = []
        self._broker = broker
        self._turn = 0

    def __enter__(self):
        async def start(_):
            self._task = asyncio.ensure_future(self._count())

        self._broker.call(start)
        return self

    def __exit__(self, *_):
        async def stop(_):
            self._task.cancel()

        self._broker.call(stop)

    async def _count(self):
        while True:
            self._turn += 1
            await asyncio.sleep(0)

    def watch(self, monkeypatch, owner, name, size=lambda *_: 1):
        """Note each call of a function, as often as `size` says of its result."""
        function = getattr(owner, name)

        def noting(*arguments, **options):
            result = function(*arguments, **options)
            self.seen += [self._turn] * size(result)
            return result

        monkeypatch.setattr(owner, name, noting)

    @property
    def most(self):
        """The most that happened in one turn."""
        return max(Counter(self.seen).values())


@pytest.fixture
def turns(broker, monkeypatch):
    """Each piece fills its slice, so that it has a turn of its own."""
    monkeypatch.setattr(cooperative, "SLICE_S", 0)
    monkeypatch.setattr(consumers, "CLOSED_AT_ONCE", 1)
    monkeypatch.setattr(sessions, "LEFT_AT_ONCE", 1)
    with TurnCounter(broker) as counter:
        yield counter


COUNT = 60


def path_of(topic, what=""):
    """A topic's path in the admin interface."""
    return f"/admin/v2/persistent/{topic.partition('://')[2]}{what}"


@pytest.mark.parametrize(
    ("what", "module", "function"),
    [("/stats", stats, "consumer_stats"), ("/internalStats", internal_stats, "_cursor")],
)
def test_the_statistics_of_a_topic_are_taken_row_by_row(
    raw, http, topic, monkeypatch, turns, what, module, function
):
    """Consumers and subscriptions do not have their rows made in one turn; all have one."""
    for number in range(COUNT // 2):
        raw.subscribe(topic, "s", sub_type=Shared)
        raw.subscribe(topic, f"own{number}")
    turns.watch(monkeypatch, module, function)
    answer = http("GET", path_of(topic, what)).json
    rows = answer["subscriptions" if what == "/stats" else "cursors"]
    assert len(rows) == COUNT // 2 + 1
    assert len(turns.seen) == (COUNT if what == "/stats" else COUNT // 2 + 1)
    assert turns.most == 1


def test_the_statistics_of_the_broker_are_taken_topic_by_topic(raw, http, monkeypatch, turns):
    """No turn of the loop takes the figures of two topics; all of them are in the answer."""
    names = [f"persistent://public/default/many{number}" for number in range(COUNT)]
    for name in names:
        raw.create_producer(name)
    turns.watch(monkeypatch, brokers, "_row")
    answer = http("GET", "/admin/v2/broker-stats/topics").json
    shown = [name for bundle in answer["public/default"].values() for name in bundle["persistent"]]
    assert set(names) <= set(shown)
    assert len(turns.seen) == len(shown)
    assert turns.most == 1


@pytest.mark.parametrize("how", ["unload", "delete"])
@pytest.mark.parametrize("sub_type", [Shared, Key_Shared])
def test_the_clients_of_a_closed_topic_are_notified_in_pieces(
    raw, http, topic, monkeypatch, turns, how, sub_type
):
    """Every client is notified, and gets nothing after its subscription was detached."""
    consumers = [raw.subscribe(topic, "s", sub_type=sub_type) for _ in range(COUNT // 2)]
    consumers += [raw.subscribe(topic, f"own{n}", sub_type=sub_type) for n in range(COUNT // 2)]
    turns.watch(monkeypatch, Session, "close_consumer")
    if how == "unload":
        assert http("PUT", path_of(topic, "/unload")).status == 204
    else:
        assert http("DELETE", path_of(topic, "?force=true")).status == 204
    raw.ping()
    assert all(consumer.is_closed for consumer in consumers)
    assert len(turns.seen) == COUNT
    assert turns.most == 1


def test_the_consumers_of_many_subscriptions_leave_in_pieces(
    raw, broker, topic, monkeypatch, turns
):
    """When their connection ends, one subscription after another is freed."""
    raw.create_producer(topic)
    turns.watch(monkeypatch, Subscription, "remove_leaving", size=int)
    with RawClient.from_url(broker.service_url) as other:
        for number in range(COUNT):
            other.subscribe(topic, f"s{number}")

    while len(turns.seen) < COUNT:
        raw.ping()
    assert turns.most == 1
    raw.subscribe(topic, "s0")


def test_who_comes_before_the_others_had_their_turn_to_leave_finds_them_gone(broker, topic):
    """An Exclusive subscriber, or one of another type, does not meet those of a dead connection."""

    async def leave_and_look(running):
        opened = running.services.topics.open_topics[topic]
        (session,) = {
            consumer.connection for s in opened.subscriptions.values() for consumer in s.consumers
        }
        session.close_state()
        waiting = [s for s in opened.subscriptions.values() if s._leaving]
        return len(waiting), [len(s.consumers) for s in opened.subscriptions.values()]

    with RawClient.from_url(broker.service_url) as other:
        for number in range(2 * LEFT_AT_ONCE):
            other.subscribe(topic, f"s{number}")
        waiting, found = broker.call(leave_and_look)
    assert waiting == LEFT_AT_ONCE
    assert not any(found)


def test_a_seek_closes_the_one_who_asked_last(raw, broker, topic, turns):
    """Of many consumers, the client that waits for SUCCESS gets both back to back."""
    raw.create_producer(topic).send(b"x")
    with RawClient.from_url(broker.service_url) as other:
        asking = raw.subscribe(topic, "s", sub_type=Shared)
        others = [other.subscribe(topic, "s", sub_type=Shared) for _ in range(CLOSED_AT_ONCE)]
        closed = []

        def noting(tell, consumer):
            closed.append(consumer)
            tell(consumer)

        async def watch(running):
            subscription = running.services.topics.open_topics[topic].subscriptions["s"]
            for consumer in subscription.consumers:
                session = consumer.connection
                tell = session.close_consumer
                if "close_consumer" not in vars(session):
                    session.close_consumer = partial(noting, tell)
            return next(c for c in subscription.consumers if c.consumer_id == asking.consumer_id)

        held = broker.call(watch)
        asking.seek(publish_time_ms=0)
        other.ping()
    assert len(closed) == CLOSED_AT_ONCE + 1
    assert closed[-1] is held
    assert all(consumer.is_closed for consumer in others)


@pytest.mark.parametrize("sub_type", [Shared, Key_Shared])
def test_ids_that_are_named_again_are_redelivered_once(raw, topic, sub_type):
    """However many pieces the command takes, each entry is redelivered and counted once."""
    count = PIECE_IDS + 500
    receipts = raw.create_producer(topic).send_many([b"\x00\x00\x00\x00x"] * count)
    consumer = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
    consumer.flow(10 * count)
    consumer.receive_many(count)
    ids = [MessageId(r.ledger_id, r.entry_id) for r in receipts]
    consumer.redeliver(*ids, *ids, *ids)
    raw.ping()
    again = consumer.receive_many(count)
    assert {message.command.redelivery_count for message in again} == {1}
    with pytest.raises(RawTimeoutError):
        consumer.receive(timeout_s=0.2)


async def test_work_waits_for_what_a_piece_gives():
    """The next piece comes when the future of a piece is done; later work comes after that."""
    work, ran = LongWork(), []
    waits = asyncio.get_running_loop().create_future()

    def waiting():
        ran.append("a0")
        yield waits
        ran.append("a1")

    def short():
        ran.append("b0")
        yield None

    work.add(waiting())
    work.add(short())
    for _ in range(5):
        await asyncio.sleep(0)
    assert ran == ["a0"]
    waits.set_result(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert ran == ["a0", "a1", "b0"]
    assert not work


async def test_work_that_waits_is_left_out_at_the_end():
    """What is done at once does not wait; the rest of the work is done, in order."""
    work, ran = LongWork(), []
    waits = asyncio.get_running_loop().create_future()

    def waiting():
        ran.append("a0")
        yield waits
        yield waits
        ran.append("a1")

    def short():
        ran.append("b0")
        yield None

    work.add(waiting(), lambda: ran.append("a is over"))
    work.add(short())
    work.finish()
    assert ran == ["a0", "a is over", "b0"]
    waits.set_result(None)
    await asyncio.sleep(0)
    assert ran == ["a0", "a is over", "b0"]


async def test_pieces_that_wait_are_not_run_at_once():
    """`run_now` stops at a piece that gives a future, and `work` goes on after it."""
    turns, ran = Turns(), []
    waits = asyncio.get_running_loop().create_future()

    def pieces():
        yield None
        ran.append(0)
        yield waits
        ran.append(1)

    some = pieces()
    assert not turns.run_now(some)
    assert ran == [0]
    waits.set_result(None)
    await turns.work(some)
    assert ran == [0, 1]


async def test_many_who_ask_at_once_share_one_slice_of_each_turn(monkeypatch):
    """However much work runs, one turn of the loop has one slice of all of it."""
    monkeypatch.setattr(cooperative, "SLICE_S", 0)
    turns, turn, seen = Turns(), 0, []

    def pieces():
        for _ in range(5):
            seen.append(turn)
            yield

    works = asyncio.gather(*(turns.work(pieces()) for _ in range(8)))
    while not works.done():
        turn += 1
        await asyncio.sleep(0)
    assert len(seen) == 40
    assert max(Counter(seen).values()) == 1


async def test_few_long_answers_are_made_at_a_time(monkeypatch):
    """What they are made of is in memory meanwhile; a short answer waits for none of them."""
    monkeypatch.setattr(cooperative, "SLICE_S", 0)
    turns, running, most = Turns(), set(), []

    def pieces(number, count):
        for done in range(count):
            if done:
                running.add(number)
                most.append(len(running))
            yield
        running.discard(number)

    works = [asyncio.ensure_future(turns.answer(pieces(number, 50))) for number in range(20)]
    await asyncio.sleep(0)
    await turns.answer(pieces("short", 0))
    assert not any(work.done() for work in works)
    await asyncio.gather(*works)
    assert max(most) == cooperative.LONG_ANSWERS_AT_ONCE


async def test_what_a_piece_raises_ends_its_work_only():
    """The waiting caller gets the error, and the next work runs."""
    turns = Turns()

    def failing():
        yield
        raise RuntimeError("broken")

    def good():
        yield
        return 7

    work = asyncio.gather(turns.work(failing()), return_exceptions=True)
    assert await turns.result(good()) == 7
    assert [str(error) for error in await work] == ["broken"]


def test_work_that_the_end_of_work_adds_keeps_its_order():
    """Jobs added by the end of another job run one after the other, a piece in each turn."""

    async def scenario():
        work, ran = LongWork(), []

        def pieces(name, count):
            for number in range(count):
                ran.append(f"{name}{number}")
                yield

        def then():
            work.add(pieces("b", 0))
            work.add(pieces("c", 2))
            work.add(pieces("d", 1))

        work.add(pieces("a", 1), then)
        for _ in range(20):
            await asyncio.sleep(0)
        return ran, bool(work)

    assert asyncio.run(scenario()) == (["a0", "c0", "c1", "d0"], False)


async def refuse():
    """Work that is refused, a little later."""
    await asyncio.sleep(0)
    raise RefusedError(ServerError.ServiceNotReady, "gone")


async def fail():
    """Work that fails by a mistake of our own, a little later."""
    await asyncio.sleep(0)
    raise ZeroDivisionError


async def given_up(work):
    """Cancel the caller that waits for the work, and let the work end."""
    background = Background()
    waiter = asyncio.ensure_future(background.run_to_end(work))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await background.settled()


@pytest.mark.parametrize(("work", "count"), [(refuse, 0), (fail, 1)])
async def test_what_no_one_waits_for_is_logged_unless_it_is_a_refusal(caplog, work, count):
    """A client that goes away while it is refused leaves no traceback; our mistakes are seen."""
    with caplog.at_level(logging.ERROR):
        await given_up(work())
    assert len(caplog.records) == count


async def test_those_who_wait_get_the_outcome(caplog):
    """The error is raised in the waiting caller, and is not logged."""
    with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError):
        await Background().run_to_end(fail())
    assert caplog.records == []
