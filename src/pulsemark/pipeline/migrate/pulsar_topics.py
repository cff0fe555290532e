"""Topics of a broker, Pulsar's or pulsemark's, copied over Pulsar's protocol into new segments.

They are read as whole entries, so the producers' bytes stay; the broker's objects are not opened.
Nothing is left in the source: the subscription is not durable.

- **Index.** A source that shows its stamps (PIP-90) gives indexes, which are kept. Another one does
  not: then messages are counted from 0.
- **Time.** The broker's time from the stamp; without one the producer's publish time, but not later
  than now. An append time never decreases within a topic, so a time before that of the entry before
  it becomes that one.
- **Positions** are the folder's own: Pulsar's ledgers can have entries that it does not deliver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

from ...client import RawEntry, RawReader, RequestRefusedError, Service
from ...ledger import EntryKind
from ...ledger.catalog_kinds import (
    NAMESPACE_KIND,
    PARTITIONED_KIND,
    SCHEMA_KIND,
    TENANT_KIND,
)
from ...ledger.limits import MAX_MESSAGE_COUNT
from ...ledger.local.catalog.catalog import Catalog
from ...ledger.local.io.folder import CATALOG_NAME
from ...ledger.local.segment.segment_format import SegmentHeader
from ...metadata import pack_stamp
from ...metadata.partition_names import partition_name, partition_of
from ...metadata.schema_list import pack_schemas
from ...proto import pulsar_api_pb2 as pb
from ..errors import MigrateError
from .entry_format import EntryFormat
from .segments import Digest, NewRecord, Written, write_segment
from .staging import Staging

__all__ = ["SEGMENT_BYTES", "copy_topic", "fill_catalog", "plan_of", "service_of"]

SEGMENT_BYTES = 256 << 20
"""A segment ends after so many bytes of bodies. A killed run goes on after its last segment."""
_RECORD_SET = bytes(4)
_DEFAULT_NAMESPACE = "public/default"


def service_of(url: str, token: str | None) -> Service:
    """The source's cluster, which is asked for its stamps. Raises ServiceUrlError."""
    flags = pb.FeatureFlags(supports_broker_entry_metadata=True)
    options: dict[str, Any] = {"feature_flags": flags}
    if token is not None:
        options |= {"auth_method_name": "token", "auth_data": token.encode()}
    return Service(url, **options)


def plan_of(
    url: str, token: str | None, topics: list[str], namespaces: list[str]
) -> dict[str, Any]:
    """What is copied: each topic up to its last entry now.

    Raises:
        MigrateError: a topic does not exist.
        ClientError: the source cannot be reached.
    """
    with service_of(url, token) as service:
        names = dict.fromkeys(topics, 0)
        for namespace in namespaces:
            names |= dict.fromkeys(service.first().topics(namespace), 0)
        partitioned: dict[str, int] = {}
        for name in list(names):
            base, _ = partition_of(name)
            try:
                count = service.first().partitions(base, create=False)
            except RequestRefusedError as error:
                raise MigrateError(name, f"cannot be read: {error}") from error
            if count:
                partitioned[base] = count
            if count and base == name:
                del names[name]
                names |= {partition_name(name, number): 0 for number in range(count)}
        planned = []
        for number, name in enumerate(sorted(names)):
            with RawReader(service, name) as reader:
                last = reader.last
            planned.append({"topic": name, "topic_id": number + 1, "last": last})
        bases = {partition_of(name)[0] for name in names}
        schemas = {base: _schemas(service, base) for base in bases}
    return {"topics": planned, "partitioned": partitioned, "schemas": schemas}


def _schemas(service: Service, topic: str) -> str:
    """A topic's schemas as the catalog has them, in hexadecimal."""
    found: list[pb.Schema] = []
    connection = service.connection(topic)
    while True:
        try:
            schema, _ = connection.schema(topic, len(found).to_bytes(8, "big"))
        except RequestRefusedError:
            return pack_schemas(found).hex()
        found.append(schema)


def copy_topic(
    url: str,
    token: str | None,
    staging: Staging,
    planned: Mapping[str, Any],
    form: EntryFormat,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
) -> Written | None:
    """Copy one topic up to the planned end; what is staged already stays.

    Returns:
        The last segment, with the topic's sums; None for a topic without entries.

    Raises:
        MigrateError: indexes are missing, or an entry is not a message of Pulsar's.
        ClientError, OSError: the source or the target failed.
    """
    ledger_id, segment_no = int(planned["topic_id"]), 0
    last: Written | None = None
    while (done := staging.written(ledger_id, segment_no)) is not None:
        last, segment_no = done, segment_no + 1
    if planned["last"] is None:
        return None
    end = (planned["last"][0], planned["last"][1])
    if last is not None and last.place is not None and last.place >= end:
        return last
    with service_of(url, token) as service:
        start = None if last is None else last.place
        with RawReader(service, planned["topic"], start) as reader:
            entries = _Entries(planned["topic"], reader.entries(), start, end, form, now_ms, last)
            while entries.has_more():
                last = _write(entries, staging, planned, last, segment_bytes)
                staging.note(last)
    if last is None or last.place is None or last.place < end:
        reason = f"its last entry {end} was removed from the source meanwhile"
        raise MigrateError(planned["topic"], reason)
    return last


