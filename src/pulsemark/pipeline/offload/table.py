"""What an offload asks of the table that it writes to, and the choice among the formats.

The workers write Parquet files below the table's place. The table's own transaction then makes them
a part of it, all files of a run at once, together with the head of the manifest.

A folder of Parquet files is a table too (`ParquetFolder`): Spark and others read it as it is.

    topic=<topic, percent-encoded>/hour=2026-03-01T14/<log id>-<first index>-<end index>.parquet
    _pulsemark/manifest-000001-<checksum>.json ...

Readers of such tables skip names that begin with an underscore or a dot. They have no transaction:
they see the files of a run one by one, each of them whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..errors import OptionError, PipelineError
from ..job_files import run_lock
from .manifest import (
    MANIFEST_FOLDER,
    Manifest,
    OffloadedFile,
    load_manifest,
    newest_head,
    write_manifest,
)
from .places import LocalPlace, Place, place_of

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


def format_of(place: Place) -> str | None:
    """The format of the table that is in a place; None if there is none."""
    if place.names("_delta_log"):
        return "delta"
    if any(name.endswith(".metadata.json") for name in place.names("metadata")):
        return "iceberg"
    return "parquet" if newest_head(place) is not None else None


class ParquetFolder:
    """Parquet files in a folder, named by path or URI."""

    constants = False
    format = "parquet"

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.name = str(target)

    @cached_property
    def place(self) -> Place:
        """See `OffloadTable`."""
        return place_of(self.name)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Any columns will do."""

    def create(self, schema: pa.Schema) -> None:
        """A folder needs no more than the files."""

    def lock(self) -> AbstractContextManager[None]:
        """See `OffloadTable`."""
        return place_lock(self.place)

    def load(self) -> Manifest:
        """See `OffloadTable`."""
        return load_manifest(self.place, newest_head(self.place))

    def commit(
        self, before: Manifest, columns: Sequence[str], files: Sequence[OffloadedFile]
    ) -> None:
        """See `OffloadTable`. Two runs at once in an object store are noticed by their users."""
        if newest_head(self.place) != before.head:
            raise TableChangedError(f"{self.name} has a new manifest")
        write_manifest(self.place, before, columns, files)

    def data_paths(self) -> set[str]:
        """See `OffloadTable`: what a reader of the folder finds."""
        if not isinstance(self.place, LocalPlace):
            return {file.path for file in self.load().files}
        folder = self.place.folder
        return {
            path.relative_to(folder).as_posix() for path in folder.glob("topic=*/hour=*/[!._]*")
        }

    def indexes_of(self, topic: str) -> Indexes:
        """Never called: no other program rewrites the files of a folder."""
        raise OptionError("target", self.name, "has lost files")
