"""Every error the metadata package raises on purpose; damaged bytes never raise anything else.

Each one has its facts as attributes, and can be pickled, so it reaches another process with them.
"""

from __future__ import annotations

from ..records import FactsError


class PrefixError(
    FactsError, ValueError, text="bad broker entry prefix at byte {offset}: {reason}"
):
    """The broker entry prefix is malformed: `reason`, at byte `offset` of the entry."""

    reason: str
    offset: int


class MessageFormatError(
    FactsError, ValueError, text="bad message header at byte {offset}: {reason}"
):
    """A message's header is malformed: `reason`, at byte `offset` of the headers-and-payload."""

    reason: str
    offset: int

    # Faster than that of all errors: a search meets one in each entry that is no message.
    def __init__(self, reason: str, offset: int) -> None:
        self.reason, self.offset = reason, offset


class ChecksumError(
    FactsError,
    ValueError,
    text="CRC32C mismatch: header says {expected:#010x}, bytes give {actual:#010x}",
):
    """The message's bytes have the CRC32C `actual`, but its header says `expected`."""

    expected: int
    actual: int


class ControlError(FactsError, ValueError):
    """A control entry's `field` cannot be `value`: `reason` says what it must be."""

    field: str
    value: object
    reason: str

    def __str__(self) -> str:
        return f"{self.field} {ascii(self.value)[:80]}: {self.reason}"


class StampError(FactsError, ValueError):
    """Base of the errors in choosing stampers or in stamping."""


class DoubleStampError(
    StampError, text="{topic}: the entry already begins with a broker entry prefix (0x0e02)"
):
    """The bytes to stamp for `topic` already begin with a prefix; another would hide it."""

    topic: str


class DuplicateStamperError(StampError, text="stamper {name!r} is in the chain twice"):
    """A chain has the stamper `name` twice."""

    name: str


class UnknownStamperError(StampError):
    """No stamper `name` is built in or installed; `known` are those that are, sorted."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"unknown stamper {self.name!r}; available: {', '.join(self.known)}"


class StamperLoadError(StampError, text="stamper {name!r} cannot be used: {reason}"):
    """The installed stamper `name`, with its argument, cannot be used: `reason`."""

    name: str
    reason: str


class StamperFieldError(StampError, text="field {field} is not stamper {name!r}'s own: {reason}"):
    """The stamper `name` declares or writes a `field` that is not its own: `reason`."""

    name: str
    field: object
    reason: str


class StampingError(StampError, text="{topic}: stamper {stamper!r} failed: {reason}"):
    """The stamper `stamper` failed for an entry of `topic`, which was not stored: `reason`."""

    stamper: str
    topic: str
    reason: str
