"""Every error the pipeline raises.

Each error carries its facts as attributes, and each can be pickled. An error raised in one of
Spark's worker processes reaches the driver only as text in Spark's own exception: class name and
message are kept, attributes are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..extras import install_command
from ..ledger import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PipelineError(Exception):
    """Base of everything the pipeline package raises on purpose."""

    def __reduce__(self) -> tuple[type[PipelineError], tuple[object, ...]]:
        return type(self), tuple(vars(self).values())  # its facts, in their order


@dataclass(eq=False, repr=False)
class MissingExtraError(PipelineError, ImportError):
    """The packages of an optional extra are needed but not installed."""

    extra: str
    module: str

    def __str__(self) -> str:
        how = install_command(self.extra)
        return f"{self.module} is not installed: install the extra {self.extra!r} ({how})"


@dataclass(eq=False, repr=False)
class JavaNotFoundError(PipelineError):
    """No Java is new enough for Spark. ``tried`` lists each place and why it cannot be used."""

    minimum_version: int
    tried: Sequence[tuple[str, str]]

    def __str__(self) -> str:
        places = "; ".join(f"{place}: {reason}" for place, reason in self.tried)
        return (
            f"Spark needs Java {self.minimum_version} or newer, but none was found ({places})."
            f" Set JAVA_HOME, or {install_command('spark')}, which contains a Java"
        )


@dataclass(eq=False, repr=False)
class OptionError(PipelineError, ValueError):
    """An option is unknown, malformed, or contradicts another."""

    option: str
    value: str | None
    reason: str

    def __str__(self) -> str:
        given = "" if self.value is None else f" = {self.value!r}"
        return f"option {self.option}{given}: {self.reason}"


@dataclass(eq=False, repr=False)
class JobFailedError(PipelineError):
    """A Spark job failed. ``reason`` is the line of Spark's report that says why."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class ProblemsFoundError(JobFailedError):
    """A check found that something is wrong. ``rows`` is a DataFrame that lists it."""

    def __init__(self, rows: DataFrame, reason: str) -> None:
        super().__init__(reason)
        self.rows = rows


@dataclass(eq=False, repr=False)
class DataLossError(PipelineError):
    """Messages ``[first_index, end_index)`` of ``topic`` are missing or cannot be read.

    An index is None if it is not known how far the loss reaches on that side.
    """

    topic: str
    first_index: int | None
    end_index: int | None
    reason: str

    def __str__(self) -> str:
        first, end = self.first_index, self.end_index
        if first is not None and end is not None:
            which = f"messages [{first}, {end})"
        elif first is not None:
            which = f"messages from {first} on"
        else:
            which = "its messages" if end is None else f"messages before {end}"
        return (
            f"{self.topic}: {which} are missing: {self.reason}."
            " To go on with the others, set the option failOnDataLoss=false (of a job:"
            " fail_on_data_loss=False, --no-fail-on-data-loss)"
        )


@dataclass(eq=False, repr=False)
class ReplayError(PipelineError):
    """Messages of ``topic`` cannot be replayed, for the ``reason``; those before them were."""

    topic: str
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.reason}"


@dataclass(eq=False, repr=False)
class SchemaConflictError(PipelineError):
    """A table cannot take the type of a topic's values; ``difference`` says where they differ."""

    table: str
    topic: str
    difference: str

    def __str__(self) -> str:
        return (
            f"{self.table} cannot take the schema of {self.topic}: {self.difference}."
            " Offload it to another table, or set mode=PERMISSIVE (--mode PERMISSIVE): what does"
            " not fit goes to the table of rejected rows"
        )


@dataclass(eq=False, repr=False)
class DecodeError(PipelineError):
    """An entry is stored undamaged, but its producer's bytes cannot be decoded."""

    topic: str
    position: Position
    reason: str

    def __str__(self) -> str:
        ledger_id, entry_id = self.position
        return f"{self.topic}: entry ({ledger_id}, {entry_id}) cannot be decoded: {self.reason}"
