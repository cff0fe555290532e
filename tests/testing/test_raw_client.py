"""RawClient against a small listener; the official client checks the listener."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from pulsemark.client import ConnectionLostError, RequestRefusedError, SendRefusedError
from pulsemark.metadata import payload_of, read_message_metadata, split, verify_checksum
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.raw_client import RawClient, RawTimeoutError
from pulsemark.testing.raw_messages import (
    BatchMember,
    batched_message,
    unbatched_message,
    with_wrong_checksum,
)
from pulsemark.wire import MessageId, ProtocolError, commands

T = pb.BaseCommand.Type
# The ledger that the small broker's entries are said to be in.
LEDGER_ID = 7
TOPIC = "persistent://public/default/raw"


@pytest.fixture
def client(tiny_broker: Any) -> Iterator[RawClient]:
    """A RawClient that shook hands with the TinyBroker."""
    with RawClient.from_url(tiny_broker.url) as raw_client:
        yield raw_client


# ---- connection --------------------------------------------------------------------------------


def test_handshake_exchanges_versions_and_limits(tiny_broker: Any) -> None:
    """CONNECT has the caller's fields; CONNECTED is stored in the client."""
    flags = pb.FeatureFlags(supports_broker_entry_metadata=True)
    with RawClient.from_url(
        tiny_broker.url,
        protocol_version=18,
        feature_flags=flags,
        auth_method_name="token",
        auth_data=b"x",
    ) as raw_client:
        assert raw_client.connected is not None
        assert raw_client.connected.protocol_version == 18

    kind, body = tiny_broker.seen[0]
    assert kind == T.CONNECT
    assert (body.protocol_version, body.auth_data, body.feature_flags) == (18, b"x", flags)


def test_refused_handshake_is_an_error_with_its_code(tiny_broker: Any) -> None:
    """ERROR instead of CONNECTED raises, and the socket is closed."""
    with pytest.raises(RequestRefusedError) as caught:
        RawClient.from_url(tiny_broker.url, auth_method_name="token", auth_data=b"wrong")

    assert caught.value.error == pb.AuthenticationError
    assert caught.value.error_name == "AuthenticationError"
    assert caught.value.message == "who are you"


@pytest.mark.parametrize("url", ["http://h:1", "pulsar:", "h:6650", "pulsar+ssl://h:1"])
def test_what_is_no_service_url_is_refused(url: str) -> None:
    """A URL must be pulsar://, or pulsar+ssl:// with a context."""
    with pytest.raises(ValueError, match=r"service URL|ssl_context"):
        RawClient.from_url(url)


def test_no_listener_is_an_os_error() -> None:
    """Without a process at the port the system's own error is raised."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(OSError, match="refused"):
        RawClient("127.0.0.1", port)


def test_pings_go_both_ways(tiny_broker: Any, client: RawClient) -> None:
    """ping() waits for PONG; the broker's PING is answered while the client waits."""
    tiny_broker.sessions[0].reply(commands.PING)

    client.ping()
    client.ping()

    assert tiny_broker.pongs.acquire(timeout=5)


def test_pings_can_be_left_unanswered(tiny_broker: Any) -> None:
    """With answers_pings=False the broker's PING is there to be seen, and no PONG goes out."""
    with RawClient.from_url(tiny_broker.url, answers_pings=False) as raw_client:
        tiny_broker.sessions[0].reply(commands.PING)

        raw_client.wait_unsolicited(T.PING)
        raw_client.ping()

    assert not any(kind == T.PONG for kind, _ in tiny_broker.seen)


def test_bad_bytes_can_be_sent(tiny_broker: Any) -> None:
    """Without handshake any bytes may go out; the broker's answer to these is to close."""
    with RawClient.from_url(tiny_broker.url, handshake=False) as raw_client:
        raw_client.write(b"\0\0\0\0")
        raw_client.wait_closed()

        assert isinstance(tiny_broker.sessions[0].connection.error, ProtocolError)


def test_silence_and_the_end_are_typed(tiny_broker: Any, client: RawClient) -> None:
    """What does not come in time is a timeout; a broker that goes is a lost connection."""
    consumer = client.subscribe(TOPIC, "s")

    with pytest.raises(RawTimeoutError) as timeout:
        consumer.receive(timeout_s=0.05)
    tiny_broker.sessions[0].sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionLostError) as lost:
        consumer.receive()

    assert isinstance(timeout.value, TimeoutError)
    assert (timeout.value.what, timeout.value.timeout_s) == ("1 messages", 0.05)
    assert lost.value.what == "1 messages"


