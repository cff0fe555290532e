"""docs/spark.md is what users go by: its tables are checked against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsemark.pipeline.audit import AUDIT_COLUMNS, CLOCK_COLUMNS
from pulsemark.pipeline.columns import COLUMNS, DEFAULT_COLUMNS
from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.options import STREAM_OPTIONS, EntryLimits, ReadOptions

DOCUMENT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")


def table(first_heading: str) -> list[list[str]]:
    """The cells of the table whose first column has this heading, without its head."""
    lines = DOCUMENT.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_columns_are_the_documented_ones() -> None:
    """Names, types, depths and meanings, in order."""
    assert table("column")[: len(COLUMNS)] == [
        [f"`{column.name}`", column.ddl, column.depth.name.lower(), column.meaning]
        for column in COLUMNS.values()
    ]
    (default,) = [row[2] for row in table("option") if row[0] == "`columns`"]
    assert default == "the first twelve below"
    assert list(COLUMNS)[:12] == list(DEFAULT_COLUMNS)


def known_options() -> list[str]:
    """Those of a read, as the error for an unknown one lists them."""
    with pytest.raises(OptionError) as raised:
        ReadOptions.parse({"path": "/x", "topic": "t", "0": "x"})
    return raised.value.reason.partition("there are ")[2].split(", ")


def of_services() -> list[str]:
    """The documented options of a service."""
    return [n for row in table("service option") for n in re.findall(r"`(\w+)`", row[0])]


def test_the_options_are_the_documented_ones() -> None:
    """Every one in the table is known, and no other; the limit is the one that is documented."""
    documented = [row[0].strip("`") for row in table("option")]
    assert set(documented) == {*known_options()} - {*of_services()}
    of_streams = [row[0].strip("`") for row in table("stream option")]
    assert set(of_streams) == {*STREAM_OPTIONS, "startingOffsets"}
    limits = {row[0]: row[2] for row in table("option")}
    assert limits["`maxUncompressedBytes`"] == str(EntryLimits().max_uncompressed_bytes)


def test_the_options_of_a_service_are_the_documented_ones() -> None:
    """Every one in the table is known, in the table's order."""
    documented = of_services()
    assert documented == [name for name in known_options() if name in documented]


def test_the_audit_s_columns_are_the_documented_ones() -> None:
    """All of them, in order."""
    text = DOCUMENT[DOCUMENT.index("## The audit") : DOCUMENT.index("### As a page")]
    first_cells = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    names = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert tuple(names) == (*AUDIT_COLUMNS, *CLOCK_COLUMNS)
