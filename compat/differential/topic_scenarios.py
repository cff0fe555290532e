"""Non-persistent topics, terminated topics, messages over REST, and the rules of partitions."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import MessageId, commands

from .peers import Recorder
from .rest_scenarios.registry import ADMIN, path_of, unique
from .wire_scenarios import SUB, Scenario, batch, fill, message, produce, received, send, subscribe

#: A ledger's id in a text: "ledger/5/", "5:1".
LEDGER = re.compile(r"(?<=ledger/)\d+(?=/)|\b\d+(?=:\d)")
TOPIC_SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under its name."""
    TOPIC_SCENARIOS[function.__name__] = function
    return function


def in_memory(topic: str) -> str:
    """The non-persistent topic of the same name."""
    return topic.replace("persistent://", "non-persistent://")


def message_over_rest(broker: Recorder, method: str, path: str, label: str) -> None:
    """Record a message's status, body and X-Pulsar headers."""
    request = urllib.request.Request(f"{broker.admin_url}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            status, headers, raw = answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        status, headers, raw = error.code, error.headers, error.read()
    shown = {
        name.lower(): broker.normalizer.json(value)
        for name, value in headers.items()
        if name.lower().startswith("x-pulsar") or name.lower() == "content-type"
    }
    try:
        body = broker.normalizer.json(json.loads(raw))
    except ValueError:
        body = broker.normalizer.text(raw.decode(errors="backslashreplace"))
    broker.record(
        label,
        {"status": status, "headers": shown, "body": LEDGER.sub("<ledger>", repr(body))[:300]},
    )


def rest_all(broker: Recorder, method: str, topic: str, routes: dict[str, Any]) -> None:
    """Call several routes of a topic."""
    for route, body in routes.items():
        broker.rest(method, f"{path_of(topic)}{route}", body, label=f"{method} {route}")


# -- non-persistent -----------------------------------------------------------------------------


@scenario
def topic_non_persistent(broker: Recorder, topic: str) -> None:
    named = in_memory(topic)
    link = broker.connect()
    link.say(
        "partitions without creation",
        commands.partitioned_metadata(named, link.next_request()),
    )
    produce(link, named, producer_name="p")
    link.say("nobody listens", send(1, 0, message(0)))
    for number, kind in enumerate((SUB.Exclusive, SUB.Shared, SUB.Failover, SUB.Key_Shared)):
        subscribe(link, named, 10 + number, f"s{number}", kind)
    link.say("no permits", send(1, 1, message(1)))
    link.say("flow", *(commands.flow(10 + n, 2) for n in range(4)))
    link.say("three", *(send(1, n, message(n)) for n in (2, 3, 4)))
    link.say("batch", commands.flow(11, 1), send(1, 5, batch(5, 5), num_messages=5))
    link.say("after the batch", commands.flow(11, 3), send(1, 10, message(10)))
    link.say("ack", commands.ack(11, [MessageId(0, 0)], request_id=link.next_request()))
    link.say("redeliver", commands.redeliver_unacknowledged_messages(11))
    link.say("last id", commands.get_last_message_id(11, link.next_request()))
    link.say("consumer stats", commands.consumer_stats(11, link.next_request()))
    link.say("seek", commands.seek(11, link.next_request(), message_id=MessageId(0, 0)))
    link.say("seek by time", commands.seek(10, link.next_request(), publish_time_ms=5))
    link.say("unsubscribe", commands.unsubscribe(12, link.next_request()))
    link.say("close", commands.close_consumer(13, link.next_request()))
    link.say("close producer", commands.close_producer(1, link.next_request()))


@scenario
def topic_non_persistent_consumers(broker: Recorder, topic: str) -> None:
    named = in_memory(topic)
    link = broker.connect()
    produce(link, named, producer_name="p")
    subscribe(link, named, 10, "x")
    subscribe(link, named, 11, "x")
    subscribe(link, named, 12, "x", SUB.Shared)
    subscribe(link, named, 20, "shared", SUB.Shared)
    subscribe(link, named, 21, "shared", SUB.Shared)
    link.say("flow", commands.flow(20, 2), commands.flow(21, 3))
    link.say("six", *(send(1, n, message(n)) for n in range(6)))
    subscribe(link, named, 30, "f", SUB.Failover, consumer_name="b")
    link.say("flow b", commands.flow(30, 10))
    subscribe(link, named, 31, "f", SUB.Failover, consumer_name="a")
    link.say("flow a", commands.flow(31, 10))
    link.say("to one", send(1, 6, message(6)))
    link.say("close the active", commands.close_consumer(31, link.next_request()))
    link.say("to the other", send(1, 7, message(7)))
    subscribe(link, named, 40, "k", SUB.Key_Shared)
    subscribe(link, named, 41, "k", SUB.Key_Shared)
    subscribe(link, named, 50, "reader", durable=False, start_message_id=MessageId(-1, -1))
    link.say("reader's flow", commands.flow(50, 5), send(1, 8, message(8)))
    link.say("reader's last id", commands.get_last_message_id(50, link.next_request()))
    link.say("reader seeks", commands.seek(50, link.next_request(), message_id=MessageId(0, 0)))
    subscribe(link, named, 60, "compacted", read_compacted=True)


@scenario
def topic_non_persistent_rest(broker: Recorder, topic: str) -> None:
    named = in_memory(topic)
    link = broker.connect()
    rest_all(
        broker,
        "GET",
        named,
        {"/stats": None, "/internalStats": None, "/partitions": None, "/subscriptions": None},
    )
    broker.rest("PUT", path_of(named), label="create")
    broker.rest("PUT", path_of(named), label="create again")
    produce(link, named, producer_name="p")
    subscribe(link, named, 10, "s", SUB.Shared)
    link.say("flow", commands.flow(10, 1), send(1, 0, message(0)), send(1, 1, message(1)))
    rest_all(
        broker,
        "GET",
        named,
        {
            "/stats": None,
            "/internalStats": None,
            "/partitions": None,
            "/partitioned-stats": None,
            "/subscriptions": None,
            "/lastMessageId": None,
            "/messageid/5": None,
            "/backlog": None,
            "/permissions": None,
            "/internal-info": None,
        },
    )
    rest_all(
        broker,
        "POST",
        named,
        {
            "/subscription/s/skip/1": None,
            "/subscription/s/skip_all": None,
            "/subscription/s/resetcursor/5": None,
            "/subscription/s/expireMessages/5": None,
            "/terminate": None,
        },
    )
    rest_all(broker, "PUT", named, {"/subscription/new": None, "/unload": None})
    broker.rest("GET", f"{path_of(named)}/subscriptions", label="subscriptions afterwards")
    rest_all(broker, "DELETE", named, {"/subscription/s": None, "": None})
    broker.rest("DELETE", f"{path_of(named)}?force=true", label="delete force")
    broker.rest("GET", f"{path_of(named)}/stats", label="stats afterwards")
    for method in ("GET", "PUT"):
        broker.rest(method, f"{ADMIN}/non-persistent/absent/ns/x/stats", label=f"{method} absent")


@scenario
def topic_non_persistent_partitioned(broker: Recorder, topic: str) -> None:
    tenant_namespace = f"public/{unique(topic)}"
    broker.rest("PUT", f"{ADMIN}/namespaces/{tenant_namespace}", quiet=True)
    named = f"non-persistent://{tenant_namespace}/t"
    other = f"persistent://{tenant_namespace}/other"
    link = broker.connect()
    broker.rest("PUT", f"{path_of(named)}/partitions", 2, label="create")
    broker.rest("PUT", f"{path_of(named)}/partitions", 2, label="create again")
    broker.rest("GET", f"{path_of(named)}/partitions", label="partitions")
    link.say("metadata", commands.partitioned_metadata(named, link.next_request()))
    produce(link, f"{named}-partition-0", 1, producer_name="p")
    produce(link, f"{named}-partition-5", 2, producer_name="p")
    produce(link, named, 3, producer_name="p")
    produce(link, other, 4, producer_name="p")
    for domain in ("persistent", "non-persistent"):
        broker.rest("GET", f"{ADMIN}/{domain}/{tenant_namespace}", label=f"list {domain}")
        broker.rest(
            "GET",
            f"{ADMIN}/{domain}/{tenant_namespace}/partitioned",
            label=f"list partitioned {domain}",
        )
    for mode in ("PERSISTENT", "NON_PERSISTENT", "ALL"):
        broker.rest("GET", f"{ADMIN}/namespaces/{tenant_namespace}/topics?mode={mode}", label=mode)
        link.say(
            f"topics {mode}",
            commands.get_topics_of_namespace(
                tenant_namespace,
                link.next_request(),
                mode=getattr(pb.CommandGetTopicsOfNamespace, mode),
            ),
        )
    broker.rest("GET", f"{path_of(named)}/partitioned-stats", label="partitioned stats")
    broker.rest("POST", f"{path_of(named)}/partitions", 4, label="grow")
    broker.rest("GET", f"{path_of(named)}/partitions", label="partitions afterwards")
    broker.rest("DELETE", f"{path_of(named)}/partitions", label="delete in use")
    broker.rest("DELETE", f"{path_of(named)}/partitions?force=true", label="delete")
    broker.rest("GET", f"{ADMIN}/non-persistent/{tenant_namespace}", label="list afterwards")


# -- terminated ---------------------------------------------------------------------------------


@scenario
def topic_terminate(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    broker.rest("POST", f"{path_of(topic)}/terminate", label="absent")
    fill(link, topic, 3)
    subscribe(link, topic, 10, "all")
    subscribe(link, topic, 11, "shared", SUB.Shared)
    subscribe(link, topic, 12, "end", earliest=False)
    link.say("flow", commands.flow(10, 10), commands.flow(11, 2), commands.flow(12, 10))
    broker.rest("POST", f"{path_of(topic)}/terminate", label="terminate")
    link.listen("what clients hear")
    broker.rest("POST", f"{path_of(topic)}/terminate", label="again")
    link.say("send", send(1, 3, message(3)))
    link.listen("after the send")
    again = broker.connect()
    produce(again, topic, 2, producer_name="q")
    produce(again, topic, 3, producer_name="r", access_mode=pb.WaitForExclusive)
    if ids := received(broker):
        # Messages of several consumers have arrived, in any order.
        last = max(ids, key=lambda one: one.entry_id)
        request = link.next_request()
        link.say("ack all", commands.ack(10, [last], pb.CommandAck.Cumulative, request_id=request))
    subscribe(again, topic, 13, "late", earliest=False)
    subscribe(again, topic, 14, "early")
    again.say("flow early", commands.flow(14, 10))
    again.say("last id", commands.get_last_message_id(14, again.next_request()))
    again.say("seek", commands.seek(13, again.next_request(), message_id=MessageId(-1, -1)))
    rest_all(broker, "GET", topic, {"/partitions": None, "/lastMessageId": None})
    status, stats = broker.rest("GET", f"{path_of(topic)}/internalStats", quiet=True)
    broker.record("state", (status, stats.get("state") if isinstance(stats, dict) else stats))
    broker.rest("PUT", f"{path_of(topic)}/unload", label="unload")
    link.listen("after unload")
    third = broker.connect()
    produce(third, topic, 4, producer_name="s")
    subscribe(third, topic, 15, "end", earliest=False)
    broker.rest("DELETE", f"{path_of(topic)}?force=true", label="delete")
    produce(third, topic, 5, producer_name="s")


@scenario
def topic_terminate_empty(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    broker.rest("PUT", path_of(topic), quiet=True)
    subscribe(link, topic, 10, "s")
    broker.rest("POST", f"{path_of(topic)}/terminate", label="terminate")
    link.say("flow", commands.flow(10, 5))
    broker.rest("POST", f"{path_of(topic)}/terminate", label="again")
    link.say("close", commands.close_consumer(10, link.next_request()))
    subscribe(link, topic, 11, "s")


@scenario
def topic_terminate_partitioned(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    broker.rest("PUT", f"{path_of(topic)}/partitions", 2, quiet=True)
    fill(link, f"{topic}-partition-0", 2)
    broker.rest("POST", f"{path_of(topic)}/terminate", label="the topic")
    broker.rest("POST", f"{path_of(topic)}/terminate/partitions", label="its partitions")
    broker.rest("POST", f"{path_of(topic)}/terminate/partitions", label="again")
    link.listen("after it")
    produce(link, f"{topic}-partition-1", 9, producer_name="q")
    plain = f"{topic}-plain"
    broker.rest("PUT", path_of(plain), quiet=True)
    broker.rest("POST", f"{path_of(plain)}/terminate/partitions", label="a plain topic")
    broker.rest("POST", f"{path_of(topic)}x/terminate/partitions", label="absent")
    memory = in_memory(plain)
    broker.rest("POST", f"{path_of(memory)}/terminate", label="non-persistent")


# -- messages over REST -------------------------------------------------------------------------


@scenario
def topic_peek(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    base = path_of(topic)
    message_over_rest(broker, "GET", f"{base}/subscription/s/position/1", "absent topic")
    produce(link, topic, producer_name="p")
    subscribe(link, topic, 10, "s")
    message_over_rest(broker, "GET", f"{base}/subscription/s/position/1", "empty")
    link.say(
        "send",
        send(1, 0, message(0)),
        send(
            1,
            1,
            message(
                1,
                b"payload",
                properties={"color": "red", "odd name": "v"},
                key="k",
                event_time_ms=1_700_000_000_123,
            ),
        ),
        send(1, 2, batch(2, 3), num_messages=3, highest_sequence_id=4),
        send(1, 5, message(5, b"last")),
    )
    for position in ("0", "1", "2", "3", "4", "5", "-1", "x"):
        message_over_rest(
            broker, "GET", f"{base}/subscription/s/position/{position}", f"peek {position}"
        )
    message_over_rest(broker, "GET", f"{base}/subscription/absent/position/1", "no subscription")
    for query in (
        "",
        "?initialPosition=earliest&messagePosition=1",
        "?initialPosition=earliest&messagePosition=2",
        "?initialPosition=earliest&messagePosition=9",
        "?initialPosition=latest&messagePosition=1",
        "?initialPosition=latest&messagePosition=2",
        "?initialPosition=latest&messagePosition=9",
        "?initialPosition=latest&messagePosition=0",
        "?initialPosition=latest&messagePosition=-3",
        "?initialPosition=middle&messagePosition=1",
        "?messagePosition=x",
    ):
        message_over_rest(broker, "GET", f"{base}/examinemessage{query}", f"examine {query}")
    message_over_rest(broker, "GET", f"{path_of(topic)}x/examinemessage", "examine absent topic")
    last = broker.last("SEND_RECEIPT")
    ledger = last.message_id.ledgerId if last is not None else 0
    for entry in ("0", "1", "2", "4", "-1", "x"):
        message_over_rest(broker, "GET", f"{base}/ledger/{ledger}/entry/{entry}", f"by id {entry}")
    message_over_rest(broker, "GET", f"{base}/ledger/987654321/entry/0", "by id absent ledger")
    message_over_rest(broker, "GET", f"{base}/ledger/x/entry/0", "by id bad ledger")
    rest_all(
        broker,
        "POST",
        topic,
        {
            "/subscription/s/skip/2": None,
            "/subscription/s/skip/0": None,
            "/subscription/s/skip/-1": None,
            "/subscription/s/skip/x": None,
            "/subscription/absent/skip/1": None,
        },
    )
    message_over_rest(broker, "GET", f"{base}/subscription/s/position/1", "peek after skip")
    rest_all(
        broker,
        "POST",
        topic,
        {
            "/subscription/s/skip/99": None,
            "/subscription/s/skip_all": None,
            "/subscription/absent/skip_all": None,
            "/subscription/s/expireMessages/100000": None,
            "/subscription/absent/expireMessages/1": None,
            "/subscription/s/expireMessages/x": None,
            "/all_subscription/expireMessages/1": None,
        },
    )
    message_over_rest(broker, "GET", f"{base}/subscription/s/position/1", "peek after skip_all")


@scenario
def topic_peek_partitioned(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    broker.rest("PUT", f"{path_of(topic)}/partitions", 2, quiet=True)
    base = path_of(topic)
    fill(link, f"{topic}-partition-0", 2)
    subscribe(link, f"{topic}-partition-0", 10, "s")
    message_over_rest(broker, "GET", f"{base}/subscription/s/position/1", "peek")
    message_over_rest(broker, "GET", f"{base}/examinemessage", "examine")
    message_over_rest(broker, "GET", f"{base}/ledger/1/entry/0", "by id")
    message_over_rest(broker, "GET", f"{base}-partition-0/subscription/s/position/1", "peek one")
    rest_all(
        broker,
        "POST",
        topic,
        {
            "/subscription/s/skip/1": None,
            "/subscription/s/skip_all": None,
            "/subscription/s/expireMessages/100000": None,
            "/subscription/absent/skip_all": None,
        },
    )
    memory = in_memory(topic)
    link2 = broker.connect()
    produce(link2, f"{memory}-m", 1, producer_name="p")
    message_over_rest(
        broker, "GET", f"{path_of(memory)}-m/subscription/s/position/1", "peek non-persistent"
    )
    message_over_rest(broker, "GET", f"{path_of(memory)}-m/examinemessage", "examine in memory")


# -- partitions ---------------------------------------------------------------------------------


@scenario
def topic_partition_names(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    broker.rest("PUT", f"{path_of(topic)}/partitions", 2, label="create 2")
    for number, name in enumerate(
        (
            f"{topic}-partition-0",
            f"{topic}-partition-1",
            f"{topic}-partition-2",
            f"{topic}-partition-7",
            f"{topic}-partition-01",
            f"{topic}-partition--1",
            f"{topic}-partition-x",
            f"{topic}-partition-",
            f"{topic}-partition-0-partition-0",
            f"{topic}-partition-0-x",
            topic,
            f"{topic}-absent-partition-0",
            f"{topic}-absent-partition-3",
            f"{topic}/with/slash",
            f"persistent://public/default/{unique(topic)}/slash",
            "persistent://public/default/",
            "persistent://public/default",
            "topic-only-" + unique(topic),
            f"public/default/{unique(topic)}-short",
            "persistent://public/absent-namespace/x",
            "nonsense://public/default/x",
        )
    ):
        label = name.replace(unique(topic), "T")
        link.say(f"metadata {label}", commands.partitioned_metadata(name, link.next_request()))
        link.say(f"lookup {label}", commands.lookup(name, link.next_request()))
        link.say(f"producer {label}", commands.producer(name, 100 + number, link.next_request()))
        link.say(
            f"consumer {label}",
            commands.subscribe(name, "s", 200 + number, link.next_request(), SUB.Shared),
        )


@scenario
def topic_partition_rest(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    base = path_of(topic)
    route = f"{base}/partitions"
    for label, body in {
        "0": 0,
        "-1": -1,
        "text": "x",
        "no json": b"{",
        "nothing": None,
        "float": 1.5,
        "null": b"null",
    }.items():
        broker.rest("PUT", route, body, label=f"create {label}")
    broker.rest("GET", route, label="absent")
    broker.rest("GET", f"{route}?checkAllowAutoCreation=true", label="absent, may be created")
    broker.rest("POST", route, 3, label="grow absent")
    broker.rest("DELETE", route, label="delete absent")
    broker.rest("PUT", route, 2, label="create")
    broker.rest("PUT", route, 2, label="create again")
    broker.rest("PUT", base, label="create as plain")
    broker.rest("PUT", f"{base}-partition-0", label="create a partition")
    broker.rest("PUT", f"{base}-partition-5", label="create a partition beyond")
    broker.rest("PUT", f"{base}-partition-0/partitions", 2, label="partitions of a partition")
    broker.rest("PUT", f"{base}-lone-partition-0", label="create a partition of nothing")
    broker.rest("PUT", f"{base}-lone/partitions", 2, label="then its topic")
    broker.rest("PUT", f"{base}-lone2-partition-1", label="create another")
    broker.rest("PUT", f"{base}-x-partition-y", label="create a name with -partition-")
    broker.rest("PUT", f"{base}-partition-0-z", label="create a name with -partition-0- inside")
    for label, body in {"smaller": 1, "same": 2, "0": 0, "grow": 3, "huge": 1_000_000}.items():
        if label != "huge":
            broker.rest("POST", route, body, label=f"update {label}")
    broker.rest("GET", route, label="partitions")
    broker.rest("GET", f"{base}-partition-0/partitions", label="partitions of a partition")
    broker.rest("GET", f"{base}/stats", label="stats of the partitioned")
    broker.rest("GET", f"{base}/internalStats", label="internal stats of the partitioned")
    broker.rest("DELETE", base, label="delete as plain")
    broker.rest("DELETE", f"{base}-partition-0", label="delete a partition")
    broker.rest("DELETE", f"{base}-partition-0", label="delete a partition again")
    produce(link, f"{topic}-partition-1", producer_name="p")
    broker.rest("DELETE", route, label="delete in use")
    broker.rest("DELETE", f"{route}?force=true", label="delete force")
    broker.rest("GET", route, label="partitions afterwards")
    plain = f"{base}-plain"
    broker.rest("PUT", plain, label="plain")
    broker.rest("PUT", f"{plain}/partitions", 2, label="plain to partitioned")
    broker.rest("POST", f"{plain}/partitions", 2, label="grow plain")
    broker.rest("DELETE", f"{plain}/partitions", label="delete plain as partitioned")
    broker.rest("GET", f"{plain}/partitions", label="partitions of plain")
    broker.rest("GET", f"{plain}/partitioned-stats", label="partitioned stats of plain")


@scenario
def topic_partition_growth(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    base = path_of(topic)
    broker.rest("PUT", f"{base}/partitions", 1, quiet=True)
    fill(link, f"{topic}-partition-0", 2)
    subscribe(link, f"{topic}-partition-0", 10, "s")
    subscribe(link, f"{topic}-partition-0", 11, "reader", durable=False)
    broker.rest("POST", f"{base}/partitions", 3, label="grow")
    link.listen("after growing")
    for index in range(3):
        broker.rest("GET", f"{base}-partition-{index}/subscriptions", label=f"subs of {index}")
    link.say("metadata", commands.partitioned_metadata(topic, link.next_request()))
    produce(link, f"{topic}-partition-2", 5, producer_name="p")
    link.say("send", send(5, 0, message(0)))
    subscribe(link, f"{topic}-partition-2", 12, "s", earliest=False)
    link.say("flow", commands.flow(12, 5))


@scenario
def topic_auto_partitioned(broker: Recorder, topic: str) -> None:
    namespace = f"public/{unique(topic)}"
    broker.rest("PUT", f"{ADMIN}/namespaces/{namespace}", quiet=True)
    broker.rest(
        "POST",
        f"{ADMIN}/namespaces/{namespace}/autoTopicCreation",
        {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 3,
        },
        label="policy",
    )
    named = f"persistent://{namespace}/t"
    link = broker.connect()
    link.say(
        "metadata without creation",
        commands.partitioned_metadata(named, link.next_request()),
    )
    broker.rest("GET", f"{path_of(named)}/partitions", label="REST afterwards")
    broker.rest("GET", f"{ADMIN}/persistent/{namespace}", label="list")
    broker.rest("GET", f"{ADMIN}/persistent/{namespace}/partitioned", label="list partitioned")
    produce(link, named, 1, producer_name="p")
    produce(link, f"{named}-partition-0", 2, producer_name="p")
    produce(link, f"{named}-partition-3", 3, producer_name="p")
    other = f"persistent://{namespace}/other"
    link.say("producer first", commands.producer(other, 4, link.next_request()))
    broker.rest("GET", f"{path_of(other)}/partitions", label="REST of the other")
    broker.rest(
        "GET",
        f"{path_of(named)}x/partitions?checkAllowAutoCreation=true",
        label="REST may create",
    )
    broker.rest("GET", f"{ADMIN}/persistent/{namespace}/partitioned", label="list afterwards")
    memory = in_memory(f"persistent://{namespace}/memory")
    link.say("metadata in memory", commands.partitioned_metadata(memory, link.next_request()))
