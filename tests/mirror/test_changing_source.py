"""Sources and targets that change while a mirror runs: it ends, and says what is missing."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.ledger import LocalStore, TopicNotFoundError
from pulsemark.metadata import StamperChain
from pulsemark.mirror import RateLimit
from pulsemark.proto.pulsar_api_pb2 import MessageMetadata
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import seal

from .conftest import TOPIC, Mirror, bodies_of, entries_of, message, publish

WIRE_HOST = "127.0.0.2"
PATH = "/admin/v2/persistent/public/default/orders"


def delete(broker: BrokerThread, what: str) -> None:
    """Send DELETE for the topic, or for something of it."""
    request = urllib.request.Request(f"{broker.http_url}{PATH}{what}", method="DELETE")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 204


def test_a_mirror_can_be_stopped_while_it_reconnects(source: BrokerThread, mirror: Mirror) -> None:
    """SIGTERM while the target is away ends the mirror in order, with entries without receipts."""
    publish(source, range(1, 400))
    turns = count()
    with running_broker(mirror_sources=("*",)) as target:

        def is_stopped() -> bool:
            turn = next(turns)
            if turn == 3:
                target.close()
            return turn > 8

        done = mirror(source.service_url, target.service_url, once=False, is_stopped=is_stopped)
    assert not done.complete
    assert done.report.reconnections == 1


def test_a_busy_source_does_not_keep_a_run_from_its_end(tmp_path: Path, mirror: Mirror) -> None:
    """With `once` a run ends after what was there, although the source grows faster than that."""
    turns = count()
    with LocalStore.open(tmp_path / "a") as store:
        ledger = store.open_topic(TOPIC)
        ledger.stampers = StamperChain.from_names(["broker-time", "index"])

        def grow(entries: int) -> None:
            for number in range(entries):
                ledger.append(message(number), message_count=1).commit.wait(30)

        def is_stopped() -> bool:
            grow(3)
            return next(turns) > 400

        grow(20)
        limit = RateLimit(15, is_messages=True)
        done = mirror(tmp_path / "a", tmp_path / "b", limit=limit, is_stopped=is_stopped)
    assert done.complete
    assert done.entries >= 20


def test_a_source_that_loses_its_end_does_not_keep_a_run_from_its_end(
    source: BrokerThread,
    target: BrokerThread,
    mirror: Mirror,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries that were there at the start and are removed before they come are a gap."""
    monkeypatch.setattr("pulsemark.mirror.broker_source.PERMITS_MAX", 16)
    publish(source, range(1, 200))
    turns = count()

    def is_stopped() -> bool:
        turn = next(turns)
        if turn == 2:
            delete(source, "/truncate")
        return turn > 600

    done = mirror(source.service_url, target.service_url, is_stopped=is_stopped)
    assert done.complete
    assert done.entries < 199
    (line,) = [line for line in done.lines if line.startswith("gap")]
    assert "were removed before they were mirrored" in line


