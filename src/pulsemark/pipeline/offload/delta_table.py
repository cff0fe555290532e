"""A Delta table as the target, through the library ``deltalake`` (extra ``delta``).

A run is one commit of Delta's log: the files, and the head of the manifest as the version of the
application `pulsemark-offload` (Delta's `txn` action, which is made for exactly this). Of two runs
that begin with the same version, Delta lets only one commit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError, OptionError, TableChangedError
from ..job_files import sync_written
from .manifest import HOUR_MS, Head, Manifest, OffloadedFile, write_manifest
from .places import LocalPlace, Place, place_of
from .table import OffloadTable, beside, plain_schema

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa

    from .table import Indexes

APPLICATION = "pulsemark-offload"


class DeltaTarget(OffloadTable):
    """A Delta table, named by its folder's path or URI.

    Raises MissingExtraError: deltalake is not installed. Its methods raise OptionError for a table
    that cannot be read or has other partitions, and `commit` TableChangedError if another writer
    has changed the table since it was loaded.
    """

    constants = False
    format = "delta"
    widens = False  # a feature of Delta that deltalake does not have yet

    def __init__(
        self, target: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        if find_spec("deltalake") is None:
            raise MissingExtraError("delta", "deltalake")
        self.name = str(target)
        self.storage_options = dict(storage_options or {})
        self._table: deltalake.DeltaTable | None = None

    @cached_property
    def place(self) -> Place:
        return place_of(self.name)

    @property
    def _uri(self) -> str:
        """As deltalake takes it: a path is not percent-encoded."""
        place = self.place
        return str(place.folder) if isinstance(place, LocalPlace) else place.uri

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else plain_schema(table.schema().to_arrow())

    def create(self, schema: pa.Schema, partitions: Sequence[str]) -> None:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        if self._open() is None:
            try:
                DeltaTable.create(
                    self._uri,
                    Schema.from_arrow(schema),
                    partition_by=list(partitions),
                    storage_options=self.storage_options,
                )
            except (DeltaError, OSError) as error:
                # Another run may have made it at the same time.
                if self._open() is None:
                    raise OptionError("target", self.name, f"not a Delta table: {error}") from error
        table = self.opened()
        if table.metadata().partition_columns != list(partitions):
            raise OptionError("target", self.name, "is a Delta table of other columns")

    def evolve(self, schema: pa.Schema) -> None:
        from deltalake import Schema

        known = {field.name: field.type for field in self.opened().schema().fields}
        fields = Schema.from_arrow(schema).fields
        with self._committing() as table:
            table.alter.add_columns([x for x in fields if known.get(x.name) != x.type])

    def rejected(self) -> DeltaTarget:
        return DeltaTarget(beside(self.name), storage_options=self.storage_options)

    def _head(self) -> Head | None:
        table = self._open()
        version = None if table is None else table.transaction_version(APPLICATION)
        return None if version is None else Head.from_int(version)

    def commit(self, added: Manifest) -> None:
        assert added.layout is not None, "it is that of the run"
        period = added.layout.partition_by
        with self._committing() as table:
            table.create_write_transaction(
                [self._added(file, period) for file in added.files if file.rows],
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=self._properties(added),
            )

    def upsert(self, added: Manifest, rows: pa.Table) -> None:
        kept = [name for name in rows.column_names if name != "deleted"]
        columns = {f"target.`{name}`": f"source.`{name}`" for name in kept}
        same = [name for name in ("topic", "bucket", "__key") if name in kept]
        with self._committing() as table:
            merging = table.merge(
                rows,
                " AND ".join(f"target.`{name}` = source.`{name}`" for name in same),
                source_alias="source",
                target_alias="target",
                commit_properties=self._properties(added),
            )
            merging = merging.when_matched_delete("source.deleted").when_matched_update(columns)
            merging.when_not_matched_insert(columns, "NOT source.deleted").execute()

    def compact_files(self) -> None:
        self.opened().optimize.compact()
        self.sync_log()

    def expire_snapshots(self, age_ms: int) -> None:
        hours = -(-age_ms // HOUR_MS)
        self.opened().vacuum(hours, dry_run=False, enforce_retention_duration=False)
        self.sync_log()

    def remove_before(self, added: Manifest, column: str) -> None:
        moment = datetime.fromtimestamp(added.expired_ms / 1000, UTC).isoformat()
        older = f"`{column}` < arrow_cast('{moment}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
        with self._committing() as table:
            table.delete(older, commit_properties=self._properties(added))

    @contextmanager
    def _committing(self) -> Iterator[deltalake.DeltaTable]:
        """The table as it was at `load`, for a commit. Raises TableChangedError."""
        from deltalake.exceptions import DeltaError

        assert self._table is not None, "load opens it"
        try:
            yield self._table
        except DeltaError as error:
            raise TableChangedError(self.name, str(error)) from error
        self.sync_log()

    def _properties(self, added: Manifest) -> deltalake.CommitProperties:
        """The properties that tie a commit to the manifest, which is written."""
        from deltalake import CommitProperties, Transaction

        head = write_manifest(self.place, added)
        return CommitProperties(
            custom_metadata={"pulsemark.manifest": head.path},
            app_transactions=[Transaction(APPLICATION, head.to_int())],
        )

    def sync_log(self) -> None:
        """Make the table's log durable, which deltalake does not sync. Raises OSError."""
        if isinstance(self.place, LocalPlace):
            sync_written(self.place.folder / "_delta_log")

    def _added(self, file: OffloadedFile, period: str) -> Any:
        from deltalake.transaction import AddAction

        hour = datetime.fromtimestamp(file.hour_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        statistics = {
            "numRecords": file.rows,
            "minValues": {"__index": file.first_index},
            "maxValues": {"__index": file.end_index - 1},
            "nullCount": {"__index": 0},
        }
        return AddAction(
            file.path,
            file.size_bytes,
            {"topic": file.topic, period: hour},
            int(time.time() * 1000),
            True,
            json.dumps(statistics),
        )

    def data_paths(self) -> set[str]:
        from urllib.parse import unquote

        import pyarrow as pa

        table = self.opened()
        actions: Any = pa.table(table.get_add_actions())
        return {unquote(path) for path in actions.column("path").to_pylist()}

    def indexes_of(self, topic: str) -> Indexes:
        import pyarrow.dataset as ds

        table = self.opened()
        rows = table.to_pyarrow_dataset().to_table(["__index"], filter=ds.field("topic") == topic)
        values: Indexes = rows.column(0).to_numpy()
        return values

    def opened(self) -> deltalake.DeltaTable:
        """The table in its newest version; it was made before."""
        table = self._open()
        assert table is not None, "it was made before"
        return table

    def _open(self) -> deltalake.DeltaTable | None:
        """The table in its newest version; None if it does not exist."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            self._table = DeltaTable(self._uri, storage_options=self.storage_options)
        except TableNotFoundError:
            self._table = None
        except (DeltaError, OSError) as error:
            raise OptionError("target", self.name, f"not a Delta table: {error}") from error
        return self._table
