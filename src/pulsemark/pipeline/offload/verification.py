"""Check an offload, and remove from the ledgers what is checked there.

A check reads every file of the manifest from the disk: its size and checksum, the number of its
rows, and its indexes, which must rise within the file's range. The files of a topic must follow one
another without a gap. Where the ledgers still have the messages, each file must have as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...ledger import FolderReader, LocalStore, TopicLog
from ...ledger.local.folder_reader import FolderLog
from ..errors import OptionError
from ..plan import entry_of
from .manifest import OffloadedFile, load_manifest, target_lock


@dataclass(frozen=True, slots=True)
class TopicCheck:
    """The result for one topic."""

    topic: str
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


def verify_offload(path: str | Path, target: str | Path) -> list[TopicCheck]:
    """Check all files of a target against its manifest and against the data folder.

    Files of topics that no longer exist in the folder are checked against the manifest alone.

    Raises:
        OptionError: the target has no manifest, or a damaged one.
        ForeignFolderError, UnsupportedVersionError: the path is not a data folder of this version.
    """
    folder = Path(target).absolute()
    manifest = load_manifest(folder)
    if manifest.runs == 0:
        raise OptionError("target", str(folder), "has no manifest of an offload")
    by_log: dict[tuple[str, int], list[OffloadedFile]] = {}
    for file in manifest.files:
        by_log.setdefault((file.topic, file.log_id), []).append(file)
    with FolderReader(path) as reader:
        logs = reader.logs(topic for topic, _ in by_log)
        return [
            _check_topic(folder, topic, files, _same_log(logs.get(topic), log_id))
            for (topic, log_id), files in sorted(by_log.items())
        ]


def _same_log(log: FolderLog | None, log_id: int) -> FolderLog | None:
    return log if log is not None and log.topic_id == log_id else None


def _check_topic(
    target: Path, topic: str, files: list[OffloadedFile], log: TopicLog | None
) -> TopicCheck:
    from .file_checks import problem_of

    files = sorted(files, key=lambda file: file.first_index)
    problems: list[str] = []
    first = end = files[0].first_index
    for file in files:
        problem = problem_of(target, file, end, log)
        if problem is not None:
            problems.append(f"{file.path}: {problem}")
        elif not problems:
            end = file.end_index
    rows = sum(file.rows for file in files)
    return TopicCheck(topic, len(files), rows, first, end, tuple(problems))


def truncate_offloaded(path: str | Path, target: str | Path) -> dict[str, int]:
    """Remove from each topic's head what is verified in the target, and no further.

    Whole segments are removed, and only messages that every durable subscription has acknowledged.
    The folder must not be in use: a running broker trims by its own policies.

    Returns:
        By topic: the first index that is left.

    Raises:
        FolderLockedError: a broker or another process uses the folder.
        The errors of `verify_offload`.
    """
    with target_lock(Path(target).absolute()):
        checks = verify_offload(path, target)
        with LocalStore.open(Path(path)) as store:
            return {check.topic: _truncate(store, check) for check in checks if check.good}


def _truncate(store: LocalStore, check: TopicCheck) -> int:
    ledger = store.open_topic(check.topic)
    before, _ = entry_of(ledger, check.verified_end_index)
    marks = [cursor.mark_delete for cursor in ledger.cursors.values() if cursor.durable]
    ledger.trim(min([before, *(ledger.next_position(mark) for mark in marks)]))
    return ledger.first_index