def test_after_close_everything_is_lost(client: RawClient) -> None:
    """A closed client says so instead of waiting."""
    client.close()

    with pytest.raises(ConnectionLostError):
        client.ping()


def test_a_peer_that_breaks_the_protocol_has_its_own_error(
    tiny_broker: Any, client: RawClient
) -> None:
    """Bytes from the broker that are no protocol raise the wire's own error."""
    tiny_broker.sessions[0].reply(b"\0\0\0\0")

    with pytest.raises(ProtocolError):
        client.ping()


# ---- requests ----------------------------------------------------------------------------------


def test_lookup_and_partitions(tiny_broker: Any, client: RawClient) -> None:
    """Both requests return the broker's answer."""
    answer = client.lookup(TOPIC)

    assert answer.brokerServiceUrl == tiny_broker.url
    assert answer.proxy_through_service_url
    assert client.partitions(TOPIC) == 0


def test_refused_requests_carry_the_code(client: RawClient) -> None:
    """A response that names an error raises, and so does ERROR."""
    with pytest.raises(RequestRefusedError, match="TopicNotFound: no such topic"):
        client.lookup("absent")
    with pytest.raises(RequestRefusedError) as caught:
        client.create_producer(TOPIC, access_mode=pb.Exclusive)

    assert caught.value.error == pb.ProducerFenced


def test_any_request_can_be_made(client: RawClient) -> None:
    """A request that has no method of its own goes through request()."""
    client.create_producer(TOPIC).send(b"x")

    answer = client.request(
        lambda request_id: commands.get_topics_of_namespace("public/default", request_id)
    )

    assert list(answer.topics) == [TOPIC]


def test_a_second_success_can_be_awaited(client: RawClient) -> None:
    """A producer that waits for exclusive access gets two answers to the same request."""
    producer = client.create_producer(TOPIC, access_mode=pb.WaitForExclusive, producer_name="me")

    assert (producer.name, producer.is_ready, producer.topic_epoch) == ("me", False, None)
    producer.wait_success()
    assert (producer.is_ready, producer.topic_epoch) == (True, 0)


# ---- producers ---------------------------------------------------------------------------------


def test_a_wrong_clock_is_sent_as_it_is(tiny_broker: Any, client: RawClient) -> None:
    """publish_time_ms is sent unchanged, and so are key, properties and event time."""
    producer = client.create_producer(TOPIC)

    receipt = producer.send(
        b"hello", publish_time_ms=5, key="k", properties={"a": "b"}, event_time_ms=7
    )

    assert (receipt.sequence_id, receipt.ledger_id, receipt.entry_id) == (0, LEDGER_ID, 0)
    assert receipt.highest_sequence_id == -1
    _, stored = tiny_broker.topics[TOPIC][0]
    metadata = read_message_metadata(stored)
    assert verify_checksum(stored)
    assert bytes(payload_of(stored)) == b"hello"
    assert (metadata.publish_time, metadata.event_time, metadata.sequence_id) == (5, 7, 0)
    assert (metadata.producer_name, metadata.partition_key) == ("tiny-0", "k")
    assert [(p.key, p.value) for p in metadata.properties] == [("a", "b")]


def test_batches_count_their_messages(tiny_broker: Any, client: RawClient) -> None:
    """A batch is one entry of many messages; the next sequence id follows them all."""
    producer = client.create_producer(TOPIC)

    first = producer.send_batch([b"a", b"b", b"c"], publish_time_ms=5)
    second = producer.send(b"d")

    assert (first.sequence_id, first.highest_sequence_id) == (0, 2)
    assert second.sequence_id == 3
    assert [count for count, _ in tiny_broker.topics[TOPIC]] == [3, 1]


def test_refused_sends_raise_and_the_rest_stays(client: RawClient) -> None:
    """SEND_ERROR raises instead of its receipt; later receipts can still be read."""
    producer = client.create_producer(TOPIC)
    good = unbatched_message(b"x", publish_time_ms=1)
    producer.post(with_wrong_checksum(good), sequence_id=41)
    producer.post(good, sequence_id=42)

    with pytest.raises(SendRefusedError) as caught:
        producer.receipts(2)

    assert (caught.value.error, caught.value.sequence_id) == (pb.ChecksumError, 41)
    assert [receipt.sequence_id for receipt in producer.receipts(1)] == [42]


