"""RawProducer: publishes entries whose metadata and compression the caller has made.

    with RawProducer("pulsar://127.0.0.1:6650", "orders") as producer:
        producer.publish(headers_and_payload, num_messages=20)      # does not wait for the receipt
        receipts = producer.flush()                                 # waits for all of them

It sends `[0x0e01][CRC32C][size][MessageMetadata][payload]` as it is: no byte is parsed, compressed
or changed. It needs only what the SEND command says about an entry: how many messages it has, and
its sequence id. Programs that copy, replay or make entries themselves need no other client.

**Flow.** At most `window` entries and `window_bytes` bytes wait for their receipts; `publish` waits
at these limits.

**Order.** Receipts come in the order of the entries.

**Reconnecting.** If the connection is lost, or the broker closes the producer (the topic moves), it
is opened again with the same name, at most `reconnect_attempts` times in a row, after 0.1 s, then
twice as long each time up to 5 s. Attempts are in a row until a receipt comes: a broker that closes
the connection because of an entry would otherwise be asked for ever. Entries without a receipt are
sent again, in their order: as with Pulsar's clients an entry can then be stored twice, unless the
broker deduplicates. A broker that does says how far it came. Entries up to there are not sent
again; their receipts have the position (-1, -1). With 0 attempts ConnectionLostError is raised, and
`unacknowledged` says what is open.

**Refusals.** A SEND_ERROR is raised as SendRefusedError by the next call that looks at receipts.
That entry is not sent again. Entries after it may be stored.

**Interruptions.** If a signal handler raises in a call, the producer stays usable: what has no
receipt is in `unacknowledged`, and the next call goes on, if need be over a new connection.

Calls block; use a producer from one thread only. A producer that is not used for a minute may find
its connection closed by the broker, because it cannot answer PING; it then reconnects.

**Rate.** `Pace` limits bytes or messages in a second, with at most one second's worth at once. An
entry is never divided: a large one may go when anything is left, and the next ones wait longer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from ..metadata import has_prefix
from ..metadata.source_stamp import SourceStamp
from ..proto import pulsar_api_pb2 as pb
from ..wire import FRAME_PADDING_BYTES, Buffer, TopicName
from . import errors
from .connection import BrokerConnection, ProducerChannel, Receipt
from .service import Service

DEFAULT_WINDOW = 1_000
DEFAULT_WINDOW_BYTES = 16 * 1024 * 1024
#: Room in a frame for the SEND command and a mirror's stamp.
COMMAND_BYTES = 1024
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 5.0
UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}
MESSAGES = "msg"
RATE_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`amount` bytes, or messages, in a second."""

    amount: float
    is_messages: bool = False

    @classmethod
    def parse(cls, text: str) -> RateLimit:
        """`10M` and the like are bytes, `500msg` is messages. Raises ValueError."""
        number, is_messages = text.removesuffix(MESSAGES), text.endswith(MESSAGES)
        factor = 1 if is_messages else UNITS.get(number[-1:].upper(), 1)
        digits = number if factor == 1 else number[:-1]
        if not (digits.isascii() and digits.isdigit()) or not int(digits):
            raise ValueError(f"{text!r} is neither BYTES[K|M|G] nor MESSAGESmsg")
        if int(digits) * factor > RATE_MAX:
            raise ValueError(f"{text[:40]!r} is above {RATE_MAX} in a second")
        return cls(int(digits) * factor, is_messages)


