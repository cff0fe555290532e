"""Telling bookies the last confirmed entry when no other entry does.

Readers hear of an entry's confirmation with the entry after it. So the last entry of a writer that
is idle would stay unseen. As with Java's explicitLacInterval, such a writer sends the number alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .digests import digest_of, master_key
from .entries import NO_ENTRY, pack_last_confirmed
from .exchange import Answer
from .frames import write_lac_request

if TYPE_CHECKING:
    from .pipeline import WritePipeline


class ConfirmedNotice:
    """What the bookies of one ledger were told last."""

    def __init__(self, pipeline: WritePipeline, password: bytes) -> None:
        self._pipeline = pipeline
        self._digest = digest_of(pipeline.metadata.digest_type, password)
        self._key = master_key(password)
        self._seen = NO_ENTRY
        self._timer: asyncio.TimerHandle | None = None
        self.told = NO_ENTRY
        """What the last entry, or the last notice, said."""

    def confirmed(self) -> None:
        """An entry was confirmed: say so after a while, unless others follow."""
        if self._timer is None:
            self._seen = self._pipeline.confirmed
            self._start()

    def _start(self) -> None:
        options = self._pipeline.core.options
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(options.explicit_lac_ms / 1000, self._look)

    def _look(self) -> None:
        pipeline, self._timer = self._pipeline, None
        if pipeline.error is not None or pipeline.confirmed <= self.told:
            return
        if pipeline.confirmed > self._seen:
            self._seen = pipeline.confirmed  # it is not idle: look again later
            self._start()
            return
        self.told = pipeline.confirmed
        ledger_id = pipeline.metadata.ledger_id
        request = write_lac_request(
            ledger_id,
            self.told,
            self._key,
            pack_last_confirmed(self._digest, ledger_id, self.told),
            timeout_ms=pipeline.core.options.add_timeout_ms,
        )
        for bookie in pipeline.working_bookies():
            pipeline.core.bookies.send(bookie, request, _ignored)

    def stop(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()


def _ignored(_: Answer) -> None:
    """Adds find out which bookies fail; readers ask several."""
