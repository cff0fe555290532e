"""Prometheus' text format: a metric's lines, made in parts.

A page can have a million lines. So labels are made once for all lines of a topic, whole numbers and
zeros are written as they are, and a part of many lines is made by one expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

__all__ = ["Family", "labels_of"]

LINES_PER_PART = 256


@dataclass(slots=True)
class Family:
    """A metric with its samples: labels as `labels_of` gives them, joined by commas, and values."""

    name: str
    text: str
    samples: Iterable[tuple[str, float]]

    def parts(self) -> Iterator[str]:
        """The metric's lines, at most `LINES_PER_PART` of them in each part."""
        name, samples = self.name, iter(self.samples)
        yield f"# HELP {name} {self.text}\n# TYPE {name} {_type_of(name)}\n"
        while some := list(islice(samples, LINES_PER_PART)):
            yield "".join(
                [
                    f"{name}{{{labels}}} {+value!r}\n" if value else f"{name}{{{labels}}} 0\n"
                    for labels, value in some
                ]
            )


def _type_of(name: str) -> str:
    is_pulsars = name.startswith("pulsar_")
    return "counter" if name.endswith("_total") and not is_pulsars else "gauge"


def labels_of(**values: str) -> str:
    """Labels with their values."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
