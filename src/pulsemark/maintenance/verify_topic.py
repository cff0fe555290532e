"""Verifying one topic: its chain of segments, each read completely, and what the catalog says.

Data that looks damaged is read again before it is reported, with the cut file, the catalog and the
journal as they are then: in a folder in use, files are removed and heads are cut while they are
read; after a power cut the journal restores what segments lack.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from ..ledger.errors import CatalogError, CorruptFileError
from ..ledger.local.io.files import Files, size_of
from ..ledger.local.io.folder import CATALOG_NAME, SegmentId, list_segments, segment_path
from ..ledger.local.segment.salvage import read_named_header
from ..ledger.local.segment.segment_format import SegmentHeader, cut_path, examine_cut
from ..ledger.position import Position
from ..ledger.run import Link, chain_of
from .findings import (
    DamagedCut,
    DamagedHeader,
    Finding,
    IndexGap,
    LeftoverFile,
    LostEntries,
    LostSegment,
    RestoredByJournal,
    Severity,
    UnlistedSegment,
    UnsyncedEnd,
    VoidSegment,
)
from .verify_catalog import CatalogContent, read_catalog
from .verify_journal import JournalContent, JournalOverlay, read_journal
from .verify_segment import SegmentCheck, SegmentPlan


@dataclass(slots=True)
class Checked:
    """Counts of what was read, for a summary."""

    topics: int = 0
    segments: int = 0
    entries: int = 0
    """How many whole entries count."""
    messages: int = 0
    """Messages of producers."""
    control_entries: int = 0
    """Entries of clients' topics, without the store's own records."""
    size_bytes: int = 0


@dataclass(slots=True)
class FolderView:
    """A folder as it was found, before any record was read."""

    files: Files
    folder: Path
    checked: Checked
    catalog: CatalogContent | None = None
    """None: there is no catalog to compare with."""
    headers: dict[SegmentId, SegmentHeader] = field(default_factory=dict)
    """Headers by segment, including salvaged ones."""
    damaged: dict[SegmentId, str] = field(default_factory=dict)
    """Segments whose headers are damaged, with the reason."""
    lost: set[int] = field(default_factory=set)
    """Ledgers that should exist and cannot be read."""
    journal: JournalContent = field(default_factory=JournalContent)

    def path(self, segment_id: SegmentId) -> Path:
        """A segment's file."""
        return segment_path(self.folder, *segment_id)

    def catalog_now(self) -> CatalogContent:
        """The catalog's content as it is now."""
        try:
            now = read_catalog(self.folder / CATALOG_NAME)
        except CatalogError:
            now = None
        return now or self.catalog or CatalogContent()

    def headers_now(self, removed: Collection[SegmentId]) -> list[SegmentHeader]:
        """The headers of the segments that are there by now, without those that are ``removed``."""
        listed = list_segments(self.files, self.folder)
        there = (listed, self.damaged, read_journal(self.files, self.folder).pieces)
        headers = []
        for segment_id in set().union(*there) - set(removed):
            header = self.headers.get(segment_id)
            if header is None and segment_id not in self.damaged:
                with suppress(FileNotFoundError, CorruptFileError):  # it may be under way
                    header = read_named_header(self.files, self.folder, segment_id)
            if header is not None:
                headers.append(header)
        return headers


