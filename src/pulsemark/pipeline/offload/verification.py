"""Check an offload, and remove from the ledgers what is checked there.

A check reads the table back. It compares each file of the manifest with its size, checksum, number
of rows and indexes, which must rise within the file's range. The table must have
these files and no others. If others have rewritten a Delta or Iceberg table (compacted it, say),
its rows are read instead, and must be the same ones, each once. The files of a topic must follow
one another without a gap. Where the ledgers still have the messages, each file must have as many,
and the log must be the one that was copied (:mod:`..marks`). Messages that are lost
in the ledgers and in no file are reported, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...compaction.current_view import claim_kept
from ...ledger import (
    CorruptEntryError,
    EntryKind,
    FolderReader,
    LocalStore,
    ManagedLedger,
    TopicLog,
    TopicNotFoundError,
)
from ...ledger.local.folder_reader import FolderLog
from ...maintenance.expected import Expected, expected_of
from ...maintenance.verify_catalog import follow_transactions
from ..errors import OptionError
from ..marks import loss_since
from ..plan import entry_of, slice_between
from .manifest import Manifest, OffloadedFile
from .places import Place, file_checksum
from .table import OffloadTable, ParquetFolder, table_of

if TYPE_CHECKING:
    from .table import Indexes


_Log: TypeAlias = tuple[str, int]
_Problems: TypeAlias = dict[OffloadedFile, str]


@dataclass(frozen=True, slots=True)
class TopicCheck:
    """The result for one topic."""

    topic: str
    log_id: int
    """The id of its log: a topic that was created again has a check for each of its logs."""
    files: int
    rows: int
    first_index: int
    verified_end_index: int
    """All messages from `first_index` up to this one, without it, are in good files."""
    problems: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether all of the topic's files are as the manifest says."""
        return not self.problems


def verify_offload(
    path: str | os.PathLike[str], target: OffloadTable | str | os.PathLike[str]
) -> list[TopicCheck]:
    """Check a target against its manifest and against the data folder.

    Files of topics that no longer exist in the folder are checked against the manifest alone.

    Raises:
        OptionError: the target has no manifest, or a damaged one.
        ForeignFolderError, UnsupportedVersionError: the path is not a data folder of this version.
    """
    with FolderReader(path) as reader:
        expected = expected_of(reader, Path(path))
    return _verified(Path(path), table_of(target), expected)


def _verified(path: Path, table: OffloadTable, expected: Expected) -> list[TopicCheck]:
    manifest = table.load()
    if manifest.head is None:
        raise OptionError("target", table.name, "has no manifest of an offload")
    by_log: dict[_Log, list[OffloadedFile]] = {}
    for file in sorted(manifest.files, key=lambda file: file.first_index):
        by_log.setdefault((file.topic, file.log_id), []).append(file)
    problems = _problems(table, manifest)
    with FolderReader(path) as reader:
        logs = reader.logs({topic for topic, _ in by_log}, lost=expected.lost_ledgers)
        follow_transactions(path, logs.values())
        by_id = {(topic, log.topic_id): log for topic, log in logs.items()}
        return [
            _check_log(log, files, by_id.get(log), problems, expected)
            for log, files in sorted(by_log.items())
        ]


def _problems(table: OffloadTable, manifest: Manifest) -> _Problems:
    """The faults of the table's files, or of its rows if others have rewritten it."""
    files = [file for file in manifest.files if file.hour_ms >= manifest.expired_ms]
    if manifest.layout is not None and manifest.layout.upserts:
        return _problems_of_rows(table, files, problem_of_keys)
    # A table with transactions takes no file without rows.
    listed = {file.path for file in files if file.rows or isinstance(table, ParquetFolder)}
    strange = table.data_paths() ^ listed
    if strange and not isinstance(table, ParquetFolder):
        return _problems_of_rows(table, files, problems_of_rows)
    found = {file: problem_of_file(table.place, file) for file in files}
    problems = {file: problem for file, problem in found.items() if problem is not None}
    folders = {path.partition("/")[0] for path in strange}
    for file in files:
        if file.path.partition("/")[0] in folders:
            problems.setdefault(file, "its folder has a file that no manifest lists")
    return problems


