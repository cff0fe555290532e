"""The driver's part of an offload: plan, let the workers write, and let the files count.

Steps of a run:

1. Lock the target, so that there is one run at a time, as far as its place has locks.
2. Plan: what each topic has after the messages that the manifest lists, in pieces.
3. Note what will be written, and remove what killed runs left (see `manifest`).
4. The workers write the pieces; a file that is complete from a killed run is used as it is.
5. Commit: from then on all new files count (see `table`). If the table has changed since step 2,
   the run begins again with step 2, and finds its files complete where they are still needed.

A topic of which messages are lost is not copied, and is an error when the others are: one topic
does not keep the others waiting.

So a run that was killed and repeated gives the same table as one that was not.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from ...compaction.current_view import FolderForm, logs_of_folder
from ...ledger import FolderLog, FolderReader
from ...maintenance.expected import Expected, expected_of
from ..arguments import check_folder, checked_options, option_texts
from ..columns import DEFAULT_COLUMNS, ERROR_COLUMN
from ..errors import DataLossError, JobFailedError, OptionError, TableChangedError
from ..marks import check_place
from ..options import Bound, BoundKind, DecodeMode, ReadOptions
from ..plan import existing, report, selected, slice_of
from ..session import require_spark
from ..slices import packed
from .delta_table import DeltaTarget
from .manifest import PERIODS_MS, Layout, Manifest, OffloadedFile, begin_run, end_run
from .places import LocalPlace
from .table import (
    OffloadTable,
    ParquetFolder,
    format_of,
    packed_schema,
    table_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from .writer import FileForm, Piece


_ATTEMPTS = 10
"""How often a run begins again because others change the table."""

DEFAULT_ROWS_PER_FILE = 1_000_000


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """The result of a run."""

    files: tuple[OffloadedFile, ...]
    rejected: tuple[OffloadedFile, ...] = ()
    """The files of rows that the table cannot take, in the table of rejected rows."""

    @property
    def rows(self) -> int:
        """Messages."""
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The table's maintenance after a run, by the library of its format."""

    compact_files: bool = False
    """Make one file of several small ones."""
    expire_snapshots_ms: int | None = None
    """Drop older states of the table, with the files that only they have."""
    row_lifetime_ms: int | None = None
    """Remove rows whose hour or day of broker time ended so long ago."""

    def check(self, table: OffloadTable, layout: Layout) -> None:
        """Raises OptionError for what the table cannot do."""
        if table.format == "parquet":
            needed = {
                "compactFiles": self.compact_files,
                "expireSnapshots": self.expire_snapshots_ms,
            }
            for option, value in needed.items():
                if value not in (None, False):
                    raise OptionError(option, str(value), "needs --format delta or iceberg")
        if layout.upserts and self.row_lifetime_ms is not None:
            reason = "needs writeMode=append: rows of an upsert are not filed by time"
            raise OptionError("rowLifetime", str(self.row_lifetime_ms), reason)