def test_a_source_that_was_recreated_is_reported(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """Its entries are mirrored; that indexes go back is a gap, since its end was never seen."""
    publish(source, range(1, 20))
    mirror(source.service_url, target.service_url)
    delete(source, "?force=true")
    publish(source, range(50, 55))
    done = mirror(source.service_url, target.service_url)
    assert done.entries == 5
    assert [line.split(": ", 2)[2] for line in done.lines] == [
        "indexes go back from 25 to 2: the source's topic was recreated, or its tail was cut off"
    ]
    assert done.report.sum().gaps == 1
    assert mirror(source.service_url, target.service_url).report.sum().gaps == 0
    assert len(bodies_of(target.data_dir)) == 24


def test_a_topic_that_is_deleted_while_it_is_followed(
    source: BrokerThread,
    target: BrokerThread,
    mirror: Mirror,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mirror does not make the topic again. It says that it is gone, goes on with the others,
    and mirrors it again once its users have made it anew.
    """
    monkeypatch.setattr("pulsemark.mirror.run.DISCOVERY_S", 0.05)
    other = TOPIC + "-2"
    publish(source, range(1, 10))
    publish(source, range(1, 3), other)
    lines: list[str] = []
    turns = count()
    steps = [
        lambda: delete(source, "?force=true"),
        lambda: publish(source, range(3, 5), other),
        lambda: publish(source, range(50, 55)),
    ]
    reached = [
        lambda: stored(TOPIC) == 9 and stored(other) == 2,
        lambda: any("gone" in line for line in lines),
        lambda: stored(other) == 4,
        lambda: stored(TOPIC) == 14,
    ]

    def stored(topic: str) -> int:
        try:
            return len(bodies_of(target.data_dir, topic))
        except TopicNotFoundError:
            return 0

    def is_stopped() -> bool:
        if reached and reached[0]():
            reached.pop(0)
            if steps:
                steps.pop(0)()
        return not reached or next(turns) > 2_000

    mirror(
        source.service_url,
        target.service_url,
        TOPIC,
        other,
        once=False,
        is_stopped=is_stopped,
        lines=lines,
    )
    assert not reached, lines
    (gone,) = [line for line in lines if line.startswith("gone")]
    assert TOPIC in gone


class Wire:
    """Passes a broker's connections on, until it is cut: then nothing comes through, or ends."""

    def __init__(self, broker: BrokerThread) -> None:
        self._to = "127.0.0.1", broker.broker.port
        self._ends: list[socket.socket] = []
        self._is_cut: list[socket.socket] = []
        # The broker says that it is there: clients look up its topics, and connect again.
        self._listener = socket.create_server((WIRE_HOST, self._to[1]))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._to, 30)
            self._ends += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        try:
            while data := near.recv(65536):
                if near not in self._is_cut:
                    far.sendall(data)
        except OSError:
            return
        if near not in self._is_cut:
            far.close()

    def cut(self) -> None:
        """Nothing comes through any more on the connections that there are."""
        self._is_cut = list(self._ends)

    def close(self) -> None:
        """End all threads."""
        self._listener.close()
        for end in self._ends:
            end.close()


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_side_that_is_silent_is_noticed(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """A connection that is cut without an end is made again, and mirroring goes on."""
    monkeypatch.setattr("pulsemark.mirror.run.PING_S", 0.5)
    monkeypatch.setattr("pulsemark.mirror.run.PING_TIMEOUT_S", 3.0)
    settings: dict[str, Any] = {"mirror_sources": ("*",), "keep_alive_interval_ms": 500}
    there = {"advertised_address": WIRE_HOST}
    with (
        running_broker(**settings, **(there if side == "source" else {})) as source,
        running_broker(**settings, **(there if side == "target" else {})) as target,
        closing(Wire(source if side == "source" else target)) as wire,
    ):

        def send(first: int, end: int) -> None:
            with RawClient("127.0.0.1", source.broker.port) as client:
                producer = client.create_producer(TOPIC)
                for number in range(first, end):
                    producer.send_raw(message(number))

        def stored() -> int:
            try:
                return len(bodies_of(target.data_dir))
            except TopicNotFoundError:
                return 0

        send(1, 4)
        end_s = time.monotonic() + 60
        is_cut = False

        def is_stopped() -> bool:
            nonlocal is_cut
            if stored() == 3 and not is_cut:
                is_cut = True
                wire.cut()
                send(4, 6)
            return stored() == 5 or time.monotonic() > end_s

        done = mirror(source.service_url, target.service_url, once=False, is_stopped=is_stopped)
        assert done.report.reconnections > 0
        assert len(bodies_of(target.data_dir)) == 5


def test_a_target_that_loses_its_entries_gets_none_again(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """After truncation or retention in the target, mirroring goes on where it was."""
    publish(source, range(1, 20))
    assert mirror(source.service_url, target.service_url).entries == 19
    delete(target, "/truncate")
    publish(source, range(20, 25))
    done = mirror(source.service_url, target.service_url)
    assert (done.entries, done.report.sum().gaps) == (5, 0)


def test_a_header_that_lies_about_its_messages_stops_no_mirror(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """An entry has no more messages than it took indexes; its bytes stay as they are."""
    bodies = []
    with RawClient.from_url(source.service_url) as client:
        producer = client.create_producer(TOPIC)
        for stated in (1, 2**31 - 1, -1, 1000, 1):
            header = MessageMetadata(
                producer_name="x", sequence_id=1, publish_time=1, num_messages_in_batch=stated
            )
            bodies.append(seal(header.SerializeToString(), b"x"))
            producer.send_raw(bodies[-1])
    done = mirror(source.service_url, target.service_url)
    assert done.complete
    assert bodies_of(target.data_dir) == bodies
    assert [entry.message_count for entry in entries_of(target.data_dir)] == [1, 1, 0, 1, 1]
