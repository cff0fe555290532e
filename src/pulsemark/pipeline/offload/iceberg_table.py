"""An Iceberg table as the target, through the library ``pyiceberg`` (extra ``iceberg``).

A run is one commit to the catalog: a snapshot with the files, and the table's property
`pulsemark.offload.head` with the head of the manifest. The commit requires that the table is as it
was when the run read it. So of two runs only one can commit.

Iceberg takes a file's partition from the file's own columns. So the files have the columns
``topic`` and ``hour``, and the table is partitioned by them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError, OptionError, TableChangedError
from ..job_files import sync_written
from .manifest import Head, Manifest, write_manifest
from .places import LocalPlace, Place, iceberg_place
from .table import OffloadTable, beside, plain_schema, unsorted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

    from .table import Indexes

HEAD_PROPERTY = "pulsemark.offload.head"
_RETRIES_PROPERTY = "commit.retry.num-retries"
_METRICS_PROPERTY = "write.metadata.metrics.column."


class IcebergTarget(OffloadTable):
    """An Iceberg table of a catalog.

    Args:
        identifier: the table's, such as ``archive.orders``; namespace and table are made if they
            are missing.
        catalog: the catalog's name in pyiceberg's configuration.
        properties: the catalog's properties (``uri``, ``warehouse``, ``type`` ...); they override
            that configuration.

    Raises:
        MissingExtraError: pyiceberg, or what the catalog needs, is not installed.
        OptionError: the catalog cannot be opened, or the identifier is malformed.
        TableChangedError: by `commit`: another writer has changed the table since it was loaded.
    """

    constants = True
    format = "iceberg"
    widens = True

    def __init__(
        self, identifier: str, catalog: str = "default", properties: Mapping[str, str] | None = None
    ) -> None:
        if find_spec("pyiceberg") is None:
            raise MissingExtraError("iceberg", "pyiceberg")
        if not all(identifier.split(".")) or "." not in identifier:
            raise OptionError("table", identifier, "is not of the form NAMESPACE.TABLE")
        self.name = identifier
        self.catalog_name = catalog
        self.properties = dict(properties or {})
        self._table: Table | None = None

    @cached_property
    def catalog(self) -> Catalog:
        """The opened catalog. Raises OptionError, MissingExtraError."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NotInstalledError

        try:
            return load_catalog(self.catalog_name, **self.properties)
        except NotInstalledError as error:
            raise MissingExtraError("iceberg", str(error)) from error
        except Exception as error:
            reason = f"cannot be opened: {_line(error)}"
            raise OptionError("catalog", self.catalog_name, reason) from error

    @cached_property
    def place(self) -> Place:
        table = self._open()
        if table is None:
            raise OptionError("table", self.name, "does not exist")
        return iceberg_place(table.location(), table.io.properties)

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else plain_schema(table.schema().as_arrow())

    def create(self, schema: pa.Schema, partitions: Sequence[str]) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        if self._open() is None:
            try:
                self.catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
                making = self.catalog.create_table_transaction(self.name, schema)
                with making as transaction, transaction.update_spec() as spec:
                    for column in partitions:
                        spec.add_identity(column)
            except TableAlreadyExistsError:
                pass
            except Exception as error:
                # Another run may have made it at the same time.
                if self._open() is None:
                    reason = f"cannot be made: {_line(error)}"
                    raise OptionError("table", self.name, reason) from error
        table = self._opened()
        sources = [table.schema().find_column_name(f.source_id) for f in table.spec().fields]
        if sources != list(partitions):
            raise OptionError("table", self.name, "is a table of other columns or partitions")

    def evolve(self, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import CommitFailedException

        table = self._opened()
        try:
            with table.update_schema() as update:
                update.union_by_name(schema)
        except CommitFailedException as error:
            raise TableChangedError(self.name, str(error)) from error

    def rejected(self) -> IcebergTarget:
        return IcebergTarget(beside(self.name), self.catalog_name, self.properties)

    def load(self) -> Manifest:
        return Manifest() if self._open() is None else super().load()

    def _head(self) -> Head | None:
        value = None if self._table is None else self._table.properties.get(HEAD_PROPERTY)
        if value is not None and not value.isdecimal():
            raise OptionError("table", self.name, f"its {HEAD_PROPERTY} is {value!r}")
        return None if value is None else Head.from_int(int(value))

    def commit(self, added: Manifest) -> None:
        with self._committing(added) as transaction:
            location = transaction.table_metadata.location.rstrip("/")
            paths = [f"{location}/{file.path}" for file in added.files if file.rows]
            if paths:
                transaction.add_files(paths)

    def upsert(self, added: Manifest, rows: pa.Table) -> None:
        import pyarrow.compute as pc

        with self._committing(added) as transaction:
            names = transaction.table_metadata.schema().as_arrow().names
            live = rows.filter(pc.invert(rows["deleted"])).select(names)
            transaction.overwrite(live, _keys_of(rows))

    def compact_files(self) -> None:
        from pyiceberg import expressions

        table = self._opened()
        equal: Any = expressions.EqualTo
        many = [row for row in table.inspect.partitions().to_pylist() if row["file_count"] > 1]
        for row in many:
            same: Any = expressions.AlwaysTrue()
            for column, value in row["partition"].items():
                shown = value.isoformat() if isinstance(value, datetime) else value
                same = expressions.And(same, equal(column, shown))
            table.overwrite(table.scan(row_filter=same).to_arrow(), same)
        self.sync_metadata()

    def expire_snapshots(self, age_ms: int) -> None:
        table = self._opened()
        before = datetime.now() - timedelta(milliseconds=age_ms)  # noqa: DTZ005 - as pyiceberg asks
        table.maintenance.expire_snapshots().older_than(before).commit()
        self.sync_metadata()

    def remove_before(self, added: Manifest, column: str) -> None:
        from pyiceberg import expressions

        older: Any = expressions.LessThan
        moment = datetime.fromtimestamp(added.expired_ms / 1000, UTC).isoformat()
        with self._committing(added) as transaction:
            transaction.delete(older(column, moment))

    @contextmanager
    def _committing(self, added: Manifest) -> Iterator[Transaction]:
        """A transaction that is that of a manifest, which is written. Raises TableChangedError."""
        from pyiceberg.exceptions import CommitFailedException

        table = self._table
        assert table is not None, "load opens it"
        try:
            with table.transaction() as transaction, warnings.catch_warnings():
                # Usually no row is replaced or removed here.
                warnings.filterwarnings("ignore", message="Delete operation did not match")
                head = write_manifest(self.place, added)
                # pyiceberg would repeat a commit on top of another one, whose rows may be the same.
                table.metadata.properties[_RETRIES_PROPERTY] = "0"
                properties = {**_metrics(table), HEAD_PROPERTY: str(head.to_int())}
                transaction.set_properties(properties)
                yield transaction
                # A REST catalog compares snapshots only: of two runs that set properties both would
                # commit. So a transaction that changes no rows has a snapshot, too.
                snapshot = table.metadata.current_snapshot_id
                if transaction.table_metadata.current_snapshot_id == snapshot:
                    with transaction.update_snapshot().fast_append():
                        pass
        except CommitFailedException as error:
            raise TableChangedError(self.name, str(error)) from error
        self.sync_metadata()

    def sync_metadata(self) -> None:
        """Make durable what pyiceberg has written, which it does not sync. Raises OSError."""
        if isinstance(self.place, LocalPlace):
            sync_written(self.place.folder / "metadata")

    def data_paths(self) -> set[str]:
        table = self._opened()
        paths: list[str] = table.inspect.files().column("file_path").to_pylist()
        return {path.removeprefix(table.location().rstrip("/") + "/") for path in paths}

    def indexes_of(self, topic: str) -> Indexes:
        from pyiceberg import expressions

        table = self._opened()
        # Its signature is that of its model; what it takes is a column's name and a value.
        equal: Any = expressions.EqualTo
        scan = table.scan(row_filter=equal("topic", topic), selected_fields=("__index",))
        values: Any = scan.to_arrow().column(0).to_numpy()
        return values  # type: ignore[no-any-return]

    def _opened(self) -> Table:
        """The table in its newest version; it was made before."""
        table = self._open()
        assert table is not None, "it was made before"
        return table

    def _open(self) -> Table | None:
        """The table in its newest version; None if it does not exist."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            self._table = self.catalog.load_table(self.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            self._table = None
        return self._table


def _keys_of(rows: pa.Table) -> Any:
    """The filter for all rows of these topics and keys."""
    from pyiceberg import expressions

    # Their signatures are those of their models; what they take is a column's name and a value.
    equal: Any = expressions.EqualTo
    within: Any = expressions.In
    parts = [name for name in ("topic", "bucket") if name in rows.column_names]
    found: Any = expressions.AlwaysFalse()
    for group in rows.group_by(parts).aggregate([("__key", "list")]).to_pylist():
        same: Any = within("__key", group["__key_list"])
        for name in parts:
            same = expressions.And(same, equal(name, group[name]))
        found = expressions.Or(found, same)
    return found


def _metrics(table: Table) -> dict[str, str]:
    """Properties that say of which columns the files have no statistics.

    Without them pyiceberg misses the statistics of these columns, and logs a warning for each row
    group of each file.
    """
    without = unsorted(table.schema().as_arrow())
    names = [name for name in table.schema().column_names if name.split(".")[0] in without]
    return {_METRICS_PROPERTY + name: "none" for name in names}


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