def offload(
    spark: SparkSession,
    path: str | os.PathLike[str],
    target: OffloadTable | str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    ending_time: str | int | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    rows_per_file: int = DEFAULT_ROWS_PER_FILE,
    fail_on_data_loss: bool = True,
    value_schema: str | None = None,
    registry_schemas: str | os.PathLike[str] | None = None,
    mode: str | None = None,
    write_mode: str = "append",
    partition_by: str | None = None,
    upkeep: Upkeep | None = None,
) -> OffloadResult:
    """Copy what is new in a data folder to a table; each message is copied once.

    Args:
        spark: the Spark session; its workers see both folders under these paths.
        path: the data folder. A broker may be writing to it.
        target: a folder of Parquet files (a path, or a URI of a file system that pyarrow or fsspec
            knows), a `DeltaTarget` or an `IcebergTarget`; made if it is missing.
        topics: names; all topics by default.
        ending_time: copy up to the first entry at or after it; ms since the epoch, or ISO-8601.
        columns: the columns of the source that the files have; the same in all runs.
        rows_per_file: a file ends at a multiple of so many messages, or with its hour.
        fail_on_data_loss: False: messages that are missing are logged and left out. If a log is not
            the one that was copied, the copy goes on at the index where it ended.
        value_schema: columns of the topics' type instead of a binary value: ``latest``, or a
            version's number; None: the value as it is.
        registry_schemas: with ``value_schema``, a file or folder of a schema registry's answers to
            ``GET /schemas``: values have the registry's ids in front.
        mode: with ``value_schema``, what becomes of a value that does not fit: FAILFAST, an error;
            PERMISSIVE, a row with the reason in the table ``<target>_rejected``. By default as in
            a read: FAILFAST, or PERMISSIVE if losses are no error.
        write_mode: ``append``: a row for each message; ``upsert``: one for each topic and key, its
            latest message, and none if that has no value. A message without a key does not fit.
        partition_by: beside the topic, ``hour`` (default) or ``day`` of broker time; of an upsert
            ``topic`` (default) alone, or ``bucket(N)`` of the key.
        upkeep: what is done with the table afterwards.

    Raises:
        MissingExtraError: pyspark, pyarrow or numpy is not installed.
        OptionError: an argument is malformed, the target has files of other columns, or another
            run writes to it.
        ForeignFolderError, UnsupportedVersionError: the path is not a data folder of this version.
        TopicNotFoundError: a named topic does not exist.
        DataLossError: messages that were not copied are gone, or a topic's log is not the one
            that was copied. The other topics are copied by then.
        SchemaConflictError: the table cannot take a topic's schema. Nothing was written.
        JobFailedError: others change the table all the time.
    """
    require_spark()
    if rows_per_file < 1:
        raise OptionError("rowsPerFile", str(rows_per_file), "is not 1 or more")
    rejects = mode is not None and mode.upper() == DecodeMode.PERMISSIVE.value
    if write_mode == "upsert" and value_schema is None:
        mode = None  # without types only keys can be missing, of which a read knows nothing
    typed = {"value_schema": value_schema, "registry_schemas": registry_schemas, "mode": mode}
    read = {"columns": ",".join(columns), "fail_on_data_loss": fail_on_data_loss}
    texts = option_texts(path, topics, ending_time=ending_time, **read, **typed)
    options = checked_options(texts)
    table = table_of(target)
    layout = layout_of(options, write_mode, partition_by)
    check_table(table, options, layout)
    upkeep = upkeep or Upkeep()
    upkeep.check(table, layout)
    rejects = options.mode is DecodeMode.PERMISSIVE if layout.typed else rejects and layout.upserts
    return _Run(spark, table, options, rows_per_file, layout, rejects).until_done(upkeep)


def layout_of(options: ReadOptions, write_mode: str, partition_by: str | None) -> Layout:
    """The layout of a target. Raises OptionError."""
    if write_mode not in ("append", "upsert"):
        raise OptionError("writeMode", write_mode, "is not one of append, upsert")
    usual = "topic" if write_mode == "upsert" else "hour"
    typed = options.value_schema is not None
    layout = Layout(options.columns, typed, write_mode, partition_by or usual)
    right = layout.partition_by in PERIODS_MS
    choice = ", ".join(PERIODS_MS)
    if layout.upserts:
        right = layout.partition_by == "topic" or layout.buckets > 0
        choice = "topic, bucket(N) with N from 1 to 99999"
    if not right:
        reason = f"is not one of {choice}, for writeMode={write_mode}"
        raise OptionError("partitionBy", layout.partition_by, reason)
    return layout


def check_table(table: OffloadTable, options: ReadOptions, layout: Layout) -> None:
    """Check before any work whether a table fits. Raises OptionError."""
    if ERROR_COLUMN in options.columns:
        raise OptionError("columns", ERROR_COLUMN, "has rows that are not messages")
    if table.format != "parquet" and "__index" not in options.columns:
        # Verification and readers go by the index.
        reason = f"a {table.format} table needs __index"
        raise OptionError("columns", ",".join(options.columns), reason)
    if layout.typed and "value" not in options.columns:
        reason = "has no value, which valueSchema decodes"
        raise OptionError("columns", ",".join(options.columns), reason)
    if layout.upserts and table.format == "parquet":
        raise OptionError("writeMode", "upsert", "needs --format delta or iceberg")
    lacking = {"__key", "__index", "value"} - {*options.columns} if layout.upserts else ()
    if lacking:
        reason = f"an upsert needs {', '.join(sorted(lacking))}"
        raise OptionError("columns", ",".join(options.columns), reason)
    if not isinstance(table, ParquetFolder | DeltaTarget):
        return
    if isinstance(table.place, LocalPlace):
        check_folder("target", table.place.folder)
    found = format_of(table.place)
    if found not in (None, table.format):
        reason = f"is a table of the format {found}, not {table.format}"
        raise OptionError("target", table.name, reason)


_NAMES = {
    "columns": "columns",
    "typed": "valueSchema",
    "write_mode": "writeMode",
    "partition_by": "partitionBy",
}


def _check_layout(manifest: Manifest, layout: Layout) -> None:
    """Check that a target's earlier runs had the same layout. Raises OptionError."""
    before = manifest.layout or layout
    for name, option in _NAMES.items():
        wanted, found = getattr(layout, name), getattr(before, name)
        if wanted != found:
            shown = [",".join(x) if isinstance(x, tuple) else str(x) for x in (wanted, found)]
            raise OptionError(option, shown[0], f"the target has {shown[1]}")


