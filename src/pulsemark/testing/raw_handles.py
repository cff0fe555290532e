"""Producers and consumers of a RawClient, with their receipts, messages and errors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..proto import pulsar_api_pb2 as pb
from ..wire import Buffer, MessageId, commands, to_signed
from .raw_link import Link, RawClientError
from .raw_messages import BatchMember, batched_message, unbatched_message

if TYPE_CHECKING:
    from .raw_client import RawClient


class RequestRefusedError(RawClientError):
    """The broker refused a request: `error` (ServerError) with its `message`."""

    def __init__(self, request_id: int, error: int, message: str) -> None:
        name = pb.ServerError.Name(error)
        super().__init__(f"{name}: {message}")
        self.request_id = request_id
        self.error = error
        self.error_name = name
        self.message = message

    @classmethod
    def raise_if_refused(cls, body: Any) -> None:
        """Raise if `body` is ERROR, or a response with an error field."""
        names = body.DESCRIPTOR.fields_by_name
        error = "error" if "error" in names else "error_code"
        message = "message" if "message" in names else "error_message"
        if error in names and body.HasField(error):
            raise cls(body.request_id, getattr(body, error), getattr(body, message))


class SendRefusedError(RawClientError):
    """The broker answered SEND_ERROR: `error` (ServerError) with its `message`."""

    def __init__(self, body: pb.CommandSendError) -> None:
        name = pb.ServerError.Name(body.error)
        super().__init__(f"{name}: {body.message}")
        self.producer_id = body.producer_id
        self.sequence_id = body.sequence_id
        self.error = int(body.error)
        self.error_name = name
        self.message = body.message


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


class RawProducer:
    """A producer of a RawClient. `post` sends without waiting, `receipts` waits.

    Attributes: topic, producer_id, name, last_sequence_id, schema_version, topic_epoch (None if
    the broker sent none), is_ready (False while it waits for exclusive access), is_closed (the
    broker closed it).
    """

    def __init__(
        self, client: RawClient, link: Link, topic: str, producer_id: int, request_id: int
    ) -> None:
        self.topic = topic
        self.producer_id = producer_id
        self.name = ""
        self.last_sequence_id = -1
        self.schema_version = b""
        self.topic_epoch: int | None = None
        self.is_ready = False
        self.is_closed = False
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
        headers_and_payload: Buffer,
        *,
        sequence_id: int | None = None,
        num_messages: int = 1,
        highest_sequence_id: int | None = None,
        is_chunk: bool = False,
        marker: bool = False,
    ) -> int:
        """Queue a SEND with any bytes and return its sequence id (by default the next one).

        Small frames are written together: when there are 64 KiB, or at the next wait.
        """
        if sequence_id is None:
            sequence_id = self._next_sequence_id
        self._next_sequence_id = sequence_id + max(num_messages, 1)
        header = commands.send_header(
            self.producer_id,
            sequence_id,
            len(headers_and_payload),
            num_messages=num_messages,
            highest_sequence_id=highest_sequence_id,
            is_chunk=is_chunk,
            marker=marker,
        )
        self._link.write(header, headers_and_payload)
        return sequence_id

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
            return True if len(found) >= count else None

        self._link.wait(take, f"{count} receipts", timeout_s)
        return found

    def send_raw(self, headers_and_payload: Buffer, **options: Any) -> Receipt:
        """Send any bytes and wait for the receipt; `options` as in post."""
        self.post(headers_and_payload, **options)
        return self.receipts(1)[0]

    def send(
        self,
        payload: bytes | None,
        *,
        publish_time_ms: int | None = None,
        sequence_id: int | None = None,
        **message: Any,
    ) -> Receipt:
        """Send one unbatched message with this publish time; None is now.

        `message`: more arguments of unbatched_message.
        """
        if sequence_id is None:
            sequence_id = self._next_sequence_id
        body = unbatched_message(
            payload,
            publish_time_ms=_now_ms() if publish_time_ms is None else publish_time_ms,
            sequence_id=sequence_id,
            producer_name=self.name,
            **message,
        )
        return self.send_raw(body, sequence_id=sequence_id)

    def send_batch(
        self,
        members: Sequence[bytes | BatchMember],
        *,
        publish_time_ms: int | None = None,
        sequence_id: int | None = None,
        **message: Any,
    ) -> Receipt:
        """Send one batch; arguments as in send and batched_message."""
        if sequence_id is None:
            sequence_id = self._next_sequence_id
        body = batched_message(
            members,
            publish_time_ms=_now_ms() if publish_time_ms is None else publish_time_ms,
            sequence_id=sequence_id,
            producer_name=self.name,
            **message,
        )
        return self.send_raw(
            body,
            sequence_id=sequence_id,
            num_messages=len(members),
            highest_sequence_id=sequence_id + max(len(members) - 1, 0),
        )

    def send_many(
        self,
        messages: Iterable[Buffer],
        *,
        num_messages: int = 1,
        window: int = 1000,
        timeout_s: float | None = None,
    ) -> list[Receipt]:
        """Send headers-and-payloads, each of `num_messages`, and return all receipts in order.

        At most `window` SENDs are unanswered at any time. Raises SendRefusedError.
        """
        found: list[Receipt] = []
        posted = 0
        for message in messages:
            if posted - len(found) >= window:
                found += self.receipts(max(window // 2, 1), timeout_s)
            self.post(message, num_messages=num_messages)
            posted += 1
        found += self.receipts(posted - len(found), timeout_s)
        return found

    def close(self) -> None:
        """Send CLOSE_PRODUCER and wait for the answer."""
        self._client.request(
            lambda request_id: commands.close_producer(self.producer_id, request_id)
        )
        self.is_closed = True


class RawConsumer:
    """A consumer of a RawClient. It gets only as many messages as `flow` permits.

    Attributes: topic, subscription, consumer_id, is_closed (closed by the broker or by `close`).
    """

    def __init__(
        self,
        client: RawClient,
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
        """The next MESSAGE frame. Raises RawTimeoutError."""
        return self.receive_many(1, timeout_s)[0]

    def receive_many(self, count: int, timeout_s: float | None = None) -> list[RawMessage]:
        """The next `count` MESSAGE frames. After a timeout, those received stay queued."""

        def take() -> list[RawMessage] | None:
            if len(self._messages) < count:
                return None
            return [self._messages.popleft() for _ in range(count)]

        return self._link.wait(take, f"{count} messages", timeout_s)

    def drain(self, timeout_s: float | None = None) -> list[RawMessage]:
        """Every MESSAGE frame that the broker sent before it answered a PING.

        This shows that no more messages are on the way, without waiting for a time. Raises
        RawTimeoutError.
        """
        self._client.ping(timeout_s)
        messages = list(self._messages)
        self._messages.clear()
        return messages

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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
