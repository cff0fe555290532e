"""RawReader: reads a topic's entries as they are stored, from a position to the topic's end.

    with RawReader(service, "orders", (7, 0)) as reader:
        for entry in reader.entries():
            entry.position, entry.body

It leaves nothing in the broker: its subscription is not durable. The end is where the topic ended
when the reader was opened. Bodies are the producers' bytes; no payload is opened. A broker that
shows its stamps (PIP-90) sends them with the entries, if the `Service` asks for them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from .. import metadata
from ..metadata.source_stamp import STORED_PROPERTY, record_set_tags_of
from ..proto import pulsar_api_pb2 as pb
from ..wire import EARLIEST, MessageId, TopicName
from .connection import RawMessage
from .errors import ConnectionLostError, WaitTimeoutError
from .service import Service

DEFAULT_TIMEOUT_S = 30.0
PERMITS = 1_000


@dataclass(frozen=True, slots=True)
class RawEntry:
    """An entry: its position (ledger id, entry id), its stamp if it was sent, its body."""

    position: tuple[int, int]
    stamp: metadata.BrokerEntryMetadata | None
    body: bytes
    header: pb.MessageMetadata | None
    """The producer's header; None if it cannot be parsed."""

    @property
    def message_count(self) -> int:
        """As the producer, or the stamp of a Kafka client's set, states it; 1: neither does."""
        tags = record_set_tags_of(self.stamp)
        if tags is not None:
            return tags.message_count
        return 1 if self.header is None else metadata.message_count_of(self.header)


class RawReader:
    """A reader of one topic, from the entry `start` (None: the first one) to its present end.

    Attributes: topic, last (the position of the topic's last entry at the opening; None: it has
    none).

    Raises InvalidTopicNameError, UnreachableError, RequestRefusedError, WaitTimeoutError (also for
    an entry that does not come within `timeout_s`), ConnectionLostError.
    """

    def __init__(
        self,
        service: Service,
        topic: str,
        start: tuple[int, int] | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.topic = str(TopicName.parse(topic))
        self._timeout_s = timeout_s
        self._connection = service.connection(self.topic)
        self._consumer = self._connection.subscribe(
            self.topic,
            f"pulsemark-reader-{uuid.uuid4().hex[:12]}",
            durable=False,
            start_message_id=EARLIEST if start is None else MessageId(*start),
            # A pulsemark broker would else convert record sets of Kafka's clients.
            properties={STORED_PROPERTY: "true"},
            timeout_s=timeout_s,
        )
        self._consumer.ends_when_closed = True
        last, _ = self._consumer.get_last_message_id()
        self.last = (last.ledger_id, last.entry_id) if last.entry_id >= 0 else None
        self._start = start

    def entries(self) -> Iterator[RawEntry]:
        """The entries in order, up to the end at the opening. Raises as the class."""
        if self.last is None or (self._start is not None and self._start > self.last):
            return
        permits = 0
        while True:
            if permits <= PERMITS // 2:
                self._consumer.flow(PERMITS - permits)
                permits = PERMITS
            message = self._next()
            place = message.message_id
            entry = _entry((place.ledger_id, place.entry_id), message.headers_and_payload)
            permits -= max(1, entry.message_count)
            if entry.position <= self.last:
                yield entry
            if entry.position >= self.last:
                return

    def close(self) -> None:
        """Close the consumer."""
        if not (self._connection.is_closed or self._consumer.is_closed):
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        with suppress(ConnectionLostError, WaitTimeoutError):  # the first error is to be reported
            self.close()

    def _next(self) -> RawMessage:
        try:
            return self._consumer.receive(self._timeout_s)
        except WaitTimeoutError:
            what = f"entry of {self.topic} (its last one is {self.last})"
            raise WaitTimeoutError(what, self._timeout_s) from None


def _entry(position: tuple[int, int], stored: bytes) -> RawEntry:
    stamp, body = metadata.split(stored)
    try:
        header = metadata.read_message_metadata(body)
    except metadata.MessageFormatError:
        header = None
    return RawEntry(position, stamp, bytes(body), header)
