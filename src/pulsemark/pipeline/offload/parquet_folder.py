"""A folder of Parquet files as the table: Spark and others read it as it is.

    topic=<topic, percent-encoded>/hour=2026-03-01T14/<log id>-<first index>-<end index>.parquet
    _pulsemark/manifest-000001-<checksum>.json ...

Readers of such tables skip names that begin with an underscore or a dot. They have no transaction:
they see the files of a run one by one, each of them whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import OptionError
from .manifest import Manifest, OffloadedFile, load_manifest, newest_head, write_manifest
from .places import LocalPlace, Place, place_of
from .table import TableChangedError, place_lock

if TYPE_CHECKING:
    import pyarrow as pa

    from .table import Indexes


class ParquetFolder:
    """Parquet files in a folder, named by path or URI."""

    constants = False

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
