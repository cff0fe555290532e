import gc

import pytest

from pulsemark.ledger import (
    EARLIEST,
    LATEST,
    Commit,
    InvalidCursorError,
    LedgerError,
    LocalStore,
    Position,
    StoreOptions,
)
from pulsemark.ledger.cursors import cursor_store as cursor_store_module
from pulsemark.ledger.cursors.cursor import packed_properties
from tests.support.simulated_store import NEVER_MS, settle

ORDERS = "persistent://public/default/orders"
AUDIT = "persistent://public/default/audit"
OPTIONS = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS)


@pytest.fixture
def often(monkeypatch):
    """The cursor ledger is compacted every few records."""
    monkeypatch.setattr(cursor_store_module, "COMPACT_MIN_RECORDS", 10)
    monkeypatch.setattr(cursor_store_module, "COMPACT_RATIO", 2)


def filled(store, name=ORDERS, count=50):
    """A topic with entries, durable, and their positions."""
    topic = store.open_topic(name)
    positions = [topic.append(b"x").position for _ in range(count)]
    settle(store)
    return topic, positions


def test_same_name_is_the_same_cursor(simulated):
    """Opening a cursor again returns the existing one, whatever its initial position says."""
    store = simulated.open()
    topic, positions = filled(store)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    cursor.ack_cumulative(positions[3])
    assert topic.open_cursor("s", initial=LATEST) is cursor
    assert topic.open_cursor("t", initial=LATEST).backlog_messages == 0
    assert topic.open_cursor("u", initial=positions[10]).first_unacked == positions[10]
    assert sorted(topic.cursors) == ["s", "t", "u"]


def test_cursor_that_is_not_durable_ends_with_its_process(simulated):
    """Only durable cursors come back."""
    topic, _ = filled(simulated.open())
    reader = topic.open_cursor("reader", initial=EARLIEST, durable=False)
    assert not reader.durable
    assert reader.persist().done
    topic.open_cursor("s", initial=EARLIEST)
    simulated.close()
    assert list(simulated.open().open_topic(ORDERS).cursors) == ["s"]


def test_many_openings_do_not_make_the_next_one_slow(simulated, monkeypatch):
    """Each opening begins a cursor ledger. When there are many, they are compacted into one."""
    monkeypatch.setattr(cursor_store_module, "MANY_SEGMENTS", 5)
    _, positions = filled(simulated.open())
    counts = []
    for position in positions[:20]:
        simulated.close()
        store = simulated.open()
        counts.append(len(store.cursors.ledger.segments()))
        cursor = store.open_topic(ORDERS).open_cursor("s", initial=EARLIEST)
        assert cursor.first_unacked == position
        cursor.ack_cumulative(position)
        cursor.persist().wait(10)
    assert 5 < max(counts) < 8


def test_deleted_cursor_stays_deleted(simulated):
    """Deletion is durable once its commit is; a cursor of that name begins from the start."""
    topic, positions = filled(simulated.open())
    topic.open_cursor("s", initial=EARLIEST).ack_cumulative(positions[9])
    topic.cursors["s"].persist()
    topic.delete_cursor("s").wait(10)
    assert topic.delete_cursor("s").done
    simulated.power_off()
    topic = simulated.open().open_topic(ORDERS)
    assert topic.cursors == {}
    assert topic.open_cursor("s", initial=EARLIEST).first_unacked == positions[0]


def test_deleting_again_waits_for_the_same_deletion(simulated):
    """A second deletion returns the first one's pending commit."""
    store = simulated.open()
    topic, _ = filled(store)
    topic.open_cursor("s", initial=EARLIEST).persist().wait(10)
    first = topic.delete_cursor("s")
    again = topic.delete_cursor("s")
    assert again is first
    assert not again.done
    simulated.power_off()
    topic = simulated.open().open_topic(ORDERS)
    assert list(topic.cursors) == ["s"], "the deletion was never acknowledged"
    topic.delete_cursor("s").wait(10)
    assert topic.delete_cursor("s").done