@dataclass(slots=True)
class _Run:
    """One run, which may need several attempts."""

    _spark: SparkSession
    _table: OffloadTable
    _options: ReadOptions
    _rows_per_file: int
    _layout: Layout
    _rejects: bool
    """Whether what the table cannot take is filed in a table beside it."""

    def until_done(self, upkeep: Upkeep) -> OffloadResult:
        """As many attempts as it takes, with the table's upkeep. Raises JobFailedError."""
        if self._table.schema() is None:
            self.form()
        with self._table.lock():
            for _ in range(_ATTEMPTS):
                try:
                    done = self.run()
                    self._keep_up(upkeep)
                    return done
                except TableChangedError as error:
                    changed = error
        raise JobFailedError(f"given up after {_ATTEMPTS} attempts: {changed}")

    def run(self) -> OffloadResult:
        """One attempt to copy what is new. Raises TableChangedError."""
        table = self._table
        _check_layout(table.load(), self._layout)
        form = self.form()
        manifest = table.load()
        self._add_rejected(manifest)
        pieces, lost, errors = _planned(manifest, self._options, self._rows_per_file, self._layout)
        paths = {piece.path for piece in pieces}
        run = uuid.uuid4().hex if table.place.has_locks else ""
        places = {table.place: manifest.files}
        if self._rejects:
            places[table.rejected().place] = manifest.rejected
        for place, files in places.items():
            begin_run(place, run, paths, {file.path for file in files})
        added = replace(manifest, files=(), rejected=(), layout=self._layout)
        added = replace(added, schema=packed_schema(form.schema))
        if pieces:
            added = self._written(pieces, lost, run, form, added)
            if self._layout.upserts:
                self._merge(added)
            else:
                table.commit(added)
            self._add_rejected(added)
        for place in places:
            end_run(place, run)
        if errors:
            raise errors[0]
        return OffloadResult(added.files, added.rejected)

    def _keep_up(self, upkeep: Upkeep) -> None:
        """Maintain the table. Raises TableChangedError."""
        table, layout = self._table, self._layout
        if upkeep.row_lifetime_ms is not None:
            period_ms = PERIODS_MS[layout.period]
            now_ms = time.time_ns() // 1_000_000
            expired_ms = (now_ms - upkeep.row_lifetime_ms) // period_ms * period_ms
            manifest = table.load()
            old = any(manifest.expired_ms <= x.hour_ms < expired_ms for x in manifest.files)
            if old or table.format == "parquet":
                emptied = replace(manifest, files=(), rejected=(), expired_ms=expired_ms)
                table.remove_before(emptied, layout.period)
        if upkeep.compact_files:
            table.compact_files()
        if upkeep.expire_snapshots_ms is not None:
            table.expire_snapshots(upkeep.expire_snapshots_ms)

    def _merge(self, added: Manifest) -> None:
        """Merge the workers' changes into the table, some files in each commit, in their order."""
        table, head = self._table, added.head
        rejected = {(file.topic, file.first_index): file for file in added.rejected}
        for files in _groups(added.files):
            keys = ((file.topic, file.first_index) for file in files)
            more = tuple(rejected[key] for key in keys if key in rejected)
            table.upsert(replace(added, head=head, files=files, rejected=more), self._rows(files))
            head = table.load().head
        for file in added.files:
            table.place.remove(file.path)

    def _rows(self, files: Sequence[OffloadedFile]) -> pa.Table:
        """The latest row of each topic and key in some files of changes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from .schema import latest, with_partitions

        changes = []
        for file in files:
            with self._table.place.open(file.path) as source:
                rows = pq.read_table(source)
            changes.append(with_partitions(rows, file.topic, self._layout))
        return latest(pa.concat_tables(changes))

    def form(self) -> FileForm:
        """The form of the table's files; the table is created, or gets new columns."""
        from .schema import partition_fields, raw_schema, typed_form
        from .writer import FileForm

        table, layout, options = self._table, self._layout, self._options
        values = None
        if layout.typed:
            with FolderReader(options.path) as reader:
                topics = existing(reader, options, expected_of(reader, options.path))
            schema, values = typed_form(options, topics, table, layout)
        else:
            schema = raw_schema(layout)
        table.create(schema, [field.name for field in partition_fields(layout)])
        before = table.schema()
        if before is not None and before != schema:
            if not layout.typed:
                reason = f"is a {table.format} table of other columns"
                raise OptionError("target", table.name, reason)
            table.evolve(schema)
        rejected = None
        if self._rejects:
            side = table.rejected()
            self._create_rejected(side)
            rejected = side.place
        return FileForm(layout, schema, table.constants, values, rejected)

    def _create_rejected(self, side: OffloadTable) -> None:
        from .schema import partition_fields, rejected_schema

        columns = self._layout.columns
        partitions = [field.name for field in partition_fields(Layout(columns))]
        side.create(rejected_schema(columns), partitions)

    def _add_rejected(self, manifest: Manifest) -> None:
        """Update the table of rejected rows to a manifest, which may be newer."""
        if not manifest.rejected:
            return
        side = self._table.rejected()
        self._create_rejected(side)
        before = side.load()
        known = {file.path for file in before.files}
        files = tuple(file for file in manifest.rejected if file.path not in known)
        if files:
            side.commit(replace(before, files=files, layout=Layout(self._layout.columns)))

    def _written(
        self,
        pieces: list[Piece],
        lost: frozenset[int],
        run: str,
        form: FileForm,
        added: Manifest,
    ) -> Manifest:
        """Let the workers write all pieces. Return the additions to the manifest."""
        from ..workers import results_of
        from .writer import PieceWriter

        writer = PieceWriter(self._table.place, run, self._options, lost, form)
        tasks = packed(pieces, lambda piece: piece.part)
        written = results_of(self._spark, writer.write_all, tasks)
        files, rejected = (
            tuple(sorted(filter(None, of_all), key=attrgetter("topic", "log_id", "first_index")))
            for of_all in zip(*written, strict=True)
        )
        return replace(added, files=files, rejected=rejected)


