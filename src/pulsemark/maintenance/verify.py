"""Reading a data folder completely, and reporting everything that is wrong with it.

It takes no lock and changes nothing, so a folder in use can be verified, too.

It reads every segment's header; of the segments that make a log (`ledger.run.chain_of`), every
record with both checksums. It compares each record's index and time with those before it, the index
file with the records, each segment's end with the next header, and the catalog with the segments.
It reads the journal's blocks and the cut files, and names other files in the folder. Segments that
belong to no log (of deleted topics, or given up at their first write) are named, not read.

Topics that are in BookKeeper are read completely, too (`verify_logs`). The client checks each
entry's digest, ledger and number; what is checked here is that entries can be read, and that their
indexes follow one another.

It cannot find bytes that were wrong before they were first written, nor the loss of a topic's
newest entries together with every file that refers to them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path

from ..ledger import EARLIEST, CorruptEntryError, Entry, EntryKind, TopicLog
from ..ledger.errors import CatalogError, CorruptCatalogError, CorruptFileError, TopicNotFoundError
from ..ledger.local.io.files import Files, size_of
from ..ledger.local.io.folder import (
    CATALOG_NAME,
    LOCK_NAME,
    MARKER_NAME,
    NEW_CATALOG_NAME,
    PROBE_NAME,
    RESERVE_NAME,
    check_marker,
    list_segments,
)
from ..ledger.local.segment.salvage import may_have_held_records, read_named_header, salvage_headers
from ..ledger.topic_log import read_on
from .findings import (
    DamagedCatalog,
    DamagedEntries,
    DamagedHeader,
    Finding,
    ForeignFile,
    IndexGap,
    JournalInUse,
    LeftoverFile,
    UnreadCatalog,
)
from .verify_catalog import CatalogContent, read_catalog
from .verify_journal import JournalContent, JournalOverlay, read_journal
from .verify_topic import Checked, FolderView, TopicCheck

_REMOVED = "a segment that was removed; the next opening removes its file"


def verify_folder(
    path: str | os.PathLike[str],
    *,
    files: Files | None = None,
    topics: Collection[str] | None = None,
    checked: Checked | None = None,
) -> Iterator[Finding]:
    """All findings in a data folder, as they are found; or those of ``topics`` (full names).

    The counts in ``checked`` are increased. Raises ForeignFolderError, UnsupportedVersionError,
    TopicNotFoundError, OSError.
    """
    view, catalog_findings = _view_of(Path(path), files or Files(), checked or Checked())
    names = _topics(view)
    for name in topics or ():
        if name not in names:
            raise TopicNotFoundError(name)
    if topics is None:
        yield from _journal_findings(view.journal)
        yield from catalog_findings
        yield from _unsalvageable(view)
    for name, topic_id in sorted(names.items()):
        if topics is None or name in topics:
            view.checked.topics += "://" in name  # the store has topics of its own, too
            yield from TopicCheck(view, name, topic_id).run()
    if topics is None:
        yield from _orphans(view, names)
        yield from stray_files(view.files, view.folder)


def sizes_of_topics(path: str | os.PathLike[str]) -> dict[str, int]:
    """All topics of a folder, the store's own too, with the size of their segments in bytes."""
    view, _ = _view_of(Path(path), Files(), Checked())
    sizes = dict.fromkeys(_topics(view), 0)
    for segment_id, header in view.headers.items():
        if header.topic in sizes:
            sizes[header.topic] += size_of(view.files, view.path(segment_id))
    return sizes


def _view_of(folder: Path, files: Files, checked: Checked) -> tuple[FolderView, list[Finding]]:
    """Compare what the folder's files say about each other. Return the view of the folder."""
    check_marker(files, folder)
    view = FolderView(files, folder, checked)
    view.journal = read_journal(files, folder)
    _read_headers(view)
    catalog_findings = list(_read_catalog(view))
    _read_headers_of_listed(view)
    _salvage(view)
    return view, catalog_findings


