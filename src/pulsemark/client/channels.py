"""Producers and consumers of a connection, with their receipts and messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..proto import pulsar_api_pb2 as pb
from ..wire import Buffer, MessageId, commands, to_signed
from .errors import ConnectionLostError, SendRefusedError
from .link import Link

if TYPE_CHECKING:
    from .connection import BrokerConnection


class Receipt(NamedTuple):
    """A SEND_RECEIPT. Ids are signed. A duplicate has (-1, -1); a missing highest id is -1."""

    sequence_id: int
    ledger_id: int
    entry_id: int
    highest_sequence_id: int


@dataclass(slots=True)
class RawMessage:
    """A MESSAGE frame: its command, and the bytes after it as received."""

    command: pb.CommandMessage
    headers_and_payload: bytes

    @property
    def message_id(self) -> MessageId:
        """The message id of the entry."""
        return MessageId.from_data(self.command.message_id)


class ProducerChannel:
    """A producer of a connection. `post` sends without waiting, `receipts` waits.

    Attributes: topic, producer_id, name, last_sequence_id, schema_version, topic_epoch (None if
    the broker sent none), is_ready (False while it waits for exclusive access), is_closed (the
    broker closed it), ends_when_closed (waiting for receipts then ends with ConnectionLostError).
    """

    def __init__(
        self, client: BrokerConnection, link: Link, topic: str, producer_id: int, request_id: int
    ) -> None:
        self.topic = topic
        self.producer_id = producer_id
        self.name = ""
        self.last_sequence_id = -1
        self.schema_version = b""
        self.topic_epoch: int | None = None
        self.is_ready = False
        self.is_closed = False
        self.ends_when_closed = False
        self._client = client
        self._link = link
        self._request_id = request_id
        self._next_sequence_id = 0
        self._answers: deque[pb.CommandSendReceipt | pb.CommandSendError] = deque()

    def add(self, answer: pb.CommandSendReceipt | pb.CommandSendError) -> None:
        """Add an answer to a SEND."""
        self._answers.append(answer)

    def wait_success(self, timeout_s: float | None = None) -> None:
        """Wait for the next PRODUCER_SUCCESS. A producer that waits for access gets a second."""
        body: pb.CommandProducerSuccess = self._client.wait_response(self._request_id, timeout_s)
        self.name = body.producer_name
        self.last_sequence_id = body.last_sequence_id
        self.schema_version = body.schema_version
        self.topic_epoch = body.topic_epoch if body.HasField("topic_epoch") else None
        self.is_ready = body.producer_ready
        self._next_sequence_id = body.last_sequence_id + 1

    def post(
        self,
        *headers_and_payload: Buffer,
        sequence_id: int | None = None,
        num_messages: int = 1,
        highest_sequence_id: int | None = None,
        is_chunk: bool = False,
        marker: bool = False,
    ) -> int:
        """Queue a SEND with any bytes, in one or several pieces.

        Returns its sequence id, by default the next one.

        Small frames are written together: when there are 64 KiB, or at the next wait.
        """
        if sequence_id is None:
            sequence_id = self._next_sequence_id
        self._next_sequence_id = sequence_id + max(num_messages, 1)
        header = commands.send_header(
            self.producer_id,
            sequence_id,
            sum(map(len, headers_and_payload)),
            num_messages=num_messages,
            highest_sequence_id=highest_sequence_id,
            is_chunk=is_chunk,
            marker=marker,
        )
        self._link.write(header, *headers_and_payload)
        return sequence_id

    def arrived(self) -> list[Receipt]:
        """The receipts that have arrived and were not taken yet; does not wait.

        Raises SendRefusedError at a SEND_ERROR, after all receipts before it.
        """
        found: list[Receipt] = []
        while self._answers:
            if isinstance(self._answers[0], pb.CommandSendError):
                if found:
                    break
                raise SendRefusedError(self._answers.popleft())  # type: ignore[arg-type]
            found.append(_receipt(self._answers.popleft()))  # type: ignore[arg-type]
        return found

    def receipts(self, count: int, timeout_s: float | None = None) -> list[Receipt]:
        """The next `count` receipts, in the order of arrival.

        Raises SendRefusedError if a SEND_ERROR is among them. The receipts before it are lost; the
        next call returns those after it.
        """
        found: list[Receipt] = []

        def take() -> bool | None:
            while self._answers and len(found) < count:
                answer = self._answers.popleft()
                if isinstance(answer, pb.CommandSendError):
                    raise SendRefusedError(answer)
                found.append(_receipt(answer))
            if self.is_closed and self.ends_when_closed and len(found) < count:
                raise ConnectionLostError("receipts: the broker closed the producer")
            return True if len(found) >= count else None

        self._link.wait(take, f"{count} receipts", timeout_s)
        return found

    def send_raw(self, headers_and_payload: Buffer, **options: Any) -> Receipt:
        """Send any bytes and wait for the receipt; `options` as in post."""
        self.post(headers_and_payload, **options)
        return self.receipts(1)[0]

    def close(self) -> None:
        """Send CLOSE_PRODUCER and wait for the answer."""
        self._client.request(
            lambda request_id: commands.close_producer(self.producer_id, request_id)
        )
        self.is_closed = True


class RawConsumer:
    """A consumer of a connection. It gets only as many messages as `flow` permits.

    Attributes: topic, subscription, consumer_id, is_closed (closed by the broker or by `close`).
    """

    def __init__(
        self,
        client: BrokerConnection,
        link: Link,
        topic: str,
        subscription: str,
        consumer_id: int,
        build: Callable[[int], bytes],
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.consumer_id = consumer_id
        self.is_closed = False
        self._client = client
        self._link = link
        self._build = build
        self._messages: deque[RawMessage] = deque()

    def add(self, message: RawMessage) -> None:
        """Add a message."""
        self._messages.append(message)

    def resubscribe(self, timeout_s: float | None = None) -> None:
        """Send SUBSCRIBE (again), for example after the broker closed the consumer."""
        self._client.request(self._build, timeout_s)
        self.is_closed = False

    def flow(self, permits: int) -> None:
        """Permit `permits` more messages."""
        self._client.write(commands.flow(self.consumer_id, permits))

    def receive(self, timeout_s: float | None = None) -> RawMessage:
        """The next MESSAGE frame. Raises WaitTimeoutError."""
        return self.receive_many(1, timeout_s)[0]

    def receive_many(self, count: int, timeout_s: float | None = None) -> list[RawMessage]:
        """The next `count` MESSAGE frames. After a timeout, those received stay queued."""

        def take() -> list[RawMessage] | None:
            if len(self._messages) < count:
                return None
            return [self._messages.popleft() for _ in range(count)]

        return self._link.wait(take, f"{count} messages", timeout_s)

    def arrived(self) -> list[RawMessage]:
        """The MESSAGE frames that have arrived and were not taken yet; does not wait."""
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def drain(self, timeout_s: float | None = None) -> list[RawMessage]:
        """Every MESSAGE frame that the broker sent before it answered a PING.

        This shows that no more messages are on the way, without waiting for a time. Raises
        WaitTimeoutError.
        """
        self._client.ping(timeout_s)
        return self.arrived()

    def ack(
        self,
        *message_ids: MessageId,
        cumulative: bool = False,
        wait: bool = True,
        validation_error: pb.CommandAck.ValidationError | None = None,
    ) -> None:
        """Acknowledge. With `wait`, wait for ACK_RESPONSE: the acknowledgement is durable then.

        Raises RequestRefusedError.
        """
        kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual

        def build(request_id: int | None) -> bytes:
            return commands.ack(
                self.consumer_id,
                message_ids,
                kind,
                request_id=request_id,
                validation_error=validation_error,
            )

        if wait:
            self._client.request(build)
        else:
            self._client.write(build(None))

    def redeliver(self, *message_ids: MessageId) -> None:
        """Ask for these messages again, or for all that are not acknowledged."""
        self._client.write(
            commands.redeliver_unacknowledged_messages(self.consumer_id, message_ids)
        )

    def seek(
        self, *, message_id: MessageId | None = None, publish_time_ms: int | None = None
    ) -> None:
        """Send SEEK and wait for SUCCESS. Messages received before are dropped.

        The broker closes the consumer during a seek: call resubscribe() before reading on.
        """
        self._client.request(
            lambda request_id: commands.seek(
                self.consumer_id,
                request_id,
                message_id=message_id,
                publish_time_ms=publish_time_ms,
            )
        )
        self._messages.clear()

    def get_last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """The topic's last id, and the mark-delete position (None if the broker sends none)."""
        body: pb.CommandGetLastMessageIdResponse = self._client.request(
            lambda request_id: commands.get_last_message_id(self.consumer_id, request_id)
        )
        position = None
        if body.HasField("consumer_mark_delete_position"):
            position = MessageId.from_data(body.consumer_mark_delete_position)
        return MessageId.from_data(body.last_message_id), position

    def unsubscribe(self) -> None:
        """Send UNSUBSCRIBE and wait for the answer."""
        self._client.request(lambda request_id: commands.unsubscribe(self.consumer_id, request_id))

    def close(self) -> None:
        """Send CLOSE_CONSUMER and wait for the answer."""
        self._client.request(
            lambda request_id: commands.close_consumer(self.consumer_id, request_id)
        )
        self.is_closed = True


def _receipt(body: pb.CommandSendReceipt) -> Receipt:
    message_id = body.message_id
    return Receipt(
        body.sequence_id,
        to_signed(message_id.ledgerId),
        to_signed(message_id.entryId),
        to_signed(body.highest_sequence_id),
    )
