"""Compares a topic with its mirror: the same entries, by checksum, in the same order.

Where the target's tags can be read (a data folder), the source's position and index of each entry
are compared, too, and entries that the source has removed meanwhile are left out. Over Pulsar's
protocol only bytes are compared: then both sides must have the same entries, and no others.

Beside a Kafka holes are left out on both sides; and what a Kafka target has is compared with what
would be sent to it, by the source's offsets in its batches' headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ..client import RawReader, Service
from ..compaction.current_view import FolderForm, log_of_folder
from ..ledger import EntryKind, FolderLog, FolderReader, Position
from ..metadata import Buffer, peek
from ..metadata.crc import crc32c
from ..metadata.source_stamp import position_of_sequence_id, record_set_tags_of, source_stamp_of
from .broker_source import is_record_set, unknown_format
from .endpoints import folder_of, is_kafka, kafka_cluster
from .entries import Options

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
    """Compare both sides of a topic. Blocks. Raises LedgerError, ClientError, OSError."""
    checksum: Callable[[Buffer], int | None] = crc32c
    if is_kafka(source) or is_kafka(target):
        from .kafka import checksum_of

        checksum = partial(checksum_of, is_sent=is_kafka(target), opens=options.renumber)
    wanted, found = (
        [(key, value) for key, body in entries if (value := checksum(body)) is not None]
        for entries in (
            _entries(source, topic, options, by_index=is_kafka(target)),
            _entries(target, topic, options, is_target=True),
        )
    )
    return Comparison(topic, len(wanted), len(found), _difference(wanted, found))


def _difference(wanted: list[tuple[Key, int]], found: list[tuple[Key, int]]) -> str:
    first = wanted[0][0] if wanted else None
    # Without entries that the source has removed meanwhile, where that can be seen.
    found = [each for each in found if each[0] is None or first is None or each[0] >= first]
    for (position, checksum), (tagged, stored) in zip(wanted, found, strict=False):
        if tagged is not None and position is not None and tagged != position:
            return f"entry {_shown(position)} of the source is {_shown(tagged)} in the target"
        if checksum != stored:
            return (
                f"entry {_shown(position)} has checksum {stored:08x}, in the source {checksum:08x}"
            )
    if len(found) != len(wanted):
        return f"the source has {len(wanted)} entries, the target {len(found)}"
    return ""


def _shown(position: Key) -> str:
    return "?" if position is None else f"{position[0]}:{position[1]}"


def _entries(
    endpoint: str, topic: str, options: Options, *, is_target: bool = False, by_index: bool = False
) -> Iterator[tuple[Key, Buffer]]:
    """The bytes of each entry by its position in the source; ``by_index``: by its index."""
    token = options.target_token if is_target else options.source_token
    cluster = options.source_cluster if is_target else None
    folder = folder_of(endpoint)
    if is_kafka(endpoint):
        kafka = kafka_cluster(endpoint, options, token)
        from .kafka import sets_of

        yield from sets_of(kafka, topic, cluster)
    elif folder is None:
        with (
            Service(endpoint, token=token) as service,
            RawReader(service, topic) as reader,
        ):
            for entry in reader.entries():
                if record_set_tags_of(entry.stamp) is None and is_record_set(entry.body):
                    raise unknown_format(topic, entry.position)
                yield None if is_target or by_index else entry.position, entry.body
    else:
        with FolderReader(folder) as reader:
            yield from _of_folder(log_of_folder(reader, topic), cluster, by_index=by_index)


def _of_folder(
    log: FolderLog | FolderForm, cluster: str | None, *, by_index: bool
) -> Iterator[tuple[Key, Buffer]]:
    at = Position(0, 0)
    while entries := log.read_stable(at):
        for entry in entries:
            key: Key = (entry.position.ledger_id, entry.position.entry_id)
            if cluster is not None:
                stamp = source_stamp_of(peek(entry.prefix))
                if stamp is None or stamp.cluster != cluster:
                    continue
                key = stamp.position
            elif by_index:
                key = position_of_sequence_id(entry.index)
            if entry.kind is EntryKind.DATA:
                yield key, entry.body
        at = entries[-1].position.following
