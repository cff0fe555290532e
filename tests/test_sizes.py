"""How long functions may be, and which are longer, with the reason.

A function may have 40 lines, from its `def` to its last line: decorators and the docstring are not
counted, since an explanation is no reason to cut code apart. A module is as long as its subject: a
limit for modules made us spread classes over several files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "pulsemark"
FUNCTION_LINES = 40

#: Longer because a table or a format stands in them as a whole.
LONGER = {
    "kafka/records/scan.py: _scan": "the fields of a record in their order",
    "ledger/writer.py: __init__": "the attributes of a topic's end, each with its meaning",
}


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """A function's lines from `def` to its end, without the docstring's."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return lines
    assert first.end_lineno is not None
    return lines - (first.end_lineno - first.lineno + 1)


def too_long(package: Path) -> Iterator[tuple[str, int]]:
    """Functions that are longer than the rule says, as `module: function`, with their lines."""
    for path in sorted(package.rglob("*.py")):
        if "_pb2" in path.name:
            continue
        name, text = str(path.relative_to(package)), path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = code_lines(node)
                if lines > FUNCTION_LINES:
                    yield f"{name}: {node.name}", lines


def test_functions_stay_readable() -> None:
    """Functions have up to 40 lines; the table lists those that are longer, only."""
    found = dict(too_long(PACKAGE))
    assert {name: lines for name, lines in found.items() if name not in LONGER} == {}
    assert LONGER.keys() - found.keys() == set(), "these are short enough: take them off the list"


def test_what_is_too_long_is_found(tmp_path: Path) -> None:
    """Lines are counted from `def` on, without decorator and docstring, nested and async too."""
    body = "    x = 1\n"
    within = f'@decorated(\n  1,\n)\ndef fits():\n    """One.\n\n    Two.\n    """\n{body * 39}'
    beyond = f"async def grows():\n{body * 40}"
    nested = f"class Inside:\n    def method(self):\n{('    ' + body) * 40}"
    (tmp_path / "functions.py").write_text(within + beyond + nested)
    (tmp_path / "made_pb2.py").write_text(beyond)
    assert dict(too_long(tmp_path)) == {"functions.py: grows": 41, "functions.py: method": 41}
