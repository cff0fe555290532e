"""How far an open ledger may be read, without fencing it: asked of its last ensemble."""

from __future__ import annotations

import asyncio

from .bookies import ask_all
from .core import ClientCore
from .coverage import enough_answers
from .digests import Digest
from .entries import NO_ENTRY, unpack_entry, unpack_last_confirmed
from .errors import (
    BookKeeperError,
    EntryMissingError,
    LedgerMissingError,
    NotEnoughBookiesError,
)
from .exchange import Answer
from .frames import read_lac_request, read_request
from .metadata import LedgerMetadata

#: A bookie that failed, or has nothing of the ledger yet, is asked again after this time.
_AGAIN_S = 0.2
#: The bookie sends an entry with each answer, so that not all of them are asked.
_ASKED_BOOKIES = 2
_NO_WAIT_MS = 1


async def read_last_confirmed(core: ClientCore, metadata: LedgerMetadata, digest: Digest) -> int:
    """The last confirmed entry that the last ensemble's bookies know of.

    Raises NotEnoughBookiesError if none answers.
    """
    request = read_lac_request(metadata.ledger_id, timeout_ms=core.options.read_timeout_ms)
    bookies = metadata.last_segment.bookies
    answers = ask_all(core.bookies, dict(enumerate(bookies)), request)
    # What is before the last segment was confirmed when the segment began.
    best = metadata.last_segment.first_entry_id - 1
    answered: set[int] = set()
    errors: list[BookKeeperError] = []
    for _ in bookies:
        place, answer = await answers.get()
        try:
            best = max(best, _known_in(answer, metadata, digest, bookies[place]))
        except (EntryMissingError, LedgerMissingError):
            pass
        except BookKeeperError as error:
            errors.append(error)
            continue
        answered.add(place)
        if enough_answers(metadata, answered):
            return best
    if not answered:
        reason = "; ".join(map(str, errors))
        raise NotEnoughBookiesError(reason, ledger_id=metadata.ledger_id)
    return best


def _known_in(answer: Answer, metadata: LedgerMetadata, digest: Digest, bookie: str) -> int:
    """The last confirmed entry in one bookie's answer; -1: none. Raises the answer's error."""
    if isinstance(answer, BookKeeperError):
        raise answer
    part, best = answer.readLacResponse, -1
    if part.lacBody:
        best = unpack_last_confirmed(
            digest, part.lacBody, ledger_id=metadata.ledger_id, bookie=bookie
        )
    if part.lastEntryBody:
        entry = unpack_entry(
            digest, part.lastEntryBody, ledger_id=metadata.ledger_id, entry_id=None, bookie=bookie
        )
        best = max(best, entry.last_confirmed)
    return best


async def wait_beyond(core: ClientCore, metadata: LedgerMetadata, beyond: int, wait_ms: int) -> int:
    """Wait until a bookie has an entry beyond `beyond` confirmed; returns the last it knows of.

    It waits for the bookies of the entry that would say so, and returns -1 after `wait_ms`, or when
    the ledger's node changes, so that its user looks at the metadata again.

    A bookie drops a wait for `beyond` as soon as it gets any confirmed entry, even an
    earlier one. So it is first asked what it knows, and then made to wait for more than that.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_ms / 1000
    looks: asyncio.Queue[tuple[str, Answer] | None] = asyncio.Queue()

    def ask(bookie: str, known: int, wait_ms: int) -> None:
        request = read_request(
            metadata.ledger_id,
            NO_ENTRY,
            timeout_ms=core.options.read_timeout_ms,
            beyond=known,
            wait_ms=wait_ms,
        )
        core.bookies.send(bookie, request, lambda answer: looks.put_nowait((bookie, answer)))

    watch = await core.nodes.watch(metadata.ledger_id, lambda: looks.put_nowait(None))
    timers: list[asyncio.TimerHandle] = []
    try:
        if (await core.nodes.read(metadata.ledger_id)).metadata != metadata:
            return NO_ENTRY
        # That an entry is confirmed comes with the one after it.
        for place in metadata.write_set(beyond + 2)[:_ASKED_BOOKIES]:
            ask(metadata.last_segment.bookies[place], beyond, _NO_WAIT_MS)
        async with asyncio.timeout_at(until_s):
            while (look := await looks.get()) is not None:
                bookie, answer = look
                known = _last_of(answer)
                if known is None:
                    timers.append(loop.call_later(_AGAIN_S, ask, bookie, beyond, _NO_WAIT_MS))
                elif known > beyond:
                    return known
                else:
                    ask(bookie, known, max(1, int((until_s - loop.time()) * 1000)))
    except TimeoutError:
        pass
    finally:
        watch.close()
        for timer in timers:
            timer.cancel()
    return NO_ENTRY


def _last_of(answer: Answer) -> int | None:
    """The last confirmed entry that a bookie knows of; None if it failed or has nothing yet."""
    if isinstance(answer, BookKeeperError) or not answer.readResponse.HasField("maxLAC"):
        return None
    return answer.readResponse.maxLAC
