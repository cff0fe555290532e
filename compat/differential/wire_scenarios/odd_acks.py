"""Acknowledgements that do not fit: wrong sets, absent entries, several at once, of all types."""

from __future__ import annotations

from typing import Any

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import MessageId, commands

from ..peers import RawConnection, Recorder
from .common import SUB, fill, received, scenario, subscribe

KINDS = {
    "exclusive": SUB.Exclusive,
    "shared": SUB.Shared,
    "failover": SUB.Failover,
    "key": SUB.Key_Shared,
}
CUMULATIVE = pb.CommandAck.Cumulative
ALL_BITS = -1


def _cases(single: MessageId, whole: MessageId) -> dict[str, list[MessageId]]:
    """Ids by what is odd in them: `single` is of an unbatched message, `whole` of a batch of 5."""

    def of(one: MessageId, *words: int, size: int = 0) -> MessageId:
        return MessageId(one.ledger_id, one.entry_id, ack_set=words, batch_size=size)

    ledger = single.ledger_id
    return {
        "set of a single": [of(single, 1, size=1)],
        "zero set of a single": [of(single, 0, size=1)],
        "long set of a batch": [of(whole, 0b11110, 7, size=5)],
        "all open": [of(whole, 0b11111, size=5)],
        "bits beyond the batch": [of(whole, ALL_BITS ^ 1, size=5)],
        "without a size": [of(whole, 0b11101)],
        "another size": [of(whole, 0b011, size=3)],
        "the same twice": [of(whole, 0b11011, size=5), of(whole, 0b11011, size=5)],
        "two members": [of(whole, 0b10111, size=5), of(whole, 0b01111, size=5)],
        "batch index, no set": [MessageId(ledger, whole.entry_id, batch_index=2, batch_size=5)],
        "absent entry": [MessageId(ledger, 777)],
        "absent ledger": [MessageId(ledger + 999_999, 0)],
        "negative ledger": [MessageId(-1, 0)],
        "absent and present": [MessageId(ledger, 777), single],
        "again": [single],
    }


@scenario
def odd_acknowledgements(broker: Recorder, topic: str) -> None:
    for name, kind in KINDS.items():
        here = f"{topic}-{name}"
        link = broker.connect()
        fill(link, here, 2, batches=2)
        subscribe(link, here, 10, "s", kind)
        link.say("flow", commands.flow(10, 20), quiet_s=1.2)
        ids = received(broker)[-4:]
        for label, found in _cases(ids[0], ids[2]).items():
            request = link.next_request()
            link.say(f"{name} {label}", commands.ack(10, found, request_id=request))
        _what_is_left(broker, link, here, kind, name)


@scenario
def odd_cumulative_acknowledgements(broker: Recorder, topic: str) -> None:
    for name, kind in KINDS.items():
        here = f"{topic}-{name}"
        link = broker.connect()
        fill(link, here, 2, batches=2)
        subscribe(link, here, 10, "s", kind)
        link.say("flow", commands.flow(10, 20), quiet_s=1.2)
        ids = received(broker)[-4:]
        for label, found in _cases(ids[0], ids[2]).items():
            request = link.next_request()
            link.say(f"{name} {label}", commands.ack(10, found, CUMULATIVE, request_id=request))
            link.say(f"{name} {label} mark", commands.get_last_message_id(10, link.next_request()))
        _what_is_left(broker, link, here, kind, name)


def _what_is_left(
    broker: Recorder, link: RawConnection, topic: str, kind: SUB.SubType, name: str
) -> None:
    link.say(f"{name} stats", commands.consumer_stats(10, link.next_request()))
    broker.rest(
        "GET", f"/admin/v2/{topic.replace('://', '/')}/stats", label=f"{name} stats over REST"
    )
    link.say(
        f"{name} redeliver", commands.redeliver_unacknowledged_messages(10), commands.flow(10, 20)
    )
    link.say(f"{name} close", commands.close_consumer(10, link.next_request()))
    subscribe(link, topic, 11, "s", kind)
    link.say(f"{name} flow again", commands.flow(11, 20), quiet_s=1.2)
    link.close()


@scenario
def validation_errors(broker: Recorder, topic: str) -> None:
    """Each reason for which a client could not read a message."""
    link = broker.connect()
    fill(link, topic, 6)
    subscribe(link, topic, 10, "s", SUB.Shared)
    link.say("flow", commands.flow(10, 20))
    ids = received(broker)
    for number, label in enumerate(pb.CommandAck.ValidationError.keys()):
        error: Any = pb.CommandAck.ValidationError.Value(label)
        link.say(
            label,
            commands.ack(
                10, ids[number : number + 1], request_id=link.next_request(), validation_error=error
            ),
        )
    link.say("stats", commands.consumer_stats(10, link.next_request()))


@scenario
def acknowledged_unread(broker: Recorder, topic: str) -> None:
    """Messages that were acknowledged before they were delivered."""
    for name, kind in KINDS.items():
        here = f"{topic}-{name}"
        link = broker.connect()
        fill(link, here, 6)
        subscribe(link, here, 9, "other", SUB.Exclusive)
        link.say("ids", commands.flow(9, 20))
        ids = received(broker)[-6:]
        subscribe(link, here, 10, "s", kind)
        link.say("ack", commands.ack(10, ids[2:4], request_id=link.next_request()))
        link.say("flow", commands.flow(10, 3), quiet_s=1.2)
        link.say("stats", commands.consumer_stats(10, link.next_request()))
        link.say("more", commands.flow(10, 10))
        link.say("stats", commands.consumer_stats(10, link.next_request()))
        link.close()
