"""How far an open ledger may be read, without fencing it: asked of its last ensemble."""

from __future__ import annotations

import asyncio

from ....proto.bookkeeper_wire_pb2 import Response
from .core import ClientCore
from .coverage import enough_answers
from .digests import Digest
from .entries import unpack_entry, unpack_last_confirmed
from .errors import (
    BookKeeperError,
    EntryMissingError,
    LedgerMissingError,
    NotEnoughBookiesError,
)
from .frames import read_lac_request, read_request
from .metadata import LedgerMetadata


async def read_last_confirmed(core: ClientCore, metadata: LedgerMetadata, digest: Digest) -> int:
    """The last confirmed entry that the last ensemble's bookies know of.

    Raises NotEnoughBookiesError if none answers.
    """
    request = read_lac_request(metadata.ledger_id, timeout_ms=core.options.read_timeout_ms)
    bookies = metadata.last_segment.bookies
    places = {
        asyncio.ensure_future(core.bookies.ask(bookie, request)): place
        for place, bookie in enumerate(bookies)
    }
    # What is before the last segment was confirmed when the segment began.
    best = metadata.last_segment.first_entry_id - 1
    answered: set[int] = set()
    errors: list[BookKeeperError] = []
    waiting = set(places)
    while waiting and not enough_answers(metadata, answered):
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            place = places[task]
            try:
                best = max(best, _known_in(task.result(), metadata, digest, bookies[place]))
            except (EntryMissingError, LedgerMissingError):
                pass
            except BookKeeperError as error:
                errors.append(error)
                continue
            answered.add(place)
    for task in waiting:
        task.cancel()
    if not answered:
        reason = "; ".join(map(str, errors))
        raise NotEnoughBookiesError(reason, ledger_id=metadata.ledger_id)
    return best


def _known_in(answer: Response, metadata: LedgerMetadata, digest: Digest, bookie: str) -> int:
    """The last confirmed entry in one bookie's answer; -1: none."""
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


async def wait_beyond(
    core: ClientCore, metadata: LedgerMetadata, beyond: int, wait_ms: int
) -> int:
    """Wait until a bookie has an entry beyond `beyond` confirmed; returns the last it knows of.

    It waits for the bookies of the entry that would say so, and returns -1 after `wait_ms`, or when
    the ledger's node changes, so that its user looks at the metadata again.
    """
    # That an entry is confirmed comes with one after it.
    bookies = [metadata.last_segment.bookies[place] for place in metadata.write_set(beyond + 2)]
    request = read_request(
        metadata.ledger_id,
        beyond + 1,
        timeout_ms=core.options.read_timeout_ms,
        beyond=beyond,
        wait_ms=wait_ms,
    )
    changed = asyncio.Event()
    watch = await core.nodes.watch(metadata.ledger_id, changed.set)
    waiting = {asyncio.ensure_future(core.bookies.ask(bookie, request)) for bookie in bookies}
    over = asyncio.ensure_future(changed.wait())
    best = -1
    try:
        if (await core.nodes.read(metadata.ledger_id)).metadata != metadata:
            return best
        async with asyncio.timeout(wait_ms / 1000):
            while not over.done() and best <= beyond:
                # With no bookie left the change of metadata, or the time, ends the wait.
                done, _ = await asyncio.wait(
                    {*waiting, over}, return_when=asyncio.FIRST_COMPLETED
                )
                waiting -= done
                for task in done - {over}:
                    best = max(best, _last_of(task))  # type: ignore[arg-type]
    except TimeoutError:
        pass
    finally:
        watch.close()
        for one in (*waiting, over):
            one.cancel()
    return best


def _last_of(task: asyncio.Task[Response]) -> int:
    """The last confirmed entry in an answer to a waiting read; -1 in an error."""
    if task.exception() is not None:
        return -1
    part = task.result().readResponse
    return part.maxLAC if part.HasField("maxLAC") else -1
