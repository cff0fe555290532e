"""Control entries in a broker: no consumer sees them, and no figure counts them as messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsemark.broker import BrokerThread, ConfigError
from pulsemark.client import RawMessage
from pulsemark.finder import (
    InvalidFieldError,
    NotPossibleError,
    PermissionDeniedError,
    SeekClient,
    UnauthenticatedError,
)
from pulsemark.ledger import StaleEpochError, TopicNotFoundError
from pulsemark.metadata import StamperChain, control_of, payload_of
from pulsemark.proto.broker_entry_pb2 import (
    CONTROL_CHECKPOINT,
    CONTROL_LEADER_CHANGE,
    CONTROL_REPLICATED_SUBSCRIPTION,
    CONTROL_TXN_COMMIT,
    CONTROL_TXN_START,
    CONTROL_USER,
)
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient, running_broker

TOKEN = "correct-horse"
TYPES = [
    CommandSubscribe.Exclusive,
    CommandSubscribe.Failover,
    CommandSubscribe.Shared,
    CommandSubscribe.Key_Shared,
]


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The token of those who may append control entries."""
    path = tmp_path_factory.mktemp("secrets") / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture(scope="module")
def broker(token_file: Path) -> Iterator[BrokerThread]:
    """A broker that accepts control entries."""
    with running_broker(grpc_port=0, grpc_control_token_file=token_file) as running:
        yield running


@pytest.fixture
def seek(broker: BrokerThread) -> Iterator[SeekClient]:
    """A client that may append."""
    with SeekClient(broker.grpc_url, token=TOKEN) as client:
        yield client


def path_of(topic: str, rest: str = "") -> str:
    """The admin interface's path of a topic."""
    return f"/admin/v2/{topic.replace('://', '/')}{rest}"


def mixed(raw: RawClient, seek: SeekClient, topic: str, messages: int = 6) -> list[bytes]:
    """Publish messages with two control entries before each and one at the end."""
    producer = raw.create_producer(topic)
    sent = [b"%d" % number for number in range(messages)]
    for number, payload in enumerate(sent):
        seek.append_control(topic, CONTROL_TXN_START, f"t{number}")
        seek.append_control(topic, CONTROL_CHECKPOINT, f"c{number}", tags={"by": b"test"})
        producer.send(payload, key=f"k{number}")
    seek.append_control(topic, CONTROL_USER, "com.example.end")
    return sent


def payloads(messages: list[RawMessage]) -> list[bytes]:
    """What was sent."""
    return [bytes(payload_of(m.headers_and_payload)) for m in messages]


def figures(http: Callable[..., Any], topic: str, subscription: str) -> tuple[int, int]:
    """msgBacklog and unackedMessages."""
    row = http("GET", path_of(topic, "/stats")).json["subscriptions"][subscription]
    return row["msgBacklog"], row["unackedMessages"]


@pytest.mark.parametrize("kind", TYPES, ids=CommandSubscribe.SubType.Name)
def test_consumers_get_messages_only(
    raw: RawClient, seek: SeekClient, topic: str, http: Callable[..., Any],
    drain: Callable[..., Any], kind: CommandSubscribe.SubType,
) -> None:  # fmt: skip
    """Of each type: every message with few permits, none for control entries, exact figures."""
    raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", sub_type=kind, earliest=True)
    sent = mixed(raw, seek, topic)
    assert figures(http, topic, "s") == (len(sent), 0)
    received = []
    for _ in sent:
        consumer.flow(1)
        received.append(consumer.receive())
    assert payloads(received) == sent
    consumer.flow(5)
    assert drain(consumer) == []
    stats = http("GET", path_of(topic, "/stats")).json["subscriptions"]["s"]
    assert stats["consumers"][0]["availablePermits"] == 5
    assert stats["msgOutCounter"] == len(sent)
    for message in received:
        consumer.ack(message.message_id)
    assert figures(http, topic, "s") == (0, 0)


