"""Compares a topic with its mirror: the same entries, by checksum, in the same order.

Where the target's tags can be read (a data folder), the source's position and index of each entry
are compared, too, and entries that the source has removed meanwhile are left out. Over Pulsar's
protocol only bytes are compared: then both sides must have the same entries, and no others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..client import BrokerConnection, Service
from ..client.connection import RawMessage
from ..client.service import authentication
from ..compaction.compacted_log import CompactedLog
from ..compaction.current_view import log_of_folder
from ..ledger import EntryKind, FolderReader, Position, TopicLog
from ..metadata import message_count_of, peek, read_message_metadata, strip
from ..metadata.crc import crc32c
from ..metadata.source_stamp import record_set_tags_of, source_stamp_of
from ..wire import EARLIEST, MessageId
from .broker_source import AS_STORED, is_record_set, unknown_format
from .places import Options, folder_of

READER = "pulsemark-mirror-verify"
PERMITS = 100
Key = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for a topic: how many entries each side has, and what differs ("" : nothing)."""

    topic: str
    source_entries: int
    target_entries: int
    difference: str

    @property
    def is_equal(self) -> bool:
        """Whether the target has every entry of the source, once and in order."""
        return not self.difference


def compare(source: str, target: str, topic: str, options: Options) -> Comparison:
    """Read both sides of a topic and compare them. Blocks.

    Raises LedgerError (CorruptEntryError for a damaged entry), ClientError, OSError.
    """
    wanted = list(_entries(source, topic, options.source_token, None))
    found = list(_entries(target, topic, options.target_token, options.source_cluster))
    return Comparison(topic, len(wanted), len(found), _difference(wanted, found))


def _difference(wanted: list[tuple[Key, int]], found: list[tuple[Key, int]]) -> str:
    first = wanted[0][0] if wanted else None
    # What the source has removed meanwhile, where that can be seen.
    found = [each for each in found if each[0] is None or first is None or each[0] >= first]
    for (place, checksum), (tagged, stored) in zip(wanted, found, strict=False):
        if tagged is not None and place is not None and tagged != place:
            return f"entry {_shown(place)} of the source is {_shown(tagged)} in the target"
        if checksum != stored:
            return f"entry {_shown(place)} has checksum {stored:08x}, in the source {checksum:08x}"
    if len(found) != len(wanted):
        return f"the source has {len(wanted)} entries, the target {len(found)}"
    return ""


def _shown(place: Key) -> str:
    return "?" if place is None else f"{place[0]}:{place[1]}"


def _entries(
    place: str, topic: str, token: str | None, cluster: str | None
) -> Iterator[tuple[Key, int]]:
    """The position in the source, if it is known, and the checksum of each entry."""
    folder = folder_of(place)
    if folder is None:
        with Service(place, **authentication(token)) as service:
            for message_id, body in _read(service.connection(topic), topic):
                yield (None if cluster else (message_id.ledger_id, message_id.entry_id)), body
        return
    with FolderReader(folder) as reader:
        yield from _of_folder(log_of_folder(reader, topic), cluster)


def _of_folder(log: TopicLog | CompactedLog, cluster: str | None) -> Iterator[tuple[Key, int]]:
    at = Position(0, 0)
    while entries := log.read_stable(at):
        for entry in entries:
            key: Key = (entry.position.ledger_id, entry.position.entry_id)
            if cluster is not None:
                stamp = source_stamp_of(peek(entry.prefix))
                if stamp is None or stamp.cluster != cluster:
                    continue
                key = stamp.position
            if entry.kind is EntryKind.DATA:
                yield key, crc32c(entry.body)
        last = entries[-1].position
        at = Position(last.ledger_id, last.entry_id + 1)


def _read(connection: BrokerConnection, topic: str) -> Iterator[tuple[MessageId, int]]:
    """Every message of a broker's topic, by a reader."""
    consumer = connection.subscribe(
        topic, READER, durable=False, start_message_id=EARLIEST, properties=AS_STORED
    )
    try:
        last, _ = consumer.get_last_message_id()
        at: MessageId | None = None
        consumer.flow(PERMITS)
        while last.entry_id >= 0 and (at is None or at[:2] < last[:2]):
            used = 0
            for message in (consumer.receive(), *consumer.arrived()):
                at = message.message_id
                # Permits count messages, and a batch uses up as many as it has.
                used += max(_messages_in(topic, message), 1)
                if at[:2] <= last[:2]:
                    yield at, crc32c(strip(message.headers_and_payload))
            consumer.flow(used)
    finally:
        consumer.close()


def _messages_in(topic: str, message: RawMessage) -> int:
    """How many permits a message used up. Raises KafkaEntryError."""
    stored = message.headers_and_payload
    tags = record_set_tags_of(peek(stored))
    if tags is not None:
        return tags.message_count
    if is_record_set(stored):
        raise unknown_format(topic, message.message_id[:2])
    return message_count_of(read_message_metadata(strip(stored)))
