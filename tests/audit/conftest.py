"""Topics whose entries have given times, tags and kinds, and how they must be counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsemark.ledger import LocalStore, ManagedLedger, StoreOptions
from pulsemark.metadata import BrokerEntryMetadata, StamperChain
from pulsemark.testing import SettableClock
from pulsemark.testing.raw_messages import unbatched_message

START_MS = 1_700_000_000_000
NAME = "persistent://public/default/counted"


class Topic:
    """A topic of a store whose clock the test sets."""

    def __init__(self, store: LocalStore, clock: SettableClock) -> None:
        self.store = store
        self.clock = clock
        self.ledger: ManagedLedger = store.open_topic(NAME)
        self.ledger.stampers = StamperChain()

    def add(
        self,
        time_ms: int,
        *,
        count: int = 1,
        producer: str | None = None,
        service: bytes | None = None,
        stamped: bool = True,
        size_bytes: int = 10,
    ) -> None:
        """Append an entry with this broker time; without a stamp it is the append time."""
        base = None
        if stamped:
            base = BrokerEntryMetadata(broker_timestamp=START_MS + time_ms)
            if producer is not None:
                base.producer_name = producer
            if service is not None:
                base.application_tags.add(key="service", value=service)
        else:
            self.clock.set(START_MS + time_ms)
        body = unbatched_message(bytes(size_bytes), publish_time_ms=1)
        self.ledger.append(body, message_count=count, base=base).commit.wait(30)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    """An empty topic."""
    clock = SettableClock(START_MS)
    options = StoreOptions(segment_size_bytes=2_000)
    with LocalStore.open(tmp_path / "data", clock=clock, options=options) as store:
        yield Topic(store, clock)