def _problems_of_rows(
    table: OffloadTable,
    files: Sequence[OffloadedFile],
    find: Callable[[Indexes, Sequence[OffloadedFile]], Iterable[tuple[OffloadedFile, str]]],
) -> _Problems:
    """The faults of each topic's rows, as the table has them."""
    problems: _Problems = {}
    by_topic: dict[str, list[OffloadedFile]] = {}
    for file in files:
        by_topic.setdefault(file.topic, []).append(file)
    for topic, of_topic in by_topic.items():
        for file, problem in find(table.indexes_of(topic), of_topic):
            problems.setdefault(file, problem)
    return problems


def problem_of_keys(
    indexes: Indexes, files: Sequence[OffloadedFile]
) -> Iterator[tuple[OffloadedFile, str]]:
    """The fault of a topic's rows by key: two of one message, or more than were read."""
    last = max(files, key=lambda file: file.end_index)
    if _copies(indexes) > _log_count(files) or indexes.max(initial=-1) >= last.end_index:
        yield last, "the table has rows twice, or rows that were not copied"


def _copies(indexes: Indexes) -> int:
    """How often the commonest index occurs."""
    import numpy as np

    return int(np.unique(indexes, return_counts=True)[1].max(initial=0))


def _log_count(files: Sequence[OffloadedFile]) -> int:
    """The topic's logs: one that was created again has several, whose indexes begin at 0 again."""
    return len({file.log_id for file in files})


def _check_log(
    log: _Log,
    files: Sequence[OffloadedFile],
    ledger: FolderLog | None,
    known: _Problems,
    expected: Expected,
) -> TopicCheck:
    problems = list(_losses(log[0], files, ledger, expected))
    first = end = files[0].first_index
    for file in files:
        problem = known.get(file) or _problem_beside(file, end, ledger, expected)
        if problem is not None:
            problems.append(f"{file.path}: {problem}")
        elif not problems:
            end = file.end_index
    rows = sum(file.rows for file in files)
    return TopicCheck(*log, len(files), rows, first, end, tuple(problems))


def _losses(
    topic: str, files: Sequence[OffloadedFile], ledger: FolderLog | None, expected: Expected
) -> Iterator[str]:
    """The messages that the ledgers are known to have lost, and no file has."""
    first, end = files[0].first_index, files[-1].end_index
    if ledger is None:
        reason = expected.why_lost(topic)
        if reason is not None:
            yield f"messages from {end} on may be missing: {reason}"
        return
    reason = expected.lost_before(ledger)
    if reason is not None and first >= ledger.first_index:
        yield f"messages before {first} are missing: {reason}"
    reason = expected.lost_after(ledger)
    if reason is not None:
        yield f"messages from {max(end, ledger.next_index)} on may be missing: {reason}"


def _problem_beside(
    file: OffloadedFile, end: int, ledger: FolderLog | None, expected: Expected
) -> str | None:
    """The fault between a file and the one before it, or between it and the ledgers."""
    if file.first_index > end:
        return f"messages [{end}, {file.first_index}) are in no file"
    if file.first_index < end:
        return f"messages [{file.first_index}, {end}) are in two files"
    if ledger is not None:
        other = loss_since(ledger, file.end_index, file.mark, expected)
        if other is not None and not expected.lost_after(ledger):
            return other
    missing = missing_in(file, ledger)
    return f"{missing} messages of the ledger are not in it" if missing else None


def truncate_offloaded(
    path: str | os.PathLike[str], target: OffloadTable | str | os.PathLike[str]
) -> dict[str, int]:
    """Remove from each topic's head what is verified in the target, and no further.

    Whole segments are removed, and only messages that every durable subscription has acknowledged
    and that compaction has read, if the topic is compacted. The folder must not be in use: a
    running broker trims by its own policies.

    Returns:
        By topic: the first index that is left.

    Raises:
        FolderLockedError: a broker or another process uses the folder.
        OptionError, ForeignFolderError, UnsupportedVersionError: see `verify_offload`.
    """
    table = table_of(target)
    with FolderReader(path) as reader:
        expected = expected_of(reader, Path(path))  # opening the store puts its catalog in order
    layout = table.load().layout
    if layout is not None and layout.upserts:
        reason = "has only the latest message of each key, so the others must stay in the ledgers"
        raise OptionError("truncate", table.name, reason)
    with LocalStore.open(Path(path)) as store, table.lock():
        left = {}
        for check in _verified(Path(path), table, expected):
            ledger = _ledger_of(store, check)
            if check.good and ledger is not None:
                left[check.topic] = _truncate(ledger, check)
        return left


