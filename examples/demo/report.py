"""The tables at the end: each search, and the result of each kind of search."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from .answers import Audited, MomentRow, RoundRow, by_producer


def _clock(time_ms: int) -> str:
    when = datetime.fromtimestamp(time_ms // 1_000, UTC)
    return f"{when:%H:%M:%S}.{time_ms % 1_000:03d}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with columns as wide as their widest cell, aligned to the right."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    lines = [headings, ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def moments_table(rows: Sequence[MomentRow]) -> str:
    """First message after each moment: its index by truth, broker time and client time."""
    headings = (
        "moment (UTC)", "truth", "gRPC by broker time", "took", "client.seek", "by client time",
        "wrong by",
    )  # fmt: skip
    return _table(
        headings,
        [
            (
                _clock(row.moment_ms),
                row.true_index,
                row.grpc_index,
                f"{row.grpc_ms:.2f} ms",
                row.client_seek_index,
                row.by_client_time_index,
                row.by_client_time_index - row.true_index,
            )
            for row in rows
        ],
    )


def rounds_table(rows: Sequence[RoundRow]) -> str:
    """Messages between two moments: by truth, broker time and client time."""
    headings = ("round", "truth", "by broker time", "by client time", "missed", "foreign")
    return _table(
        headings,
        [
            (
                row.number + 1,
                row.true_count,
                row.by_broker_time,
                row.by_client_time,
                row.missed,
                row.foreign,
            )
            for row in rows
        ],
    )


def audit_table(broker: Audited, spark: Audited) -> str:
    """Messages by producer: as the broker counted them, and as Spark did."""
    ours, theirs = by_producer(broker), by_producer(spark)
    names = sorted({*ours, *theirs})
    rows = [(name, ours.get(name, 0), theirs.get(name, 0)) for name in names]
    return _table(("producer", "counted by the broker", "counted by Spark"), rows)
