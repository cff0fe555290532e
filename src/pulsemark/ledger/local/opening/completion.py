"""Fills the catalog again from the segments, if it is lost or older than the folder.

Segments name their topic, with its id, so topics and their lists of segments are restored as they
were; cursors are in a ledger and restored with it. A catalog that has less than the folder is found
by ledger ids: the catalog assigns them, so none in the folder may be above those it has assigned.
Then opening a store completes the catalog, after the journal is written out and before it is freed.

What only the catalog had is lost with it: namespaces and their policies, partitioned topics,
schemas, topics that never had an entry (their cursors have no name to belong to), and the deletion
of a topic whose files still exist. A damaged catalog is never replaced without being asked for:
`rebuild_catalog` renames it, and copies from it what can still be read.

Three choices are on the safe side. New ledger ids begin a million above the highest one found,
because ids are also assigned to topics that are opened and never written to. New topic ids begin
above all that cursors name. And of two topics of one name the newer one counts: the other was
deleted, and its files stay where they are (`verify` names them).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ...cursors.cursor_store import CURSOR_TOPIC, cursor_records
from ...errors import TopicNotFoundError
from ...view_property import VIEW_PROPERTY_KIND, VIEW_TOPIC_PREFIX
from ..catalog.catalog import Catalog
from ..folder_reader import FolderReader
from ..io.files import Files
from ..io.folder import list_segments

_log = logging.getLogger(__name__)
LEDGER_IDS_SKIPPED = 1 << 20
"""Ids left unused between the highest ledger id found and the first new one."""


@dataclass(frozen=True, slots=True)
class Completed:
    """What was added to a catalog."""

    topics: int
    segments: int
    next_ledger_id: int


def is_older_than_folder(files: Files, folder: Path, catalog: Catalog) -> bool:
    """Whether the folder has ledgers whose ids the catalog never assigned."""
    present = list_segments(files, folder)
    return bool(present) and present[-1][0] >= catalog.next_ledger_id()


def complete_catalog(files: Files, folder: Path, catalog: Catalog) -> Completed:
    """Add the folder's topics and segments to a catalog that does not have them.

    Raises CatalogError, UnsupportedVersionError, OSError; then nothing has changed.
    """
    removed, deleted = catalog.removed(), catalog.deleted_topics()
    with FolderReader(folder, files=files) as reader:
        present = [h for h in reader.headers() if (h.ledger_id, h.segment_no) not in removed]
        highest_topic_id = _highest_topic_id(reader)
    headers = [h for h in present if h.topic_id not in deleted]
    removed = {(h.ledger_id, h.segment_no) for h in present if h.topic_id in deleted}
    topics: dict[str, int] = {}
    for header in headers:
        topics[header.topic] = max(header.topic_id, topics.get(header.topic, 0))
    segments = [
        (h.topic_id, h.ledger_id, h.segment_no)
        for h in headers
        if topics[h.topic] == h.topic_id and topics[h.topic] >= catalog.topics().get(h.topic, 0)
    ]
    highest = max((ledger_id for ledger_id, _ in list_segments(files, folder)), default=-1)
    next_ledger_id = highest + 1 + LEDGER_IDS_SKIPPED
    catalog.skip_topic_ids(max(highest_topic_id, *deleted, 0))
    _choose_views(catalog, topics)
    # Last, and in one transaction: after it the catalog no longer looks older than the folder.
    catalog.adopt(topics, segments, removed, next_ledger_id)
    _log.error(
        "%s: the catalog was lost, or older than the folder; %d topics with %d segments were "
        "found again. Namespaces, policies, schemas, partitioned topics and topics without "
        "entries that only the catalog knew are lost",
        folder,
        len(topics),
        len(segments),
    )
    return Completed(len(topics), len(segments), next_ledger_id)


def _highest_topic_id(reader: FolderReader) -> int:
    """The highest id of a topic that has, or had, a cursor."""
    try:
        log = reader.log(CURSOR_TOPIC)
    except TopicNotFoundError:
        return 0
    return max((record.topic_id for record in cursor_records(log)), default=0)


def _choose_views(catalog: Catalog, topics: dict[str, int]) -> None:
    """Mark compacted topics, so that the newest finished view of each counts again."""
    for name in topics:
        if name.startswith(VIEW_TOPIC_PREFIX):
            topic_id = name.removeprefix(VIEW_TOPIC_PREFIX).partition("/")[0]
            if catalog.get(VIEW_PROPERTY_KIND, topic_id) is None:
                catalog.put(VIEW_PROPERTY_KIND, topic_id, b"")
