"""Every error the pipeline raises.

PipelineError
 +-- MissingExtraError     an optional dependency is not installed (also an ImportError)
 +-- JavaNotFoundError     no Java that Spark can run on
 +-- OptionError           an option of the source or of a job is unknown or bad (also a ValueError)
 +-- DataLossError         messages that were asked for are not there, or not readable
 +-- DecodeError           an entry's own bytes do not open as its header says
 +-- JobFailedError        Spark gave up a job: a task failed, or its result could not be written

Each carries the facts as attributes. Errors raised inside Spark's worker processes reach the
driver as text in Spark's own exception: class name and message survive, attributes do not. All
of them pickle, so that nothing is lost before that point.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ledger import Position


class PipelineError(Exception):
    """Base of everything the pipeline package raises on purpose."""


class MissingExtraError(PipelineError, ImportError):
    """The packages of an optional extra are needed and not installed."""

    def __init__(self, extra: str, module: str) -> None:
        self.extra = extra
        self.module = module
        super().__init__(
            f"{module} is not installed: it comes with the extra {extra!r}"
            f" (pip install 'pulsemark[{extra}]')"
        )

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), (self.extra, self.module)


class JavaNotFoundError(PipelineError):
    """No Java new enough for Spark. ``tried`` lists each place with what was wrong there."""

    def __init__(self, minimum_version: int, tried: Sequence[tuple[str, str]]) -> None:
        self.minimum_version = minimum_version
        self.tried = tuple(tried)
        places = "; ".join(f"{place}: {reason}" for place, reason in self.tried)
        super().__init__(
            f"Spark needs Java {minimum_version} or newer and none was found ({places})."
            " Set JAVA_HOME, or pip install 'pulsemark[spark]', which brings one"
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
    """Spark gave up a job. ``reason`` is the one line of its report that says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __reduce__(self) -> tuple[type[JobFailedError], tuple[str]]:
        return type(self), (self.reason,)


class DataLossError(PipelineError):
    """Messages ``[first_index, end_index)`` of ``topic`` cannot be handed out.

    None for an index: the messages that are lost reach no one knows how far on that side.
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
            " The option failOnDataLoss=false reads what is there"
        )

    def __reduce__(self) -> tuple[type[DataLossError], tuple[str, int | None, int | None, str]]:
        return type(self), (self.topic, self.first_index, self.end_index, self.reason)


class DecodeError(PipelineError):
    """An entry is stored well, but its producer's bytes do not open."""

    def __init__(self, topic: str, position: Position, reason: str) -> None:
        self.topic = topic
        self.position = position
        self.reason = reason
        super().__init__(
            f"{topic}: entry ({position.ledger_id}, {position.entry_id}) does not open: {reason}"
        )

    def __reduce__(self) -> tuple[type[DecodeError], tuple[str, Position, str]]:
        return type(self), (self.topic, self.position, self.reason)
