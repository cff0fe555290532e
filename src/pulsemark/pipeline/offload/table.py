"""The interface of the table that an offload writes to, and the choice among the formats.

The workers write Parquet files below the table's place. The table's own transaction then makes them
a part of it, all files of a run at once, together with the head of the manifest.

A folder of Parquet files is a table too (`ParquetFolder`): Spark and others read it as it is.

    topic=<topic, percent-encoded>/hour=2026-03-01T14/<log id>-<first index>-<end index>.parquet
    _pulsemark/manifest-000001-<checksum>.json ...

Readers of such tables skip names that begin with an underscore or a dot. They have no transaction:
they see the files of a run one by one, each of them whole.
"""

from __future__ import annotations

import base64
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import OptionError, TableChangedError
from ..job_files import run_lock
from .manifest import (
    MANIFEST_FOLDER,
    Head,
    Manifest,
    load_manifest,
    newest_head,
    write_manifest,
)
from .places import LocalPlace, Place, place_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Indexes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

_UNSORTED = ("__key", "__messageId")


def unsorted(schema: pa.Schema) -> list[str]:
    """Columns whose lowest and highest values help no query, and cost a comparison for each row."""
    from pyarrow import types

    return [
        field.name
        for field in schema
        if field.name in _UNSORTED or (not types.is_primitive(field.type) and not _is_text(field))
    ]


def _is_text(field: pa.Field) -> bool:
    from pyarrow import types

    return bool(types.is_string(field.type) or types.is_large_string(field.type))


_NEEDS = "needs --format delta or iceberg"


class OffloadTable(ABC):
    """A table of offloaded messages, partitioned by topic and time."""

    name: str
    """The user's name of the format."""
    constants: bool
    """Whether the files have the columns ``topic`` and ``hour`` themselves."""
    format: str
    """``parquet``, ``delta`` or ``iceberg``."""
    widens: bool
    """Whether the format takes a wider type for a column that it has."""
    _loaded = Manifest()

    @property
    @abstractmethod
    def place(self) -> Place:
        """The place of its files. Raises OptionError."""

    def lock(self) -> AbstractContextManager[None]:
        """Keep other runs out, if all users of its place see one another's locks.

        Raises OptionError if another one writes to it. An object store has no locks.
        """
        place = self.place
        if not isinstance(place, LocalPlace):
            return nullcontext()
        taken = "another offload is writing to it"
        return run_lock(place.folder / MANIFEST_FOLDER, "target", place.folder, taken)

    def load(self) -> Manifest:
        """The manifest that counts now. Raises OptionError."""
        self._loaded = load_manifest(self.place, self._head(), self._loaded)
        return self._loaded

    @abstractmethod
    def _head(self) -> Head | None:
        """The head of that manifest, by the table as it is now."""

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The columns now; None if it does not exist. Raises OptionError."""

    @abstractmethod
    def create(self, schema: pa.Schema, partitions: Sequence[str]) -> None:
        """Make the table if it is missing. Raises OptionError if it has other partitions."""

    @abstractmethod
    def evolve(self, schema: pa.Schema) -> None:
        """Give it these columns, which are all that it has and some more, or wider ones.

        Raises TableChangedError: another process has changed it.
        """

    @abstractmethod
    def rejected(self) -> OffloadTable:
        """The table beside it, for rows that it cannot take."""

    @abstractmethod
    def commit(self, added: Manifest) -> None:
        """Let files count, all of them or none; durable when it returns.

        Args:
            added: what is new, with the head and the layout of the manifest that it follows.

        Raises TableChangedError: the table is not as it was at ``load``.
        """

    def upsert(self, added: Manifest, rows: pa.Table) -> None:
        """Let rows take the place of those of the same topic and key, in one commit.

        Args:
            added: see ``commit``; its files are not the table's.
            rows: one for each topic and key, with the column ``deleted``: then there is none.

        Raises TableChangedError: the table is not as it was at ``load``.
        """
        raise OptionError("writeMode", "upsert", _NEEDS)

    def compact_files(self) -> None:
        """Make few files of many, by the library of the format."""
        raise OptionError("compactFiles", "true", _NEEDS)

    def expire_snapshots(self, age_ms: int) -> None:
        """Forget earlier states, and remove files that only they have."""
        raise OptionError("expireSnapshots", str(age_ms), _NEEDS)

    @abstractmethod
    def remove_before(self, added: Manifest, column: str) -> None:
        """Remove what is filed before the manifest's time, by a column of partitions.

        Raises TableChangedError: the table is not as it was at ``load``.
        """

    @abstractmethod
    def data_paths(self) -> set[str]:
        """The table's files now, relative to its place; other files with their full names."""

    def indexes_of(self, topic: str) -> Indexes:
        """The column ``__index`` of a topic's rows, as the table's readers see them, unsorted."""
        raise OptionError("target", self.name, "has lost files")


