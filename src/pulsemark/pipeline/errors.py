"""Every error the pipeline raises.

Each error carries its facts as attributes, and each can be pickled. An error raised in one of
Spark's worker processes reaches the driver only as text in Spark's own exception: class name and
message are kept, attributes are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..extras import install_command
from ..ledger import Position
from ..records import FactsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PipelineError(FactsError):
    """Base of everything the pipeline package raises on purpose."""


class MissingExtraError(PipelineError, ImportError):
    """The packages of an optional extra are needed but not installed."""

    extra: str
    module: str

    def __str__(self) -> str:
        how = install_command(self.extra)
        return f"{self.module} is not installed: install the extra {self.extra!r} ({how})"


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


class OptionError(PipelineError, ValueError):
    """An option is unknown, malformed, or contradicts another."""

    option: str
    value: str | None
    reason: str

    def __str__(self) -> str:
        given = "" if self.value is None else f" = {self.value!r}"
        return f"option {self.option}{given}: {self.reason}"


class JobFailedError(PipelineError, text="{reason}"):
    """A Spark job failed. ``reason`` is the line of Spark's report that says why."""

    reason: str


class ProblemsFoundError(JobFailedError):
    """A check found that something is wrong. ``rows`` is a DataFrame that lists it."""

    rows: DataFrame


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


class ReplayError(PipelineError, text="{topic}: {reason}"):
    """Messages of ``topic`` cannot be replayed, for the ``reason``; those before them were."""

    topic: str
    reason: str


class SchemaConflictError(
    PipelineError,
    text="{table} cannot take the schema of {topic}: {difference}. Offload it to another table, or"
    " set mode=PERMISSIVE (--mode PERMISSIVE): what does not fit goes to the table of rejected"
    " rows",
):
    """A table cannot take the type of a topic's values; ``difference`` says where they differ."""

    table: str
    topic: str
    difference: str


class TableChangedError(PipelineError, text="{table}: {reason}"):
    """Another process has changed the table since it was read. The run plans again."""

    table: str
    reason: str


class DecodeError(
    PipelineError,
    text="{topic}: entry ({position[0]}, {position[1]}) cannot be decoded: {reason}",
):
    """An entry is stored undamaged, but its producer's bytes cannot be decoded."""

    topic: str
    position: Position
    reason: str
