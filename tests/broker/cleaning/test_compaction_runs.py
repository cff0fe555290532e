"""Compaction in the broker: asked for, by threshold, read by clients, and ended early."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import patch

import pulsar
import pytest

from pulsemark.client import RawMessage
from pulsemark.compaction import compaction
from pulsemark.compaction.keys import LatestPerKey
from pulsemark.metadata import payload_of
from pulsemark.testing import running_broker
from pulsemark.testing.raw_messages import BatchMember
from pulsemark.wire import MessageId

from .conftest import MINUTE_MS, NAME, NAMESPACE, PATH, SMALL, Place, wait_until


def keys(place: Place, **options) -> list[str]:
    """The keys that a new compacted reader gets: as many as its backlog says."""
    reader = place.client.subscribe(
        NAME, f"r{place.client.new_id()}", earliest=True, durable=False, read_compacted=True,
        **options,
    )  # fmt: skip
    last, _ = reader.get_last_message_id()
    found: list[RawMessage] = []
    while not found or found[-1].message_id[:2] != last[:2]:
        reader.flow(1)
        found.append(reader.receive())
    reader.close()
    return [bytes(payload_of(m.headers_and_payload)).decode().partition("@")[0] for m in found]


def succeeded(place: Place, path: str) -> bool:
    """Whether a topic was compacted."""
    return bool(place.get(path)["status"] == "SUCCESS")


def hold_compactions(place: Place):
    """Compactions that stop at their first read until they are let go: (begun, go on)."""
    begun, go_on = threading.Event(), threading.Event()
    whole = LatestPerKey.take

    def take(self, entry):
        begun.set()
        assert go_on.wait(20)
        whole(self, entry)

    return begun, go_on, patch.object(LatestPerKey, "take", take)


def test_official_client(place):
    """is_read_compacted consumers and readers get each key's latest, then the tail."""
    client = pulsar.Client(
        place.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        for batching in (False, True):
            topic = f"public/default/official-{batching}"
            producer = client.create_producer(topic, batching_enabled=batching)
            for number in range(30):
                producer.send_async(b"%d" % number, None, partition_key=f"k{number % 3}")
            producer.send_async(b"", None, partition_key="k0")  # deletes its key
            producer.flush()
            path = f"/admin/v2/persistent/{topic}"
            place.change("PUT", f"{path}/compaction")
            wait_until(partial(succeeded, place, f"{path}/compaction"))
            producer.send(b"tail", partition_key="k1")
            reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
            found = []
            while reader.has_message_available():
                found.append(reader.read_next(5_000))
            assert [(m.partition_key(), m.data()) for m in found if m.data()] == [
                ("k1", b"28"),
                ("k2", b"29"),
                ("k1", b"tail"),
            ]
            consumer = client.subscribe(
                topic, "s", is_read_compacted=True,
                initial_position=pulsar.InitialPosition.Earliest,
            )  # fmt: skip
            # Members of a batch that were left out arrive empty, as from Pulsar.
            got = iter(lambda: consumer.receive(5_000).data(), b"tail")  # noqa: B023 - used at once
            assert [data for data in got if data] == [b"28", b"29"]
            consumer.close()
            reader.close()
    finally:
        client.close()


def test_a_compactions_life_over_rest(place):
    """NOT_RUN, RUNNING and 409 for a second request, SUCCESS; as Pulsar answers."""
    assert place.get("compaction") == {"status": "NOT_RUN", "lastError": ""}
    assert place.get("internalStats")["compactedLedger"] == {
        "ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False,
    }  # fmt: skip
    place.send("a", "b", "a")
    begun, go_on, held = hold_compactions(place)
    with held:
        place.change("PUT", "compaction")
        assert begun.wait(20)
        assert place.get("compaction")["status"] == "RUNNING"
        refused = place.ask("PUT", "compaction")
        assert refused == (409, {"reason": "Compaction already in progress"})
        go_on.set()
        wait_until(lambda: place.get("compaction")["status"] == "SUCCESS")
    view = place.get("internalStats")["compactedLedger"]
    assert view["ledgerId"] >= 0
    assert view["entries"] == 2
    assert view["size"] > 0
    found = place.get("stats")["compaction"]
    assert found["lastCompactionRemovedEventCount"] == 1
    assert found["lastCompactionSucceedTimestamp"] == place.clock.now_ms()
    missing = PATH.replace("prices", "missing")
    for method in ("GET", "PUT"):
        reason = {"reason": f"Topic {NAME.replace('prices', 'missing')} not found"}
        assert place.ask(method, f"{missing}/compaction") == (404, reason)


def test_partitions(place):
    """A partitioned topic is compacted partition by partition, and only they have a status."""
    path = "/admin/v2/persistent/public/default/parts"
    place.change("PUT", f"{path}/partitions", 2)
    place.change("PUT", f"{path}/compaction")
    assert place.ask("GET", f"{path}/compaction")[0] == 404
    for index in range(2):
        wait_until(partial(succeeded, place, f"{path}-partition-{index}/compaction"))


@pytest.mark.parametrize("level", ["topic", "namespace"])
def test_a_threshold_is_in_force_at_once(place, level):
    """A topic with more news than the threshold is compacted when the threshold is set."""
    place.send(*"abcabc")
    if level == "topic":
        place.change("POST", "compactionThreshold", 100)
    else:
        place.change("PUT", f"{NAMESPACE}/compactionThreshold", 100)
    wait_until(lambda: place.get("compaction")["status"] == "SUCCESS")
    assert keys(place) == ["a", "b", "c"]


def test_rounds_compact_what_is_dirty_only(clock):
    """Each monitor interval looks at what came since the last compaction, not at the whole."""
    with running_broker(clock=clock, compaction_monitor_interval_ms=20) as broker:
        place = Place(broker, clock)
        place.send(*"abcabc")
        place.change("POST", "compactionThreshold", 400)
        wait_until(lambda: place.get("compaction")["status"] == "SUCCESS")
        horizon = place.get("internalStats?ownFigures=true")["compactionHorizon"]
        place.send("d")
        rounds = broker.call(rounds_of)
        wait_until(lambda: broker.call(rounds_of) > rounds + 2)
        assert place.get("internalStats?ownFigures=true")["compactionHorizon"] == horizon
        place.send(*"eeeeeeee")
        wait_until(
            lambda: place.get("internalStats?ownFigures=true")["compactionHorizon"] != horizon
        )
        place.client.close()


async def rounds_of(running):
    """How many rounds have ended."""
    return running.services.cleaning.rounds


def test_a_reader_from_before_sees_every_keys_latest(place):
    """Compacted twice, and its head removed, under a reader: no hole, and nothing twice."""
    place.send(*(f"k{n % 5}" for n in range(20)))
    reader = place.client.subscribe(NAME, "r", earliest=True, durable=False, read_compacted=True)
    reader.flow(3)
    found = reader.receive_many(3)  # of the log: there is no view yet
    place.compact()
    place.clock.advance(by_ms=MINUTE_MS * 5)
    place.retention(1)
    wait_until(lambda: not place.stored())
    place.send("k1", "k7")
    reader.flow(4)
    found += reader.receive_many(4)  # k0..k3 of the view
    place.compact()
    place.clock.advance(by_ms=MINUTE_MS * 5)
    place.retention(2)
    wait_until(lambda: not place.stored())
    place.send("k2")
    reader.flow(10)
    last, _ = reader.get_last_message_id()
    while found[-1].message_id[:2] != last[:2]:
        found.append(reader.receive())
    ids = [m.message_id.entry_id for m in found]
    assert ids == sorted(set(ids))
    latest = {}
    for message in found:
        latest[bytes(payload_of(message.headers_and_payload)).decode().partition("@")[0]] = (
            message.message_id.entry_id
        )
    assert latest == {"k0": 15, "k1": 20, "k2": 22, "k3": 18, "k4": 19, "k7": 21}


def test_a_durable_place_in_the_view_is_kept(tmp_path, clock):
    """What was not acknowledged of the view comes again, though the log's head is gone."""
    with running_broker(clock=clock, data_dir=tmp_path) as broker:
        place = Place(broker, clock)
        place.send(*"abcab")
        place.compact()  # c a b, at entries 2 to 4
        place.change("DELETE", "truncate")
        place.send("d")
        consumer = place.client.subscribe(NAME, "s", earliest=True, read_compacted=True)
        consumer.flow(10)
        got = consumer.receive_many(4)
        assert [m.message_id.entry_id for m in got] == [2, 3, 4, 5]
        consumer.ack(got[0].message_id, got[3].message_id, wait=True)
        assert place.backlog("s") == 2
        place.client.close()
    with running_broker(clock=clock, data_dir=tmp_path) as broker:
        place = Place(broker, clock)
        consumer = place.client.subscribe(NAME, "s", read_compacted=True)
        consumer.flow(10)
        got = consumer.receive_many(2)
        assert [m.message_id.entry_id for m in got][:2] == [3, 4]
        consumer.ack(got[1].message_id, cumulative=True, wait=True)
        wait_until(lambda: place.backlog("s") <= 1)
        place.client.close()


def test_seeking_in_the_view(place):
    """By id and by time a compacted reader lands in the view, where the log's head is gone."""
    place.send("a", "b", "a")
    place.clock.advance(by_ms=MINUTE_MS)
    place.send("c")
    place.compact()
    place.change("DELETE", "truncate")
    consumer = place.client.subscribe(NAME, "s", earliest=True, read_compacted=True)
    ledger_id = place.get("lastMessageId")
    consumer.flow(3)
    first = consumer.receive_many(3)[0].message_id
    consumer.seek(message_id=first)
    consumer.resubscribe()
    consumer.flow(1)
    assert consumer.receive().message_id.entry_id == 1
    consumer.seek(publish_time_ms=place.clock.now_ms())
    consumer.resubscribe()
    consumer.flow(1)
    assert consumer.receive().message_id.entry_id == 3
    assert ledger_id["entryId"] == -1  # the plain log is empty


def test_the_last_message_that_is_there(place):
    """No consumer waits for a message that compaction left out: not alone, not in a batch."""
    place.send("a", "b")
    place.producer.send(b"no key")
    place.producer.send(None, key="a")
    place.compact()
    reader = place.client.subscribe(NAME, "r", earliest=True, durable=False, read_compacted=True)
    assert reader.get_last_message_id()[0].entry_id == 1
    place.producer.send_batch(
        [BatchMember(payload=b"1", key="x"), BatchMember(payload=b"2"), BatchMember(payload=b"3")]
    )
    assert reader.get_last_message_id()[0][:] == MessageId(*reader.get_last_message_id()[0])
    place.compact()
    last, _ = reader.get_last_message_id()
    assert (last.entry_id, last.batch_index) == (4, 0)


def test_a_topic_is_never_cleaned_and_compacted_at_once(place):
    """While a topic is compacted its retention waits, other topics' does not; then it is done."""
    place.send("a", "b", "a")
    other = "persistent://public/default/other"
    place.client.create_producer(other).send(b"x")
    place.clock.advance(by_ms=MINUTE_MS * 2)
    begun, go_on, held = hold_compactions(place)
    with held:
        place.change("PUT", "compaction")
        assert begun.wait(20)
        limits = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
        place.change("POST", f"{NAMESPACE}/retention", limits)
        stats = "/admin/v2/persistent/public/default/other/internalStats"
        wait_until(lambda: place.get(stats)["numberOfEntries"] == 0)
        assert len(place.stored()) == 3
        go_on.set()
        wait_until(lambda: not place.stored())
    assert keys(place) == ["b", "a"]


async def the_topic(running):
    """The open topic."""
    return running.services.topics.open_topics[NAME]


@pytest.mark.parametrize("how", ["truncate", "delete", "stop"])
def test_a_run_ends_early(clock, how):
    """Truncating, deleting and stopping do not wait for a compaction; it ends, nothing is left."""
    with running_broker(clock=clock, store_options=SMALL) as broker:
        place = Place(broker, clock)
        place.send("a", "b", "a")
        begun, go_on, held = hold_compactions(place)
        with held, ThreadPoolExecutor(1) as pool:
            place.change("PUT", "compaction")
            assert begun.wait(20)
            topic = broker.call(the_topic)
            if how == "truncate":
                asked = pool.submit(place.change, "DELETE", "truncate")
            elif how == "delete":
                asked = pool.submit(place.change, "DELETE", f"{PATH}?force=true")
            else:
                asked = pool.submit(broker.close)
            wait_until(topic.cleaning.compaction.stop.is_set)
            go_on.set()
            asked.result(20)
        if how == "truncate":
            status = place.get("compaction")
            assert status["status"] == "ERROR"
            assert "the topic was truncated" in status["lastError"]
            assert place.stored() == []
            place.send("new")
            place.compact()
        elif how == "delete":
            assert broker.call(views_left) == []
        place.client.close()


def test_a_partitioned_topics_deletion_ends_its_runs(place):
    """Deleting a partitioned topic does not wait until a partition is compacted."""
    path = "/admin/v2/persistent/public/default/parts"
    name = "persistent://public/default/parts-partition-0"
    place.change("PUT", f"{path}/partitions", 1)
    place.client.create_producer(name).send(b"x", key="k")

    async def the_partition(running):
        return running.services.topics.open_topics[name]

    topic = place.broker.call(the_partition)
    begun, go_on, held = hold_compactions(place)
    with held, ThreadPoolExecutor(1) as pool:
        place.change("PUT", f"{path}/compaction")
        assert begun.wait(20)
        asked = pool.submit(place.change, "DELETE", f"{path}/partitions?force=true")
        wait_until(topic.cleaning.compaction.stop.is_set)
        go_on.set()
        asked.result(20)
    assert place.broker.call(views_left) == []
    assert topic.cleaning.compaction.failed == 1


async def views_left(running):
    """Names of all views in the store."""
    return [name for name in running.store.catalog.topics() if name.startswith("compacted/")]


def test_a_failure_is_reported(place):
    """ERROR with the reason; the view before counts on, and the next run makes it good."""
    place.send("a", "b", "a")
    place.compact()
    place.send("b")
    with patch.object(compaction, "switch_view", side_effect=OSError("no space left")):
        place.change("PUT", "compaction")
        wait_until(lambda: place.get("compaction")["status"] != "RUNNING")
        assert place.get("compaction") == {"status": "ERROR", "lastError": "no space left"}
    assert keys(place) == ["b", "a", "b"]
    place.compact()
    assert keys(place) == ["a", "b"]