def _write(
    entries: _Entries,
    staging: Staging,
    planned: Mapping[str, Any],
    last: Written | None,
    segment_bytes: int,
) -> Written:
    header = SegmentHeader(
        topic=planned["topic"],
        topic_id=planned["topic_id"],
        ledger_id=planned["topic_id"],
        segment_no=0 if last is None else last.segment_no + 1,
        first_entry_id=0 if last is None else last.end_entry_id,
        first_index=entries.next_index,
        entry_time_floor_ms=0 if last is None else last.entry_time_max_ms,
        stamp_floor_ms=0 if last is None else last.append_time_max_ms,
        previous_ledger_id=-1,
        previous_entry_count=0,
    )
    _, digest, end, next_index, time_max_ms, append_max_ms = write_segment(
        staging.data,
        header,
        entries.of_segment(segment_bytes),
        Digest() if last is None else last.digest,
    )
    return Written(
        *header.segment_id,
        end,
        next_index,
        time_max_ms,
        append_max_ms,
        digest,
        entries.added,
        entries.place,
    )


class _Entries:
    """The source's entries as records, with the next one looked at in advance."""

    def __init__(
        self,
        topic: str,
        entries: Iterator[RawEntry],
        start: tuple[int, int] | None,
        end: tuple[int, int],
        form: EntryFormat,
        now_ms: Callable[[], int],
        last: Written | None,
    ) -> None:
        self._topic = topic
        self._entries = (
            each
            for each in entries
            if (start is None or each.position > start) and each.position <= end
        )
        self._form = form
        self._now_ms = now_ms
        self._time_ms = 0 if last is None else last.append_time_max_ms
        self._ahead: RawEntry | None = None
        self.place = start
        self.added = 0 if last is None else last.added
        self.next_index = 0 if last is None else last.next_index
        self._is_first = last is None

    def has_more(self) -> bool:
        """Whether there is another entry; it decides the index at which the topic begins."""
        if self._ahead is None:
            self._ahead = next(self._entries, None)
            if self._ahead is not None and self._is_first:
                index = _index_of(self._ahead)
                if index is not None:
                    self.next_index = index - self._ahead.message_count + 1
                self._is_first = False
        return self._ahead is not None

    def of_segment(self, size_bytes: int) -> Iterator[NewRecord]:
        """The records of the next segment."""
        while size_bytes > 0 and self.has_more():
            entry, self._ahead = self._ahead, None
            assert entry is not None
            yield self._record(entry)
            size_bytes -= len(entry.body)
            self.place = entry.position

    def _record(self, entry: RawEntry) -> NewRecord:
        if entry.header is None or entry.body[:4] == _RECORD_SET:
            reason = f"entry {entry.position} is not a message of Pulsar's clients"
            raise MigrateError(self._topic, reason)
        index = _index_of(entry)
        count = min(entry.message_count, MAX_MESSAGE_COUNT)
        expected = self.next_index + count - 1
        if index is not None and index != expected:
            reason = (
                f"entry {entry.position} has index {index}, but {expected} follows: messages are"
                " missing in the source, or its own entries take indexes"
            )
            raise MigrateError(self._topic, reason)
        index = expected
        stamp = entry.stamp
        has_time = stamp is not None and stamp.HasField("broker_timestamp")
        if stamp is not None and has_time:
            time_ms = stamp.broker_timestamp
        else:
            time_ms = min(entry.header.publish_time, self._now_ms())
            self.added += self._form is EntryFormat.STAMPED
        self._time_ms = max(self._time_ms, time_ms)
        self.next_index = index + 1
        prefix = pack_stamp(self._time_ms, index) if self._form is EntryFormat.STAMPED else b""
        return NewRecord(EntryKind.DATA, count, self._time_ms, index, prefix, entry.body)


def _index_of(entry: RawEntry) -> int | None:
    stamp = entry.stamp
    return stamp.index if stamp is not None and stamp.HasField("index") else None


def fill_catalog(staging: Staging, plan: Mapping[str, Any]) -> None:
    """Make the target's catalog: what a broker needs to serve the topics."""
    topics = {each["topic"]: int(each["topic_id"]) for each in plan["topics"]}
    segments = []
    for topic_id in topics.values():
        number = 0
        while staging.written(topic_id, number) is not None:
            segments.append((topic_id, topic_id, number))
            number += 1
    namespaces = {_DEFAULT_NAMESPACE, *("/".join(_rest(name)) for name in topics)}
    properties = [
        *((TENANT_KIND, tenant, b"{}") for tenant in sorted({n.split("/")[0] for n in namespaces})),
        *((NAMESPACE_KIND, name, b"{}") for name in sorted(namespaces)),
        *((PARTITIONED_KIND, name, b"%d" % n) for name, n in plan["partitioned"].items()),
        *((SCHEMA_KIND, name, bytes.fromhex(s)) for name, s in plan["schemas"].items() if s),
    ]
    path = staging.data / CATALOG_NAME
    for suffix in ("", "-wal", "-shm"):  # a killed run's
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with closing(Catalog(path)) as catalog:
        catalog.adopt(topics, segments, (), max(topics.values(), default=0) + 1)
        catalog.write(properties)


def _rest(topic: str) -> tuple[str, str]:
    """Tenant and namespace of a full name."""
    tenant, namespace = topic.split("://", 1)[-1].split("/")[:2]
    return tenant, namespace