def test_a_subscription_without_consumers_has_a_backlog_of_messages(
    raw: RawClient, seek: SeekClient, topic: str, http: Callable[..., Any]
) -> None:
    """From the beginning, from the end, after a seek back, after skipping and after expiry."""
    raw.create_producer(topic)
    raw.subscribe(topic, "early", earliest=True).close()
    sent = mixed(raw, seek, topic)
    raw.subscribe(topic, "late", earliest=True).close()
    raw.subscribe(topic, "end").close()
    seek.append_control(topic, CONTROL_TXN_COMMIT, "7")
    for name, backlog in (("early", len(sent)), ("late", len(sent)), ("end", 0)):
        assert figures(http, topic, name) == (backlog, 0), name
    skip = path_of(topic, "/subscription/early/skip/2")
    assert http("POST", skip).status == 204
    assert figures(http, topic, "early") == (len(sent) - 2, 0)
    consumer = raw.subscribe(topic, "early")
    consumer.flow(1)
    assert payloads([consumer.receive()]) == [sent[2]]
    consumer.close()
    seek.reset_cursor(topic, "early", index=0)
    assert figures(http, topic, "early") == (len(sent), 0)
    assert http("POST", path_of(topic, "/subscription/late/skip_all")).status == 204
    assert figures(http, topic, "late") == (0, 0)


def test_acknowledging_a_range_over_them(
    raw: RawClient, seek: SeekClient, topic: str, http: Callable[..., Any]
) -> None:
    """Cumulatively, one by one in any order, and the id of a control entry itself."""
    raw.create_producer(topic)
    one = raw.subscribe(topic, "one", earliest=True)
    many = raw.subscribe(topic, "many", sub_type=CommandSubscribe.Shared, earliest=True)
    sent = mixed(raw, seek, topic)
    for consumer in (one, many):
        consumer.flow(100)
    first = one.receive_many(len(sent))
    one.ack(first[3].message_id, cumulative=True)
    assert figures(http, topic, "one") == (2, 0)
    for message in reversed(many.receive_many(len(sent))[1:]):
        many.ack(message.message_id)
    assert figures(http, topic, "many") == (1, 1)


def test_seeking_to_one(raw: RawClient, seek: SeekClient, topic: str) -> None:
    """The next message after it comes first, whatever the seek names it by."""
    raw.create_producer(topic).send(b"before")
    raw.subscribe(topic, "s", earliest=True).close()
    mark = seek.append_control(topic, CONTROL_CHECKPOINT, "here")
    raw.create_producer(topic).send(b"after")
    assert seek.by_index(topic, mark.index).position == mark.position
    for place in ({"position": mark.position}, {"index": mark.index}, {"time_ms": mark.time_ms}):
        seek.reset_cursor(topic, "s", **place)
        consumer = raw.subscribe(topic, "s")
        consumer.flow(1)
        assert payloads([consumer.receive()]) == [b"after"]
        consumer.close()


def test_official_clients_see_none(
    client: pulsar.Client, seek: SeekClient, raw: RawClient, topic: str
) -> None:
    """A reader ends at the last message, though control entries follow; so does read_compacted."""
    sent = mixed(raw, seek, topic)
    for compacted in (False, True):
        reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(10_000).data())
        assert found == sent
        reader.close()


def test_a_reader_after_the_tail_was_cut_off(
    client: pulsar.Client, broker: BrokerThread, raw: RawClient, topic: str
) -> None:
    """It ends at the last message that is left, though it got a later one before."""
    producer = raw.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)
    assert client.create_reader(topic, pulsar.MessageId.earliest).has_message_available()

    async def cut(running: Any) -> None:
        ledger = running.services.topics.open_topics[topic].ledger
        ledger.truncate_tail(1, epoch=1)

    broker.call(cut)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000).data())
    assert found == [b"0"]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_reader_of_the_latest_message_gets_it(
    client: pulsar.Client, seek: SeekClient, raw: RawClient, topic: str, compacted: bool
) -> None:
    """It starts inclusively at the end, after which only control entries follow."""
    sent = mixed(raw, seek, topic)
    reader = client.create_reader(
        topic, pulsar.MessageId.latest, start_message_id_inclusive=True, is_read_compacted=compacted
    )
    assert reader.has_message_available()
    assert reader.read_next(10_000).data() == sent[-1]
    assert not reader.has_message_available()
    reader.close()


