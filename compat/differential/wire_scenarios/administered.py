"""What clients hear when an administrator moves, empties or deletes what they use."""

from __future__ import annotations

import time

from pulsemark.wire import EARLIEST, commands

from ..peers import RawConnection, Recorder
from .common import SUB, batch, fill, message, received, scenario, send, subscribe

KINDS = {
    "exclusive": SUB.Exclusive,
    "shared": SUB.Shared,
    "failover": SUB.Failover,
    "key": SUB.Key_Shared,
}


def _path(topic: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}"


@scenario
def administered_positions(broker: Recorder, topic: str) -> None:
    """A cursor is reset, skipped and cleared while its consumer is connected."""
    for name, kind in KINDS.items():
        here = f"{topic}-{name}"
        link = broker.connect()
        fill(link, here, 4, batches=1)
        subscribe(link, here, 10, "s", kind)
        link.say("flow", commands.flow(10, 3), quiet_s=1.2)
        first = received(broker)[-1]
        one = f"{_path(here)}/subscription/s"
        broker.rest("POST", f"{one}/skip/1", label=f"{name} skip")
        link.listen(f"{name} after the skip")
        link.say("flow", commands.flow(10, 1))
        broker.rest("POST", f"{one}/resetcursor/0", label=f"{name} reset by time")
        link.listen(f"{name} after the reset", quiet_s=1.0)
        subscribe(link, here, 10, "s", kind)
        link.say("flow", commands.flow(10, 20), quiet_s=1.2)
        position = {"ledgerId": first.ledger_id, "entryId": 1, "partitionIndex": -1}
        for label, body in (
            ("by id", position),
            ("excluded", {**position, "isExcluded": True}),
            ("batch index", {**position, "entryId": 4, "batchIndex": 2}),
            ("absent entry", {**position, "entryId": 99}),
        ):
            broker.rest("POST", f"{one}/resetcursor", body, label=f"{name} reset {label}")
            link.listen(f"{name} after reset {label}", quiet_s=1.0)
            subscribe(link, here, 10, "s", kind)
            link.say(f"{name} flow after {label}", commands.flow(10, 20), quiet_s=1.2)
        broker.rest("POST", f"{one}/skip_all", label=f"{name} clear")
        link.listen(f"{name} after clear", quiet_s=1.0)
        link.say("last id", commands.get_last_message_id(10, link.next_request()))
        broker.rest("DELETE", one, label=f"{name} delete")
        broker.rest("DELETE", f"{one}?force=true", label=f"{name} delete by force")
        link.listen(f"{name} after deletion", quiet_s=1.0)
        link.close()


def _clients(broker: Recorder, topic: str) -> tuple[RawConnection, RawConnection]:
    owner, link = broker.connect(), broker.connect()
    fill(owner, topic, 3)
    link.say("lookup", commands.lookup(topic, link.next_request()))
    subscribe(link, topic, 10, "exclusive")
    subscribe(link, topic, 11, "shared", SUB.Shared)
    subscribe(link, topic, 12, "reader", durable=False, start_message_id=EARLIEST)
    link.say("flow", commands.flow(11, 1))
    return owner, link


@scenario
def administered_topics(broker: Recorder, topic: str) -> None:
    """A topic is unloaded, truncated, terminated and deleted while clients use it."""
    for method, part in (
        ("PUT", "/unload"),
        ("DELETE", "/truncate"),
        ("POST", "/terminate"),
        ("DELETE", ""),
        ("DELETE", "?force=true"),
        ("DELETE", "?force=true&deleteSchema=true"),
        ("PUT", "/compaction"),
    ):
        label = f"{method} {part}"
        here = f"{topic}-{len(label)}-{len(part)}"
        owner, link = _clients(broker, here)
        broker.rest(method, f"{_path(here)}{part}", label=label)
        link.listen(f"consumers hear {label}", quiet_s=1.5)
        owner.listen(f"producer hears {label}", quiet_s=1.0)
        owner.say(
            f"send after {label}", send(1, 3, message(3)), send(1, 4, batch(4, 2), num_messages=2)
        )
        link.say(f"last id after {label}", commands.get_last_message_id(10, link.next_request()))
        link.say(f"flow after {label}", commands.flow(11, 20))
        link.say(f"close after {label}", commands.close_consumer(11, link.next_request()))
        owner.close()
        link.close()


@scenario
def administered_namespaces(broker: Recorder, topic: str) -> None:
    """A namespace is unloaded, cleared and deleted while clients use it."""
    for number, (method, part) in enumerate(
        (
            ("PUT", "/unload"),
            ("PUT", "/0x00000000_0xffffffff/unload"),
            ("POST", "/clearBacklog"),
            ("POST", "/clearBacklog/shared"),
            ("POST", "/unsubscribe/shared"),
            ("DELETE", ""),
            ("DELETE", "?force=true"),
        )
    ):
        label = f"{method} {part}"
        namespace = f"public/{topic.rpartition('/')[2]}-{number}"
        admin = f"/admin/v2/namespaces/{namespace}"
        broker.rest("PUT", admin, {"bundles": {"numBundles": 1}}, quiet=True)
        here = f"persistent://{namespace}/t"
        owner, link = _clients(broker, here)
        broker.rest(method, f"{admin}{part}", label=label)
        link.listen(f"consumers hear {label}", quiet_s=1.5)
        owner.listen(f"producer hears {label}", quiet_s=1.0)
        broker.rest("GET", f"{admin}/topics", label=f"topics after {label}")
        owner.close()
        link.close()


@scenario
def last_ids(broker: Recorder, topic: str) -> None:
    """GET_LAST_MESSAGE_ID of topics that are empty, emptied, compacted, terminated, unloaded."""
    link = broker.connect()
    path = _path(topic)
    broker.rest("PUT", f"{path}/partitions", 1, quiet=True)
    here = f"{topic}-partition-0"
    subscribe(link, here, 10, "s")
    subscribe(link, here, 11, "compacted", read_compacted=True)

    def ask(label: str) -> None:
        for number in (10, 11):
            link.say(f"{label} {number}", commands.get_last_message_id(number, link.next_request()))
        broker.rest("GET", f"{_path(here)}/lastMessageId", label=f"{label} over REST")

    ask("empty")
    link.say("producer", commands.producer(here, 1, link.next_request(), producer_name="p"))
    link.say("single", send(1, 0, message(0, key="a")))
    ask("single")
    link.say("batch", send(1, 1, batch(1, 3), num_messages=3))
    ask("batch")
    link.say("tombstone", send(1, 4, message(4, None, key="a")))
    ask("tombstone")
    broker.rest("PUT", f"{_path(here)}/compaction", label="compact")
    time.sleep(2.5)
    broker.rest("GET", f"{_path(here)}/compaction", label="compaction")
    ask("compacted")
    subscribe(link, here, 12, "late", read_compacted=True)
    link.say("late", commands.get_last_message_id(12, link.next_request()))
    link.say("flow late", commands.flow(12, 10))
    link.say("flow", commands.flow(10, 10))
    broker.rest("POST", f"{_path(here)}/subscription/s/skip_all", label="clear")
    ask("cleared")
    broker.rest("POST", f"{_path(here)}/terminate", label="terminate")
    ask("terminated")
