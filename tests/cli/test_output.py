"""Tables: what a terminal shows at any width, and what a pipe gets."""

from __future__ import annotations

import re

import pytest

from pulsemark.cli.output import print_rows

COLUMNS = ("topic", "stored", "backlog entries")
NAME = "persistent://public/default/orders-of-[red]the-north-and-the-south"
ROWS = [
    {"topic": NAME, "stored": 1_234_567, "backlog entries": 0.25},
    {"topic": "persistent://public/default/x", "stored": 7, "backlog entries": 12_345.0},
]


def plain(text: str) -> str:
    """Without bold and colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_pipe_gets_lines(capsys):
    """Each row is one line, as long as it needs to be, and numbers are plain digits."""
    print_rows(ROWS, COLUMNS, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(" {2,}", line) for line in lines] == [
        list(COLUMNS), [NAME, "1234567", "0.2"],
        ["persistent://public/default/x", "7", "12345.0"],
    ]  # fmt: skip


@pytest.mark.parametrize("width", [200, 100, 80, 60, 50, 40, 33, 20, 10, 1])
def test_no_width_loses_a_character(terminal, width):
    """Names are folded or stand alone, never cut; no line of a table is wider than the terminal."""
    shown = terminal("stdout", width)
    print_rows(ROWS, COLUMNS, as_json=False)
    lines = plain(shown.getvalue()).splitlines()
    is_table = "topic" in lines[0] or "topic" in lines[1]
    first = lines[0].split()
    if is_table and first != ["topic", NAME]:
        assert all(len(line) <= width for line in lines)
        begin = next(at for at, line in enumerate(lines) if line.startswith("persistent"))
        cells = "".join(line.split(" ")[0] for line in lines[begin:])
        assert cells == "".join(str(row["topic"]) for row in ROWS)
        assert "1,234,567" in shown.getvalue()
    else:
        assert f"topic            {NAME}" in lines
        assert "stored           1,234,567" in lines


def test_colours(terminal, monkeypatch):
    """Headings stand out on a terminal; one that knows nothing gets plain text."""
    shown = terminal("stdout")
    print_rows(ROWS, COLUMNS, as_json=False)
    assert "\x1b[1m" in shown.getvalue()
    monkeypatch.setenv("TERM", "dumb")
    shown = terminal("stdout")
    monkeypatch.setenv("TERM", "dumb")
    print_rows(ROWS, COLUMNS, as_json=False)
    assert "\x1b" not in shown.getvalue()


def test_what_a_terminal_would_act_on(terminal):
    """Control characters in a name are escaped, in pipes and on terminals."""
    rows = [{"topic": "a\x1b[2Jb\n", "stored": 1}]
    shown = terminal("stdout")
    print_rows(rows, ("topic", "stored"), as_json=False)
    assert r"a\x1b[2Jb\n" in plain(shown.getvalue())


def test_no_rows(terminal):
    """A table without rows has its headings, and wide letters count as two."""
    shown = terminal("stdout", 30)
    print_rows([], ("topic", "stored"), as_json=False)
    assert plain(shown.getvalue()).split() == ["topic", "stored"]
    shown = terminal("stdout", 30)
    print_rows([{"topic": "注文" * 20, "stored": 5}], ("topic", "stored"), as_json=False)
    assert plain(shown.getvalue()).count("注文") >= 18
    assert plain(shown.getvalue()).count("注") == 20