def _read_headers(view: FolderView) -> None:
    for segment_id in list_segments(view.files, view.folder):
        _read_header(view, view.files, segment_id)
    overlay = JournalOverlay(view.files, view.folder, view.journal)
    for segment_id in view.journal.pieces.keys() - view.headers.keys():
        if _read_header(view, overlay, segment_id):
            view.damaged.pop(segment_id, None)
        elif not view.files.exists(view.path(segment_id)):
            view.damaged.pop(segment_id, None)  # removed, but the journal still has blocks of it


def _read_header(view: FolderView, files: Files, segment_id: tuple[int, int]) -> bool:
    try:
        view.headers[segment_id] = read_named_header(files, view.folder, segment_id)
    except FileNotFoundError:
        return False
    except CorruptFileError as error:
        view.damaged[segment_id] = error.reason
        return False
    return True


def _read_catalog(view: FolderView) -> Iterator[Finding]:
    path = view.folder / CATALOG_NAME
    try:
        catalog = read_catalog(path)
    except CorruptCatalogError as error:
        reason = f"{error.reason}; `pulsemark rebuild-catalog` makes it again from the segments"
        yield DamagedCatalog(path=path, reason=reason)
        return
    except CatalogError as error:
        yield UnreadCatalog(path=path, reason=error.reason)
        return
    highest = max((ledger_id for ledger_id, _ in view.headers), default=-1)
    if catalog is not None and highest < catalog.next_ledger_id:
        view.catalog = catalog
    elif view.headers:
        how = "it is missing" if catalog is None else "it is older than the folder"
        reason = f"{how}; opening the folder fills it again from the segments"
        yield DamagedCatalog(path=path, reason=reason)


def _read_headers_of_listed(view: FolderView) -> None:
    """Read headers of segments that began between reading headers and catalog."""
    listed = view.catalog.segments.keys() if view.catalog else set()
    for segment_id in sorted(listed - view.headers.keys() - view.damaged.keys()):
        _read_header(view, view.files, segment_id)


def _salvage(view: FolderView) -> None:
    catalog = view.catalog or CatalogContent()
    for segment_id in sorted(view.damaged):
        if _read_header(view, view.files, segment_id):
            del view.damaged[segment_id]  # it was half written
            continue
        view.headers |= salvage_headers(view.files, view.folder, [segment_id])
    unread = (catalog.segments.keys() | view.damaged.keys()) - view.headers.keys()
    if unread - view.damaged.keys():  # or they were removed after the catalog was read
        unread &= view.catalog_now().segments.keys() | view.damaged.keys()
    view.lost = {ledger_id for ledger_id, _ in unread}


def _topics(view: FolderView) -> dict[str, int]:
    """The id of every topic. Without the catalog, of two of one name the newer one counts."""
    if view.catalog is not None:
        return view.catalog.topics
    topics: dict[str, int] = {}
    for header in view.headers.values():
        topics[header.topic] = max(header.topic_id, topics.get(header.topic, 0))
    return topics


def _journal_findings(journal: JournalContent) -> Iterator[Finding]:
    yield from journal.damaged
    if journal.blocks:
        yield JournalInUse(blocks=journal.blocks, size_bytes=journal.size_bytes)


def _unsalvageable(view: FolderView) -> Iterator[Finding]:
    """Segments whose headers are damaged and could not be salvaged."""
    listed = view.catalog.segments if view.catalog else {}
    removed = view.catalog.removed if view.catalog else set()
    named = {header.previous_ledger_id for header in view.headers.values()}
    for segment_id, reason in sorted(view.damaged.items()):
        path = view.path(segment_id)
        if segment_id in view.headers:
            continue
        is_known = segment_id in listed or segment_id[0] in named
        try:
            if segment_id in removed:
                yield LeftoverFile(path=path, reason=_REMOVED)
            elif is_known or may_have_held_records(view.files, view.folder, segment_id):
                yield DamagedHeader(path=path, reason=reason, salvaged=False)
            else:
                why = "a segment without header and records: its first write did not finish"
                yield LeftoverFile(path=path, reason=why)
        except FileNotFoundError:
            continue


