"""What the audit refuses."""

from __future__ import annotations


class AuditInputError(ValueError):
    """The audit cannot use `value` of `field` (argument, setting, posted row): `reason`."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(field, value, reason)
        self.field = field
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field} {str(self.value)[:80]!r} {self.reason}"


class AuditPostError(Exception):
    """A broker did not take the rows that a consumer posted. `url` is the broker's, `reason` says
    why. The rows are kept, and the next post has them too.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"