class TopicCheck:
    """The check of one topic."""

    def __init__(self, view: FolderView, name: str, topic_id: int) -> None:
        self._view = view
        self._name = name
        self._topic_id = topic_id
        removed = view.catalog.removed if view.catalog else set()
        self._headers = [
            header
            for segment_id, header in sorted(view.headers.items())
            if header.topic_id == topic_id and segment_id not in removed
        ]
        self._links = chain_of(self._headers, view.lost)

    def run(self) -> Iterator[Finding]:
        """All findings."""
        yield from self._salvaged_headers()
        yield from self._against_catalog()
        yield from self._outside()
        next_index: int | None = None
        for number, link in enumerate(self._links):
            # Entries before may have been trimmed meanwhile.
            is_apart = next_index != link.header.first_index and not self._is_first(number)
            if is_apart and self._stand_together(self._links[number - 1], link):
                yield from self._gap(number, next_index)
            check = yield from self._segment(number, link)
            next_index = check.next_index if check is not None else None

    def _gap(self, number: int, next_index: int | None) -> Iterator[Finding]:
        """Find a gap between a segment and the one before it."""
        header, before = self._links[number].header, self._links[number - 1].header
        if header.ledger_id != before.ledger_id and header.first_entry_id:
            yield LostEntries(
                topic=self._name,
                first=Position(header.ledger_id, 0),
                end=Position(header.ledger_id, header.first_entry_id),
                message_count=None if next_index is None else header.first_index - next_index,
                reason="the ledger's first segments are missing",
            )
        elif next_index is not None:
            yield IndexGap(
                topic=self._name,
                path=self._view.path(header.segment_id),
                position=Position(header.ledger_id, header.first_entry_id),
                expected_index=next_index,
                found_index=header.first_index,
            )

    def _salvaged_headers(self) -> Iterator[Finding]:
        for header in self._headers:
            reason = self._view.damaged.get(header.segment_id)
            if reason is not None:
                path = self._view.path(header.segment_id)
                yield DamagedHeader(topic=self._name, path=path, reason=reason, salvaged=True)

    def _outside(self) -> Iterator[Finding]:
        inside = {link.header for link in self._links}
        for header in self._headers:
            path = self._view.path(header.segment_id)
            if header not in inside and self._view.files.exists(path):
                yield VoidSegment(topic=self._name, path=path)

    def _against_catalog(self) -> Iterator[Finding]:
        """Compare listed segments with existing ones. New ones are listed at checkpoints."""
        view = self._view
        if view.catalog is None:
            return
        listed = {each for each, topic in view.catalog.segments.items() if topic == self._topic_id}
        there = {link.header.segment_id for link in self._links}
        lost, unlisted = listed - view.headers.keys(), there - listed
        if not lost and not unlisted:
            return
        in_journal = read_journal(view.files, view.folder).blocks > 0
        now = view.catalog_now()
        for ledger_id, segment_no in sorted(lost & now.segments.keys()):
            path = view.path((ledger_id, segment_no))
            yield LostSegment(
                topic=self._name, path=path, ledger_id=ledger_id, segment_no=segment_no
            )
        for segment_id in sorted(unlisted - now.segments.keys() - now.removed):
            path = view.path(segment_id)
            if not in_journal and view.files.exists(path):
                yield UnlistedSegment(topic=self._name, path=path)

    # A segment

    def _segment(
        self, number: int, link: Link[SegmentHeader]
    ) -> Generator[Finding, None, SegmentCheck | None]:
        """Read a segment; returns the check, or None if the segment was removed meanwhile."""
        view, segment_id = self._view, link.header.segment_id
        path = view.path(segment_id)
        plan = SegmentPlan(
            path,
            link,
            is_ended=number + 1 < len(self._links) and not view.journal.blocks,
        )
        cut_problem = None
        if self._is_first(number):
            plan, cut_problem = _with_cut(view.files, plan)
        elif view.files.exists(cut_path(path)):
            reason = "a cut file that does not count: the segment is not the first one"
            yield LeftoverFile(topic=self._name, path=cut_path(path), reason=reason)
        try:
            check, found = _run(view.files, plan)
        except FileNotFoundError:
            check, found = None, []
        differs = check is None or self._differs(check, segment_id)
        if differs or _damages(found):
            entries = check.entries if check is not None else 0
            check, again, cut_problem = self._check_again(plan, segment_id, number, entries)
            is_cut = any(isinstance(finding, UnsyncedEnd) for finding in again)
            is_better = differs or len(_damages(again)) < len(_damages(found))
            if check is not None and is_better and not is_cut and segment_id in view.journal.pieces:
                yield RestoredByJournal(topic=self._name, path=path)
            found = again
        if cut_problem is not None:
            yield DamagedCut(topic=self._name, path=cut_path(path), reason=cut_problem)
        yield from found
        if check is not None:
            view.checked.segments += 1
            view.checked.entries += check.entries
            view.checked.messages += check.messages
            view.checked.control_entries += check.control_entries * ("://" in self._name)
            view.checked.size_bytes += check.size_bytes
        return check

    def _is_first(self, number: int) -> bool:
        """Whether no segment is before this one now."""
        view, before = self._view, self._links[:number]
        return not any(view.files.exists(view.path(link.header.segment_id)) for link in before)

    def _links_now(self, removed: Collection[SegmentId]) -> list[Link[SegmentHeader]]:
        """The chain by now: a tail may have been cut off, and another ledger follows."""
        headers = self._view.headers_now(removed)
        mine = [header for header in headers if header.topic_id == self._topic_id]
        return chain_of(mine, self._view.lost)

    def _stand_together(self, before: Link[SegmentHeader], link: Link[SegmentHeader]) -> bool:
        """Whether one of these still follows the other."""
        links = self._links_now(self._view.catalog_now().removed)
        return (before.header, link.header) in pairwise(each.header for each in links)

    def _differs(self, check: SegmentCheck, segment_id: SegmentId) -> bool:
        """Whether the next opening adds entries to the segment, or cuts some off."""
        journal = self._view.journal
        lacks = not check.is_void and check.end_offset < journal.end_offset(segment_id)
        return lacks or check.size_bytes > journal.ends.get(segment_id, check.size_bytes)

    def _check_again(
        self, plan: SegmentPlan, segment_id: SegmentId, number: int, entries: int
    ) -> tuple[SegmentCheck | None, list[Finding], str | None]:
        """Read a segment once more, with the journal's bytes, and the cut file as it is now.

        It may have been removed, or end before where it did. No check: it does not count any more.
        ``entries`` were found before.
        """
        view = self._view
        removed = view.catalog_now().removed
        links = {link.header.segment_id: link for link in self._links_now(removed)}
        if segment_id not in links:
            return None, [], None
        plan = replace(plan, link=links[segment_id])
        size_bytes = size_of(view.files, plan.path)
        journal = read_journal(view.files, view.folder)
        files = view.files
        ends: dict[SegmentId, int] = {}
        if size_bytes > journal.ends.get(segment_id, size_bytes):
            # Beside a writer the journal has all that was in the segment before it was read. If it
            # grew meanwhile, one of its files was freed, or used again, while it was read.
            again = read_journal(view.files, view.folder)
            if again.ends.get(segment_id) == journal.ends[segment_id]:
                ends = {segment_id: journal.ends[segment_id]}
        if segment_id in journal.pieces:
            files = JournalOverlay(files, view.folder, journal, ends)
            plan = replace(plan, is_in_journal=True)
        cut_problem = None
        if self._is_first(number):
            plan, cut_problem = _with_cut(view.files, plan)
        try:
            check, found = _run(files, plan)
        except FileNotFoundError:
            return None, [], None
        for end in ends.values():
            cut_off = UnsyncedEnd(
                topic=self._name,
                path=plan.path,
                entries=max(0, entries - check.entries),
                offset=end,
                size_bytes=size_bytes - end,
            )
            found.append(cut_off)
        return check, found, cut_problem


def _with_cut(files: Files, plan: SegmentPlan) -> tuple[SegmentPlan, str | None]:
    cut, problem = examine_cut(files, plan.path, *plan.link.header.segment_id)
    return replace(plan, cut=cut), problem


def _run(files: Files, plan: SegmentPlan) -> tuple[SegmentCheck, list[Finding]]:
    check = SegmentCheck(files, plan)
    return check, list(check.run())


def _damages(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.DAMAGE]
