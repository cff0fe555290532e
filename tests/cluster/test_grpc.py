"""The seek service of several brokers: each answers for all topics."""

import asyncio
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pulsar
import pytest

from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.finder import (
    ClientTls,
    IndexOutOfRangeError,
    NotPossibleError,
    PermissionDeniedError,
    SeekClient,
    ServerUnavailableError,
    SubscriptionNotFoundError,
    UnauthenticatedError,
    rpc,
)
from pulsemark.finder.forwarding import HOPS_HEADER, MAX_HOPS
from pulsemark.ledger import Position, TopicNotFoundError
from pulsemark.proto import seek_pb2 as pb
from pulsemark.proto.broker_entry_pb2 import CONTROL_CHECKPOINT
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import TopicName
from tests.support.secured import security, set_up, token_of

TOPIC = "persistent://public/default/orders"
SECURED = "persistent://acme/ns/orders"
COUNT = 5
LARGE_BYTES = 3 << 20


def take(thread, topic):
    """Have a broker take a topic's bundle over."""
    found = thread.call(lambda _: thread.member.find(TopicName.parse(topic), authoritative=True))
    assert found.broker_id == thread.member.broker_id


def publish(thread, topic, bodies, token=None):
    """Publish to the broker that has the topic."""
    auth = {} if token is None else {"auth_method_name": "token", "auth_data": token.encode()}
    with RawClient.from_url(thread.service_url, **auth) as client:
        producer = client.create_producer(topic)
        for body in bodies:
            producer.send(unbatched_message(body, publish_time_ms=1))
        client.subscribe(topic, "s")


@pytest.fixture
def pair(brokers, tmp_path):
    """A broker with a topic, and another one."""
    (tmp_path / "token").write_text("c0ntrol\n")
    settings = {
        "grpc_port": 0,
        "grpc_control_token_file": tmp_path / "token",
        "audit_enabled": True,
    }
    owner, other = brokers.start(**settings), brokers.start(**settings)
    take(owner, TOPIC)
    publish(owner, TOPIC, [b"%d" % number for number in range(COUNT)])
    return owner, other


def test_every_call_at_any_broker(pair):
    """Each call has the same answer at the topic's broker and at another one."""
    answers: list[list[Any]] = []
    for broker in pair:
        with SeekClient(broker.grpc_url, token="c0ntrol") as seek:
            found = seek.by_index(TOPIC, 2)
            entries = list(seek.read_entries(TOPIC, start=found.position))
            answers.append(
                [
                    seek.by_time(TOPIC, 0),
                    found,
                    seek.range(TOPIC, 0, int(time.time() * 1000) + 1_000),
                    [(entry.position, entry.body) for entry in entries],
                    seek.reset_cursor(TOPIC, "s", index=1),
                    seek.epochs(TOPIC),
                    seek.audit(TOPIC).rows,
                ]
            )
    at_owner, elsewhere = answers
    assert len(at_owner[3]) == COUNT - 2
    assert elsewhere == at_owner
    with SeekClient(pair[1].grpc_url, token="c0ntrol") as seek:
        appended = seek.append_control(TOPIC, CONTROL_CHECKPOINT, "1")
        assert appended.index == COUNT
        assert [one.index for one in seek.read_entries(TOPIC, control_only=True)] == [COUNT]


def test_errors_come_through(pair):
    """What the topic's broker refuses is refused elsewhere with the same error and its facts."""
    with SeekClient(pair[1].grpc_url) as seek:
        with pytest.raises(IndexOutOfRangeError) as beyond:
            seek.by_index(TOPIC, 99)
        assert (beyond.value.index, beyond.value.next_index) == (99, COUNT)
        with pytest.raises(SubscriptionNotFoundError, match="nobody"):
            seek.reset_cursor(TOPIC, "nobody", position=Position(-1, -1))
        with pytest.raises(UnauthenticatedError):
            seek.append_control(TOPIC, CONTROL_CHECKPOINT, "1")
        with pytest.raises(TopicNotFoundError):
            list(seek.read_entries("persistent://public/default/none"))
        with pytest.raises(TopicNotFoundError):
            seek.by_time("persistent://public/nowhere/orders", 0)


def test_a_topic_without_an_owner(brokers):
    """A call about a topic that no broker has is answered after a broker has taken it over."""
    started = [brokers.start(grpc_port=0) for _ in range(3)]
    for number in range(8):
        name = f"persistent://public/default/t-{number}"
        owner = brokers.owner(name)
        publish(owner, name, [b"x"])
    for number in range(8):
        name = f"persistent://public/default/t-{number}"
        bundle = owner_bundle(started[0], name)
        for thread in started:
            thread.call(lambda _, t=thread, b=bundle: t.member.unload(b))
        for thread in reversed(started):
            with SeekClient(thread.grpc_url) as seek:
                assert seek.by_index(name, 0).index == 0


