"""Producers' access modes: every pair of modes, and owners that come back."""

from __future__ import annotations

from typing import Any

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import commands

from ..peers import RawConnection, Recorder
from .common import SCENARIOS, Scenario, lookup, message, produce, scenario, send

MODES = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "wait": pb.WaitForExclusive,
    "fencing": pb.ExclusiveWithFencing,
}


def _connected(held: pb.ProducerAccessMode, asked: pb.ProducerAccessMode) -> Scenario:
    def run(broker: Recorder, topic: str) -> None:
        first, second = broker.connect(), broker.connect()
        produce(first, topic, producer_name="a", access_mode=held)
        produce(second, topic, producer_name="b", access_mode=asked)
        first.listen("first hears")
        first.say("first sends", send(1, 0, message(0)))
        second.say("second sends", send(1, 0, message(0)))
        first.say("first closes", commands.close_producer(1, first.next_request()))
        second.listen("second hears")

    return run


def _returning(held: pb.ProducerAccessMode, asked: pb.ProducerAccessMode) -> Scenario:
    """The first closes, the second comes, and the first returns with and without its epoch."""

    def run(broker: Recorder, topic: str) -> None:
        first, second = broker.connect(), broker.connect()
        produce(first, topic, producer_name="a", access_mode=held)
        epoch = _epoch(broker)
        first.say("first closes", commands.close_producer(1, first.next_request()))
        produce(second, topic, producer_name="b", access_mode=asked)
        second.say("second sends", send(1, 0, message(0)))
        _open(
            first,
            topic,
            2,
            "first returns with its epoch",
            producer_name="a",
            access_mode=held,
            topic_epoch=epoch,
        )
        second.say("second sends again", send(1, 1, message(1)))
        if first.closed:
            first = broker.connect()
            lookup(first, topic)
        _open(first, topic, 3, "first returns without epoch", producer_name="a2", access_mode=held)
        first.say("first sends", send(3, 0, message(0)))
        second.say("second closes", commands.close_producer(1, second.next_request()))
        first.listen("first hears")

    return run


def _died(held: pb.ProducerAccessMode, asked: pb.ProducerAccessMode) -> Scenario:
    """The first's connection ends without a word while the second is there, or comes."""

    def run(broker: Recorder, topic: str) -> None:
        first, second = broker.connect(), broker.connect()
        produce(first, topic, producer_name="a", access_mode=held)
        epoch = _epoch(broker)
        produce(second, topic, producer_name="b", access_mode=asked)
        first.close()
        second.listen("second hears", quiet_s=1.0)
        third = broker.connect()
        lookup(third, topic)
        _open(
            third,
            topic,
            1,
            "first returns",
            producer_name="a",
            access_mode=held,
            topic_epoch=epoch,
            epoch=1,
        )
        second.say("second sends", send(1, 0, message(0)))
        third.say("first sends", send(1, 0, message(0)))

    return run


def _epoch(broker: Recorder) -> int | None:
    body = broker.last("PRODUCER_SUCCESS")
    return body.topic_epoch if body is not None and body.HasField("topic_epoch") else None


def _open(link: RawConnection, topic: str, producer_id: int, label: str, **options: Any) -> None:
    link.say(label, commands.producer(topic, producer_id, link.next_request(), **options))


SCENARIOS.update(
    {
        f"{name}_{held_name}_{asked_name}": make(held, asked)
        for name, make in (("access", _connected), ("returning", _returning), ("died", _died))
        for held_name, held in MODES.items()
        for asked_name, asked in MODES.items()
    }
)


@scenario
def stale_topic_epoch(broker: Recorder, topic: str) -> None:
    first, second = broker.connect(), broker.connect()
    produce(first, topic, producer_name="a", access_mode=pb.Exclusive)
    produce(second, topic, producer_name="b", access_mode=pb.ExclusiveWithFencing)
    first.close()
    third = broker.connect()
    produce(third, topic, producer_name="a", access_mode=pb.Exclusive, topic_epoch=0)
    second.say("second sends", send(1, 0, message(0)))
    fourth = broker.connect()
    produce(fourth, topic, producer_name="c", access_mode=pb.ExclusiveWithFencing, topic_epoch=7)
    fourth.say("fourth sends", send(1, 0, message(0)))


