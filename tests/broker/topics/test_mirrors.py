"""What a mirror may send, and what the broker answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import Broker, BrokerThread
from pulsemark.broker.policies.own_policies import MIRRORS
from pulsemark.client import RequestRefusedError, SendRefusedError
from pulsemark.ledger import StoreOptions
from pulsemark.metadata import BrokerEntryMetadata, pack
from pulsemark.metadata.source_stamp import (
    MIRROR_PRODUCER_PREFIX,
    MIRROR_PROPERTY,
    SourceStamp,
    position_of_sequence_id,
    source_stamp_of,
)
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_client import RawProducer
from pulsemark.testing.raw_messages import unbatched_message, with_wrong_checksum

BODY = unbatched_message(b"x", publish_time_ms=1)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """A broker that accepts mirrors from `west`."""
    with running_broker(mirror_sources=("west",)) as running:
        yield running


def open_mirror(raw: RawClient, topic: str, cluster: str = "west", **more: Any) -> RawProducer:
    """A producer that says that it is a mirror."""
    return raw.create_producer(topic, properties={MIRROR_PROPERTY: cluster}, **more)


def sent(entry_id: int, *, cluster: str = "west", ledger_id: int = 7) -> bytes:
    """What a mirror sends for an entry."""
    stamp = SourceStamp(cluster, ledger_id, entry_id, entry_id + 100, entry_id + 1000)
    return stamp.prefix() + BODY


def stored(broker: BrokerThread, topic: str) -> list[tuple[SourceStamp | None, bytes]]:
    """The entries of a topic, with their facts from the source."""

    async def read(running: Broker) -> list[tuple[SourceStamp | None, bytes]]:
        from pulsemark.ledger import EARLIEST
        from pulsemark.metadata import peek

        ledger = running.services.topics.open_topics[topic].ledger
        return [
            (source_stamp_of(peek(entry.prefix)), bytes(entry.body))
            for entry in ledger.read(EARLIEST, max_entries=1000)
        ]

    return broker.call(read)


def test_a_mirror_gets_its_name_and_its_place(
    broker: BrokerThread, raw: RawClient, topic: str
) -> None:
    """The name shows that the broker understands; the place is that of the last entry."""
    first = open_mirror(raw, topic)
    assert (first.name, first.last_sequence_id) == (MIRROR_PRODUCER_PREFIX + "west", -1)
    for number in (0, 1, 5):
        assert first.send_raw(sent(number)).entry_id >= 0
    first.close()
    again = open_mirror(raw, topic)
    assert position_of_sequence_id(again.last_sequence_id) == (7, 5)
    assert (first.topic_epoch, again.topic_epoch) == (None, 106)
    found = stored(broker, topic)
    assert [stamp and stamp.position for stamp, _ in found] == [(7, 0), (7, 1), (7, 5)]
    assert found[0][0] == SourceStamp("west", 7, 0, 100, 1000)
    assert {body for _, body in found} == {BODY}


def test_what_is_there_is_not_stored_again(
    broker: BrokerThread, raw: RawClient, topic: str
) -> None:
    """An entry at or before the last one gets a duplicate's receipt."""
    mirror = open_mirror(raw, topic)
    for number in (3, 4):
        mirror.send_raw(sent(number))
    for again in (sent(4), sent(3), sent(9, ledger_id=6)):
        receipt = mirror.send_raw(again)
        assert (receipt.ledger_id, receipt.entry_id) == (-1, -1)
    assert mirror.send_raw(sent(0, ledger_id=8)).entry_id >= 0
    assert len(stored(broker, topic)) == 3


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (BODY, "must begin with the source's stamp"),
        (sent(1, cluster="east"), "the entry is from cluster 'east'"),
        (pack(BrokerEntryMetadata(source_cluster="west")) + BODY, "position is missing"),
        (pack(BrokerEntryMetadata(source_ledger_id=1, source_entry_id=1)) + BODY, "is missing"),
        (
            pack(
                BrokerEntryMetadata(
                    source_cluster="west", source_ledger_id=1, source_entry_id=1, index=5
                )
            )
            + BODY,
            "may not set field 2",
        ),
        (sent(1 << 28), "out of range"),
        (SourceStamp("west", 1, 1, index=1 << 63).prefix() + BODY, "is above"),
        (b"\x0e\x02\x00\x00\x00\x09\xff" + BODY, "prefix|protobuf"),
        (sent(1) + b"broken", "checksum"),
        (SourceStamp("west", 8, 1).prefix() + sent(2), "prefix"),
        (SourceStamp("west", 8, 1).prefix() + with_wrong_checksum(BODY), "checksum"),
    ],
)
def test_bad_entries_are_refused_and_all_after_them(
    broker: BrokerThread, raw: RawClient, topic: str, what: bytes, reason: str
) -> None:
    """After a refused entry nothing of this mirror is stored, so that there is no hole."""
    mirror = open_mirror(raw, topic)
    mirror.send_raw(sent(0))
    with pytest.raises(SendRefusedError, match=f"(?i){reason}"):
        mirror.send_raw(what)
    with pytest.raises(SendRefusedError, match="an earlier entry of this mirror was refused"):
        mirror.send_raw(sent(2))
    assert len(stored(broker, topic)) == 1
    mirror.close()
    assert open_mirror(raw, topic).send_raw(sent(2)).entry_id >= 0


