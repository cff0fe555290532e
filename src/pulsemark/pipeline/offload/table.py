"""What an offload asks of the table that it writes to, and the choice among the formats.

The workers write Parquet files below the table's place. The table's own transaction then makes them
a part of it, all files of a run at once, together with the head of the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..errors import PipelineError
from ..run_lock import run_lock
from .manifest import MANIFEST_FOLDER, Manifest, OffloadedFile
from .places import LocalPlace, Place

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Indexes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

UNSORTED = ("value", "__key", "__messageId", "__messageProperties", "__tags")
"""Columns whose lowest and highest values help no query, and cost a comparison for each row."""


class TableChangedError(PipelineError):
    """Another process has changed the table since it was read. The run plans again."""


class OffloadTable(Protocol):
    """A table of offloaded messages, partitioned by topic and hour."""

    @property
    def name(self) -> str:
        """How the user names it."""

    @property
    def place(self) -> Place:
        """Where its files are. Raises OptionError."""

    @property
    def constants(self) -> bool:
        """Whether the files have the columns ``topic`` and ``hour`` themselves."""

    def check_columns(self, columns: Sequence[str]) -> None:
        """Check before the work whether it can have these columns. Raises OptionError."""

    def create(self, schema: pa.Schema) -> None:
        """Make the table if it is missing. Raises OptionError if it is another one."""

    def lock(self) -> AbstractContextManager[None]:
        """Keep other runs out as far as the place can. Raises OptionError."""

    def load(self) -> Manifest:
        """The manifest that counts now. Raises OptionError."""

    def commit(
        self, before: Manifest, columns: Sequence[str], files: Sequence[OffloadedFile]
    ) -> None:
        """Let files count, all of them or none; durable when it returns.

        Raises:
            TableChangedError: the table is not as it was at ``load``.
        """

    def data_paths(self) -> set[str]:
        """The table's files now, relative to its place; other files with their full names."""

    def indexes_of(self, topic: str) -> Indexes:
        """The column ``__index`` of a topic's rows, as the table's readers see them, unsorted."""


def table_of(target: OffloadTable | str | os.PathLike[str]) -> OffloadTable:
    """The table of an argument: a path or a URI is a folder of Parquet files."""
    if isinstance(target, str | os.PathLike):
        from .parquet_folder import ParquetFolder

        return ParquetFolder(target)
    return target


def place_lock(place: Place) -> AbstractContextManager[None]:
    """Only one run at a time writes to a place, if all its users see one another's locks.

    Raises OptionError if another one does. An object store has no locks.
    """
    if not isinstance(place, LocalPlace):
        return nullcontext()
    taken = "another offload is writing to it"
    return run_lock(place.folder / MANIFEST_FOLDER, "target", place.folder, taken)