def owner_bundle(thread, topic):
    """The bundle of a topic."""
    return thread.member.bundle_of(TopicName.parse(topic))


def test_a_stream_that_is_left(pair):
    """A stream that its caller leaves ends at both brokers; large entries come through whole."""
    owner, other = pair
    publish(owner, TOPIC, [bytes([number]) * LARGE_BYTES for number in range(8)])
    with SeekClient(other.grpc_url) as seek:
        count = 0
        for entry in seek.read_entries(TOPIC):
            count += 1
            if entry.body_size_bytes > LARGE_BYTES:
                assert (entry.body or b"").endswith(bytes([0]) * LARGE_BYTES)
                break
        assert count == COUNT + 1
    # There is not room for so many streams that were not ended.
    for _ in range(40):
        with SeekClient(other.grpc_url) as seek:
            for _ in seek.read_entries(TOPIC):
                break
    with SeekClient(other.grpc_url) as seek:
        assert len(list(seek.read_entries(TOPIC))) == COUNT + 8


def test_a_call_does_not_go_round(pair):
    """A call that was sent on too often is refused, and so is a count that no broker sends."""
    request, codec = pb.SeekByTimeRequest(topic=TOPIC, time_ms=0), rpc.client_codec("SeekByTime")
    answers = []
    for sent in (str(MAX_HOPS), "-1", "many", "1"):
        with grpc.insecure_channel(pair[1].grpc_url) as channel:
            stub = channel.unary_unary(rpc.path("SeekByTime"), **codec)
            try:
                stub(request, metadata=((HOPS_HEADER, sent),), timeout=20)
                answers.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                answers.append(error.code())
    wrong = grpc.StatusCode.INVALID_ARGUMENT
    assert answers == [grpc.StatusCode.UNAVAILABLE, wrong, wrong, grpc.StatusCode.OK]


async def test_a_bundle_that_is_given_away(brokers, pair):
    """While a topic has no broker a call is to be repeated: the topic is not called absent."""
    node = f"/namespace/{owner_bundle(pair[0], TOPIC)}"
    session = brokers.tree.session()
    facts = json.loads((await session.get(node))[0])
    await session.set(node, json.dumps({**facts, "disabled": True}).encode())
    with SeekClient(pair[1].grpc_url) as seek:
        for call in (partial(seek.by_time, TOPIC, 0), lambda: list(seek.read_entries(TOPIC))):
            with pytest.raises(ServerUnavailableError, match="is being unloaded"):
                await asyncio.to_thread(call)


def test_a_broker_without_the_service(brokers):
    """A topic's broker that has no gRPC port is named, and the call is not to be repeated."""
    owner, other = brokers.start(), brokers.start(grpc_port=0)
    take(owner, TOPIC)
    publish(owner, TOPIC, [b"x"])
    with SeekClient(other.grpc_url) as seek:
        name = owner.member.broker_id
        with pytest.raises(NotPossibleError, match=f"{name}, which has no gRPC port"):
            seek.by_time(TOPIC, 0)


def test_an_owner_that_restarts(pair, brokers):
    """After the topic's broker has ended, another one takes the topic over and answers."""
    owner, other = pair
    with SeekClient(other.grpc_url) as seek:
        assert seek.by_index(TOPIC, 0).index == 0
        owner.close()
        third = brokers.start(grpc_port=0)
        take(third, TOPIC)
        assert seek.by_index(TOPIC, 0).index == 0
        assert len(list(seek.read_entries(TOPIC))) == COUNT


# Credentials


def test_credentials_are_checked_on_the_way_and_at_the_owner(brokers):
    """A call without credentials, with wrong ones or of a role without permission is refused at
    any broker; one with permission is answered.
    """
    owner, other = (brokers.start(grpc_port=0, security=security()) for _ in range(2))
    set_up(owner)
    take(owner, SECURED)
    publish(owner, SECURED, [b"x"], token_of("both"))
    for broker in (owner, other):
        for token, error in (
            (None, UnauthenticatedError),
            (token_of("reader", key=b"another secret of 32 bytes......"), UnauthenticatedError),
            (token_of("writer"), PermissionDeniedError),
        ):
            with SeekClient(broker.grpc_url, token=token) as seek:
                with pytest.raises(error):
                    seek.by_index(SECURED, 0)
                with pytest.raises(error):
                    list(seek.read_entries(SECURED))
        with SeekClient(broker.grpc_url, token=token_of("reader")) as seek:
            assert seek.by_index(SECURED, 0).index == 0
            assert len(list(seek.read_entries(SECURED))) == 1