def test_others_cannot_forge(broker: BrokerThread, raw: RawClient, topic: str) -> None:
    """Without the property, or with a name of its own, a producer cannot set the source's facts."""
    ordinary = raw.create_producer(topic)
    named = open_mirror(raw, topic, producer_name="mine")
    for producer in (ordinary, named):
        with pytest.raises(SendRefusedError, match="NotAllowedError"):
            producer.send_raw(sent(1))
    assert stored(broker, topic) == []


def test_the_policy_is_asked(broker: BrokerThread, raw: RawClient, topic: str) -> None:
    """A cluster that the policy does not name is refused with it, and may come once it is there."""
    for bad, reason in (("east", "'east' are not allowed"), ("", "1 to 255"), ("x" * 256, "255")):
        with pytest.raises(RequestRefusedError, match=reason):
            open_mirror(raw, topic, bad)

    async def allow(running: Broker, value: list[str] | None) -> None:
        name = running.services.topics.parse(topic)
        await running.services.topics.open(name, create=True)
        await running.services.topics.policies[MIRRORS].set(name, value)

    broker.call(lambda running: allow(running, ["east"]))
    mirror = open_mirror(raw, topic, "east")
    mirror.send_raw(sent(1, cluster="east"))
    broker.call(lambda running: allow(running, []))
    with pytest.raises(SendRefusedError, match="not allowed"):
        mirror.send_raw(sent(2, cluster="east"))
    assert len(stored(broker, topic)) == 1


def test_a_second_mirror_of_a_dead_one_goes_on(broker: BrokerThread, topic: str) -> None:
    """A mirror whose connection does not answer loses its name; the next one knows the place."""
    with RawClient.from_url(broker.service_url, answers_pings=False) as dead:
        open_mirror(dead, topic).send_raw(sent(4))
        with RawClient.from_url(broker.service_url) as alive:
            mirror = open_mirror(alive, topic, timeout_s=20)
            assert position_of_sequence_id(mirror.last_sequence_id) == (7, 4)


def test_the_place_outlives_a_restart(tmp_path: Path, topic: str) -> None:
    """The place is in the entries; other producers' entries after them do not hide it."""
    options = {
        "data_dir": tmp_path / "data",
        "mirror_sources": ("*",),
        "store_options": StoreOptions(ledger_entries=5),
    }
    with running_broker(**options) as broker, RawClient.from_url(broker.service_url) as raw:
        mirror = open_mirror(raw, topic)
        for number in range(12):
            mirror.send_raw(sent(number))
        for _ in range(12):
            raw.create_producer(topic).send(b"own")
    with running_broker(**options) as broker, RawClient.from_url(broker.service_url) as raw:
        assert position_of_sequence_id(open_mirror(raw, topic).last_sequence_id) == (7, 11)
        assert open_mirror(raw, topic, "another").last_sequence_id == -1
