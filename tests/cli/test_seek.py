"""`pulsemark seek`: over a folder, HTTP and gRPC, and what it refuses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.finder import NotPossibleError, SeekServer, ServerOptions
from pulsemark.finder.server import folder_server
from pulsemark.finder.service import TopicSource
from pulsemark.ledger import LocalStore, TopicLog
from pulsemark.maintenance.expected import LogEnds
from pulsemark.testing import PulsarBroker, RawClient, SettableClock, running_broker

from .conftest import START_MS, TOPIC

Folder = Any
Command = Any


@pytest.fixture
def grpc_target(folder: Folder) -> Iterator[str]:
    """A seek service over the folder, in a thread with a loop of its own."""
    started, stop = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with folder_server(folder.path) as server:
            found.append(server.target)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(20)
    yield found[0]
    stop.set()
    thread.join()


def times(folder: Folder) -> list[tuple[int, int]]:
    """Moments to ask for, each with the number of the entry that is right."""
    asked = [(0, 0)]
    for number in range(len(folder.bodies)):
        time_ms = folder.start_ms + number * folder.step_ms
        asked += [(time_ms - 1, number), (time_ms, number), (time_ms + 1, number + 1)]
    return asked


def check_answer(folder: Folder, answer: dict[str, Any], asked_ms: int, number: int) -> None:
    """The answer is entry `number`, or the end where there is none."""
    assert answer["asked_ms"] == asked_ms
    assert answer["topic"] == folder.topic
    assert answer["entry_id"] == number
    if number == len(folder.bodies):
        assert answer["end"] is True
        assert answer["index"] == sum(folder.counts)
        assert answer["time_ms"] is None
        return
    assert answer["end"] is False
    assert answer["first_index"] == folder.first_indexes[number]
    assert answer["message_count"] == folder.counts[number]
    assert answer["time_ms"] == folder.start_ms + number * folder.step_ms


@pytest.mark.parametrize("method", ["index", "prefixes"])
def test_every_moment_in_a_folder(folder: Folder, pulsemark: Command, method: str) -> None:
    """Before, at and after every entry's time the first entry not before it is found."""
    for asked_ms, number in times(folder):
        ran = pulsemark(
            "seek", "orders", str(asked_ms), "--data-dir", folder.path, "--json", "--method", method
        )
        assert ran.status == 0
        (answer,) = ran.json()
        check_answer(folder, answer, asked_ms, number)


def test_every_moment_over_grpc(folder: Folder, pulsemark: Command, grpc_target: str) -> None:
    """A seek service gives the same answers as the folder it serves."""
    for asked_ms, number in times(folder):
        ran = pulsemark("seek", folder.topic, str(asked_ms), "--grpc", grpc_target, "--json")
        assert ran.status == 0
        (answer,) = ran.json()
        check_answer(folder, answer, asked_ms, number)


@pytest.mark.parametrize("place", ["folder", "grpc"])
def test_every_index(folder: Folder, pulsemark: Command, grpc_target: str, place: str) -> None:
    """`--index` has each message.s entry and its place in it, and refuses what is not there."""
    where = ["--data-dir", folder.path] if place == "folder" else ["--grpc", grpc_target]
    for number, first in enumerate(folder.first_indexes):
        for at in range(folder.counts[number]):
            (answer,) = pulsemark("seek", "orders", "--index", first + at, *where, "--json").json()
            assert (answer["entry_id"], answer["batch_index"]) == (number, at)
            assert (answer["first_index"], answer["message_count"]) == (
                first,
                folder.counts[number],
            )
            assert answer["time_ms"] == folder.start_ms + number * folder.step_ms
    end = sum(folder.counts)
    assert str(end) in pulsemark("seek", "orders", "--index", end, *where).error()
    lines = pulsemark("seek", "orders", "--index", end - 1, *where).out.splitlines()
    assert lines[0] == f"{folder.topic} index {end - 1}"
    assert lines[2].split() == ["message", "1", "of", "1"]
    for both in (["-5m", "--index", "1"], []):
        assert "either a TIME or --index" in pulsemark("seek", "orders", *both, *where).error()


def test_text(folder: Folder, pulsemark: Command) -> None:
    """For people it prints position, index and time."""
    ran = pulsemark("seek", "orders", "2025-11-12T11:05:02Z", "--data-dir", folder.path)
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"{folder.topic} from 2025-11-12T11:05:02.000Z")
    assert lines[1].split()[0] == "position"
    assert lines[1].endswith(":2")
    assert lines[2].split() == ["index", "3", "to", "5", "(3", "messages)"]
    assert lines[3].split()[1:] == ["2025-11-12T11:05:02.000Z", "(1762945502000)"]


def test_text_at_the_end(folder: Folder, pulsemark: Command) -> None:
    """After the last entry it says so, and where the next one goes."""
    ran = pulsemark.process("seek", "orders", "+1d", "--data-dir", folder.path)
    assert ran.status == 0
    assert "no entry is at or after this time" in ran.out
    assert f"index     {sum(folder.counts)}" in ran.out


def test_relative_times_need_no_quotes(folder: Folder, pulsemark: Command) -> None:
    """A time that begins with a minus is a time, not an option."""
    ran = pulsemark("seek", "orders", "-9999d", "--data-dir", folder.path, "--json")
    assert ran.status == 0
    assert ran.json()[0]["entry_id"] == 0


