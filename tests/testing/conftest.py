"""A small broker with one thread per client, for tests of clients."""

# ruff: noqa: D102 - a handler's name says which command it answers

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pulsemark.metadata import (
    BrokerEntryMetadata,
    ChecksumError,
    pack,
    read_message_metadata,
    verify_checksum,
)
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import (
    Command,
    Connection,
    MessageId,
    ProtocolError,
    Role,
    Send,
    TopicName,
    commands,
)

T = pb.BaseCommand.Type
LEDGER_ID = 7


class TinySession:
    """One client of a TinyBroker: answers each command at once, in the client's own thread."""

    def __init__(self, broker: TinyBroker, sock: socket.socket) -> None:
        self.broker = broker
        self.sock = sock
        self.connection = Connection(Role.SERVER)
        self.producers: dict[int, str] = {}
        self.consumers: dict[int, dict[str, Any]] = {}
        self.wants_prefix = False

    def run(self) -> None:
        """Serve until one side closes."""
        with contextlib.suppress(OSError, ProtocolError):
            while size := self.sock.recv_into(self.connection.get_buffer()):
                self.connection.buffer_updated(size)
                for event in self.connection.events():
                    self.handle(event)
        self.sock.close()

    def handle(self, event: Any) -> None:
        """Answer one event."""
        if isinstance(event, Send):
            self.on_send(event)
        elif isinstance(event, Command):
            self.broker.seen.append((event.type, event.body))
            getattr(self, f"on_{T.Name(event.type).lower()}")(event.body)

    def reply(self, *parts: Any) -> None:
        """Write a frame."""
        self.sock.sendall(b"".join(parts))

    def on_connect(self, body: pb.CommandConnect) -> None:
        if body.auth_data == b"wrong":
            self.reply(commands.error(2**64 - 1, pb.AuthenticationError, "who are you"))
            return
        self.wants_prefix = body.feature_flags.supports_broker_entry_metadata
        self.reply(commands.connected("tiny", min(body.protocol_version, 21), 5 * 1024 * 1024))

    def on_ping(self, body: pb.CommandPing) -> None:
        self.reply(commands.PONG)

    def on_pong(self, body: pb.CommandPong) -> None:
        self.broker.pongs.release()

    def on_partitioned_metadata(self, body: pb.CommandPartitionedTopicMetadata) -> None:
        self.reply(commands.partitioned_metadata_response(body.request_id, 0))

    def on_lookup(self, body: pb.CommandLookupTopic) -> None:
        if "absent" in body.topic:
            refusal = commands.error(
                body.request_id, pb.TopicNotFound, "no such topic", pb.CommandLookupTopicResponse
            )
            self.reply(refusal)
            return
        self.reply(
            commands.lookup_response(
                body.request_id, self.broker.url, proxy_through_service_url=True
            )
        )

    def on_producer(self, body: pb.CommandProducer) -> None:
        if body.producer_access_mode == pb.Exclusive:
            refusal = commands.error(body.request_id, pb.ProducerFenced, "taken")
            self.reply(refusal)
            return
        self.producers[body.producer_id] = str(TopicName.parse(body.topic))
        name = body.producer_name or "tiny-0"
        if body.producer_access_mode == pb.WaitForExclusive:
            self.reply(commands.producer_success(body.request_id, name, producer_ready=False))
            self.reply(commands.producer_success(body.request_id, name, topic_epoch=0))
            return
        self.reply(commands.producer_success(body.request_id, name))

    def on_send(self, event: Send) -> None:
        command = event.command
        body = bytes(event.headers_and_payload)
        try:
            verify_checksum(body)
        except ChecksumError:
            refusal = commands.send_error(
                command.producer_id, command.sequence_id, pb.ChecksumError, "damaged"
            )
            self.reply(refusal)
            return
        entries = self.broker.topics.setdefault(self.producers[command.producer_id], [])
        entries.append((command.num_messages, body))
        highest = command.highest_sequence_id if command.HasField("highest_sequence_id") else -1
        self.reply(
            commands.send_receipt(
                command.producer_id, command.sequence_id, LEDGER_ID, len(entries) - 1, highest
            )
        )
        self.push()

    def on_close_producer(self, body: pb.CommandCloseProducer) -> None:
        self.producers.pop(body.producer_id, None)
        self.reply(commands.success(body.request_id))

    def on_subscribe(self, body: pb.CommandSubscribe) -> None:
        topic = str(TopicName.parse(body.topic))
        entries = self.broker.topics.setdefault(topic, [])
        at = 0 if body.initialPosition == pb.CommandSubscribe.Earliest else len(entries)
        if body.HasField("start_message_id"):
            at = max(MessageId.from_data(body.start_message_id).entry_id, 0)
        at = self.broker.cursors.pop((topic, body.subscription), at)
        self.consumers[body.consumer_id] = {
            "topic": topic,
            "subscription": body.subscription,
            "at": at,
            "permits": 0,
        }
        self.reply(commands.success(body.request_id))

    def on_flow(self, body: pb.CommandFlow) -> None:
        self.consumers[body.consumer_id]["permits"] += body.messagePermits
        self.push()

    def push(self) -> None:
        """Send every consumer what it has permits for."""
        for consumer_id, consumer in self.consumers.items():
            entries = self.broker.topics[consumer["topic"]]
            while consumer["permits"] > 0 and consumer["at"] < len(entries):
                entry_id = consumer["at"]
                count, body = entries[entry_id]
                parts = [body]
                if self.wants_prefix:
                    parts = [pack(BrokerEntryMetadata(broker_timestamp=5, index=entry_id)), body]
                self.reply(*commands.message_frame(consumer_id, LEDGER_ID, entry_id, 0, (), parts))
                consumer["permits"] -= count
                consumer["at"] += 1

    def on_ack(self, body: pb.CommandAck) -> None:
        if body.HasField("request_id"):
            unknown = any(data.ledgerId != LEDGER_ID for data in body.message_id)
            error = (pb.MetadataError, "unknown ledger") if unknown else ()
            self.reply(commands.ack_response(body.consumer_id, body.request_id, *error))

    def on_redeliver_unacknowledged_messages(
        self, body: pb.CommandRedeliverUnacknowledgedMessages
    ) -> None:
        self.consumers[body.consumer_id]["at"] = min(
            (data.entryId for data in body.message_ids), default=0
        )
        self.push()

    def on_seek(self, body: pb.CommandSeek) -> None:
        consumer = self.consumers.pop(body.consumer_id)
        entries = self.broker.topics[consumer["topic"]]
        at = max(MessageId.from_data(body.message_id).entry_id, 0)
        if body.HasField("message_publish_time"):
            times = [read_message_metadata(body).publish_time for _, body in entries]
            later = (i for i, time in enumerate(times) if time >= body.message_publish_time)
            at = next(later, len(entries))
        self.broker.cursors[consumer["topic"], consumer["subscription"]] = at
        self.reply(commands.close_consumer(body.consumer_id, commands.NO_REQUEST_ID))
        self.reply(commands.success(body.request_id))

    def on_get_last_message_id(self, body: pb.CommandGetLastMessageId) -> None:
        consumer = self.consumers[body.consumer_id]
        entries = self.broker.topics[consumer["topic"]]
        count = entries[-1][0] if entries else 1
        last = MessageId(
            LEDGER_ID if entries else -1,
            len(entries) - 1,
            batch_index=count - 1 if count > 1 else -1,
        )
        mark_delete = MessageId(LEDGER_ID, consumer["at"] - 1)
        self.reply(commands.get_last_message_id_response(body.request_id, last, mark_delete))

    def on_unsubscribe(self, body: pb.CommandUnsubscribe) -> None:
        self.consumers.pop(body.consumer_id)
        self.reply(commands.success(body.request_id))

    def on_close_consumer(self, body: pb.CommandCloseConsumer) -> None:
        self.consumers.pop(body.consumer_id, None)
        self.reply(commands.success(body.request_id))

    def on_get_topics_of_namespace(self, body: pb.CommandGetTopicsOfNamespace) -> None:
        answer = pb.CommandGetTopicsOfNamespaceResponse(
            request_id=body.request_id, topics=sorted(self.broker.topics)
        )
        self.reply(commands.frame(answer))


class TinyBroker:
    """Listens on a free port; keeps topics as lists of (message count, headers-and-payload)."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self.listener.getsockname()[1]}"
        self.topics: dict[str, list[tuple[int, bytes]]] = {}
        self.cursors: dict[tuple[str, str], int] = {}
        self.seen: list[tuple[int, Any]] = []
        self.pongs = threading.Semaphore(0)
        self.sessions: list[TinySession] = []
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self) -> None:
        """Take connections until the listener is shut down."""
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                session = TinySession(self, sock)
                self.sessions.append(session)
                self.threads.append(threading.Thread(target=session.run))
                self.threads[-1].start()

    def close(self) -> None:
        """Close everything and wait for the threads."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.threads[0].join()
        self.listener.close()
        for session in self.sessions:
            with contextlib.suppress(OSError):
                session.sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()


@pytest.fixture
def tiny_broker() -> Iterator[TinyBroker]:
    """A TinyBroker that is closed afterwards."""
    broker = TinyBroker()
    yield broker
    broker.close()
