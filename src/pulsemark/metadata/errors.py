"""Every error the metadata package raises on purpose; damaged bytes never raise anything else.

Each one has its facts as attributes, and can be pickled, so it reaches another process with them.
"""

from __future__ import annotations

from collections.abc import Sequence


class PrefixError(ValueError):
    """The broker entry prefix is malformed: `reason`, at byte `offset` of the entry."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return f"bad broker entry prefix at byte {self.offset}: {self.reason}"


class MessageFormatError(ValueError):
    """A message's header is malformed: `reason`, at byte `offset` of the headers-and-payload."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return f"bad message header at byte {self.offset}: {self.reason}"


class ChecksumError(ValueError):
    """The message's bytes have the CRC32C `actual`, but its header says `expected`."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f"CRC32C mismatch: header says {self.expected:#010x}, bytes give {self.actual:#010x}"


class ControlError(ValueError):
    """A control entry's `field` cannot be `value`: `reason` says what it must be."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(field, value, reason)
        self.field = field
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field} {ascii(self.value)[:80]}: {self.reason}"


class StampError(ValueError):
    """Base of the errors in choosing stampers or in stamping."""


class DoubleStampError(StampError):
    """The bytes to stamp for `topic` already begin with a prefix; another would hide it."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"{self.topic}: the entry already begins with a broker entry prefix (0x0e02)"


class DuplicateStamperError(StampError):
    """A chain has the stamper `name` twice."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"stamper {self.name!r} is in the chain twice"


class UnknownStamperError(StampError):
    """No stamper `name` is built in or installed; `known` are those that are, sorted."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = tuple(known)

    def __str__(self) -> str:
        return f"unknown stamper {self.name!r}; available: {', '.join(self.known)}"


class StamperLoadError(StampError):
    """The installed stamper `name`, with its argument, cannot be used: `reason`."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"stamper {self.name!r} cannot be used: {self.reason}"


class StamperFieldError(StampError):
    """The stamper `name` declares or writes a `field` that is not its own: `reason`."""

    def __init__(self, name: str, field: object, reason: str) -> None:
        super().__init__(name, field, reason)
        self.name = name
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"field {self.field} is not stamper {self.name!r}'s own: {self.reason}"


class StampingError(StampError):
    """The stamper `stamper` failed for an entry of `topic`, which was not stored: `reason`."""

    def __init__(self, stamper: str, topic: str, reason: str) -> None:
        super().__init__(stamper, topic, reason)
        self.stamper = stamper
        self.topic = topic
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.topic}: stamper {self.stamper!r} failed: {self.reason}"