def test_default_folder(
    folder: Folder, pulsemark: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --data-dir it is pulsemark-data in the current folder, as for standalone."""
    folder.path.rename(folder.path.parent / "pulsemark-data")
    monkeypatch.chdir(folder.path.parent)
    assert pulsemark("seek", "orders", "0").status == 0


def test_bad_input(folder: Folder, pulsemark: Command, tmp_path: Path) -> None:
    """Unreadable times, bad names, absent topics, folders and servers are one line each."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "holiday.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "empty").write_text("")
    for arguments, named in [
        (["orders", "noonish"], "noonish"),
        (["orders", "-1"], "-1"),
        (["orders", "9" * 30], "9" * 30),
        (["a/b", "0"], "a/b"),
        (["..", "0"], ".."),
        (["", "0"], "topic"),
        (["orders\0", "0"], "orders"),
        (["invoices", "0"], "invoices"),
    ]:
        assert named in pulsemark("seek", *arguments, "--data-dir", folder.path).error()
    places: list[tuple[list[str | Path], str]] = [
        (["--data-dir", tmp_path / "nowhere"], "nowhere"),
        (["--data-dir", tmp_path / "foreign"], "foreign"),
        (["--data-dir", tmp_path / "empty"], "empty"),
        (["--grpc", "127.0.0.1:1"], "UNAVAILABLE: 127.0.0.1:1"),
        (["--grpc", "127.0.0.1:1", "--token-file", tmp_path / "empty"], "does not hold a token"),
        (["--grpc", "127.0.0.1:1", "--token-file", tmp_path / "none"], "none"),
        (["--grpc", "127.0.0.1:1", "--tls-ca", tmp_path / "none"], "none"),
    ]
    for place, named in places:
        assert named in pulsemark("seek", "orders", "0", *place).error()
    assert "noonish" in pulsemark.process("seek", "orders", "noonish").error()


def test_unknown_topic_over_grpc(pulsemark: Command, grpc_target: str) -> None:
    """A server's refusal is printed like a folder's."""
    assert "invoices" in pulsemark("seek", "invoices", "0", "--grpc", grpc_target).error()


async def test_what_a_server_cannot_do(pulsemark: Command) -> None:
    """A topic that no broker with a seek service has is one line, without a traceback."""

    class Source(TopicSource):
        def log(self, topic: str) -> TopicLog:
            raise NotPossibleError(f"{topic} is served by broker-2:8080, which has no gRPC port")

        def ends(self, topic: str) -> LogEnds:
            return LogEnds(self.log(topic).next_index)

    async with SeekServer(Source(), ServerOptions()) as server:
        asked = "seek", "persistent://public/default/t", "0", "--grpc", server.target
        ran = await asyncio.to_thread(pulsemark.process, *asked)
    assert "served by broker-2:8080" in ran.error()


def test_an_option_after_the_double_dash(pulsemark):
    """It is refused with the reason, not with the advice to write what is there."""
    error = pulsemark("seek", "orders", "--", "-1h", "--data-dir", "x").error()
    assert "--data-dir comes after --" in error
    assert "did you mean" not in error


@pytest.fixture
def broker() -> Iterator[PulsarBroker]:
    """A broker in memory, with three messages of `orders` and one in each partition of `parts`."""
    clock = SettableClock(START_MS)
    with running_broker(storage="memory", clock=clock) as broker:
        with RawClient.from_url(broker.service_url) as client:
            producer = client.create_producer(TOPIC)
            for number in range(3):
                producer.send(b"x" * number, publish_time_ms=START_MS)
                clock.advance(by_ms=1_000)
            broker.admin.create_topic("parts", partitions=2)
            for number in range(2):
                client.create_producer(f"{TOPIC[:-6]}parts-partition-{number}").send(b"x")
        yield broker


def test_a_broker_over_http(broker: PulsarBroker, pulsemark: Command) -> None:
    """Every moment has the place that a search in a folder finds; partitions have one each."""
    for moment in range(START_MS - 1, START_MS + 2_002, 500):
        found = pulsemark("seek", "orders", moment, "--url", broker.http_url, "--json").json()[0]
        index = max(0, -(-(moment - START_MS) // 1_000))
        assert (found["index"], found["end"]) == (index, index > 2), moment
        assert found["time_ms"] == (None if found["end"] else START_MS + index * 1_000)
    for index in range(3):
        ran = pulsemark("seek", "orders", "--index", index, "--url", broker.http_url, "--json")
        assert (ran.json()[0]["index"], ran.json()[0]["batch_index"]) == (index, 0)
    outside = pulsemark("seek", "orders", "--index", 3, "--url", broker.http_url)
    assert "3" in outside.error()
    both = pulsemark("seek", "parts", START_MS, "--url", broker.http_url)
    assert both.out.count("index     0") == 2
    missing = pulsemark("seek", "absent", START_MS, "--url", broker.http_url)
    assert "absent not found" in missing.error()
    wrong = pulsemark("seek", "x", "-5m", "--method", "prefixes", "--url", broker.http_url)
    assert "--method prefixes" in wrong.error()


def test_the_broker_on_this_machine(
    broker: PulsarBroker, pulsemark: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a place it is asked first, and says so; the folder has what it does not have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pulsemark.cli.stores.DEFAULT_ADMIN_URL", broker.http_url)
    ran = pulsemark("seek", "orders", START_MS)
    assert "index     0" in ran.out
    assert ran.err == f"pulsemark: the broker at {broker.http_url} answers\n"
    assert "absent not found" in pulsemark("seek", "absent", START_MS).error()
    with LocalStore.open(tmp_path / "pulsemark-data") as store:
        store.open_topic("persistent://public/default/absent").append(b"x").commit.wait(10)
    ran = pulsemark("seek", "absent", START_MS)
    assert ("index     0" in ran.out, ran.err) == (True, "")