def test_deletion_that_failed_can_be_made_again(simulated):
    """A failed deletion leaves the cursor on the disk: the next call writes another one."""
    files = simulated.files()
    store = simulated.open(files)
    topic, _ = filled(store)
    topic.open_cursor("s", initial=EARLIEST).persist().wait(10)
    files.fail("pwritev")
    with pytest.raises(LedgerError):
        topic.delete_cursor("s").wait(10)
    files.heal()
    topic.delete_cursor("s").wait(10)
    simulated.power_off()
    assert simulated.open().open_topic(ORDERS).cursors == {}


def test_a_cursor_made_again_has_a_deletion_of_its_own(simulated):
    """A cursor that was deleted and created again is deleted by a new record."""
    store = simulated.open()
    topic, _ = filled(store)
    topic.open_cursor("s", initial=EARLIEST).persist().wait(10)
    first = topic.delete_cursor("s")
    topic.open_cursor("s", initial=EARLIEST)
    settle(store)
    second = topic.delete_cursor("s")
    assert first.done
    assert second is not first
    second.wait(10)
    simulated.power_off()
    assert simulated.open().open_topic(ORDERS).cursors == {}


def test_durable_deletions_are_forgotten(simulated):
    """However many cursors are created and deleted, the store keeps few of their deletions."""
    store = simulated.open()
    topic, _ = filled(store)
    of_others = {id(each): each for each in gc.get_objects() if isinstance(each, Commit)}
    for number in range(300):
        topic.open_cursor(f"s-{number}", initial=EARLIEST)
        topic.delete_cursor(f"s-{number}")
        settle(store)
    gc.collect()
    kept = {id(each): each for each in gc.get_objects() if isinstance(each, Commit)}
    mine = [each for number, each in kept.items() if number not in of_others]
    assert sum(each.batch.groups == {} for each in mine) <= 200


def test_cursors_of_a_deleted_topic_are_gone(simulated):
    """A new topic of the same name has none of its cursors; other topics keep theirs."""
    store = simulated.open()
    for name in (ORDERS, AUDIT):
        topic, positions = filled(store, name)
        topic.open_cursor("s", initial=EARLIEST).ack_cumulative(positions[5])
        topic.cursors["s"].persist().wait(10)
    store.delete_topic(ORDERS)
    assert store.open_topic(ORDERS).cursors == {}
    simulated.close()
    store = simulated.open()
    assert store.open_topic(ORDERS).cursors == {}
    assert store.open_topic(AUDIT).cursors["s"].mark_delete == positions[5]


def test_compaction_keeps_every_cursor_and_little_else(simulated, often):
    """However much is acknowledged, the cursor ledger stays small and gives the same cursors."""
    store = simulated.open()
    topic, positions = filled(store, count=400)
    cursors = [topic.open_cursor(f"s{n}", initial=EARLIEST) for n in range(3)]
    for number, position in enumerate(positions):
        cursor = cursors[number % 3]
        cursor.ack(position)
        cursor.persist()
        if number % 7 == 0:
            settle(store)
    topic.delete_cursor("s2")
    settle(store)
    records = sum(s.entry_count for s in store.cursors.ledger.segments())
    assert records < 60
    before = [[c.is_acked(p) for p in positions] for c in cursors[:2]]
    simulated.power_off()
    topic = simulated.open().open_topic(ORDERS)
    assert [[c.is_acked(p) for p in positions] for c in topic.cursors.values()] == before


def test_failed_compaction_loses_no_cursor(simulated, often):
    """If a sync fails in the middle of a compaction, the older ledgers are kept."""
    for failing in range(1, 12):
        files = simulated.files()
        store = simulated.open(files)
        topic, positions = filled(store, count=5)
        for number in range(8):
            cursor = topic.open_cursor(f"s{number}", initial=EARLIEST)
            cursor.ack_cumulative(positions[-1])
            cursor.persist()
        settle(store)
        durable = {n: c.mark_delete for n, c in topic.cursors.items()}
        files.fail("fdatasync", call=failing)
        for number in range(12):
            topic.cursors["s0"].reset(positions[number % 5])
            topic.cursors["s0"].persist()
            if number % 2:
                settle(store)
        settle(store)
        simulated.power_off()
        topic = simulated.open().open_topic(ORDERS)
        for name, mark_delete in durable.items():
            if name != "s0":
                assert topic.cursors[name].mark_delete == mark_delete
        simulated.close()