def test_any_counts_and_ids_can_be_claimed(tiny_broker: Any, client: RawClient) -> None:
    """SEND may have wrong counts, ids and chunks, and even no message at all."""
    producer = client.create_producer(TOPIC)

    receipt = producer.send_raw(
        b"\x00\x00\x00\x00", sequence_id=9, num_messages=-3, highest_sequence_id=10
    )

    assert (receipt.sequence_id, receipt.highest_sequence_id) == (9, 10)
    assert tiny_broker.topics[TOPIC] == [(-3, b"\x00\x00\x00\x00")]


def test_pipelined_sends_arrive_in_order(tiny_broker: Any, client: RawClient) -> None:
    """Thousands of messages in flight, more than the sockets hold: all receipts, in order."""
    producer = client.create_producer(TOPIC)
    messages = [
        unbatched_message(bytes(1000), publish_time_ms=place, sequence_id=place)
        for place in range(5000)
    ]

    receipts = producer.send_many(messages, window=3000)

    assert [receipt.entry_id for receipt in receipts] == list(range(5000))
    assert [body for _, body in tiny_broker.topics[TOPIC]] == messages


def test_a_large_message_passes_whole(tiny_broker: Any, client: RawClient) -> None:
    """A message of 5 MB is sent while the client reads, and is received unchanged."""
    message = unbatched_message(bytes(range(256)) * 20_000, publish_time_ms=1)
    consumer = client.subscribe(TOPIC, "s")
    consumer.flow(1)

    client.create_producer(TOPIC).send_raw(message)

    assert consumer.receive().headers_and_payload == message


def test_closing_a_producer(tiny_broker: Any, client: RawClient) -> None:
    """close() is answered; the broker's CLOSE_PRODUCER marks the producer."""
    first, second = client.create_producer(TOPIC), client.create_producer(TOPIC)

    first.close()
    tiny_broker.sessions[0].reply(
        commands.close_producer(second.producer_id, commands.NO_REQUEST_ID)
    )
    closed = client.wait_unsolicited(T.CLOSE_PRODUCER)

    assert first.is_closed
    assert second.is_closed
    assert (closed.producer_id, closed.request_id) == (second.producer_id, 2**64 - 1)


# ---- consumers ---------------------------------------------------------------------------------


def test_no_permits_no_messages(client: RawClient) -> None:
    """Nothing comes before flow(); then as much as it permits."""
    client.create_producer(TOPIC).send_many([unbatched_message(b"x", publish_time_ms=1)] * 3)
    consumer = client.subscribe(TOPIC, "s", earliest=True)

    before = consumer.drain()
    consumer.flow(2)
    found = consumer.drain()
    after = consumer.drain()

    assert (before, after) == ([], [])
    assert [message.message_id for message in found] == [MessageId(7, 0), MessageId(7, 1)]


@pytest.mark.parametrize("wants_prefix", [False, True])
def test_entries_come_as_they_were_sent(tiny_broker: Any, wants_prefix: bool) -> None:
    """Bytes after MESSAGE are unchanged, with the prefix if the client asked for it."""
    flags = pb.FeatureFlags(supports_broker_entry_metadata=wants_prefix)
    message = batched_message(
        [b"a", BatchMember(payload=None, key="k", properties={"p": "q"}, event_time_ms=3)],
        publish_time_ms=9,
    )
    with RawClient.from_url(tiny_broker.url, feature_flags=flags) as raw_client:
        raw_client.create_producer(TOPIC).send_raw(message, num_messages=2)
        consumer = raw_client.subscribe(TOPIC, "s", earliest=True)
        consumer.flow(1)
        received = consumer.receive()

    prefix, rest = split(received.headers_and_payload)
    assert bytes(rest) == message
    assert (prefix is not None) == wants_prefix
    assert prefix is None or (prefix.broker_timestamp, prefix.index) == (5, 0)


def test_acknowledging(tiny_broker: Any, client: RawClient) -> None:
    """ack() waits for the broker's answer, or does not; a refusal raises."""
    consumer = client.subscribe(TOPIC, "s")

    consumer.ack(MessageId(7, 0), MessageId(7, 1, ack_set=(5,)))
    consumer.ack(MessageId(7, 2), cumulative=True, wait=False)
    with pytest.raises(RequestRefusedError, match="unknown ledger"):
        consumer.ack(MessageId(1, 0))

    acks = [body for kind, body in tiny_broker.seen if kind == T.ACK]
    assert [ack.ack_type for ack in acks] == [0, 1, 0]
    assert [ack.HasField("request_id") for ack in acks] == [True, False, True]
    assert list(acks[0].message_id[1].ack_set) == [5]


