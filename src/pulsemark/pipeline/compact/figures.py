"""What a compaction of a topic has read, and what it keeps."""

from __future__ import annotations

from dataclasses import dataclass

from ...compaction.compaction import CompactionReport


@dataclass(frozen=True, slots=True)
class CompactedTopic:
    """The figures of one topic."""

    topic: str
    entries_before: int
    """Entries of the topic's compacted form: of its view, and of the log after it."""
    entries_after: int
    messages: int
    """Messages in them."""
    keys: int
    """Keys that have a latest message."""
    tombstones: int
    unkeyed: int
    """Messages without a key, which are left out."""
    unreadable: int
    """Entries that could not be parsed, and are kept whole."""
    damaged: int
    """Entries that could not be read: an older message counts as the latest of their keys."""
    bytes_before: int
    bytes_after: int


def figures_of(report: CompactionReport) -> CompactedTopic:
    """The figures of a report. One that changed nothing has read nothing."""
    return CompactedTopic(
        report.topic,
        report.entries_read,
        report.entries_kept if report.changed else 0,
        report.messages_read,
        report.keys,
        report.tombstones,
        report.unkeyed,
        report.unreadable,
        len(report.damaged),
        report.bytes_read,
        report.bytes_written,
    )
