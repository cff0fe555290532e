"""What an entry must be to be appended, and which checksum guards its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ..metadata import (
    PREFIX_MAGIC,
    Buffer,
    verify_checksum,
)
from .entry import EntryKind
from .errors import (
    AlreadyStampedError,
    EntryTooLargeError,
    FencedError,
    InvalidEntryError,
    StaleEpochError,
)
from .limits import (
    BODY_CRC_OURS,
    BODY_CRC_PRODUCER,
    CHECKED_BODY_BYTES,
    MAX_MESSAGE_COUNT,
    MAX_PREFIX_BYTES,
)

if TYPE_CHECKING:
    from .commit.commit import Appended
    from .commit.tail import Tail

_PREFIX_MAGIC = PREFIX_MAGIC.to_bytes(2, "big")


def plain_body(topic: str, body: object) -> Buffer:
    """The body as a buffer whose ``len`` is its size in bytes.

    The view also keeps the caller from resizing or closing bytes that are not yet written.
    Raises InvalidEntryError if the body is not a buffer, or not contiguous.
    """
    try:
        view = memoryview(body)  # type: ignore[arg-type]
        is_plain = view.format == "B" and view.ndim == 1 and view.c_contiguous
        return view if is_plain else view.cast("B")
    except (TypeError, ValueError) as error:
        what = type(body).__name__
        raise InvalidEntryError(topic, f"a {what} is not contiguous bytes: {error}") from error


def check_kind(topic: str, kind: int) -> EntryKind:
    """The kind of an entry. Raises InvalidEntryError."""
    try:
        return EntryKind(kind)
    except ValueError as error:
        raise InvalidEntryError(topic, f"{kind!r} is not a kind of entry") from error


def check_count(topic: str, message_count: object) -> int:
    """The number of messages that an entry counts for: 0 where it is 0 or negative, as in Pulsar.

    Raises InvalidEntryError.
    """
    if not isinstance(message_count, int):
        raise InvalidEntryError(topic, f"message_count must be an int, not {message_count!r}")
    if message_count > MAX_MESSAGE_COUNT:
        raise InvalidEntryError(
            topic, f"message_count must be at most {MAX_MESSAGE_COUNT}, not {message_count}"
        )
    return max(int(message_count), 0)


def body_check_of(topic: str, body: Buffer) -> int:
    """Which checksum guards the body: the producer's own, verified here, or one of ours.

    Raises ChecksumError, and AlreadyStampedError for a body that begins with a prefix.
    """
    if len(body) >= CHECKED_BODY_BYTES and verify_checksum(body):
        return BODY_CRC_PRODUCER
    if body[:2] == _PREFIX_MAGIC:
        raise AlreadyStampedError(topic)
    return BODY_CRC_OURS


def check_place(topic: str, tail: Tail, epoch: int | None, follows: Appended | None) -> None:
    """Raise if the log's end is not where the caller believes to append. Under the lock.

    StaleEpochError: the log has another epoch. FencedError: ``follows``, an earlier append, is not
    stored and will not be. A failure ends the ledger before it is known to the commit: so an entry
    that is not yet stored must be in the ledger to which the next entry goes.
    """
    if epoch is not None and epoch != tail.epoch:
        raise StaleEpochError(topic, epoch, tail.epoch)
    if follows is None:
        return
    if follows.error is not None:
        raise FencedError(topic, f"the entry before it failed: {follows.error}")
    if not follows.commit.done and follows.ledger_id != tail.ledger_id:
        raise FencedError(topic, "a new ledger began before the entry before it was stored")


def checked(
    topic: str, body: object, message_count: object, kind: int
) -> tuple[Buffer, int, int, EntryKind]:
    """Body, body check, message count and kind of an entry, checked. Raises as those above."""
    plain = plain_body(topic, body)
    count, known = check_count(topic, message_count), check_kind(topic, kind)
    return plain, body_check_of(topic, plain), count, known


def raise_too_large(topic: str, prefix: bytes, size_bytes: int, limit_bytes: int) -> NoReturn:
    """Raise EntryTooLargeError for an entry of that size, or for its prefix."""
    if size_bytes > limit_bytes:
        raise EntryTooLargeError(topic, size_bytes, limit_bytes)
    raise EntryTooLargeError(topic, len(prefix), MAX_PREFIX_BYTES)