def test_seeking_and_subscribing_again(client: RawClient) -> None:
    """After seek() the consumer is closed; resubscribe() goes on at the new position."""
    messages = [unbatched_message(b"x", publish_time_ms=100 * place) for place in range(5)]
    client.create_producer(TOPIC).send_many(messages)
    consumer = client.subscribe(TOPIC, "s", earliest=True)
    consumer.flow(5)
    consumer.receive_many(3)

    consumer.seek(publish_time_ms=250)
    assert consumer.is_closed
    consumer.resubscribe()
    assert not consumer.is_closed
    consumer.flow(1)
    by_time = consumer.receive()
    consumer.seek(message_id=MessageId(LEDGER_ID, 1))
    consumer.resubscribe()
    consumer.flow(1)

    assert by_time.message_id == MessageId(LEDGER_ID, 3)
    assert consumer.receive().message_id == MessageId(LEDGER_ID, 1)


def test_redelivery(client: RawClient) -> None:
    """redeliver() brings messages again."""
    client.create_producer(TOPIC).send(b"x")
    consumer = client.subscribe(TOPIC, "s", earliest=True)
    consumer.flow(3)
    first = consumer.receive()

    consumer.redeliver(first.message_id)
    second = consumer.receive()
    consumer.redeliver()
    third = consumer.receive()

    assert first.message_id == second.message_id == third.message_id


def test_last_message_id(client: RawClient) -> None:
    """The last id and the cursor's position, on an empty topic and after a batch."""
    consumer = client.subscribe(TOPIC, "s")

    assert consumer.get_last_message_id() == (MessageId(-1, -1), MessageId(LEDGER_ID, -1))
    client.create_producer(TOPIC).send_batch([b"a", b"b"])
    assert consumer.get_last_message_id()[0] == MessageId(LEDGER_ID, 0, batch_index=1)


def test_a_reader_starts_at_its_message(client: RawClient) -> None:
    """A subscription that is not durable begins at start_message_id."""
    client.create_producer(TOPIC).send_many([unbatched_message(b"x", publish_time_ms=1)] * 3)

    reader = client.subscribe(TOPIC, "r", durable=False, start_message_id=MessageId(LEDGER_ID, 2))
    reader.flow(1)

    assert reader.receive().message_id == MessageId(LEDGER_ID, 2)


@pytest.mark.parametrize("end", ["close", "unsubscribe"])
def test_consumers_end(tiny_broker: Any, client: RawClient, end: str) -> None:
    """close() and unsubscribe() are answered, and the broker's consumer is gone."""
    consumer = client.subscribe(TOPIC, "s")

    getattr(consumer, end)()

    assert tiny_broker.sessions[0].consumers == {}


# ---- the official client as judge --------------------------------------------------------------


def test_the_official_client_understands_what_wire_builds(tiny_broker: Any, tmp_path: Any) -> None:
    """pulsar-client publishes, consumes and seeks against answers built by `commands`."""
    log = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log"))
    official = pulsar.Client(tiny_broker.url, logger=log)
    producer = official.create_producer("raw")
    sent = [producer.send(b"%d" % place) for place in range(3)]
    with RawClient.from_url(tiny_broker.url) as raw_client:
        raw_client.create_producer(TOPIC).send_batch(
            [b"a", BatchMember(payload=b"b", key="k", properties={"p": "q"})], publish_time_ms=77
        )
    consumer = official.subscribe("raw", "s", initial_position=pulsar.InitialPosition.Earliest)
    found = [consumer.receive(10_000) for _ in range(5)]
    consumer.acknowledge(found[0])
    consumer.seek(sent[2])
    again = consumer.receive(10_000)
    last = consumer.get_last_message_id()
    official.close()

    assert [message.data() for message in found] == [b"0", b"1", b"2", b"a", b"b"]
    assert [message.publish_timestamp() for message in found[3:]] == [77, 77]
    assert (found[4].partition_key(), found[4].properties()) == ("k", {"p": "q"})
    # The seek is not inclusive: the broker sends that message again, the client drops it.
    assert again.data() == b"a"
    assert (last.ledger_id(), last.entry_id(), last.batch_index()) == (LEDGER_ID, 3, 1)