def _orphans(view: FolderView, topics: dict[str, int]) -> Iterator[Finding]:
    """Segments that belong to no topic."""
    removed = view.catalog.removed if view.catalog else set()
    for segment_id, header in sorted(view.headers.items()):
        path = view.path(segment_id)
        if segment_id in removed:
            reason = _REMOVED
        elif topics.get(header.topic) != header.topic_id:
            reason = "a segment of a topic that was deleted"
        else:
            continue
        if view.files.exists(path):
            yield LeftoverFile(topic=header.topic, path=path, reason=reason)


_CATALOG, _NEW_CATALOG = re.escape(CATALOG_NAME), re.escape(NEW_CATALOG_NAME)
_SEGMENT = r"[0-9a-f]{16}-[0-9a-f]{8}\.(log|idx|cut)"
_UNFINISHED = "a file that was being written when its process ended"
_NAMES = {
    "": {
        rf"{MARKER_NAME}|{LOCK_NAME}|{_CATALOG}(-wal|-shm)?|{RESERVE_NAME}": "",
        r"ledgers|journal|lost\+found": "",
        rf"{_CATALOG}\.old-\d+(-wal|-shm)?": "a catalog that was replaced",
        rf"{_NEW_CATALOG}(-wal|-shm)*|{MARKER_NAME}\.new": _UNFINISHED,
        PROBE_NAME: "a test file of a process that ended",
    },
    "ledgers": {_SEGMENT: "", rf"{_SEGMENT}\.new": _UNFINISHED},
    "journal": {r"[0-9a-f]{8}\.journal": ""},
}
"""Names in a folder's folders, with the reason why such a file is left over; "": it is in use."""


def stray_files(files: Files, folder: Path) -> Iterator[Finding]:
    """Files without use. A file that is gone by now was in use a moment ago."""
    found = [each for inner in _NAMES for each in _strays(files, folder / inner, _NAMES[inner])]
    yield from (each for each in found if isinstance(each.path, Path) and files.exists(each.path))


def _strays(files: Files, folder: Path, known: dict[str, str]) -> Iterator[Finding]:
    names = set(_names(files, folder))
    for name in sorted(names):
        reason = next((why for regex, why in known.items() if re.fullmatch(regex, name)), None)
        stem = name.removesuffix(".idx").removesuffix(".cut")
        if reason is None:
            yield ForeignFile(path=folder / name)
        elif reason:
            yield LeftoverFile(path=folder / name, reason=reason)
        elif stem != name and f"{stem}.log" not in names:
            yield LeftoverFile(path=folder / name, reason="its segment does not exist")


def _names(files: Files, folder: Path) -> list[str]:
    try:
        return files.listdir(folder)
    except FileNotFoundError:
        return []


def verify_logs(logs: Iterator[TopicLog], place: str, checked: Checked) -> Iterator[Finding]:
    """Find the faults of each log; ``place`` names the store, ``checked`` is counted up."""
    for log in logs:
        checked.topics += 1
        checked.segments += len(log.segments())
        yield from _verify_log(log, place, checked)


def _verify_log(log: TopicLog, place: str, checked: Checked) -> Iterator[Finding]:
    damage: list[CorruptEntryError] = []
    next_index: int | None = log.first_index
    for entries in chain(read_on(log, EARLIEST, damage.append), [[]]):
        for error in damage:
            yield DamagedEntries(
                topic=log.name,
                path=place,
                first=error.position,
                end=error.next_position,
                offset=0,
                reason=error.reason,
            )
            next_index = None  # only the damaged entry says how many indexes it has
        damage.clear()
        for entry in entries:
            if next_index is not None and entry.first_index != next_index:
                yield IndexGap(
                    topic=log.name,
                    path=place,
                    position=entry.position,
                    expected_index=next_index,
                    found_index=entry.first_index,
                )
            next_index = entry.index + 1
            _count(entry, checked)


def _count(entry: Entry, checked: Checked) -> None:
    checked.entries += 1
    checked.size_bytes += len(entry.stored)
    if entry.kind is EntryKind.CONTROL:
        checked.control_entries += 1
    else:
        checked.messages += entry.message_count