def test_compaction_leaves_them_out(
    raw: RawClient, seek: SeekClient, topic: str, http: Callable[..., Any]
) -> None:
    """A compacted view has each key's latest message, and control entries only after it."""
    sent = mixed(raw, seek, topic)
    assert http("PUT", path_of(topic, "/compaction")).status == 204

    deadline_s = time.monotonic() + 60
    while http("GET", path_of(topic, "/compaction")).json["status"] != "SUCCESS":
        assert time.monotonic() < deadline_s, "the compaction did not end"
        time.sleep(0.01)
    seek.append_control(topic, CONTROL_CHECKPOINT, "after")
    consumer = raw.subscribe(topic, "s", earliest=True, read_compacted=True)
    consumer.flow(100)
    assert payloads(consumer.receive_many(len(sent))) == sent
    assert figures(http, topic, "s")[0] == len(sent)


def test_cleaning_counts_messages_without_them(
    raw: RawClient, seek: SeekClient, topic: str, http: Callable[..., Any]
) -> None:
    """Entries of both kinds are removed, but only messages are counted as such."""
    sent = mixed(raw, seek, topic)
    assert http("DELETE", path_of(topic, "/truncate")).status == 204
    seek.append_control(topic, CONTROL_CHECKPOINT, "after")
    seek.append_control(topic, CONTROL_LEADER_CHANGE, "another")
    assert http("DELETE", path_of(topic, "/truncate")).status == 204
    cleaned = http("GET", path_of(topic, "/stats?ownFigures=true")).json["cleaning"]
    assert cleaned["messagesRemoved"] == len(sent)
    assert cleaned["entriesRemoved"] == len(sent) * 3 + 3


def test_an_epoch_that_kafkas_clients_cannot_carry_is_refused(
    seek: SeekClient, raw: RawClient, topic: str
) -> None:
    """The highest one is 2^31-1, by name or as the next one; other entries are still taken."""
    raw.create_producer(topic).send(b"x")
    with pytest.raises(InvalidFieldError, match="from 0 to 2147483647, is 2147483648"):
        seek.append_control(topic, CONTROL_LEADER_CHANGE, epoch=2**31)
    assert seek.append_control(topic, CONTROL_LEADER_CHANGE, epoch=2**31 - 1).epoch == 2**31 - 1
    with pytest.raises(NotPossibleError, match="no leader epoch follows"):
        seek.append_control(topic, CONTROL_LEADER_CHANGE)
    assert seek.append_control(topic, CONTROL_CHECKPOINT, "c").epoch == 2**31 - 1


def test_they_are_listed_with_what_they_say(seek: SeekClient, raw: RawClient, topic: str) -> None:
    """In order, with a limit, from a position on; messages are not among them."""
    mixed(raw, seek, topic, messages=3)
    seek.append_control(topic, CONTROL_LEADER_CHANGE, "broker-7")
    found = list(seek.read_entries(topic, prefixes_only=True, control_only=True))
    said = [control_of(entry.prefix) for entry in found]
    assert [(c.type_name, c.name) for c in said if c] == [
        ("txn-start", "t0"), ("checkpoint", "c0"), ("txn-start", "t1"), ("checkpoint", "c1"),
        ("txn-start", "t2"), ("checkpoint", "c2"), ("user", "com.example.end"),
        ("leader-change", "broker-7"),
    ]  # fmt: skip
    assert dict(said[1].tags if said[1] else {}) == {"by": b"test"}
    for limit in (1, 3, 8, 20):
        part = seek.read_entries(topic, max_entries=limit, prefixes_only=True, control_only=True)
        assert [e.position for e in part] == [e.position for e in found[:limit]]
    rest = seek.read_entries(topic, start=found[4].position, control_only=True)
    assert [e.position for e in rest] == [e.position for e in found[4:]]


