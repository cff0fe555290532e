"""The option `where`: conditions that choose topics, ledgers and rows before Spark gets any.

A condition is as in SQL: ``__key = 'a' AND __index >= 100 AND __topic IN ('x', 'y')``. Topics,
indexes and broker times narrow what is read; what is read is then filtered row by row, in the
worker, so that the result is exactly what the same `WHERE` of Spark gives.

It is an option, because filters that Spark pushes down (`pushFilters`, SPARK-51271) give wrong
results in Spark 4.3: it keeps one plan for a DataFrame, that of the last filter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(-?\d+)|(`?\w+`?)|([<>]=?|=|[(),]))")
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_FUNCTIONS = dict(
    zip(_COMPARED, ("equal", "less", "less_equal", "greater", "greater_equal"), strict=True)
)
TOPIC, KEY, INDEX, TIME = COLUMNS = ("__topic", "__key", "__index", "__brokerPublishTime")


@dataclass(frozen=True, slots=True)
class Condition:
    """A column compared with values: one of them has to match."""

    column: str
    operator: str
    values: tuple[Any, ...]

    def has(self, value: object) -> bool:
        """Whether a value matches."""
        return any(_COMPARED[self.operator](value, each) for each in self.values)

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """For each row whether it matches; null where the column is."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = batch.column(self.column)
        compare = getattr(pc, _FUNCTIONS[self.operator])
        # Milliseconds of broker time are microseconds in Arrow.
        factor = 1000 if self.column == TIME else 1
        values = (pa.scalar(v * factor if factor > 1 else v, column.type) for v in self.values)
        return reduce(pc.or_, (compare(column, value) for value in values))


@dataclass(frozen=True, slots=True)
class Where:
    """All conditions; each has to hold."""

    text: str
    conditions: tuple[Condition, ...]

    def has_topic(self, topic: str) -> bool:
        """Whether rows of a topic can match."""
        return all(each.has(topic) for each in self._of(TOPIC))

    def bounds(self, column: str) -> tuple[int, int]:
        """Values that can match are in ``[low, end)``."""
        low, end = 0, 1 << 63
        for each in self._of(column):
            if each.operator in ("=", ">", ">="):
                low = max(low, min(each.values) + (each.operator == ">"))
            if each.operator in ("=", "<", "<="):
                end = min(end, max(each.values) + (each.operator != "<"))
        return low, max(low, end)

    def _of(self, column: str) -> Iterator[Condition]:
        return (each for each in self.conditions if each.column == column)

    def widened(self, schema: pa.Schema) -> pa.Schema:
        """The columns to read for a result of these."""
        from .columns import arrow_schema_of

        names = dict.fromkeys(each.column for each in self.conditions)
        missing = arrow_schema_of(name for name in names if name not in schema.names)
        return reduce(lambda all_of, field: all_of.append(field), missing, schema)

    def filtered(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """The rows that match. A row of an entry that cannot be read stays if it might match."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            mask = reduce(pc.and_kleene, (each.mask(batch) for each in self.conditions))
            if "__error" in batch.schema.names:
                mask = pc.coalesce(mask, pc.is_valid(batch.column("__error")))
            kept = batch.filter(mask)
            if kept.num_rows:
                columns = [kept.column(name) for name in schema.names]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def parse_where(
    text: str, topic_name: Callable[[str], str], time_ms: Callable[[str], int]
) -> Where:
    """The conditions of a text. Raises ValueError, which says what is expected."""
    tokens = _Tokens(text)
    conditions = [_condition(tokens, topic_name, time_ms)]
    while tokens.left:
        tokens.take("AND")
        conditions.append(_condition(tokens, topic_name, time_ms))
    return Where(text.strip(), tuple(conditions))


class _Tokens:
    def __init__(self, text: str) -> None:
        self.left: list[str] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"is no condition from {text[at:].strip()[:20]!r} on")
            self.left.append(match[0].strip())
            at = match.end()

    def take(self, *wanted: str) -> str:
        """The next token, one of those that are wanted, in any case; without them any."""
        token = self.left.pop(0) if self.left else "its end"
        if wanted and token.upper() not in wanted:
            raise ValueError(f"has {token} where {' or '.join(wanted)} is expected")
        return token


def _condition(
    tokens: _Tokens, topic_name: Callable[[str], str], time_ms: Callable[[str], int]
) -> Condition:
    name = tokens.take().strip("`")
    column = next((each for each in COLUMNS if each.lower() == name.lower()), None)
    if column is None:
        raise ValueError(f"has {name} where one of {', '.join(COLUMNS)} is expected")
    operator = tokens.take(*_COMPARED, "IN").upper()
    literals = [_literal(tokens, "(") if operator == "IN" else _literal(tokens)]
    while operator == "IN" and tokens.take(",", ")") == ",":
        literals.append(_literal(tokens))
    is_text = {literal.startswith("'") for literal in literals}
    if is_text != {column != INDEX} and column != TIME:
        wanted = "a number" if column == INDEX else "a text in quotes"
        raise ValueError(f"compares {column} with {', '.join(literals)}; {wanted} is expected")
    texts = [each[1:-1].replace("''", "'") if each.startswith("'") else each for each in literals]
    of_column: dict[str, Callable[[str], Any]] = {
        TOPIC: topic_name, KEY: str.encode, INDEX: int, TIME: time_ms,
    }  # fmt: skip
    values = tuple(map(of_column[column], texts))
    return Condition(column, "=" if operator == "IN" else operator, values)


def _literal(tokens: _Tokens, before: str | None = None) -> str:
    if before is not None:
        tokens.take(before)
    token = tokens.take()
    if token.upper() == "TIMESTAMP":
        token = tokens.take()
    if not re.fullmatch(r"'.*'|-?\d+", token, re.DOTALL):
        raise ValueError(f"has {token} where a value is expected")
    return token