def table_of(target: OffloadTable | str | os.PathLike[str]) -> OffloadTable:
    """The table of an argument: a path or a URI is a folder of Parquet files."""
    if isinstance(target, str | os.PathLike):
        return ParquetFolder(target)
    return target


def format_of(place: Place) -> str | None:
    """The format of the table that is in a place, or None."""
    if place.names("_delta_log"):
        return "delta"
    if any(name.endswith(".metadata.json") for name in place.names("metadata")):
        return "iceberg"
    return "parquet" if newest_head(place) is not None else None


def packed_schema(schema: pa.Schema) -> str:
    """Columns and types as a text for the manifest."""
    return base64.b64encode(schema.serialize()).decode()


def unpacked_schema(text: str) -> pa.Schema:
    """The columns of such a text."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def plain_schema(library: Any) -> pa.Schema:
    """The columns of a library's schema, in the types that are used here."""
    import pyarrow as pa

    from ..values.types import plain_type

    return pa.schema([(field.name, plain_type(field.type)) for field in pa.schema(library)])


def beside(name: str) -> str:
    """The name of the table of rejected rows; a URI's query stays at its end."""
    path, mark, query = name.partition("?")
    return f"{path.rstrip('/')}_rejected{mark}{query}"


class ParquetFolder(OffloadTable):
    """Parquet files in a folder, named by path or URI."""

    constants = False
    format = "parquet"
    widens = False

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.name = str(target)

    @cached_property
    def place(self) -> Place:
        return place_of(self.name)

    def _head(self) -> Head | None:
        return newest_head(self.place)

    def schema(self) -> pa.Schema | None:
        text = self.load().schema
        return unpacked_schema(text) if text else None

    def create(self, schema: pa.Schema, partitions: Sequence[str]) -> None:
        """A folder needs no more than the files."""

    def evolve(self, schema: pa.Schema) -> None:
        """The next manifest names the columns."""

    def rejected(self) -> ParquetFolder:
        return ParquetFolder(beside(self.name))

    def commit(self, added: Manifest) -> None:
        """Two runs at once in an object store are noticed by their users."""
        if newest_head(self.place) != added.head:
            raise TableChangedError(self.name, "it has a new manifest")
        write_manifest(self.place, added)

    def remove_before(self, added: Manifest, column: str) -> None:
        """Files that a killed run leaves are removed by the next one."""
        before = self.load()
        if before.expired_ms < added.expired_ms:
            self.commit(added)
        for file in before.files:
            if file.hour_ms < added.expired_ms:
                self.place.remove(file.path)

    def data_paths(self) -> set[str]:
        """The files that a reader of the folder finds."""
        if not isinstance(self.place, LocalPlace):
            return {file.path for file in self.load().files}
        folder = self.place.folder
        return {path.relative_to(folder).as_posix() for path in folder.glob("topic=*/*/[!._]*")}
