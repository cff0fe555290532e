"""Results as a table for people, or as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .options import escaped, json_line


def print_rows(
    rows: Iterable[Mapping[str, object]], columns: Sequence[str], *, as_json: bool
) -> None:
    """Print rows: with a line of headings, or with `as_json` one object per line.

    A single column has no heading, so that its values can be used by other programs.
    """
    if as_json:
        for row in rows:
            print(json_line(row))
        return
    texts = [[_text(row.get(column)) for column in columns] for row in rows]
    if len(columns) == 1:
        print("".join(f"{text}\n" for (text,) in texts), end="")
        return
    lines = [list(columns), *texts]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numbers = [all(_is_number(row.get(name)) for row in rows) for name in columns]
    for line in lines:
        cells = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, numbers, strict=True)
        ]
        print("  ".join(cells).rstrip())


def print_done(what: str, fields: Mapping[str, object], *, as_json: bool) -> None:
    """Print that something was done: a sentence, or its facts as JSON."""
    print(json_line(fields) if as_json else what)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escaped(str(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
