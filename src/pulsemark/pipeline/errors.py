"""Every error the pipeline raises.

PipelineError
 +-- MissingExtraError     an optional dependency is not installed (also an ImportError)
 +-- JavaNotFoundError     no Java was found that Spark can run on
 +-- OptionError           an option of the source or of a job is unknown or bad (also a ValueError)
 +-- DataLossError         messages in the range are missing or cannot be read
 +-- DecodeError           an entry's bytes cannot be decoded as its header states
 +-- SchemaConflictError   a table cannot take the type of a topic's values
 +-- ReplayError           a message cannot be replayed, or the target does not take it
 +-- JobFailedError        a Spark job failed: a task failed, or its result could not be written
 |    +-- ProblemsFoundError  a check found that something is wrong

Each error carries its facts as attributes, and each can be pickled. An error raised in one of
Spark's worker processes reaches the driver only as text in Spark's own exception: class name and
message are kept, attributes are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..extras import install_command
from ..ledger import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PipelineError(Exception):
    """Base of everything the pipeline package raises on purpose."""


class MissingExtraError(PipelineError, ImportError):
    """The packages of an optional extra are needed but not installed."""

    def __init__(self, extra: str, module: str) -> None:
        self.extra = extra
        self.module = module
        super().__init__(
            f"{module} is not installed: install the extra {extra!r} ({install_command(extra)})"
        )

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), (self.extra, self.module)


class JavaNotFoundError(PipelineError):
    """No Java is new enough for Spark. ``tried`` lists each place and why it cannot be used."""

    def __init__(self, minimum_version: int, tried: Sequence[tuple[str, str]]) -> None:
        self.minimum_version = minimum_version
        self.tried = tuple(tried)
        places = "; ".join(f"{place}: {reason}" for place, reason in self.tried)
        super().__init__(
            f"Spark needs Java {minimum_version} or newer, but none was found ({places})."
            f" Set JAVA_HOME, or {install_command('spark')}, which contains a Java"
        )

    def __reduce__(self) -> tuple[type[JavaNotFoundError], tuple[int, tuple[tuple[str, str], ...]]]:
        return type(self), (self.minimum_version, self.tried)


class OptionError(PipelineError, ValueError):
    """An option is unknown, malformed, or contradicts another."""

    def __init__(self, option: str, value: str | None, reason: str) -> None:
        self.option = option
        self.value = value
        self.reason = reason
        given = "" if value is None else f" = {value!r}"
        super().__init__(f"option {option}{given}: {reason}")

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str | None, str]]:
        return type(self), (self.option, self.value, self.reason)


class JobFailedError(PipelineError):
    """A Spark job failed. ``reason`` is the line of Spark's report that says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __reduce__(self) -> tuple[type[JobFailedError], tuple[str]]:
        return type(self), (self.reason,)


class ProblemsFoundError(JobFailedError):
    """A check found that something is wrong. ``rows`` is a DataFrame that lists it."""

    def __init__(self, rows: DataFrame, reason: str) -> None:
        self.rows = rows
        super().__init__(reason)


class DataLossError(PipelineError):
    """Messages ``[first_index, end_index)`` of ``topic`` are missing or cannot be read.

    An index is None if it is not known how far the loss reaches on that side.
    """

    def __init__(
        self, topic: str, first_index: int | None, end_index: int | None, reason: str
    ) -> None:
        self.topic = topic
        self.first_index = first_index
        self.end_index = end_index
        self.reason = reason
        if first_index is not None and end_index is not None:
            which = f"messages [{first_index}, {end_index})"
        elif first_index is not None:
            which = f"messages from {first_index} on"
        elif end_index is not None:
            which = f"messages before {end_index}"
        else:
            which = "its messages"
        super().__init__(
            f"{topic}: {which} are missing: {reason}."
            " To go on with the others, set the option failOnDataLoss=false (of a job:"
            " fail_on_data_loss=False, --no-fail-on-data-loss)"
        )

    def __reduce__(self) -> tuple[type[DataLossError], tuple[str, int | None, int | None, str]]:
        return type(self), (self.topic, self.first_index, self.end_index, self.reason)


class ReplayError(PipelineError):
    """Messages of ``topic`` cannot be replayed, for the ``reason``; those before them were."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic}: {reason}")

    def __reduce__(self) -> tuple[type[ReplayError], tuple[str, str]]:
        return type(self), (self.topic, self.reason)


class SchemaConflictError(PipelineError):
    """A table cannot take the type of a topic's values; ``difference`` says where they differ."""

    def __init__(self, table: str, topic: str, difference: str) -> None:
        self.table = table
        self.topic = topic
        self.difference = difference
        super().__init__(
            f"{table} cannot take the schema of {topic}: {difference}."
            " Offload it to another table, or set mode=PERMISSIVE (--mode PERMISSIVE): what does"
            " not fit goes to the table of rejected rows"
        )

    def __reduce__(self) -> tuple[type[SchemaConflictError], tuple[str, str, str]]:
        return type(self), (self.table, self.topic, self.difference)


class DecodeError(PipelineError):
    """An entry is stored undamaged, but its producer's bytes cannot be decoded."""

    def __init__(self, topic: str, position: Position, reason: str) -> None:
        self.topic = topic
        self.position = position
        self.reason = reason
        super().__init__(
            f"{topic}: entry ({position.ledger_id}, {position.entry_id})"
            f" cannot be decoded: {reason}"
        )

    def __reduce__(self) -> tuple[type[DecodeError], tuple[str, Position, str]]:
        return type(self), (self.topic, self.position, self.reason)