def test_the_owner_does_not_trust_the_broker_that_sends_on(brokers):
    """A broker without authentication opens no way to the topics of one that has it: the call's own
    credentials count.
    """
    owner = brokers.start(grpc_port=0, security=security())
    other = brokers.start(grpc_port=0)
    set_up(owner)
    take(owner, SECURED)
    publish(owner, SECURED, [b"x"], token_of("both"))
    with SeekClient(other.grpc_url) as seek, pytest.raises(UnauthenticatedError):
        seek.by_index(SECURED, 0)
    with SeekClient(other.grpc_url, token=token_of("reader")) as seek:
        assert seek.by_index(SECURED, 0).index == 0


# TLS


def with_tls(thread, settings):
    """A client that comes by TLS, with a certificate of its own."""
    certificate, key = Path(settings["tls_certificate_file"]), Path(settings["tls_key_file"])
    files = ClientTls(ca=certificate, certificate=certificate, key=key)
    return SeekClient(thread.grpc_url_tls, tls=files)


def test_calls_by_tls_go_on_by_tls(brokers, tls):
    """A call that came by TLS goes on by TLS, and never by a port without it."""
    secured = SecurityConfig(**tls)
    owner = brokers.start(security=secured)
    other = brokers.start(security=secured, grpc_port=0)
    take(owner, TOPIC)
    publish(owner, TOPIC, [b"x"])
    with with_tls(other, tls) as seek:
        assert seek.by_index(TOPIC, 0).index == 0
        assert len(list(seek.read_entries(TOPIC))) == 1
    with SeekClient(other.grpc_url) as seek:
        assert seek.by_index(TOPIC, 0).index == 0
    plain = brokers.start(grpc_port=0)
    owner.call(lambda _: owner.member.unload(owner_bundle(owner, TOPIC)))
    take(plain, TOPIC)
    with with_tls(other, tls) as seek, pytest.raises(NotPossibleError, match="no gRPC port with"):
        seek.by_index(TOPIC, 0)


def test_callers_with_certificates_are_told_whom_to_ask(brokers, tls):
    """A broker shows no certificate of its own for its callers: their rights are not its own."""
    asking = SecurityConfig(**tls, tls_require_trusted_client_cert_on_connect=True)
    owner, other = brokers.start(security=asking), brokers.start(security=asking)
    take(owner, TOPIC)
    publish(owner, TOPIC, [b"x"])
    with with_tls(owner, tls) as seek:
        assert seek.by_index(TOPIC, 0).index == 0
    with with_tls(other, tls) as seek:
        with pytest.raises(NotPossibleError, match=f"ask it at {owner.grpc_url_tls}"):
            seek.by_index(TOPIC, 0)
        with pytest.raises(NotPossibleError, match=f"ask it at {owner.grpc_url_tls}"):
            list(seek.read_entries(TOPIC))


# Real bookies


@pytest.fixture
def processes(bookkeeper_peer):
    """Starts brokers on real bookies, and kills them in the end."""
    started = []

    def start(*options):
        command = [sys.executable, "-m", "pulsemark", "standalone", "--json", "--port", "0"]
        command += ["--http-port", "0", "--store", bookkeeper_peer.store, *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        started.append((process, process.stdout))
        return process, json.loads(process.stdout.readline())

    yield start
    for process, said in started:
        process.kill()
        process.wait()
        said.close()


def test_brokers_on_bookies(processes, eventually):
    """Every broker answers for all topics; after one was killed the others answer for its topics
    again.
    """
    brokers = [processes("--grpc-port", "0") for _ in range(2)]
    topics = [f"persistent://public/default/grpc-{number}" for number in range(8)]
    urls = ",".join(said["service_url"].removeprefix("pulsar://") for _, said in brokers)
    client = pulsar.Client(f"pulsar://{urls}", operation_timeout_seconds=30)
    for topic in topics:
        client.create_producer(topic).send(topic.encode())
    client.close()
    for _, said in brokers:
        with SeekClient(said["grpc_url"], timeout_s=30) as seek:
            for topic in topics:
                assert seek.by_index(topic, 0).index == 0
                (entry,) = seek.read_entries(topic)
                assert (entry.body or b"").endswith(topic.encode())
    killed, (_, left) = brokers
    killed[0].kill()
    with SeekClient(left["grpc_url"], timeout_s=30) as seek:

        def all_answer():
            try:
                return all(seek.by_index(topic, 0).index == 0 for topic in topics)
            except ServerUnavailableError:
                return False

        eventually(all_answer, "all topics at the other broker")
