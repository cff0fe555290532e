"""Counts what an application receives, and posts the counts to the broker.

It works beside any client library, and uses these methods of `pulsar.Message`:

    with SeekClient("127.0.0.1:6680") as seek:
        with ConsumerAudit("http://127.0.0.1:8080", stamps=MessageStamps(seek)) as audit:
            message = consumer.receive()
            audit.received(message)
            audit.post()

With ``stamps`` (`finder.MessageStamps`) a message is counted in the bucket of the broker's time,
and by the entry's tags. So the rows have the same buckets as the broker's. Without it, only the
producer's publish time is known: messages of a producer whose clock is wrong are then counted in
another bucket than at the broker, and appear lost in one and doubled in the other. Tags are then
the producer's name and the message's properties.

A message is `doubled` if its id is among those received last. It is `late` if it is received later
than ``late_after_ms`` after the broker took it, by the clocks of both machines.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, Self

from ..client import AdminClient, AdminError, ServiceUrlError, UnreachableError
from ..client.admin import topic_path
from ..metadata import Clock, FieldValue, SystemClock
from .counts import MAX_ROWS, Counts, shown
from .report import Labels, row_of
from .rows import (
    MAX_TIME_MS,
    AuditInputError,
    AuditPostError,
    AuditRow,
    check_name,
    check_other_tier,
    parse_bucket_ms,
    parse_tags,
)

REMEMBERED_IDS = 65_536
ROWS_PER_POST = 200


class MessageId(Protocol):
    """A message's id, such as a `pulsar.MessageId`."""

    def ledger_id(self) -> int: ...  # noqa: D102 - Pulsar's names
    def entry_id(self) -> int: ...  # noqa: D102
    def batch_index(self) -> int: ...  # noqa: D102


class Message(Protocol):
    """A received message, such as a `pulsar.Message`."""

    def message_id(self) -> MessageId: ...  # noqa: D102
    def topic_name(self) -> str: ...  # noqa: D102
    def data(self) -> bytes: ...  # noqa: D102
    def publish_timestamp(self) -> int: ...  # noqa: D102
    def properties(self) -> Mapping[str, str]: ...  # noqa: D102
    def producer_name(self) -> str: ...  # noqa: D102


class Stamp(Protocol):
    """A message's stamp, such as a `finder.MessageStamp`."""

    @property
    def index(self) -> int: ...  # noqa: D102
    @property
    def broker_time_ms(self) -> int | None: ...  # noqa: D102
    @property
    def append_time_ms(self) -> int: ...  # noqa: D102
    @property
    def tags(self) -> Mapping[str, FieldValue]: ...  # noqa: D102


class Stamps(Protocol):
    """Looks up stamps, such as `finder.MessageStamps`."""

    def of(self, message: Any) -> Stamp:
        """The stamp of a message. Raises LookupError if its entry was removed meanwhile."""


