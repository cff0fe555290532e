"""Every error of the BookKeeper client. Each has its facts as attributes."""

from __future__ import annotations

from typing import ClassVar

from ....coordination import CoordinationError


class BookKeeperError(Exception):
    """Base of all errors of this client.

    Attributes: `ledger_id`, `entry_id` and `bookie`, each None where it does not apply.
    """

    what: ClassVar[str] = "BookKeeper failed"

    def __init_subclass__(cls, *, what: str) -> None:
        cls.what = what

    def __init__(
        self,
        reason: str = "",
        *,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        bookie: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.bookie = bookie

    def __str__(self) -> str:
        facts = (("ledger", self.ledger_id), ("entry", self.entry_id), ("bookie", self.bookie))
        where = ", ".join(f"{name} {value}" for name, value in facts if value is not None)
        said = f"{self.what} ({where})" if where else self.what
        return f"{said}: {self.reason}" if self.reason else said


class LedgerMissingError(BookKeeperError, what="no such ledger"):
    """There is no such ledger."""


class LedgerExistsError(BookKeeperError, what="the ledger exists already"):
    """There is a ledger of that id already."""


class EntryMissingError(BookKeeperError, what="no such entry"):
    """The entry is not in the ledger, or a bookie does not hold it."""


class LedgerFencedError(BookKeeperError, what="the ledger is fenced"):
    """Another client recovers the ledger. The outcome of pending entries is unknown."""


class LedgerClosedError(BookKeeperError, what="the ledger is closed"):
    """The ledger or its writer is closed."""


class WrongKeyError(BookKeeperError, what="the bookie refuses the ledger's key"):
    """A bookie knows the ledger under another password, or wants authentication."""


class NotEnoughBookiesError(BookKeeperError, what="not enough bookies"):
    """Too few bookies are writable, or too few answer."""


class RecoveryFailedError(BookKeeperError, what="the ledger cannot be recovered now"):
    """Recovery is not possible now. The ledger stays in recovery; try again later."""


class DigestMismatchError(BookKeeperError, what="the entry is damaged"):
    """The bytes of an entry are not those that its writer sent, or belong to another entry."""


class MetadataError(BookKeeperError, what="the metadata cannot be read"):
    """The node of a ledger or bookie cannot be parsed."""


class UnknownLayoutError(MetadataError, what="the layout of the metadata is not known"):
    """The cluster's metadata has a layout that this client does not know."""


class MetadataConflictError(
    BookKeeperError, what="the ledger's metadata was changed by another client"
):
    """Another client changed the ledger's node meanwhile."""


class InvalidRequestError(BookKeeperError, what="invalid request"):
    """Invalid arguments."""


class EntryTooLargeError(InvalidRequestError, what="the entry is too large"):
    """The entry does not fit into a frame that bookies take."""


class TlsFilesError(InvalidRequestError, what="the files for TLS to bookies cannot be used"):
    """A certificate or key (`files`) for connections to bookies cannot be used: `why`."""

    def __init__(self, files: str, reason: str) -> None:
        super().__init__(f"{files}: {reason}")
        self.files = files
        self.why = reason


class BackPressureError(BookKeeperError, what="too many bytes are in flight"):
    """Too many bytes are in flight. `LedgerWriter.ready` waits until there is room."""


class ClientClosedError(BookKeeperError, what="the client is closed"):
    """The client was closed by its user."""


class BookieError(BookKeeperError, what="the bookie failed"):
    """One bookie failed; other replicas may work."""


class BookieTimeoutError(BookieError, what="no answer in time"):
    """No answer came in time. A write may have been done."""


class BookieUnreachableError(BookieError, what="the bookie cannot be reached"):
    """The bookie is not registered, cannot be connected to, or the connection broke."""


class BookieTlsError(BookieError, what="the connection to the bookie cannot be secured"):
    """The bookie has no TLS, or one of the two refuses the other's certificate."""


class BookieRefusedError(BookieError, what="the bookie refused"):
    """The bookie answered with an error: `status`, BookKeeper's number."""

    def __init__(
        self,
        status: int,
        *,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        bookie: str | None = None,
    ) -> None:
        name = STATUS_NAMES.get(status, "unknown")
        reason = f"status {status} ({name})"
        super().__init__(reason, ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)
        self.status = status


class BookieProtocolError(BookieError, what="the bookie does not speak the protocol"):
    """The bookie sent something that is not an answer. Its connection is closed."""


class BookieOverloadedError(BookieError, what="the bookie is too slow"):
    """Too many bytes wait for this bookie."""


STATUS_OK = 0
STATUS_NO_LEDGER = 402
STATUS_NO_ENTRY = 403
STATUS_IO_ERROR = 501
STATUS_UNAUTHORIZED = 502
STATUS_FENCED = 504

#: Statuses of answers by BookKeeper's numbers.
STATUS_NAMES = {
    0: "ok",
    402: "no such ledger",
    403: "no such entry",
    404: "bad request",
    501: "input or output error",
    502: "wrong key or not authenticated",
    503: "protocol version",
    504: "fenced",
    505: "read only",
    506: "too many requests",
    507: "unknown state of the ledger",
}


def error_of_status(
    status: int, *, ledger_id: int | None, entry_id: int | None, bookie: str
) -> BookKeeperError:
    """The error for an answer's status, which is not OK."""
    kinds: dict[int, type[BookKeeperError]] = {
        STATUS_NO_LEDGER: LedgerMissingError,
        STATUS_NO_ENTRY: EntryMissingError,
        STATUS_UNAUTHORIZED: WrongKeyError,
        STATUS_FENCED: LedgerFencedError,
    }
    kind = kinds.get(status)
    if kind is None:
        return BookieRefusedError(status, ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)
    return kind(ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)


FAILURES = (BookKeeperError, CoordinationError)
"""What the client raises when bookies or ZooKeeper fail."""