def _ledger_of(store: LocalStore, check: TopicCheck) -> ManagedLedger | None:
    """The checked log; None if its topic was deleted.

    The same name may be another log by now, with messages that were not copied.
    """
    try:
        ledger = store.open_topic(check.topic, create=False)
    except TopicNotFoundError:
        return None
    return ledger if ledger.topic_id == check.log_id else None


def _truncate(ledger: ManagedLedger, check: TopicCheck) -> int:
    if check.first_index <= ledger.first_index:
        end, _ = entry_of(ledger, check.verified_end_index)
        with claim_kept(ledger) as claim:
            marks = [cursor.mark_delete for cursor in ledger.cursors.values() if cursor.durable]
            marks += [] if claim is None else [claim]
            ledger.trim(min([end, *(ledger.next_position(mark) for mark in marks)]))
    return ledger.first_index


_INDEX = "__index"


def problem_of_file(place: Place, file: OffloadedFile) -> str | None:
    """The fault of a file's bytes or rows; None if they are as the manifest says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file_checksum(place, file.path) != (file.size_bytes, file.crc32c):
            return "its bytes are not those that were written"
        with place.open(file.path) as source:
            parquet = pq.ParquetFile(source)
            rows = int(parquet.metadata.num_rows)
            has_index = _INDEX in parquet.schema_arrow.names
            indexes = parquet.read([_INDEX]).column(0).to_numpy() if has_index else None
    except FileNotFoundError:
        return "is missing"
    except (OSError, pa.ArrowInvalid) as error:
        return f"cannot be read: {error}"
    if rows != file.rows:
        return f"has {rows} rows; the manifest says {file.rows}"
    return None if indexes is None else _problem_of_indexes(indexes, file)


def _problem_of_indexes(indexes: Indexes, file: OffloadedFile) -> str | None:
    import numpy as np

    if len(indexes) == 0:
        return None
    inside = indexes[0] >= file.first_index and indexes[-1] < file.end_index
    rising = bool((np.diff(indexes) > 0).all())
    return None if inside and rising else "has indexes that are not in order, or not in its range"


def problems_of_rows(
    indexes: Indexes, files: Sequence[OffloadedFile]
) -> Iterator[tuple[OffloadedFile, str]]:
    """The faults of a topic's rows, by their indexes, in files that others have written."""
    import numpy as np

    indexes, logs = np.sort(indexes), _log_count(files)
    for file in files:
        first, end = np.searchsorted(indexes, [file.first_index, file.end_index])
        found = int(end - first)
        if found < file.rows or (found != file.rows and logs == 1):
            yield file, f"the table has {found} of its {file.rows} rows"
    written = sum(file.rows for file in files)
    if _copies(indexes) > logs or len(indexes) != written:
        what = f"the table has {len(indexes)} rows of the topic, and {written} were written"
        yield files[0], what


def missing_in(file: OffloadedFile, log: TopicLog | None) -> int:
    """How many messages of the file's range the ledgers have or have lost, and the file does not.

    If a part of the range is lost in the ledgers, the file must have something of it.
    """
    from ..tasks import tables_of

    if log is None or file.first_index < log.first_index:
        return 0
    messages = indexes = 0
    part = slice_between(log, file.first_index, file.end_index)
    for table in tables_of(log, part, bodies=False, on_damage=_no_message):
        messages += int(table.counts[table.kinds != EntryKind.CONTROL].sum())
        indexes += int(table.counts.sum())
    lost = file.end_index - file.first_index - indexes
    copied = file.rows + file.rejected
    return lost if lost > 0 and messages == copied else messages - copied


def _no_message(damage: CorruptEntryError) -> None:
    """A damaged entry has no messages that could be compared; an audit counts it."""