def test_a_leader_change_begins_an_epoch(
    seek: SeekClient, raw: RawClient, topic: str, http: Callable[..., Any]
) -> None:
    """The next one by default; gRPC and REST show where each begins; old leaders are refused."""
    raw.create_producer(topic).send(b"x")
    first = seek.append_control(topic, CONTROL_LEADER_CHANGE, "one")
    assert (first.epoch, first.index) == (1, 1)
    second = seek.append_control(topic, CONTROL_LEADER_CHANGE, epoch=7)
    assert second.epoch == 7
    assert seek.append_control(topic, CONTROL_TXN_START, "t", epoch=7).epoch == 7
    with pytest.raises(StaleEpochError) as stale:
        seek.append_control(topic, CONTROL_TXN_COMMIT, "t", epoch=1)
    assert (stale.value.topic, stale.value.epoch, stale.value.current) == (topic, 1, 7)
    with pytest.raises(StaleEpochError):
        seek.append_control(topic, CONTROL_LEADER_CHANGE, epoch=7)
    history = seek.epochs(topic)
    assert [(e.epoch, e.first_index) for e in history.starts] == [(0, 0), (1, 1), (7, 2)]
    assert history.starts[1].leader == "one"
    assert history.starts[2].leader != ""
    assert history.next_index == 4
    shown = http("GET", path_of(topic, "/epochs")).json
    assert shown["nextIndex"] == 4
    assert [(e["epoch"], e["firstIndex"], e["leader"]) for e in shown["epochs"]] == [
        (e.epoch, e.first_index, e.leader) for e in history.starts
    ]


@pytest.mark.parametrize(
    ("kind", "name", "options", "field"),
    [
        (CONTROL_TXN_START, "", {}, "name"),
        (CONTROL_TXN_START, "x" * 256, {}, "name"),
        (CONTROL_TXN_START, "a\nb", {}, "name"),
        (CONTROL_USER, "mine", {"tags": {"": b""}}, "tags"),
        (CONTROL_USER, "mine", {"tags": {"a": b"x" * 20_000}}, "tags"),
        (CONTROL_USER, "mine", {"tags": {"index": b"1"}}, "tags"),
        (CONTROL_LEADER_CHANGE, "", {"epoch": -1}, "epoch"),
        (CONTROL_LEADER_CHANGE, "", {"epoch": 2**32}, "epoch"),
        (CONTROL_LEADER_CHANGE, "", {"epoch": 2**70}, "epoch"),
        (CONTROL_REPLICATED_SUBSCRIPTION, "s", {}, "type"),
        (99, "s", {}, "type"),
    ],
)
def test_bad_input_is_refused(
    seek: SeekClient, raw: RawClient, topic: str, kind: Any, name: str,
    options: dict[str, Any], field: str,
) -> None:  # fmt: skip
    """The error names the field; nothing is appended."""
    raw.create_producer(topic).send(b"x")
    with pytest.raises(InvalidFieldError) as refused:
        seek.append_control(topic, kind, name, **options)
    assert refused.value.field == field
    assert seek.epochs(topic).next_index == 1


