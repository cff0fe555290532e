"""Random histories of a store, made by hypothesis and checked with a model of its promises."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ...ledger import LedgerError, ManagedLedger
from ...ledger.topic_store import TopicStore
from ...metadata import StamperChain
from ..store_model import StoreModel, TopicModel
from .base import (
    OTHER,
    SMALL,
    STAMPED,
    TOPIC,
    Engine,
    EngineTests,
    MakeEngine,
    check_chain,
    entries_of,
)

STEPS = 30

Topics = st.sampled_from([TOPIC, OTHER])


class StoreMachine(RuleBasedStateMachine):
    """A store with two topics, over the lives of its owners."""

    def __init__(self, make_engine: Callable[[], Engine]) -> None:
        super().__init__()
        self.engine = make_engine()
        self.model = StoreModel()
        self.epoch = 0
        self.store: TopicStore = self.engine.open(threaded=False)

    def _topic(self, name: str) -> tuple[ManagedLedger, TopicModel]:
        ledger = self.store.open_topic(name)
        if name == TOPIC:
            ledger.stampers = StamperChain.from_names(STAMPED)
        return ledger, self.model.topic(name)

    @rule(name=Topics, size=st.integers(0, 400), messages=st.integers(0, 3), wait=st.booleans())
    def append(self, name: str, size: int, messages: int, wait: bool) -> None:
        """Append an entry, and sometimes wait for it."""
        ledger, model = self._topic(name)
        self.engine.clock.advance(by_ms=3 - messages * 2)
        model.append(ledger, b"x" * size, messages)
        if wait:
            self.store.committer.flush()

    @rule(name=Topics, count=st.integers(1, 3))
    def append_while_it_fails(self, name: str, count: int) -> None:
        """Append while writes fail; pending entries fail, too."""
        ledger, model = self._topic(name)
        with self.engine.failing():
            for _ in range(count):
                model.append(ledger, b"fails")
            self.store.committer.flush()

    @rule(name=Topics)
    def roll(self, name: str) -> None:
        """End the current ledger."""
        self._topic(name)[0].roll()

    @rule(name=Topics, part=st.floats(0, 1), whole=st.booleans())
    def remove_head(self, name: str, part: float, whole: bool) -> None:
        """Remove entries from the head: whole runs, or all before a position."""
        ledger, model = self._topic(name)
        positions = sorted(model.sent)
        if positions:
            before = positions[int(part * (len(positions) - 1))]
            remove = model.trim if whole else model.truncate_head
            remove(ledger, before)

    @rule(name=Topics, part=st.floats(0, 1), fails=st.booleans())
    def cut_tail(self, name: str, part: float, fails: bool) -> None:
        """A new leader truncates the tail at an entry, if possible."""
        ledger, model = self._topic(name)
        self.store.committer.flush()
        there = [
            sent
            for sent in sorted(model.sent.values(), key=lambda sent: sent.position)
            if sent.message_count and sent.position in {e.position for e in entries_of(ledger)}
        ]
        if not there:
            return
        first = there[int(part * (len(there) - 1))]
        self.epoch += 1
        if not fails:
            model.truncate_tail(ledger, first, self.epoch)
            return
        with self.engine.failing(), suppress(LedgerError, OSError):
            ledger.truncate_tail(first.index - first.message_count + 1, epoch=self.epoch)

    @rule(name=Topics, cursor=st.sampled_from("ab"), part=st.floats(0, 1), all_up_to=st.booleans())
    def acknowledge(self, name: str, cursor: str, part: float, all_up_to: bool) -> None:
        """Acknowledge an entry, or all up to it, and store the cursor."""
        ledger, model = self._topic(name)
        mine = model.open_cursor(ledger, cursor)
        entries = entries_of(ledger)
        if entries:
            position = entries[int(part * (len(entries) - 1))].position
            (mine.ack_cumulative if all_up_to else mine.ack)(position)
        model.persist(mine)

    @rule(name=Topics, cursor=st.sampled_from("ab"))
    def delete_cursor(self, name: str, cursor: str) -> None:
        """Forget a subscription."""
        ledger, model = self._topic(name)
        if cursor in ledger.cursors:
            model.delete_cursor(ledger, cursor)

    @precondition(lambda self: self.store.topic_names())
    @rule(name=Topics)
    def delete_topic(self, name: str) -> None:
        """Delete a topic, if it exists."""
        if name in self.store.topic_names():
            self.model.delete_topic(self.store, name)

    @rule()
    def checkpoint(self) -> None:
        """Make a checkpoint."""
        self.store.checkpoint()

    @rule(orderly=st.booleans())
    def another_life(self, orderly: bool) -> None:
        """The owner closes or crashes, and a new owner checks all entries."""
        if orderly:
            self.store.close()
        else:
            self.engine.kill()
        self.store = self.engine.open(threaded=False)
        self._check(reopened=True)

    @invariant()
    def promises_hold(self) -> None:
        """Acknowledged entries exist, and all entries were sent, in order, without gaps."""
        self._check()

    def _check(self, *, reopened: bool = False) -> None:
        for name in self.store.topic_names():
            ledger, model = self._topic(name)
            assert model.problems(ledger, reopened=reopened) == []
            check_chain(ledger)

    def teardown(self) -> None:
        """Open the store once more, to check that everything is durable."""
        try:
            self.another_life(orderly=False)
        finally:
            self.engine.end()


class Modelled(EngineTests):
    """The promises are true in random histories."""

    #: How many are played; fewer for an engine that needs seconds for each.
    histories = 25

    def test_random_histories(self, make_engine: MakeEngine) -> None:
        """Appends, failures, removals, cursors and lost owners, in any order, break no promise."""
        play_histories(make_engine, self.histories)


def play_histories(make_engine: MakeEngine, count: int = 25, *, shrinks: bool = True) -> None:
    """Play random histories; raises the first fault, made shorter if it ``shrinks``."""
    run_state_machine_as_test(
        partial(StoreMachine, partial(make_engine, SMALL)),  # type: ignore[arg-type]
        settings=settings(
            max_examples=count,
            stateful_step_count=STEPS,
            deadline=None,
            phases=[phase for phase in Phase if shrinks or phase is Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