class Pace:
    """Limits the rate of entries; without a limit each may be sent at once."""

    def __init__(
        self, limit: RateLimit | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._left = float(limit.amount) if limit is not None else 0.0
        self._at_s = clock()

    def wait_s(self) -> float:
        """Seconds until the next entry may be sent; 0: now."""
        if self._limit is None:
            return 0.0
        now_s = self._clock()
        grown = self._left + (now_s - self._at_s) * self._limit.amount
        self._left, self._at_s = min(grown, float(self._limit.amount)), now_s
        return 0.0 if self._left > 0 else max(-self._left / self._limit.amount, 0.001)

    def spend(self, size_bytes: int, messages: int) -> None:
        """Count an entry that was sent."""
        if self._limit is not None:
            self._left -= messages if self._limit.is_messages else size_bytes


@dataclass(slots=True)
class _Pending:
    """An entry without a receipt."""

    parts: tuple[Buffer, ...]
    sequence_id: int
    num_messages: int
    highest_sequence_id: int | None
    size_bytes: int


class RawProducer:
    """A producer of entries as they are.

    Args:
        service: the cluster's URL, or a Service that is shared with other producers.
        topic: its name, in short or full form; a partition of a partitioned topic.
        name: the producer's name; None: the broker gives one.
        window, window_bytes: how many entries, and bytes of them, may wait for receipts.
        gathers: small entries go out together, when there are 64 KiB or with the next call for
            receipts, which costs fewer system calls. False: each at once.
        reconnect_attempts: see above.
        timeout_s: how long a call waits for the broker.

    Attributes: topic, name, last_sequence_id (that the broker knew of this name when the producer
    was opened; -1: none, or it does not deduplicate), topic_epoch (None: the broker sent none).

    Raises ValueError for a window below 1, ServiceUrlError and InvalidTopicNameError. All calls
    may raise UnreachableError, RequestRefusedError, ConnectionLostError and WaitTimeoutError.
    """

    _epoch = 0
    _is_closed = False
    _pending_bytes = 0
    #: Reconnections since the last receipt.
    _attempted = 0
    _last_used = -1
    _next_sequence_id: int | None = None

    def __init__(
        self,
        service: Service | str,
        topic: str,
        *,
        name: str | None = None,
        properties: Mapping[str, str] | None = None,
        schema: pb.Schema | None = None,
        window: int = DEFAULT_WINDOW,
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        gathers: bool = False,
        reconnect_attempts: int = 10,
        timeout_s: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        _check_window(window=window, window_bytes=window_bytes)
        self.topic = str(TopicName.parse(topic))
        self.name = name or ""
        self.last_sequence_id = -1
        self._owns_service = isinstance(service, str)
        self._service = Service(service) if isinstance(service, str) else service
        self._asked_name = name
        self._properties = dict(properties or {})
        self._schema = schema
        self._window, self._window_bytes = window, window_bytes
        self._gathers = gathers
        self._attempts = reconnect_attempts
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._pending: deque[_Pending] = deque()
        self._receipts: list[Receipt] = []
        try:
            self._connection, self._channel = self._open()
        except BaseException:
            self._close_service()
            raise
        self.last_sequence_id = self._channel.last_sequence_id
        self.topic_epoch = self._channel.topic_epoch

    # ---- publishing --------------------------------------------------------------------------

    def publish(
        self,
        headers_and_payload: Buffer,
        *,
        num_messages: int = 1,
        sequence_id: int | None = None,
        highest_sequence_id: int | None = None,
        source: SourceStamp | None = None,
    ) -> int:
        """Send an entry, and return its sequence id without waiting for the receipt.

        The bytes must not change before the receipt. `sequence_id` None is the next number; it must
        be higher than the last one. `source` is for a mirror: the facts that the broker stores
        beside its stamp. Waits while the window is full.

        Raises EntryRefusedError (nothing was sent) after `close`, for no bytes, for bytes that
        begin with a broker's stamp, or that are larger than the broker takes; ValueError for a
        sequence id that is not higher; and SendRefusedError for an earlier entry.
        """
        if sequence_id is None:
            known = self._next_sequence_id
            sequence_id = self.last_sequence_id + 1 if known is None else known
        self._check(headers_and_payload, num_messages, sequence_id)
        parts = (headers_and_payload,) if source is None else (source.prefix(), headers_and_payload)
        size_bytes = sum(map(len, parts))
        entry = _Pending(parts, sequence_id, num_messages, highest_sequence_id, size_bytes)
        while not self.has_room(size_bytes):
            self._wait_for_receipt()
        self._pending.append(entry)
        self._pending_bytes += size_bytes
        self._last_used = max(sequence_id, highest_sequence_id or 0)
        self._next_sequence_id = max(sequence_id + max(num_messages, 1), self._last_used + 1)
        try:
            self._guarded(lambda: self._post(entry))
        except BaseException as error:
            _close_if_interrupted(self._connection, error)
            raise
        if not self._gathers:
            self._guarded(self._connection.write)
        return sequence_id

    def has_room(self, size_bytes: int) -> bool:
        """Whether `publish` would take so many bytes without waiting."""
        if not self._pending:
            return True
        return (
            len(self._pending) < self._window
            and self._pending_bytes + size_bytes <= self._window_bytes
        )

    def send(self, headers_and_payload: Buffer, *, num_messages: int = 1) -> Receipt:
        """Send an entry and wait for its receipt, and for those before it."""
        self.publish(headers_and_payload, num_messages=num_messages)
        return self.flush()[-1]

    def receipts(self) -> list[Receipt]:
        """The receipts since the last call, without waiting. Raises SendRefusedError."""
        self._guarded(self._pump)
        return self._taken()

    def flush(self) -> list[Receipt]:
        """Wait until every entry has its receipt. Return the receipts not taken yet."""
        while self._pending:
            self._wait_for_receipt()
        return self._taken()

    @property
    def unacknowledged(self) -> list[int]:
        """The sequence ids of the entries without a receipt, in their order."""
        return [entry.sequence_id for entry in self._pending]

    def close(self) -> None:
        """Close the producer, without waiting for receipts. Does nothing the second time."""
        self._is_closed = True
        try:
            if not (self._connection.is_closed or self._channel.is_closed):
                self._channel.close()
        except errors.LOST:
            pass
        finally:
            self._close_service()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Wait for all receipts, unless the block ends with an exception; then close."""
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    # ---- inside ------------------------------------------------------------------------------

    def _check(self, body: Buffer, num_messages: int, sequence_id: int) -> None:
        view, connected = memoryview(body), self._connection.connected
        limit = connected.max_message_size if connected is not None else 0
        reason = ""
        if self._is_closed:
            reason = "the producer was closed"
        elif view.ndim != 1 or view.itemsize != 1 or not view.c_contiguous:
            reason = "the entry is not contiguous bytes"
        elif not view.nbytes:
            reason = "the entry has no bytes, not even its metadata"
        elif has_prefix(view):
            reason = "the entry begins with a broker's stamp (0x0e02)"
        # The limit is for the payload. A frame may be larger, for the headers and the command.
        elif limit and len(view) > limit + FRAME_PADDING_BYTES - COMMAND_BYTES:
            reason = f"the entry has {len(view)} bytes; the broker takes messages of {limit}"
        if reason:
            raise errors.EntryRefusedError(self.topic, reason)
        if not 0 <= num_messages < 2**31:
            raise ValueError(f"num_messages must be from 0 to 2^31-1, not {num_messages}")
        lowest = self._last_used + 1
        if not lowest <= sequence_id < 2**63:
            raise ValueError(f"sequence_id must be at least {lowest}, not {sequence_id}")

    def _wait_for_receipt(self) -> None:
        self._guarded(lambda: self._settle(self._channel.receipts(1, self._timeout_s)))

    def _post(self, entry: _Pending) -> None:
        self._channel.post(
            *entry.parts,
            sequence_id=entry.sequence_id,
            num_messages=entry.num_messages,
            highest_sequence_id=entry.highest_sequence_id,
        )

    def _pump(self) -> None:
        self._connection.pump()
        self._settle(self._channel.arrived())

    def _settle(self, receipts: list[Receipt]) -> None:
        """Take the entries of these receipts, which come in order, off the pending ones."""
        for receipt in receipts:
            if self._pending and self._pending[0].sequence_id == receipt.sequence_id:
                self._pending_bytes -= self._pending.popleft().size_bytes
                self._receipts.append(receipt)
                self._attempted = 0

    def _taken(self) -> list[Receipt]:
        taken, self._receipts = self._receipts, []
        return taken

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do work that needs the connection; if the connection is lost, reconnect instead.

        A reconnection sends all pending entries: what the work had to do is done then, or its
        caller asks again.
        """
        if self._is_closed:
            raise errors.ConnectionLostError(f"receipts of {self.topic}: the producer was closed")
        try:
            if self._channel.is_closed:
                raise errors.ConnectionLostError("receipts: the broker closed the producer")
            work()
        except errors.SendRefusedError as refusal:
            kept = [each for each in self._pending if each.sequence_id != refusal.sequence_id]
            self._pending = deque(kept)
            self._pending_bytes = sum(each.size_bytes for each in kept)
            raise
        except errors.ConnectionLostError as error:
            self._reconnect(error)

    def _reconnect(self, lost: Exception) -> None:
        while self._attempted < self._attempts:
            self._sleep(min(BACKOFF_MIN_S * 2**self._attempted, BACKOFF_MAX_S))
            self._attempted += 1
            if not self._channel.is_closed or self._connection.is_closed:
                self._connection.close()
            self._epoch += 1
            try:
                self._connection, self._channel = self._open()
                self._resend()
            except errors.ClientError as error:
                if isinstance(error, errors.WaitTimeoutError) or not errors.may_pass(error):
                    raise
                lost = error
            else:
                if not self._pending:
                    self._attempted = 0
                return
        self._attempted = 0
        raise lost

    def _resend(self) -> None:
        stored = self._channel.last_sequence_id
        while self._pending and self._pending[0].sequence_id <= stored:
            entry = self._pending.popleft()
            self._pending_bytes -= entry.size_bytes
            self._receipts.append(Receipt(entry.sequence_id, -1, -1, -1))
        try:
            for entry in self._pending:
                self._post(entry)
        except BaseException as error:
            _close_if_interrupted(self._connection, error)
            raise

    def _open(self) -> tuple[BrokerConnection, ProducerChannel]:
        connection = self._service.connection(self.topic)
        try:
            channel = connection.create_producer(
                self.topic,
                # The broker's name is kept: one that deduplicates knows this producer by it.
                producer_name=self._asked_name or (self.name if self._epoch else None) or None,
                properties=self._properties,
                schema=self._schema,
                epoch=self._epoch,
                timeout_s=self._timeout_s,
            )
        except BaseException as error:
            _close_if_interrupted(connection, error)
            raise
        self.name = channel.name
        channel.ends_when_closed = True
        return connection, channel

    def _close_service(self) -> None:
        if self._owns_service:
            self._service.close()


def _close_if_interrupted(connection: BrokerConnection, error: BaseException) -> None:
    """Close the connection if a signal handler has raised: it is not known what was sent."""
    if not isinstance(error, errors.ClientError):
        connection.close()


def _check_window(**limits: int) -> None:
    for what, value in limits.items():
        if value < 1:
            raise ValueError(f"{what} must be at least 1, not {value}")