def test_older_ledgers_stay_if_the_first_snapshots_fail(simulated, often):
    """The batch with the first snapshots fails, a later one succeeds: no ledger is trimmed."""
    files = simulated.files()
    store = simulated.open(files)
    topic, positions = filled(store)
    for number in range(6):
        topic.open_cursor(f"s{number}", initial=EARLIEST).ack_cumulative(positions[number])
        topic.cursors[f"s{number}"].persist()
    settle(store)
    ledger = store.cursors.ledger
    real, calls = ledger.append, []

    def append(body, **more):
        """Wait after the third snapshot until its batch has failed."""
        calls.append(body)
        if len(calls) == 1:
            files.fail("fdatasync")
        appended = real(body, **more)
        if len(calls) == 3:
            settle(store)
        return appended

    ledger.append = append
    store.cursors.compact()
    del ledger.append
    settle(store)
    simulated.power_off()
    topic = simulated.open().open_topic(ORDERS)
    marks = [topic.cursors[f"s{number}"].mark_delete for number in range(6)]
    assert marks == positions[:6]


def test_damaged_cursor_record_costs_only_itself(simulated):
    """A damaged record is skipped; all other cursors and this one's later state are there."""
    store = simulated.open()
    topic, positions = filled(store)
    for number in range(3):
        cursor = topic.open_cursor(f"s{number}", initial=EARLIEST)
        cursor.persist().wait(10)
        cursor.ack_cumulative(positions[number])
        cursor.persist().wait(10)
    path = store.cursors.ledger.segments()[0].path
    at = store.cursors.ledger.segments()[0].row(2).offset + 50
    simulated.close()
    simulated.disk.overwrite(path, bytes([simulated.disk.contents(path)[at] ^ 8]), at)
    topic = simulated.open().open_topic(ORDERS)
    marks = [topic.cursors[f"s{number}"].mark_delete for number in range(3)]
    assert marks == positions[:3]
    assert topic.append(b"y").position > Position(0, 0)


def test_opening_a_topic_does_not_look_at_the_cursors_of_others(simulated, steps_of):
    """Ten times the cursors elsewhere: as many steps to find a topic's own."""
    store = simulated.open()
    topic, _ = filled(store)
    topic.open_cursor("s", initial=EARLIEST)
    other, _ = filled(store, AUDIT)
    steps = []
    for end in (50, 500):
        for number in range(end - 50 if end == 50 else 50, end):
            other.open_cursor(f"c{number}", initial=EARLIEST)
        steps.append(steps_of(lambda: store.cursors.attach(topic)))
    assert steps[0] == steps[1]
    assert store.cursors.names(topic.topic_id) == ["s"]


def test_a_compaction_is_spread_over_the_records_written(simulated, monkeypatch):
    """Each record writes only a few snapshots with it; at the end the old ledgers are removed."""
    monkeypatch.setattr(cursor_store_module, "SNAPSHOTS_AT_ONCE", 3)
    store = simulated.open()
    topic, positions = filled(store)
    cursors = [topic.open_cursor(f"s{number:02}", initial=EARLIEST) for number in range(20)]
    settle(store)
    ledger = store.cursors.ledger
    old = ledger.segments()[0].ledger_id
    monkeypatch.setattr(cursor_store_module, "COMPACT_MIN_RECORDS", 10)
    monkeypatch.setattr(cursor_store_module, "COMPACT_RATIO", 0)
    for number, position in enumerate(positions[:12]):
        before = ledger.count_entries(EARLIEST, LATEST)
        cursors[19 - number].ack_cumulative(position)
        cursors[19 - number].persist()
        settle(store)
        written = ledger.count_entries(EARLIEST, LATEST) - before
        assert written <= 4
    assert old not in {segment.ledger_id for segment in ledger.segments()}
    simulated.power_off()
    topic = simulated.open().open_topic(ORDERS)
    marks = [topic.cursors[f"s{19 - number:02}"].mark_delete for number in range(12)]
    assert marks == positions[:12]
    assert topic.cursors["s00"].first_unacked == positions[0]