def test_the_server_checks_for_itself(
    seek: SeekClient, raw: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that checks nothing is refused with the same error."""
    raw.create_producer(topic)
    monkeypatch.setattr("pulsemark.finder.client.request_message", unchecked)
    for kind, name, field in ((CONTROL_TXN_START, "", "name"), (99, "x", "type")):
        with pytest.raises(InvalidFieldError) as refused:
            seek.append_control(topic, kind, name)  # type: ignore[arg-type]
        assert refused.value.field == field


def unchecked(topic: str, request: Any) -> Any:
    """A request as a careless client makes it."""
    from pulsemark.proto import seek_pb2 as pb

    return pb.AppendControlRequest(topic=topic, type=request.control_type, name=request.name)


def test_only_who_has_the_token_may_append(
    broker: BrokerThread, raw: RawClient, topic: str
) -> None:
    """Without it, and with another one: UNAUTHENTICATED. Other calls need none."""
    raw.create_producer(topic).send(b"x")
    for token in (None, "wrong", TOKEN + "x"):
        with SeekClient(broker.grpc_url, token=token) as client:
            with pytest.raises(UnauthenticatedError):
                client.append_control(topic, CONTROL_TXN_START, "t")
            assert client.epochs(topic).next_index == 1


def test_a_topic_that_does_not_exist_is_not_made(seek: SeekClient) -> None:
    """The error names it."""
    topic = "persistent://public/default/absent"
    with pytest.raises(TopicNotFoundError, match=topic):
        seek.append_control(topic, CONTROL_TXN_START, "t")


class _Failing:
    """A plugin's stamper that fails for control entries."""

    name = "failing"
    stamps_control = True

    def stamp(self, context: Any, metadata: Any) -> None:
        raise RuntimeError("no ink")


@pytest.mark.parametrize("kind", [CONTROL_CHECKPOINT, CONTROL_LEADER_CHANGE])
def test_a_stamper_that_fails_is_named(
    seek: SeekClient, raw: RawClient, broker: BrokerThread, topic: str, kind: Any
) -> None:
    """Nothing is stored, and the caller learns which stamper it was, as a producer does."""
    raw.create_producer(topic).send(b"x")

    async def use(running: Any) -> None:
        open_topic = running.services.topics.open_topics[topic]
        open_topic.ledger.stampers = StamperChain([_Failing()])

    broker.call(use)
    with pytest.raises(NotPossibleError, match=r"failing.*no ink"):
        seek.append_control(topic, kind, "c")
    assert seek.epochs(topic).next_index == 1


def test_without_a_token_file_the_call_is_off() -> None:
    """By default: PERMISSION_DENIED, whatever token is sent."""
    with running_broker(grpc_port=0, http_port=None, storage="memory") as off:
        for token in (None, TOKEN):
            with (
                SeekClient(off.grpc_url, token=token) as client,
                pytest.raises(PermissionDeniedError, match="is off"),
            ):
                client.append_control("t", CONTROL_TXN_START, "t")


@pytest.mark.parametrize("content", [None, b"", b"two words", b"\xff"])
def test_a_file_without_a_token_stops_the_start(tmp_path: Path, content: bytes | None) -> None:
    """The error names the setting and the file, and not what is in it."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with (
        pytest.raises(ConfigError, match="grpc_control_token_file") as refused,
        running_broker(grpc_port=0, http_port=None, grpc_control_token_file=path),
    ):
        pass
    assert str(path) in str(refused.value)
    assert "two words" not in str(refused.value)


def test_a_token_file_without_a_grpc_port_is_a_mistake(token_file: Path) -> None:
    """It would protect nothing, and no client could use it."""
    with (
        pytest.raises(ConfigError, match="needs grpc_port"),
        running_broker(http_port=None, grpc_control_token_file=token_file),
    ):
        pass


def test_appends_of_many_callers_and_producers(
    broker: BrokerThread, raw: RawClient, seek: SeekClient, topic: str, http: Callable[..., Any]
) -> None:
    """Each entry gets an index of its own, and the backlog is the number of messages."""
    producer = raw.create_producer(topic)
    raw.subscribe(topic, "s", earliest=True).close()
    appended, errors = [], []

    def append(name: str) -> None:
        try:
            for number in range(10):
                kind = CONTROL_LEADER_CHANGE if number % 4 == 0 else CONTROL_CHECKPOINT
                appended.append(seek.append_control(topic, kind, f"{name} {number}").index)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=append, args=(f"caller {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for number in range(100):
        producer.send(b"%d" % number)
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(set(appended)) == 40
    assert seek.epochs(topic).next_index == 140
    assert figures(http, topic, "s") == (100, 0)
