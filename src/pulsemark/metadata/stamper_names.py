"""A list of stampers as one line of text, for command lines and configuration files.

    broker-time,index                            two stampers
    broker-time,index,property-tags:region,app   three; what follows the colon is one argument
    property-tags:region,app;index               an argument ends at a semicolon
    (empty)                                      no stampers: stamps are off

An argument may contain commas. So a comma separates stampers only before the first colon, and a
semicolon always separates them. `StamperChain.from_names` checks whether the names are known.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["join_stamper_names", "split_stamper_names"]


def split_stamper_names(text: str) -> tuple[str, ...]:
    """The names in a line, each `name` or `name:argument`, in their order; without empty ones."""
    names: list[str] = []
    for group in text.split(";"):
        head, colon, argument = group.partition(":")
        *before, last = head.split(",")
        names += [*before, f"{last}{colon}{argument}"]
    return tuple(name.strip() for name in names if name.strip())


def join_stamper_names(names: Iterable[str]) -> str:
    """The line for these names. An argument that contains a semicolon cannot be written so."""
    line = ""
    for name in names:
        separator = "" if not line else ";" if ":" in line.rpartition(";")[2] else ","
        line += f"{separator}{name}"
    return line