@scenario
def claimed_epochs(broker: Recorder, topic: str) -> None:
    for number, mode in enumerate(MODES.values()):
        for claimed in (0, 5, 5, 3, 9):
            link = broker.connect()
            produce(
                link, f"{topic}-{number}", producer_name="a", access_mode=mode, topic_epoch=claimed
            )
            link.say("close", commands.close_producer(1, link.next_request()))
            link.close()


@scenario
def several_waiting(broker: Recorder, topic: str) -> None:
    links = [broker.connect() for _ in range(4)]
    for number, link in enumerate(links):
        mode = pb.Exclusive if number == 0 else pb.WaitForExclusive
        produce(link, topic, producer_name=f"p{number}", access_mode=mode)
    links[1].say("waiting one closes", commands.close_producer(1, links[1].next_request()))
    links[2].say(
        "waiting one asks again",
        commands.producer(
            topic, 1, links[2].next_request(), producer_name="p2", access_mode=pb.WaitForExclusive
        ),
    )
    other = broker.connect()
    produce(other, topic, producer_name="p3", access_mode=pb.WaitForExclusive)
    produce(other, topic, 2, producer_name="late", access_mode=pb.Shared)
    links[0].close()
    links[2].listen("second waiting hears", quiet_s=1.0)
    links[3].say("third waiting sends", send(1, 0, message(0)))
    links[2].say("owner sends", send(1, 0, message(0)))
    fencer = broker.connect()
    produce(fencer, topic, producer_name="f", access_mode=pb.ExclusiveWithFencing)
    for link in links[1:]:
        link.listen("after fencing")


def _promoted(held: pb.ProducerAccessMode, *, claims: bool) -> Scenario:
    """A producer waits, the other one closes, and the waiting one takes over."""

    def run(broker: Recorder, topic: str) -> None:
        first, second, third = broker.connect(), broker.connect(), broker.connect()
        if claims:
            produce(second, topic, producer_name="b", access_mode=pb.Exclusive)
            second.say("close", commands.close_producer(1, second.next_request()))
        produce(first, topic, producer_name="a", access_mode=held)
        produce(
            second,
            topic,
            producer_name="b",
            access_mode=pb.WaitForExclusive,
            topic_epoch=0 if claims else None,
        )
        produce(third, topic, producer_name="c", access_mode=pb.WaitForExclusive)
        first.say("close", commands.close_producer(1, first.next_request()))
        second.listen("second hears")
        second.say("second sends", send(1, 0, message(0)))
        third.say("third closes", commands.close_producer(1, third.next_request()))
        second.say("second closes", commands.close_producer(1, second.next_request()))
        produce(first, topic, 2, producer_name="d", access_mode=pb.Exclusive)

    return run


SCENARIOS.update(
    {
        f"promoted_{name}{'_stale' if claims else ''}": _promoted(mode, claims=claims)
        for name, mode in MODES.items()
        for claims in (False, True)
    }
)


@scenario
def fenced_waiting(broker: Recorder, topic: str) -> None:
    links = [broker.connect() for _ in range(4)]
    for number, (link, mode) in enumerate(
        zip(
            links,
            (pb.Exclusive, pb.WaitForExclusive, pb.WaitForExclusive, pb.ExclusiveWithFencing),
            strict=True,
        )
    ):
        produce(link, topic, producer_name=f"p{number}", access_mode=mode)
    for link in links:
        link.listen("hears")
    for link in links:
        link.say("sends", send(1, 0, message(0)))


@scenario
def dead_exclusive_owner(broker: Recorder, topic: str) -> None:
    first, second = broker.connect(), broker.connect()
    produce(first, topic, producer_name="n", access_mode=pb.Exclusive)
    first.answers_pings = False
    lookup(second, topic)
    _open(second, topic, 1, "newcomer", producer_name="n", access_mode=pb.Exclusive)
    first.listen("owner")
