"""Ledgers over the lives of their owners: rolling, reopening, failures and lost owners."""

from __future__ import annotations

import pytest

from ...ledger import (
    EARLIEST,
    CatalogError,
    FencedError,
    LedgerError,
    ManagedLedger,
    Position,
    StaleEpochError,
    StoreOptions,
)
from ...proto.broker_entry_pb2 import CONTROL_CHECKPOINT
from .base import (
    OTHER,
    SMALL,
    TOPIC,
    Engine,
    EngineTests,
    MakeEngine,
    bodies_of,
    check_chain,
    entries_of,
    facts_of,
    filled,
    next_life,
    stamped,
)


class Owning(EngineTests):
    """The next owner gets all acknowledged entries, and a lost owner adds nothing."""

    def test_a_ledger_ends_when_it_is_told_to(self, ledger: ManagedLedger) -> None:
        """`roll` begins a ledger with a higher id; the index goes on."""
        filled(ledger, 2)
        before = ledger.ledger_id
        ledger.roll()
        assert ledger.ledger_id > before
        filled(ledger, 1)
        assert [entry.index for entry in entries_of(ledger)] == [0, 1, 2]
        assert entries_of(ledger)[-1].position == Position(ledger.ledger_id, 0)

    def test_a_ledger_ends_by_its_age(self, make_engine: MakeEngine) -> None:
        """A ledger's age is measured with the clock of the stamps."""
        engine = make_engine(StoreOptions(ledger_age_ms=1000))
        try:
            with engine.open() as store:
                ledger = store.open_topic(TOPIC)
                for _ in range(4):
                    filled(ledger, 1)
                    engine.clock.advance(by_ms=600)
                assert len({e.position.ledger_id for e in entries_of(ledger)}) == 2
        finally:
            engine.end()

    @pytest.mark.parametrize("ending", ["close", "kill"])
    def test_another_life_has_it_all(self, engine: Engine, ending: str) -> None:
        """After a close and after a crash every entry is unchanged, and appending goes on."""
        store = engine.open()
        ledger = stamped(store.open_topic(TOPIC))
        filled(ledger, 20, messages=3)
        other = store.open_topic(OTHER)
        filled(other, 3)
        expected, index = facts_of(entries_of(ledger)), ledger.next_index
        engine.clock.advance(by_ms=-5000)
        with next_life(engine, store, ending) as store:
            assert store.topic_names() == [TOPIC, OTHER]
            ledger = stamped(store.open_topic(TOPIC))
            assert facts_of(entries_of(ledger)) == expected
            assert ledger.next_index == index
            last = expected[-1][0]
            (new,) = filled(ledger, 1)
            assert new.position.ledger_id > last.ledger_id
            assert (new.first_index, new.append_time_ms) == (index, expected[-1][4])
            check_chain(ledger)
            assert len(entries_of(store.open_topic(OTHER))) == 3

    def test_ledger_ids_are_never_given_twice(self, engine: Engine) -> None:
        """Ledger ids only grow, over topics, crashes and deletions."""
        given: list[int] = []
        for number in range(4):
            store = engine.open()
            given += [store.next_ledger_id() for _ in range(3)]
            ledger = store.open_topic(f"{TOPIC}-{number}")
            given.append(ledger.ledger_id)
            if number % 2:
                store.delete_topic(ledger.name)
                store.close()
            else:
                engine.kill()
        assert given == sorted(set(given))

    def test_a_topic_that_never_had_an_entry(self, engine: Engine) -> None:
        """An empty topic exists after a crash, and is empty."""
        engine.open().open_topic(TOPIC)
        engine.kill()
        with engine.open() as store:
            ledger = store.open_topic(TOPIC, create=False)
            assert entries_of(ledger) == []
            assert (ledger.first_index, ledger.next_index) == (0, 0)

    def test_a_write_that_fails(self, engine: Engine) -> None:
        """A failed append gets FencedError and uses no index, and later appends succeed."""
        with engine.open() as store:
            ledger = stamped(store.open_topic(TOPIC))
            before = facts_of(filled(ledger, 3))
            with engine.failing():
                for _ in range(2):
                    with pytest.raises(FencedError):
                        ledger.append(b"lost", message_count=5).commit.wait(10)
            assert facts_of(entries_of(ledger)) == before
            store.probe()
            (new,) = filled(ledger, 1)
            assert new.index == 3
            assert new.position.ledger_id > before[-1][0].ledger_id
            expected = facts_of(entries_of(ledger))
        with engine.open() as store:
            ledger = store.open_topic(TOPIC)
            assert facts_of(entries_of(ledger)) == expected
            check_chain(ledger)

    def test_a_probe_tells_that_writes_fail(self, engine: Engine) -> None:
        """The probe raises OSError as long as writes fail."""
        with engine.open() as store:
            with engine.failing(), pytest.raises(OSError, match=r"\w"):
                store.probe()
            store.probe()

    def test_only_one_owner_writes(self, engine: Engine) -> None:
        """A second owner is refused, or the first one is fenced and can write nothing more."""
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        filled(ledger, 3)
        second = engine.take_over()
        if second is None:
            filled(ledger, 1)
            assert len(entries_of(ledger)) == 4
            store.close()
            return
        with second:
            with pytest.raises(LedgerError):
                ledger.append(b"late").commit.wait(10)
            with pytest.raises(LedgerError):
                ledger.append(b"later").commit.wait(10)
            with pytest.raises(LedgerError):
                store.open_topic(OTHER)
            with pytest.raises(LedgerError):
                store.catalog.put("schema", "late", b"late")
            store.close()
            mine = second.open_topic(TOPIC)
            filled(mine, 2)
            assert len(entries_of(mine)) == 5
            assert second.topic_names() == [TOPIC]
            assert second.catalog.get("schema", "late") is None
            check_chain(mine)

    def test_metadata(self, engine: Engine) -> None:
        """Values are stored by kind and key, several at once, and survive a crash."""
        catalog = engine.open().catalog
        catalog.put("schema", "b", b"\x00\xff")
        catalog.put("schema", "a", b"1")
        catalog.put("tenant", "a", b"")
        catalog.write([("schema", "c", b"3"), ("schema", "a", None), ("schema", "none", None)])
        assert catalog.items("schema") == [("b", b"\x00\xff"), ("c", b"3")]
        assert catalog.delete("schema", "c")
        assert not catalog.delete("schema", "c")
        engine.kill()
        with engine.open() as store:
            assert store.catalog.items("schema") == [("b", b"\x00\xff")]
            assert store.catalog.get("tenant", "a") == b""
            assert store.catalog.get("tenant", "b") is None

    # Leader epochs

    def test_an_epoch_begins_a_ledger(self, engine: Engine) -> None:
        """An epoch's mark is its first entry, and appends of earlier leaders are always refused."""
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        filled(ledger, 2)
        begun = ledger.begin_epoch(3)
        begun.commit.wait(10)
        assert begun.position.entry_id == 0
        filled(ledger, 1)
        with pytest.raises(StaleEpochError):
            ledger.append(b"x", epoch=2)
        for stale in (1, 3):
            with pytest.raises(StaleEpochError):
                ledger.begin_epoch(stale)
        with pytest.raises(ValueError, match="at most"):
            ledger.begin_epoch(2**32)
        engine.kill()
        with engine.open() as store:
            ledger = store.open_topic(TOPIC)
            assert ledger.epoch == 3
            assert [(e.epoch, e.first_index) for e in ledger.epochs] == [(0, 0), (3, 2)]
            ledger.append(b"x", epoch=3).commit.wait(10)
            check_chain(ledger)

    @pytest.mark.parametrize("ending", ["close", "kill", "none"])
    @pytest.mark.parametrize("kept", [0, 1, 7, 12, 29, 30])
    def test_a_tail_is_cut_off(self, engine: Engine, kept: int, ending: str) -> None:
        """The messages from an index on are removed, and their indexes are used again."""
        store = engine.open()
        ledger = stamped(store.open_topic(TOPIC))
        before = facts_of(filled(ledger, 30, messages=2))
        begun = ledger.truncate_tail(2 * kept, epoch=1)
        assert begun.index == 2 * kept
        store = next_life(engine, store, ending)
        ledger = stamped(store.open_topic(TOPIC))
        assert facts_of(entries_of(ledger))[:-1] == before[:kept]
        assert entries_of(ledger)[-1].position == begun.position
        filled(ledger, 3)
        assert len(entries_of(ledger)) == kept + 4
        assert ledger.epoch == 1
        check_chain(ledger)
        if kept < 30:
            assert ledger.cut_before(before[-1][0], 60) == 2 * kept

    def test_a_tail_is_not_cut_inside_an_entry(self, ledger: ManagedLedger) -> None:
        """Nothing changes if the index is inside a batch or outside the log."""
        before = facts_of(filled(ledger, 5, messages=3))
        for wrong in (4, 16, -1):
            with pytest.raises(ValueError, match="index"):
                ledger.truncate_tail(wrong, epoch=1)
        with pytest.raises(StaleEpochError):
            ledger.truncate_tail(3, epoch=0)
        assert facts_of(entries_of(ledger)) == before
        assert ledger.epoch == 0

    def test_a_cut_that_fails_changes_nothing(self, engine: Engine, ledger: ManagedLedger) -> None:
        """After a failed truncation the log is unchanged, and appending goes on."""
        before = facts_of(filled(ledger, 5))
        with engine.failing(), pytest.raises((FencedError, CatalogError)):
            ledger.truncate_tail(2, epoch=1)
        assert facts_of(entries_of(ledger)) == before
        assert ledger.epoch == 0
        filled(ledger, 1)
        check_chain(ledger)
        assert len(entries_of(ledger)) == 6

    def test_cuts_one_after_another(self, engine: Engine) -> None:
        """Each truncation leaves exactly the log of its moment, also for the next owner."""
        store = engine.open()
        ledger = store.open_topic(TOPIC)
        for epoch in range(1, 6):
            filled(ledger, 20)
            ledger.truncate_tail(ledger.next_index - 15, epoch=epoch)
        expected = facts_of(entries_of(ledger))
        assert [e.epoch for e in ledger.epochs] == [0, 1, 2, 3, 4, 5]
        check_chain(ledger)
        engine.kill()
        with engine.open() as store:
            ledger = store.open_topic(TOPIC)
            assert facts_of(entries_of(ledger)) == expected
            ledger.append_control(CONTROL_CHECKPOINT, "nightly").commit.wait(10)
            check_chain(ledger)

    def test_large_entries(self, engine: Engine) -> None:
        """An entry larger than a run or ledger gets its own run or ledger."""
        body = b"x" * (3 * SMALL.ledger_size_bytes)
        with engine.open() as store:
            ledger = store.open_topic(TOPIC)
            filled(ledger, 2)
            for _ in range(2):
                ledger.append(body).commit.wait(10)
            filled(ledger, 1)
            assert [len(each) for each in bodies_of(ledger)] == [50, 50, len(body), len(body), 50]
            assert len(ledger.read(EARLIEST, max_entries=10, max_bytes=10)) == 1

    def test_topics_added_together_are_there_after_a_crash(self, engine: Engine) -> None:
        """Existing topics keep their ids; names that no topic can have are left out."""
        store = engine.open()
        first = store.open_topic(TOPIC)
        first.append(b"x").commit.wait(10)
        names = [f"{TOPIC}-{number}" for number in range(50)]
        store.add_topics([*names, TOPIC, "", "x" * 100_000, names[3]])
        store.add_topics(names[:5])
        ids = [store.open_topic(name, create=False).topic_id for name in names]
        assert len({first.topic_id, *ids}) == 51
        engine.kill()
        with engine.open() as store:
            assert store.topic_names() == sorted([TOPIC, *names])
            assert [store.open_topic(name, create=False).topic_id for name in names] == ids
            assert store.open_topic(TOPIC, create=False).topic_id == first.topic_id
