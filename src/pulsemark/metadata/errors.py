"""Every error the metadata package raises on purpose.

ValueError
 +-- PrefixError            the bytes of a broker entry prefix (PIP-70) are malformed
 +-- MessageFormatError     the bytes of a message's own header are malformed
 +-- ChecksumError          the message's CRC32C does not match its bytes
 +-- ControlError           a control entry cannot have this type, name or tag
 +-- StampError
      +-- DoubleStampError      the entry to stamp already begins with a prefix
      +-- DuplicateStamperError a chain has the same stamper twice
      +-- UnknownStamperError   no stamper with that name is installed
      +-- StamperLoadError      a plugin was found but cannot be used
      +-- StamperFieldError     a stamper declares or writes a field that is not its own
      +-- StampingError         a stamper failed, or wrote a field that is not its own

Damaged bytes never raise anything else. Each error carries its facts as attributes. Each error can
be pickled, so it reaches a caller in another process with all its facts.
"""

from __future__ import annotations

from collections.abc import Sequence


class PrefixError(ValueError):
    """The broker entry prefix is not well formed.

    Attributes:
        reason: what is wrong, as text.
        offset: where in the entry the offending bytes begin.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return f"bad broker entry prefix at byte {self.offset}: {self.reason}"


class MessageFormatError(ValueError):
    """The header of a message (headers-and-payload) is not well formed.

    Attributes:
        reason: what is wrong, as text.
        offset: where in the headers-and-payload the offending bytes begin.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return f"bad message header at byte {self.offset}: {self.reason}"


class ChecksumError(ValueError):
    """The message's bytes are not those that its producer sent.

    Attributes:
        expected: the CRC32C stored in the header.
        actual: the CRC32C of the bytes that follow it.
    """

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f"CRC32C mismatch: header says {self.expected:#010x}, bytes give {self.actual:#010x}"


class ControlError(ValueError):
    """A control entry cannot have this. Nothing was stored.

    Attributes:
        field: which part of the control entry.
        value: the value that was given for it.
        reason: what it must be.
    """

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
    """The bytes to stamp already begin with a prefix (0x0e02); a second would hide the first.

    Attributes:
        topic: the topic the entry was meant for.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"{self.topic}: the entry already begins with a broker entry prefix (0x0e02)"


class DuplicateStamperError(StampError):
    """A chain names the same stamper twice.

    Attributes:
        name: the stamper's name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"stamper {self.name!r} is in the chain twice"


class UnknownStamperError(StampError):
    """No stamper with that name is built in or installed.

    Attributes:
        name: the unknown name.
        known: the names of all available stampers, sorted.
    """

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = tuple(known)

    def __str__(self) -> str:
        return f"unknown stamper {self.name!r}; available: {', '.join(self.known)}"


class StamperLoadError(StampError):
    """A stamper plugin is installed but cannot be used.

    Attributes:
        name: the stamper's name, with its argument if it was given one.
        reason: what went wrong.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"stamper {self.name!r} cannot be used: {self.reason}"


class StamperFieldError(StampError):
    """A stamper declares that it writes a field that is not its own, or it wrote one.

    Attributes:
        name: the stamper's name.
        field: the field's number, or the value that was given instead of a number.
        reason: why the stamper may not write it.
    """

    def __init__(self, name: str, field: object, reason: str) -> None:
        super().__init__(name, field, reason)
        self.name = name
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"field {self.field} is not stamper {self.name!r}'s own: {self.reason}"


class StampingError(StampError):
    """A stamper could not stamp an entry. The entry was not stored.

    Attributes:
        stamper: the stamper's name.
        topic: the topic the entry was meant for.
        reason: what went wrong.
    """

    def __init__(self, stamper: str, topic: str, reason: str) -> None:
        super().__init__(stamper, topic, reason)
        self.stamper = stamper
        self.topic = topic
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.topic}: stamper {self.stamper!r} failed: {self.reason}"
