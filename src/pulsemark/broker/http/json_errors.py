"""What is wrong with a text that should be JSON, in the words of Pulsar's answers."""

from __future__ import annotations

import json
import re

__all__ = ["SOURCE", "json_problem", "no_number_problem"]

SOURCE = "[Source: REDACTED (`StreamReadFeature.INCLUDE_SOURCE_IN_LOCATION` disabled)"
VALUES = "(JSON String, Number, Array, Object or token 'null', 'true' or 'false')"
LEADING_ZERO = re.compile(r"(?<![\d.])0\Z")
NAME = re.compile(r"[A-Za-z_$][\w$]*")


def json_problem(text: str, error: json.JSONDecodeError) -> str:
    """The reason and the place, with lines and columns counted from 1."""
    reason, end = _reason(text, error)
    return f"{reason}\n at {_place(text, end)}]"


def no_number_problem(text: str, name: str) -> str:
    """What is wrong with a name that JavaScript has for a number: NaN, Infinity."""
    place = _place(text, text.find(name) + len(name))
    allow = "enable `JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS` to allow"
    return f"Non-standard token '{name}': {allow}\n at {place}]"


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return f"{SOURCE}; line: {line}, column: {column}"


def _reason(text: str, error: json.JSONDecodeError) -> tuple[str, int]:
    if error.msg.startswith("Unterminated string"):
        return "Unexpected end-of-input in VALUE_STRING", len(text)
    position = _after_spaces(text, error.pos)
    if position >= len(text):
        return _early_end(text), len(text)
    if text[position].isdigit() and LEADING_ZERO.search(text, 0, position) is not None:
        return "Invalid numeric value: Leading zeroes not allowed", position
    name = NAME.match(text, position)
    if name is not None and error.msg in ("Expecting value", "Extra data"):
        return f"Unrecognized token '{name[0][:80]}': was expecting {VALUES}", name.end()
    found = text[position]
    # Not its repr, which changes the quotes around a quote.
    what = "Unexpected character ('" + found + f"' (code {ord(found)}))"
    return f"{what}: {_wanted(error, found)}", position


def _after_spaces(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _wanted(error: json.JSONDecodeError, found: str) -> str:
    if error.msg.startswith(("Expecting property name", "Illegal trailing comma")):
        return "was expecting double-quote to start field name"
    if error.msg.startswith("Expecting ':'"):
        return "was expecting a colon to separate field name and value"
    if error.msg.startswith("Expecting ','"):
        kind = _open_brackets(error.doc[: error.pos])[-1:]
        return f"was expecting comma to separate {_kind(kind[0][0] if kind else '{')} entries"
    return "expected a value" if found in "]}" else f"expected a valid value {VALUES}"


def _early_end(text: str) -> str:
    opened = _open_brackets(text)
    if not opened:
        return "Unexpected end-of-input"
    bracket, position = opened[-1]
    start = f"(start marker at {_place(text, position)}])"
    return f"Unexpected end-of-input: expected close marker for {_kind(bracket)} {start}"


def _kind(bracket: str) -> str:
    return "Object" if bracket == "{" else "Array"


def _open_brackets(text: str) -> list[tuple[str, int]]:
    """The brackets without their closing ones, with their positions; strings are skipped."""
    opened: list[tuple[str, int]] = []
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|[{\[]|[}\]]', text):
        if found[0] in "{[":
            opened.append((found[0], found.start()))
        elif found[0] in "}]" and opened:
            opened.pop()
    return opened
