"""The option `where`: the rows are those that the same condition leaves of all rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.filters import COLUMNS
from pulsemark.pipeline.options import ReadOptions
from pulsemark.testing.clock import A_TIME_MS

A = "persistent://public/default/a"
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
ALL: list[Any] = []
"""The rows of the mixed folder, read once."""
TERMS = st.tuples(st.sampled_from(COLUMNS), st.sampled_from([*OPERATORS]), st.integers(0, 9))


def literal(column: str, number: int, rows: list[Any]) -> tuple[str, Any]:
    """A value of a column, as text and as Python's: one that rows have."""
    has = sorted({row[column] for row in rows if row[column] is not None})
    value = has[number * (len(has) - 1) // 9]
    if column == "__index":
        return str(value), value
    if column == "__brokerPublishTime":
        return f"TIMESTAMP '{value.isoformat()}'", value
    text = value if isinstance(value, str) else value.decode()
    return f"'{text}'", value


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(terms=st.lists(TERMS, min_size=1, max_size=4))
def test_the_rows_are_those_that_match(
    mixed: tuple[Path, list[str]], tools: Any, terms: list[tuple[str, str, int]]
) -> None:
    """Of topics with and without stamps, trimmed, with wrong clocks, over several ledgers."""
    names = ",".join([*COLUMNS, "value"])
    if not ALL:
        ALL.extend(tools.rows_of(mixed[0], topicsPattern=".*", columns=names))
    rows = [row for row in ALL if row["__key"] is None or row["__key"].isascii()]
    texts, wanted = [], rows
    for column, operator, number in terms:
        text, value = literal(column, number, rows)
        texts.append(f"{column} {operator} {text}")
        compare = OPERATORS[operator]
        wanted = [r for r in wanted if r[column] is not None and compare(r[column], value)]
    where = " AND ".join(texts)
    found = tools.rows_of(mixed[0], topicsPattern=".*", columns=names, where=where)
    assert [r for r in found if r["__key"] is None or r["__key"].isascii()] == wanted


def test_columns_that_are_not_read_are_compared_too(
    mixed: tuple[Path, list[str]], tools: Any
) -> None:
    """The result has the wanted columns, of a folder and over gRPC."""
    path, _ = mixed
    where = "__key IN ('k0', 'gone', 'b1') AND __index < 30"
    rows = tools.rows_of(path, topics="a,b", where=where, columns="value")
    assert {tuple(row) for row in rows} == {("value",)}
    every = tools.rows_of(path, topics="a,b", columns="value,__key,__index")
    keys = (b"k0", b"gone", b"b1")
    wanted = [r["value"] for r in every if r["__key"] in keys and r["__index"] < 30]
    assert [row["value"] for row in rows] == wanted
    with tools.serving(path) as target:
        remote = {"grpcUrl": f"grpc://{target}", "topics": "a,b", "columns": "value"}
        assert tools.rows_of(None, where=where, **remote) == rows
        only = tools.rows_of(None, where=f"__topic = '{A}'", **remote)
        assert only == tools.rows_of(path, topic="a", columns="value")


def test_what_cannot_match_is_not_read(
    folder: Any, tools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics, ledgers and indexes are left out before; a line of the log says what is read."""
    topic = folder.topic("a")
    for hour in range(4):
        folder.clock.set(A_TIME_MS + hour * 3_600_000)
        for number in range(10):
            topic.single(b"%d" % number, key=f"k{number}")
        topic.ledger.roll()
    folder.topic("b").single(b"x")
    where = (
        f"__brokerPublishTime >= {A_TIME_MS + 3_600_000} AND __key = 'k3'"
        f" AND __brokerPublishTime < {A_TIME_MS + 3 * 3_600_000} AND __topic = 'a'"
    )
    with caplog.at_level(logging.INFO):
        rows = tools.rows_of(folder.path, topicsPattern=".*", where=where, columns="__index")
    assert [row["__index"] for row in rows] == [13, 23]
    assert caplog.messages == [f"{A}: where {where}: 20 of 40 messages are read"]


def test_a_stream_has_the_matching_rows(folder: Any, tools: Any) -> None:
    """Offsets are those of all messages; only rows that match come."""
    from pulsemark.pipeline.source import LedgerSource

    topic = folder.topic("a")
    for number in range(20):
        topic.single(b"x", key=f"k{number % 4}")
    given = {"path": str(folder.path), "topic": "a", "columns": "__index"}
    given |= {"startingOffsets": "earliest", "where": "__key='k1' AND __index>6"}
    reader: Any = LedgerSource(given).streamReader(tools.spark_schema(["__index"]))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    parts = reader.partitions(start, end)
    rows = [n for part in parts for rows in reader.read(part) for n in rows["__index"].to_pylist()]
    assert rows == [9, 13, 17]
    assert end[topic.name]["index"] == 20


def test_an_entry_that_cannot_be_read_stays_a_row(folder: Any, tools: Any) -> None:
    """If its row might match, and errors are rows."""
    topic = folder.topic("a")
    topic.single(b"good", key="k")
    topic.raw(b"no message")
    columns = "__index,__error"
    rows = tools.rows_of(folder.path, topic="a", where="__key = 'k'", columns=columns)
    assert [(row["__index"], row["__error"] is None) for row in rows] == [(0, True), (None, False)]


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("", "has its end where one of __topic, __key, __index, __brokerPublishTime is expected"),
        ("value = 'x'", "has value where one of __topic"),
        ("__index", "has its end where = or < or <= or > or >= or IN is expected"),
        ("__index != 4", "is no condition from '!= 4' on"),
        ("__index = 4 OR __index = 5", "has OR where AND is expected"),
        ("__index = '4'", "compares __index with '4'; a number is expected"),
        ("__key = 4", "compares __key with 4; a text in quotes is expected"),
        ("__key IN ('a' 'b')", "has 'b' where , or \\) is expected"),
        ("__key IN 'a'", "has 'a' where \\( is expected"),
        ("__key = 'a", 'is no condition from "\'a" on'),
        ("__key = k", "has k where a value is expected"),
        ("__topic = 'a/b'", "is not a topic's name"),
        ("__brokerPublishTime > '1.3.2026'", "nor ISO-8601"),
        ("__brokerPublishTime > 1772323200", "for unix seconds"),
        ("__index = 4 AND", "has its end where"),
    ],
)
def test_what_is_no_condition_says_what_is_expected(where: str, reason: str) -> None:
    """Before anything is read, with the option's name."""
    with pytest.raises(OptionError, match=reason) as raised:
        ReadOptions.parse({"path": "/d", "topic": "a", "where": where})
    assert (raised.value.option, raised.value.value) == ("where", where)