MERGED_ROWS = 2_000_000
"""The most messages that one commit of an upsert has, but for those of a single file."""


def _groups(files: Sequence[OffloadedFile]) -> Iterator[tuple[OffloadedFile, ...]]:
    """Divide the files, in order, into groups for one commit each."""
    group: list[OffloadedFile] = []
    for file in files:
        if group and sum(each.rows for each in group) + file.rows > MERGED_ROWS:
            yield tuple(group)
            group = []
        group.append(file)
    if group:
        yield tuple(group)


def _planned(
    manifest: Manifest, options: ReadOptions, rows_per_file: int, layout: Layout
) -> tuple[list[Piece], frozenset[int], list[DataLossError]]:
    """Plan the pieces. Return them, the lost ledgers, and why topics are not copied."""
    from .writer import pieces_of

    copied = manifest.last_files()
    pieces: list[Piece] = []
    with FolderReader(options.path) as reader:
        found = selected(reader, options)
        errors = list(found.lost_topics())
        if not options.fail_on_data_loss:
            for error in errors:
                report(error, False)
            errors = []
        forms = logs_of_folder(reader, found.logs)
        for topic, log in found.logs.items():
            try:
                whole, first, end = _bounds(forms[topic], log, copied, options, found.expected)
            except DataLossError as error:
                errors.append(error)
            else:
                middle = min(end, max(first, log.first_index))
                pieces += pieces_of(whole, first, middle, rows_per_file, layout)
                pieces += pieces_of(log, middle, end, rows_per_file, layout)
    return pieces, found.expected.lost_ledgers, errors


def _bounds(
    form: FolderLog | FolderForm,
    log: FolderLog,
    copied: Mapping[tuple[str, int], OffloadedFile],
    options: ReadOptions,
    expected: Expected,
) -> tuple[FolderLog | FolderForm, int, int]:
    """A topic as it is before its log, and its messages that are not copied yet.

    What cleaning, as Kafka's, has removed from the log is in the topic's view. Raises
    DataLossError.
    """
    last = copied.get((log.name, log.topic_id))
    reached = -1 if last is None else last.end_index
    whole = log if reached >= log.first_index else form
    if last is None:
        part = slice_of(whole, options, expected)
        earlier = [file for (topic, _), file in copied.items() if topic == log.name]
        if earlier:
            reason = "the topic was deleted and created again, perhaps before they were copied"
            end = max(earlier, key=lambda file: file.log_id).end_index
            report(DataLossError(log.name, end, None, reason), options.fail_on_data_loss)
        return whole, part.first_index, part.end_index
    if isinstance(whole, FolderLog):
        try:
            check_place(log, reached, last.mark, expected)
        except DataLossError as error:
            report(error, options.fail_on_data_loss)
        reached = max(reached, log.first_index)
    if reached > log.next_index:
        return whole, reached, reached
    part = slice_of(whole, replace(options, start=Bound(BoundKind.INDEX, reached)), expected)
    return whole, part.first_index, part.end_index
