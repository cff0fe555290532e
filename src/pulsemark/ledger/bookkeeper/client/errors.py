"""Every error of the BookKeeper client.

BookKeeperError
 +-- LedgerMissingError       no such ledger in the metadata, or no bookie knows it
 +-- LedgerExistsError        the id asked for is taken
 +-- EntryMissingError        the entry is not in the ledger, or a bookie does not hold it
 +-- LedgerFencedError        another client recovers it; what is pending has no known outcome
 +-- LedgerClosedError        the ledger is closed, or this writer is
 +-- WrongKeyError            a bookie knows the ledger under another password
 +-- NotEnoughBookiesError    too few writable bookies, or too few that answer
 +-- RecoveryFailedError      recovery could not be completed now; a later one can be
 +-- DigestMismatchError      an entry's bytes are not what its writer sent
 +-- MetadataError            a ledger's node cannot be understood
 |    +-- UnknownLayoutError  the metadata is laid out in a way that this client does not know
 +-- MetadataConflictError    a ledger's node was changed meanwhile by another client
 +-- InvalidRequestError      arguments that can never be right
 |    +-- EntryTooLargeError
 |    +-- TlsFilesError       a certificate or key for connections to bookies cannot be used
 +-- BackPressureError        too many bytes are in flight; wait for `LedgerWriter.ready`
 +-- ClientClosedError
 +-- BookieError              one bookie failed; other replicas may do
      +-- BookieTimeoutError
      +-- BookieUnreachableError   not registered, no connection, or the connection broke
      +-- BookieTlsError           it has no TLS, or one of the two certificates is refused
      +-- BookieRefusedError       it answered with an error status
      +-- BookieProtocolError      it sent something that is not an answer
      +-- BookieOverloadedError    more bytes wait for it than one bookie may hold back

Each has its facts as attributes, so that a caller need not parse the message.
"""

from __future__ import annotations

from ....coordination import CoordinationError


class BookKeeperError(Exception):
    """Base of everything this client raises on purpose.

    Attributes: `ledger_id`, `entry_id` and `bookie`, each None where it does not apply.
    """

    what = "BookKeeper failed"

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


class LedgerMissingError(BookKeeperError):
    """There is no such ledger."""

    what = "no such ledger"


class LedgerExistsError(BookKeeperError):
    """There is a ledger of that id already."""

    what = "the ledger exists already"


class EntryMissingError(BookKeeperError):
    """The entry is not in the ledger, or a bookie does not hold it."""

    what = "no such entry"


class LedgerFencedError(BookKeeperError):
    """Another client recovers the ledger; what is pending has no known outcome."""

    what = "the ledger is fenced"


class LedgerClosedError(BookKeeperError):
    """The ledger is closed, or the writer is."""

    what = "the ledger is closed"


class WrongKeyError(BookKeeperError):
    """A bookie knows the ledger under another password, or wants authentication."""

    what = "the bookie refuses the ledger's key"


class NotEnoughBookiesError(BookKeeperError):
    """Too few bookies are writable, or too few answer."""

    what = "not enough bookies"


class RecoveryFailedError(BookKeeperError):
    """Recovery cannot be completed now. The ledger stays in recovery, and a later one can be."""

    what = "the ledger cannot be recovered now"


class DigestMismatchError(BookKeeperError):
    """The bytes of an entry are not those that its writer sent, or belong to another entry."""

    what = "the entry is damaged"


class MetadataError(BookKeeperError):
    """A ledger's node, or a bookie's, cannot be understood."""

    what = "the metadata cannot be read"


class UnknownLayoutError(MetadataError):
    """The metadata is laid out in a way that this client does not know."""

    what = "the layout of the metadata is not known"


class MetadataConflictError(BookKeeperError):
    """Another client changed the ledger's node meanwhile."""

    what = "the ledger's metadata was changed by another client"


class InvalidRequestError(BookKeeperError):
    """Arguments that can never be right."""

    what = "invalid request"


class EntryTooLargeError(InvalidRequestError):
    """The entry does not fit into a frame that bookies take."""

    what = "the entry is too large"


class TlsFilesError(InvalidRequestError):
    """A certificate or key for connections to bookies cannot be used.

    Attributes: `files`, their paths; `why`.
    """

    what = "the files for TLS to bookies cannot be used"

    def __init__(self, files: str, reason: str) -> None:
        super().__init__(f"{files}: {reason}")
        self.files = files
        self.why = reason


class BackPressureError(BookKeeperError):
    """Too many bytes are in flight. `LedgerWriter.ready` waits until there is room."""

    what = "too many bytes are in flight"


class ClientClosedError(BookKeeperError):
    """The client was closed by its user."""

    what = "the client is closed"


class BookieError(BookKeeperError):
    """One bookie failed, and other replicas may do."""

    what = "the bookie failed"


class BookieTimeoutError(BookieError):
    """No answer came in time. A write may have been made, or not."""

    what = "no answer in time"


class BookieUnreachableError(BookieError):
    """The bookie is not registered, cannot be connected to, or the connection broke."""

    what = "the bookie cannot be reached"


class BookieTlsError(BookieError):
    """The bookie has no TLS, or one of the two refuses the other's certificate."""

    what = "the connection to the bookie cannot be secured"


class BookieRefusedError(BookieError):
    """The bookie answered with an error.

    Attributes: `status`, BookKeeper's number.
    """

    what = "the bookie refused"

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


class BookieProtocolError(BookieError):
    """The bookie sent something that is not an answer. Its connection is closed."""

    what = "the bookie does not speak the protocol"


class BookieOverloadedError(BookieError):
    """More bytes wait for this bookie than it may hold back."""

    what = "the bookie is too slow"


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
    """The error that stands for an answer's status, which is not OK."""
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
