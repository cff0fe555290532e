"""Mirroring between brokers and data folders, from the beginning and again."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsemark.broker import Broker, BrokerThread
from pulsemark.client import RequestRefusedError
from pulsemark.ledger import EARLIEST, EntryKind, FolderReader, LocalStore, Position, StoreOptions
from pulsemark.metadata import StamperChain, peek
from pulsemark.metadata.source_stamp import MIRROR_PRODUCER_PREFIX
from pulsemark.mirror import (
    LostError,
    OtherSourceError,
    RateLimit,
    SourceBusyError,
    TargetNotEmptyError,
    TargetRefusedError,
    TopicMissingError,
)
from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_COMMIT
from pulsemark.testing import RawClient, running_broker

from .conftest import (
    CLUSTER,
    TOPIC,
    Mirror,
    batch,
    bodies_of,
    entries_of,
    fill,
    message,
    publish,
    stamps_of,
)

MESSAGES = [(message(number), 1) for number in range(20)]


def quiet() -> pulsar.ConsoleLogger:
    """Only errors of the official client."""
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def test_broker_to_broker_and_again(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """The bytes are the producers', the stamps the target's; a second run brings what is new."""
    publish(source, range(30))
    assert mirror(source.service_url, target.service_url).entries == 30
    assert mirror(source.service_url, target.service_url).entries == 0
    publish(source, range(30, 40))
    assert mirror(source.service_url, target.service_url).entries == 10
    assert bodies_of(target.data_dir) == bodies_of(source.data_dir)
    for original, copy in zip(
        entries_of(source.data_dir), entries_of(target.data_dir), strict=True
    ):
        there, here = peek(original.prefix), peek(copy.prefix)
        assert there is not None
        assert here is not None
        assert (here.source_cluster, here.source_index) == (CLUSTER, there.index)
        assert here.source_time_ms == there.broker_timestamp
        assert (here.source_ledger_id, here.source_entry_id) == original.position
        assert (here.index, copy.message_count) == (copy.index, original.message_count)
        assert here.broker_timestamp >= there.broker_timestamp


def test_no_payload_is_opened(source: BrokerThread, target: BrokerThread, mirror: Mirror) -> None:
    """Compressed batches go over with one parsed header each, and no payload opened."""
    client = pulsar.Client(source.service_url, logger=quiet())
    producer = client.create_producer(
        TOPIC, compression_type=pulsar.CompressionType.ZSTD, batching_enabled=True
    )
    for number in range(200):
        producer.send_async(b"%d" % number * 50, None)
    producer.flush()
    client.close()
    folder = target.data_dir
    done = mirror(source.data_dir, target.service_url)
    assert done.entries > 0
    assert done.report.headers_parsed == done.entries
    assert done.report.payloads_opened == 0
    assert bodies_of(folder) == bodies_of(source.data_dir)
    assert "payloads opened: 0" in done.report.line()


def test_a_source_that_shows_no_stamps(target: BrokerThread, mirror: Mirror) -> None:
    """Without index and time mirroring goes on by position."""
    with running_broker() as source:
        publish(source, range(8))
        assert mirror(source.service_url, target.service_url).entries == 8
        publish(source, range(8, 12))
        assert mirror(source.service_url, target.service_url).entries == 4
        assert bodies_of(target.data_dir) == bodies_of(source.data_dir)
        for entry, stamp in zip(
            entries_of(source.data_dir), stamps_of(target.data_dir), strict=True
        ):
            assert stamp is not None
            assert (stamp.position, stamp.index, stamp.time_ms) == (entry.position, None, None)


def test_folder_to_folder(tmp_path: Path, mirror: Mirror) -> None:
    """Entries get new stamps; control entries are left out, those without messages are not."""
    fill(tmp_path / "a", [*MESSAGES[:3], (message(3), 0), (message(4), 0), batch(b"x", b"y")])
    with LocalStore.open(tmp_path / "a") as store:
        ledger = store.open_topic(TOPIC)
        ledger.append_control(CONTROL_TXN_COMMIT, "7").commit.wait()
        ledger.append(message(9)).commit.wait()
    assert mirror(tmp_path / "a", tmp_path / "b").entries == 7
    again = mirror(tmp_path / "a", tmp_path / "b")
    assert (again.entries, again.lines) == (0, [])
    assert bodies_of(tmp_path / "b") == bodies_of(tmp_path / "a")
    copies = entries_of(tmp_path / "b")
    assert [copy.message_count for copy in copies] == [1, 1, 1, 0, 0, 2, 1]
    assert [copy.index for copy in copies] == [0, 1, 2, 2, 2, 4, 5]
    assert [stamp.index for stamp in stamps_of(tmp_path / "b") if stamp] == [0, 1, 2, 2, 2, 4, 6]


@pytest.mark.parametrize("shows_indexes", [True, False])
@pytest.mark.parametrize("each_time", [True, False])
def test_control_entries_of_a_source_broker_are_no_gap(
    tmp_path: Path, target: BrokerThread, mirror: Mirror, shows_indexes: bool, each_time: bool
) -> None:
    """A restart of the source begins a leader epoch: its entry takes an index and is not copied."""
    settings = {
        "data_dir": tmp_path / "source",
        "leader_epochs_enabled": True,
        "exposing_broker_entry_metadata_to_client_enabled": shows_indexes,
    }
    entries = 0
    lines: list[str] = []
    for life in range(3):
        with running_broker(**settings) as source:
            publish(source, range(life * 10, life * 10 + 10))
            if each_time or life == 2:
                done = mirror(source.service_url, target.service_url)
                entries, lines = entries + done.entries, lines + done.lines
                done = mirror(source.service_url, target.service_url)
                entries, lines = entries + done.entries, lines + done.lines
    with FolderReader(tmp_path / "source") as reader:
        kinds = [entry.kind for entry in reader.log(TOPIC).read(EARLIEST)]
    assert kinds.count(EntryKind.CONTROL) >= 2
    assert (entries, lines) == (30, [])
    assert bodies_of(target.data_dir) == bodies_of(tmp_path / "source")


def test_a_broker_serves_a_mirrored_folder(tmp_path: Path, mirror: Mirror) -> None:
    """A folder that a mirror made has the namespace that a broker needs."""
    topic = "persistent://shop/eu/orders"
    fill(tmp_path / "a", MESSAGES, topic=topic)
    mirror(tmp_path / "a", tmp_path / "b", topic)
    with running_broker(data_dir=tmp_path / "b") as broker:
        with RawClient.from_url(broker.service_url) as client:
            consumer = client.subscribe(topic, "s", earliest=True)
            consumer.flow(20)
            received = consumer.receive_many(20)
        assert [each.headers_and_payload for each in received] == [body for body, _ in MESSAGES]


@pytest.mark.parametrize("to_broker", [False, True])
def test_removed_entries_are_reported(
    tmp_path: Path, target: BrokerThread, mirror: Mirror, to_broker: bool
) -> None:
    """What the source removed before it was mirrored is a gap, at the beginning and later."""
    endpoint = target.service_url if to_broker else tmp_path / "b"
    fill(tmp_path / "a", MESSAGES)
    with LocalStore.open(tmp_path / "a") as store:
        ledger = store.open_topic(TOPIC)
        first = ledger.first_position
        assert first is not None
        ledger.truncate_head(Position(first.ledger_id, 4))
    done = mirror(tmp_path / "a", endpoint)
    assert done.lines == [f"gap: {TOPIC}: indexes 0 to 3 are missing"]
    assert done.report.sum().gaps == 1
    with LocalStore.open(tmp_path / "a") as store:
        ledger = store.open_topic(TOPIC)
        for number in range(20, 25):
            ledger.append(message(number)).commit.wait()
        last = ledger.last_position
        assert last is not None
        ledger.truncate_head(Position(last.ledger_id, 2))
    assert mirror(tmp_path / "a", endpoint).lines == [f"gap: {TOPIC}: indexes 20 to 21 are missing"]
    assert len(bodies_of(target.data_dir if to_broker else tmp_path / "b")) == 19


def test_a_source_that_was_recreated_is_refused(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """If the last entry's position has another index in the source, it is another log."""
    publish(source, range(1, 5))
    mirror(source.service_url, target.service_url)
    with running_broker(exposing_broker_entry_metadata_to_client_enabled=True) as other:
        for _ in range(3):
            publish(other, range(5, 6))  # batches: other indexes at the same positions
        publish(other, range(1, 5))
        with pytest.raises(OtherSourceError, match="has index"):
            mirror(other.service_url, target.service_url)