class ConsumerAudit:
    """Counts messages of any number of topics. Several threads may share it.

    Args:
        admin_url: the broker's HTTP address.
        tier: the name of this place in the trail. Consumers of one subscription have the same tier,
            and their counts are added; each subscription needs a tier of its own.
        tags, bucket: what to count by, as in `pulsemarkAuditTags` and `pulsemarkAuditBucketMs`.
        stamps: where the broker's time, index and tags of a message are looked up.
        late_after_ms: see the module.
        labels: host, datacenter and application of the rows.
        source: the name of this consumer among those of its tier; by default a new one.

    `by_publish_time` counts the messages that were counted by the producer's clock although there
    are `stamps`, because their entries had been removed. Raises AuditInputError.
    """

    def __init__(
        self,
        admin_url: str,
        *,
        tier: str = "consumer",
        tags: str | Iterable[str] = (),
        bucket: str = "1 minute",
        stamps: Stamps | None = None,
        late_after_ms: int = 60_000,
        labels: Labels | None = None,
        source: str | None = None,
        remembered_ids: int = REMEMBERED_IDS,
        max_rows: int = MAX_ROWS,
        clock: Clock | None = None,
    ) -> None:
        check_other_tier(tier)
        try:
            self._admin = AdminClient(admin_url)
        except ServiceUrlError as error:
            reason = "is not like http://127.0.0.1:8080"
            raise AuditInputError("admin_url", admin_url, reason) from error
        self._labels = replace(labels or Labels(), tier=tier)
        self._tags = parse_tags(tags)
        self._bucket_ms = parse_bucket_ms(bucket)
        self._stamps = stamps
        self._late_after_ms = late_after_ms
        self.source = check_name("source", source or os.urandom(16).hex())
        self._max_rows = max_rows
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        #: One post at a time: an older one that comes later would replace newer rows.
        self._posting = threading.Lock()
        self._counts: dict[str, Counts] = {}
        #: By topic: the starts of buckets with counts that were not posted yet.
        self._unposted: dict[str, set[int]] = {}
        self._seen: dict[tuple[str, int, int, int], None] = {}
        self._remembered_ids = remembered_ids
        self.by_publish_time = 0

    def received(self, message: Message) -> None:
        """Count a message that the application took over. Raises as looking up its stamp."""
        stamp = self._stamp_of(message)
        if stamp is None:
            time_ms, index = message.publish_timestamp(), -1
            if not 0 <= time_ms < MAX_TIME_MS:
                time_ms = self._clock.now_ms()
            tags: Mapping[str, FieldValue] = {
                **message.properties(),
                "producer_name": message.producer_name(),
            }
        else:
            known = stamp.broker_time_ms
            time_ms = known if known is not None and known < MAX_TIME_MS else stamp.append_time_ms
            index, tags = stamp.index, stamp.tags
        group = tuple(shown(tags[name]) if name in tags else None for name in self._tags)
        topic = message.topic_name()
        found = message.message_id()
        with self._lock:
            again = self._is_again(
                (topic, found.ledger_id(), found.entry_id(), found.batch_index())
            )
            counts = self._counts.get(topic)
            if counts is None:
                counts = self._counts[topic] = Counts(self._bucket_ms, self._max_rows)
            tally = counts.add(
                time_ms, group, control=False, count=1, index=index, size_bytes=len(message.data())
            )
            if tally is None:
                return
            tally.doubled += again
            tally.late += self._clock.now_ms() - time_ms > self._late_after_ms
            self._unposted.setdefault(topic, set()).add(time_ms - time_ms % self._bucket_ms)

    def _stamp_of(self, message: Message) -> Stamp | None:
        if self._stamps is None:
            return None
        try:
            return self._stamps.of(message)
        except LookupError:
            with self._lock:
                self.by_publish_time += 1
            return None

    def _is_again(self, key: tuple[str, int, int, int]) -> bool:
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > self._remembered_ids:
            del self._seen[next(iter(self._seen))]
        return False

    def rows(self, topic: str) -> list[AuditRow]:
        """The counts of a topic so far, by its full name."""
        with self._lock:
            counts = self._counts.get(topic)
            return [] if counts is None else self._rows(counts, set(counts.buckets))

    def _rows(self, counts: Counts, starts: set[int]) -> list[AuditRow]:
        return [
            row_of(self._labels, start_ms, self._bucket_ms, self._tags, key, tally)
            for start_ms in sorted(starts & counts.buckets.keys())
            for key, tally in counts.buckets[start_ms].items()
        ]

    def post(self) -> int:
        """Post the counts since the last post. Return the number of rows.

        A failed post changes nothing: the next one has its rows, too. A topic that cannot be posted
        does not hold up others. Raises AuditPostError, the first one, at the end.
        """
        posted, failed = 0, None
        with self._posting:
            for topic in tuple(self._unposted):
                try:
                    posted += self._post(topic)
                except AuditPostError as error:
                    failed = failed or error
        if failed is not None:
            raise failed
        return posted

    def _post(self, topic: str) -> int:
        starts: set[int] = set()
        try:
            with self._lock:
                starts = self._unposted[topic]
                del self._unposted[topic]
                rows = self._rows(self._counts[topic], starts)
            for at in range(0, len(rows), ROWS_PER_POST):
                self._send(topic, rows[at : at + ROWS_PER_POST])
        except BaseException:  # also a signal's
            with self._lock:
                self._unposted.setdefault(topic, set()).update(starts)
            raise
        return len(rows)

    def _send(self, topic: str, rows: list[AuditRow]) -> None:
        body = {"source": self.source, "rows": [row.to_json() for row in rows]}
        try:
            self._admin.request("POST", f"{topic_path(topic)}/audit", body)
        except AdminError as error:
            raise AuditPostError(error.url, f"{error.status} {error.reason}") from error
        except UnreachableError as error:
            raise AuditPostError(error.url, error.reason) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Post the remaining counts."""
        self.post()