@pytest.mark.parametrize(
    ("name", "properties", "subscription_properties"),
    [
        ("big", {"a": 2**64}, None),
        ("wrong", None, {"a": 5}),
        ("\ud800", None, None),
        (None, None, None),
    ],
)
def test_a_cursor_that_no_record_can_hold_is_refused(
    tmp_path, name, properties, subscription_properties
):
    """A typed error, and the cursor is not there afterwards."""
    with LocalStore.open(tmp_path) as store:
        topic = store.open_topic("persistent://public/default/orders")
        with pytest.raises(InvalidCursorError):
            topic.open_cursor(
                name,
                initial=EARLIEST,
                properties=properties,
                subscription_properties=subscription_properties,
            )
        assert topic.cursors == {}
        topic.open_cursor("good", initial=EARLIEST).persist().wait(10)
    with LocalStore.open(tmp_path) as store:
        assert list(store.open_topic("persistent://public/default/orders").cursors) == ["good"]


def test_properties_are_counted_where_they_are_kept(tmp_path, monkeypatch):
    """For a topic and for the store, also after reopening; what is replaced or deleted is free."""
    monkeypatch.setattr("pulsemark.ledger.cursors.cursor.TOPIC_PROPERTIES_MAX_BYTES", 1_000)
    monkeypatch.setattr("pulsemark.ledger.cursors.cursor.ALL_PROPERTIES_MAX_BYTES", 1_500)
    large, small = {"a": "x" * 600}, {"b": "\N{POSTAL HORN}"}
    with LocalStore.open(tmp_path) as store:
        orders, bills = store.open_topic(ORDERS), store.open_topic(ORDERS + "2")
        one = orders.open_cursor("one", initial=EARLIEST, subscription_properties=large)
        with pytest.raises(InvalidCursorError, match="the topic's subscriptions"):
            orders.open_cursor("two", initial=EARLIEST, subscription_properties=large)
        assert list(orders.cursors) == ["one"]
        orders.open_cursor("two", initial=EARLIEST, subscription_properties=small)
        bills.open_cursor("one", initial=EARLIEST, subscription_properties=large)
        with pytest.raises(InvalidCursorError, match="all subscriptions"):
            store.open_topic(ORDERS + "3").open_cursor(
                "one", initial=EARLIEST, subscription_properties=large
            )
        reader = bills.open_cursor(
            "reader", initial=EARLIEST, durable=False, subscription_properties=large
        )
        assert reader.subscription_properties == large  # its consumer's connection counts it
        one.persist().wait(10)
    with LocalStore.open(tmp_path) as store:
        orders, bills = store.open_topic(ORDERS), store.open_topic(ORDERS + "2")
        one, two = orders.cursors["one"], orders.cursors["two"]
        assert (one.subscription_properties, two.subscription_properties) == (large, small)
        with pytest.raises(InvalidCursorError, match="the topic's subscriptions"):
            two.set_subscription_properties(large)
        assert two.subscription_properties == small
        one.set_subscription_properties(small).wait(10)
        two.set_subscription_properties(large).wait(10)
        bills.delete_cursor("one").wait(10)
        assert store.cursors.kept_properties.total_bytes == sum(
            len(packed_properties(each)) for each in (small, large)
        )


def test_single_acknowledgements_count_after_reopening(tmp_path):
    """What was acknowledged out of order is no backlog when the store is opened again."""
    options = StoreOptions()
    for number in range(2):
        with LocalStore.open(tmp_path / "data", options=options) as store:
            topic = store.open_topic("persistent://public/default/t")
            if number == 0:
                cursor = topic.open_cursor("s", initial=EARLIEST)
                positions = [topic.append(b"x", message_count=3).position for _ in range(5)]
                store.committer.flush()
                for position in positions[2:4]:
                    cursor.ack(position)
                cursor.persist().wait()
            assert topic.cursors["s"].backlog_messages == 9