def test_another_source_broker_that_is_shorter_is_refused(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """A source that ends before the target's last entry from it is another log, and is named."""
    publish(source, range(1, 20))
    mirror(source.service_url, target.service_url)
    with running_broker(exposing_broker_entry_metadata_to_client_enabled=True) as other:
        publish(other, range(50, 55))
        with pytest.raises(OtherSourceError, match=r"it has the source's entry 1:18, but .* 1:4"):
            mirror(other.service_url, target.service_url)
    assert len(bodies_of(target.data_dir)) == 19


def test_a_damaged_entry_is_reported(tmp_path: Path, mirror: Mirror) -> None:
    """A damaged entry of the source is a gap; the entries around it go over."""
    fill(tmp_path / "a", MESSAGES)
    (segment,) = (
        path for path in tmp_path.glob("a/ledgers/*.log") if TOPIC.encode() in path.read_bytes()
    )
    data = bytearray(segment.read_bytes())
    data[data.index(MESSAGES[7][0]) + 20] ^= 1
    segment.write_bytes(data)
    done = mirror(tmp_path / "a", tmp_path / "b")
    assert len(done.lines) == 2
    assert "is damaged" in done.lines[0]
    assert done.lines[1] == f"gap: {TOPIC}: indexes 7 to 7 are missing"
    assert bodies_of(tmp_path / "b") == [body for body, _ in MESSAGES[:7] + MESSAGES[8:]]


def test_another_source_is_refused(tmp_path: Path, mirror: Mirror) -> None:
    """A source that never had the target's last entry is an error, and nothing is added."""
    fill(tmp_path / "a", MESSAGES)
    fill(tmp_path / "other", MESSAGES[:5])
    mirror(tmp_path / "a", tmp_path / "b")
    with pytest.raises(OtherSourceError, match="the source ends at"):
        mirror(tmp_path / "other", tmp_path / "b")
    assert len(bodies_of(tmp_path / "b")) == 20


def test_a_target_with_other_entries_is_refused(
    tmp_path: Path, target: BrokerThread, mirror: Mirror
) -> None:
    """Entries of others are an error before anything is written, unless --append is given."""
    fill(tmp_path / "a", MESSAGES)
    fill(tmp_path / "b", MESSAGES[:2])
    publish(target, range(1, 3))
    for endpoint in (tmp_path / "b", target.service_url):
        with pytest.raises(TargetNotEmptyError, match="'west'"):
            mirror(tmp_path / "a", endpoint)
        assert mirror(tmp_path / "a", endpoint, append=True).entries == 20
        assert mirror(tmp_path / "a", endpoint).entries == 0
    assert len(bodies_of(tmp_path / "b")) == len(bodies_of(target.data_dir)) == 22


def test_missing_things_are_named(
    tmp_path: Path, source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """A topic or namespace that is not there is an error with its name."""
    with pytest.raises(TopicMissingError, match="default/absent"):
        mirror(source.service_url, target.service_url, "absent")
    with pytest.raises(TopicMissingError, match="no/where"):
        mirror(source.service_url, target.service_url, "no/where/t")
    fill(tmp_path / "a", MESSAGES, topic="persistent://shop/eu/orders")
    with pytest.raises(TopicMissingError, match=r"shop/eu/orders: .*Namespace not found"):
        mirror(tmp_path / "a", target.service_url, "shop/eu/orders")


def test_a_target_that_does_not_allow_it(source: BrokerThread, mirror: Mirror) -> None:
    """Without the policy a mirror is refused, with the cluster's and the policy's name."""
    publish(source, range(1))
    with running_broker() as closed:
        with pytest.raises(TargetRefusedError, match=r"'west' are not allowed.*mirrorSources"):
            mirror(source.service_url, closed.service_url)
        with RawClient.from_url(closed.service_url) as client:
            consumer = client.subscribe(TOPIC, "s")
            assert consumer.get_last_message_id()[0].entry_id == -1


def test_two_mirrors_need_two_subscriptions(
    source: BrokerThread, tmp_path: Path, mirror: Mirror
) -> None:
    """A subscription that is in use is an error that names it."""
    publish(source, range(3))
    client = pulsar.Client(source.service_url, logger=quiet())
    client.subscribe(TOPIC, "pulsemark-mirror", initial_position=pulsar.InitialPosition.Earliest)
    with pytest.raises(SourceBusyError, match="'pulsemark-mirror' is in use"):
        mirror(source.service_url, tmp_path / "b")
    assert mirror(source.service_url, tmp_path / "b", subscription="other").entries == 3
    client.close()


def test_the_target_decides_where_it_goes_on(
    source: BrokerThread, tmp_path: Path, mirror: Mirror
) -> None:
    """A new target gets everything, though the source's subscription is at the end."""
    publish(source, range(6))
    mirror(source.service_url, tmp_path / "one")
    assert mirror(source.service_url, tmp_path / "two").entries == 6


def test_a_restored_target_gets_what_it_lost(
    source: BrokerThread, tmp_path: Path, mirror: Mirror
) -> None:
    """An older copy of the target goes on where the copy ends."""
    publish(source, range(4))
    mirror(source.service_url, tmp_path / "b")
    shutil.copytree(tmp_path / "b", tmp_path / "backup")
    publish(source, range(4, 9))
    mirror(source.service_url, tmp_path / "b")
    assert mirror(source.service_url, tmp_path / "backup").entries == 5
    assert bodies_of(tmp_path / "backup") == bodies_of(source.data_dir)


def test_several_hops(tmp_path: Path, mirror: Mirror) -> None:
    """The tags are those of the last hop, and the bytes those of the first producer."""
    fill(tmp_path / "a", MESSAGES)
    mirror(tmp_path / "a", tmp_path / "b", append=True)
    mirror(tmp_path / "b", tmp_path / "c", source_cluster="east")
    assert bodies_of(tmp_path / "c") == [body for body, _ in MESSAGES]
    assert {stamp.cluster for stamp in stamps_of(tmp_path / "c") if stamp} == {"east"}


def test_stopping_ends_in_order(tmp_path: Path, mirror: Mirror) -> None:
    """A run that is stopped keeps what it has done, says that it is not complete, and goes on."""
    fill(tmp_path / "a", [(message(number), 1) for number in range(300)])
    asked = iter(range(1000))
    done = mirror(
        tmp_path / "a",
        tmp_path / "b",
        limit=RateLimit(100, is_messages=True),
        is_stopped=lambda: next(asked) > 4,
    )
    assert not done.complete
    assert 0 < done.entries < 300
    assert len(bodies_of(tmp_path / "b")) == done.entries
    assert mirror(tmp_path / "a", tmp_path / "b").entries == 300 - done.entries


def test_a_lost_target_is_given_up(source: BrokerThread, mirror: Mirror) -> None:
    """If a target stays away, mirroring ends with the reason, after the time that was given."""
    publish(source, range(3))
    with running_broker(mirror_sources=("*",)) as target:
        stops = iter(range(2_000))

        def stop_target() -> bool:
            if next(stops) == 3:
                target.close()
            return False

        with pytest.raises(LostError, match="no connection for"):
            mirror(
                source.service_url,
                target.service_url,
                once=False,
                is_stopped=stop_target,
                reconnect_s=0.3,
            )


def test_ordinary_producers_may_publish_meanwhile(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """Entries of the target's own producers between mirrored ones do not confuse the next run."""
    publish(source, range(1, 4))
    mirror(source.service_url, target.service_url)
    publish(target, range(100, 104))
    publish(source, range(4, 6))
    assert mirror(source.service_url, target.service_url).entries == 2
    publish(target, range(104, 106))
    assert mirror(source.service_url, target.service_url).entries == 0
    clusters = [stamp and stamp.cluster for stamp in stamps_of(target.data_dir)]
    assert clusters == [CLUSTER] * 3 + [None] * 4 + [CLUSTER] * 2 + [None] * 2


def test_only_one_mirror_at_a_time(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """A second mirror of the same source waits for the first one's name, and does not write."""
    publish(source, range(3))
    client = pulsar.Client(target.service_url, logger=quiet())
    client.create_producer(TOPIC, producer_name=MIRROR_PRODUCER_PREFIX + CLUSTER)
    with pytest.raises(RequestRefusedError, match=MIRROR_PRODUCER_PREFIX):
        mirror(source.service_url, target.service_url, reconnect_s=0.3)
    client.close()
    assert mirror(source.service_url, target.service_url).entries == 3


def test_stamps_of_the_folder_can_be_chosen(tmp_path: Path, mirror: Mirror) -> None:
    """With no stampers the source's facts are kept all the same."""
    fill(tmp_path / "a", MESSAGES[:2])
    mirror(tmp_path / "a", tmp_path / "b", stampers=())
    first = entries_of(tmp_path / "b")[0]
    prefix = peek(first.prefix)
    assert prefix is not None
    assert (prefix.HasField("index"), prefix.source_index) == (False, 0)
    with FolderReader(tmp_path / "b") as reader:
        assert reader.topics() == [TOPIC]
    assert StamperChain(()).names == ()


def test_ledgers_of_the_target_may_end_meanwhile(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a ledger ends while entries are on their way, none is lost, doubled or exchanged."""
    fill(tmp_path / "a", [(message(number), 1) for number in range(400)])
    with running_broker(
        data_dir=tmp_path / "b",
        mirror_sources=(CLUSTER,),
        store_options=StoreOptions(ledger_entries=90),
    ) as target:
        done = mirror(tmp_path / "a", target.service_url)
    assert done.complete
    small = partial(LocalStore.open, options=StoreOptions(ledger_entries=7))
    monkeypatch.setattr("pulsemark.mirror.folders.LocalStore.open", small)
    assert mirror(tmp_path / "a", tmp_path / "c").entries == 400
    for folder in ("b", "c"):
        assert bodies_of(tmp_path / folder) == bodies_of(tmp_path / "a")


def test_a_failing_disk_of_the_target_makes_no_hole(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """If commits fail in the middle, the mirror begins again after what was stored."""
    publish(source, range(1, 200))
    turns = iter(range(100_000))

    async def fail_once(running: Broker) -> None:
        ledger = running.services.topics.open_topics[TOPIC].ledger
        ledger.store.committer.fence([ledger], OSError("disk"))

    def is_stopped() -> bool:
        turn = next(turns)
        if turn in (2, 4, 6):
            target.call(fail_once)
        return False

    done = mirror(
        source.service_url,
        target.service_url,
        is_stopped=is_stopped,
        limit=RateLimit(150, is_messages=True),
    )
    assert done.complete
    assert bodies_of(target.data_dir) == bodies_of(source.data_dir)


def test_pings_are_answered_while_the_rate_limit_waits(tmp_path: Path, mirror: Mirror) -> None:
    """Neither side takes a mirror for dead that waits for its rate limit, or for new messages."""
    settings: dict[str, Any] = {"keep_alive_interval_ms": 100, "mirror_sources": ("*",)}
    with running_broker(**settings) as source, running_broker(**settings) as target:
        publish(source, range(1, 40))
        done = mirror(source.service_url, target.service_url, limit=RateLimit(20, is_messages=True))
        assert (done.entries, done.report.reconnections) == (39, 0)
