"""Cleaning: policies and requests over REST, and what consumers of the compacted form get."""

from __future__ import annotations

import time
from typing import Any

from pulsemark.wire import MessageId, commands

from .peers import Recorder
from .rest_scenarios.registry import ADMIN, path_of, unique
from .wire_scenarios import (
    SUB,
    Scenario,
    fill,
    message,
    produce,
    received,
    send,
    subscribe,
)

CLEANING_SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under its name."""
    CLEANING_SCENARIOS[function.__name__] = function
    return function


NUMBERS: tuple[Any, ...] = (60, 0, -1, "60", 1.5, "x", None, {}, [], True)
RETENTIONS: tuple[Any, ...] = (
    {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20480},
    {"retentionTimeInMinutes": 0, "retentionSizeInMB": 20480},
    {"retentionTimeInMinutes": 10, "retentionSizeInMB": 0},
    {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    {"retentionTimeInMinutes": -2, "retentionSizeInMB": -1},
    {"retentionTimeInMinutes": -1, "retentionSizeInMB": -2},
    {"retentionTimeInMinutes": "7", "retentionSizeInMB": -1},
    {},
    [],
    5,
)


@scenario
def rest_namespace_cleaning(broker: Recorder, topic: str) -> None:
    name = f"{ADMIN}/namespaces/public/{unique(topic)}"
    broker.rest("PUT", name, {}, label="create")
    for policy, setting, values in (
        ("retention", "POST", RETENTIONS),
        ("messageTTL", "POST", NUMBERS),
        ("compactionThreshold", "PUT", NUMBERS),
    ):
        for value in values:
            broker.rest(setting, f"{name}/{policy}", value, label=f"set {policy} {value}")
            broker.rest("GET", f"{name}/{policy}", label=f"get {policy} after {value}")
        for method in ("DELETE", "GET", "PATCH"):
            broker.rest(method, f"{name}/{policy}", label=f"{method} {policy}")
        for method in ("GET", setting, "DELETE"):
            broker.rest(method, f"{name}-absent/{policy}", values[0], label=f"{method} absent")


@scenario
def rest_topic_cleaning(broker: Recorder, topic: str) -> None:
    path = path_of(topic)
    broker.rest("PUT", path, label="create")
    broker.rest("PUT", f"{path}-parts/partitions", 2, label="create partitions")
    for policy, values in (("retention", RETENTIONS), ("compactionThreshold", NUMBERS)):
        for value in values:
            broker.rest("POST", f"{path}/{policy}", value, label=f"set {policy} {value}")
            broker.rest("GET", f"{path}/{policy}", label=f"get {policy} after {value}")
    for value in ("60", "0", "-1", "x", "1.5", "99999999999", ""):
        broker.rest("POST", f"{path}/messageTTL?messageTTL={value}", label=f"set TTL {value}")
        broker.rest("GET", f"{path}/messageTTL", label=f"get TTL after {value}")
    for policy in ("retention", "messageTTL", "compactionThreshold"):
        broker.rest("DELETE", f"{path}/{policy}", label=f"remove {policy}")
        for place in ("", "-absent", "-parts", "-parts-partition-0"):
            broker.rest("GET", f"{path}{place}/{policy}", label=f"get {policy} of {place}")


@scenario
def rest_expiry(broker: Recorder, topic: str) -> None:
    path = path_of(topic)
    link = broker.connect()
    produce(link, topic, producer_name="p")
    for consumer_id, name in ((10, "s"), (11, "t")):
        subscribe(link, topic, consumer_id, name)
    broker.rest("POST", f"{path}/subscription/s/expireMessages/1", label="nothing there")
    link.say("send", *(send(1, n, message(n)) for n in range(5)))
    time.sleep(2.5)
    for age in ("3600", "0", "x", "1.5", "99999999999"):
        broker.rest("POST", f"{path}/subscription/s/expireMessages/{age}", label=f"age {age}")
    broker.rest("POST", f"{path}/subscription/absent/expireMessages/1", label="no subscription")
    broker.rest("POST", f"{path}-absent/subscription/s/expireMessages/1", label="no topic")
    broker.rest("POST", f"{path}/subscription/s/expireMessages/1", label="expire")
    broker.rest("POST", f"{path}/all_subscription/expireMessages/1", label="the other one, too")
    time.sleep(0.5)
    _, stats = broker.rest("GET", f"{path}/stats", quiet=True)
    for name in ("s", "t"):
        found = stats["subscriptions"][name]
        broker.record(f"backlog of {name}", [found["msgBacklog"], found["totalMsgExpired"]])
    places: list[Any] = [{}, "earliest", [], {"ledgerId": "a"}, {"ledgerId": 1 << 50, "entryId": 0}]
    for body in places:
        broker.rest("POST", f"{path}/subscription/s/expireMessages", body, label=f"up to {body}")


@scenario
def rest_compaction(broker: Recorder, topic: str) -> None:
    path = path_of(topic)
    link = broker.connect()
    broker.rest("GET", f"{path}/compaction", label="absent")
    fill(link, topic)
    broker.rest("GET", f"{path}/compaction", label="not run")
    broker.rest("PUT", f"{path}/compaction", label="compact")
    time.sleep(3)
    broker.rest("GET", f"{path}/compaction", label="done")
    broker.rest("POST", f"{path}/compaction", label="wrong method")
    broker.rest("PUT", f"{path}-parts/partitions", 2, label="create partitions")
    broker.rest("GET", f"{path}-parts/compaction", label="status of a partitioned topic")
    broker.rest("PUT", f"{path}-parts/compaction", label="compact a partitioned topic")
    broker.rest("DELETE", f"{path}-absent/truncate", label="truncate an absent topic")
    broker.rest("DELETE", f"{path}/truncate", label="truncate")


@scenario
def compacted_reading(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic, producer_name="p")
    keys = ("a", "b", "a", "c", "b", None)
    link.say("send", *(send(1, n, message(n, key=k)) for n, k in enumerate(keys)))
    broker.rest("PUT", f"{path_of(topic)}/compaction", label="compact")
    time.sleep(3)
    link.say("send the tail", send(1, 6, message(6, key="a")))
    subscribe(link, topic, durable=False, read_compacted=True)
    link.say("last id", commands.get_last_message_id(10, link.next_request()))
    link.say("flow", commands.flow(10, 10))
    ids: list[MessageId] = received(broker)
    broker.record("entries of the view and the tail", [each.entry_id for each in ids])
    subscribe(link, topic, 11, "shared", SUB.Shared, read_compacted=True)
