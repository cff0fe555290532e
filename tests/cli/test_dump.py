"""`pulsemark dump`: folders, topics, segment files, live folders, damage, what is not a folder."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import LocalStore
from pulsemark.metadata import Sender, StamperChain
from pulsemark.metadata.crc import crc32c
from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_COMMIT
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message

from .conftest import TOPIC, message_body

Folder = Any
Command = Any

PUBLISHED_LATE_MS = 3_600_000


def expected_rows(folder: Folder) -> list[dict[str, object]]:
    """What a JSON dump says of each entry, from what was written."""
    rows = []
    for number, (body, count) in enumerate(zip(folder.bodies, folder.counts, strict=True)):
        time_ms = folder.start_ms + number * folder.step_ms
        first_index = folder.first_indexes[number]
        rows.append(
            {
                "topic": folder.topic,
                "entry_id": number,
                "kind": "data",
                "first_index": first_index,
                "index": first_index + count - 1,
                "message_count": count,
                "append_time_ms": time_ms,
                "body_size_bytes": len(body),
                "broker_timestamp_ms": time_ms,
                "publish_time_ms": time_ms - PUBLISHED_LATE_MS,
                "producer_name": "till-1",
                "sequence_id": number,
                "crc": "ok",
                "prefix": {"broker_timestamp": time_ms, "index": first_index + count - 1},
            }
        )
    return rows


def without_place(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The rows without the numbers that the store chooses."""
    return [
        {key: row[key] for key in row if key not in ("ledger_id", "prefix_size_bytes")}
        for row in rows
    ]


def test_json_of_a_folder(folder: Folder, pulsemark: Command) -> None:
    """A folder's dump tells everything that was written, entry by entry."""
    ran = pulsemark("dump", folder.path, "--json")
    assert ran.status == 0
    assert without_place(ran.json()) == expected_rows(folder)
    assert all(10 < row["prefix_size_bytes"] <= 28 for row in ran.json())


@pytest.mark.parametrize("name", ["orders", "public/default/orders", None])
def test_topic_of_a_folder(folder: Folder, pulsemark: Command, name: str | None) -> None:
    """A topic is found by its short and its full name and gives the same rows."""
    ran = pulsemark("dump", name or folder.topic, "--data-dir", folder.path, "--json")
    assert ran.status == 0
    assert without_place(ran.json()) == expected_rows(folder)


def test_segment_file_alone(folder: Folder, pulsemark: Command, tmp_path: Path) -> None:
    """One segment file, taken out of its folder, gives the same rows."""
    alone = shutil.copy(folder.segment(), tmp_path / "alone.log")
    ran = pulsemark("dump", alone, "--json")
    assert ran.status == 0
    assert ran.json() == pulsemark("dump", folder.path, "--json").json()


def test_entries_without_stamps(bare_folder: Folder, pulsemark: Command) -> None:
    """Unstamped entries show no broker time and no prefix, but still their index."""
    rows = pulsemark("dump", bare_folder.path, "--json").json()
    assert {row["broker_timestamp_ms"] for row in rows} == {None}
    assert {row["prefix_size_bytes"] for row in rows} == {0}
    assert [row["first_index"] for row in rows] == bare_folder.first_indexes


def test_text_of_a_folder(folder: Folder, pulsemark: Command) -> None:
    """The table has a heading and a line per entry with its position, index and times."""
    lines = pulsemark("dump", folder.path).out.splitlines()
    assert lines[0] == folder.topic
    assert lines[1].split()[:4] == ["position", "index", "count", "kind"]
    assert len(lines) == 2 + len(folder.bodies)
    position, index, count, kind, broker_time = lines[4].split()[:5]
    assert position.endswith(":2")
    assert (index, count, kind) == ("5", "3", "data")
    assert broker_time == "2025-11-12T11:05:02.000Z"
    assert lines[4].endswith(" ok")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--limit", "3"], [0, 1, 2]),
        (["--from-index", "4"], [2, 3, 4, 5, 6, 7, 8, 9]),
        (["--from-index", "4", "--limit", "1"], [2]),
        (["--from-time", "2025-11-12T11:05:08Z"], [8, 9]),
        (["--from-time", "1762945507001"], [8, 9]),
        (["--from-time", "+1d"], []),
    ],
)
def test_parts(
    folder: Folder, pulsemark: Command, arguments: list[str], expected: list[int]
) -> None:
    """A dump begins where the options say, by index or time, and ends at its limit."""
    ran = pulsemark("dump", "orders", "--data-dir", folder.path, "--json", *arguments)
    assert [row["entry_id"] for row in ran.json()] == expected


@pytest.mark.parametrize("of_segment", [False, True])
def test_from_position(folder: Folder, pulsemark: Command, *, of_segment: bool) -> None:
    """A dump begins at the given position, in a folder and in a segment file."""
    ledger_id = pulsemark("dump", folder.path, "--json").json()[0]["ledger_id"]
    target = folder.segment() if of_segment else folder.path
    ran = pulsemark("dump", target, "--from", f"{ledger_id}:7", "--json")
    assert [row["entry_id"] for row in ran.json()] == [7, 8, 9]


def test_live_folder(tmp_path: Path, folder: Folder, pulsemark: Command) -> None:
    """The folder of a running writer is dumped without disturbing it, durable entries only."""
    store = LocalStore.open(folder.path)
    try:
        ledger = store.open_topic(folder.topic)
        ledger.append(folder.bodies[0]).commit.wait(10)
        ran = pulsemark.process("dump", folder.path, "--json")
        assert ran.status == 0
        assert len(ran.json()) == 11
        ledger.append(folder.bodies[1]).commit.wait(10)
        assert len(pulsemark("dump", folder.path, "--json").json()) == 12
    finally:
        store.close()


@pytest.mark.parametrize("of_segment", [False, True])
@pytest.mark.parametrize("number", [0, 4, 8])
def test_damage(folder: Folder, pulsemark: Command, number: int, *, of_segment: bool) -> None:
    """A damaged record is shown as damaged, its neighbours as they are, and the exit code is 1."""
    whole = pulsemark("dump", folder.path, "--json").json()
    folder.damage(number)
    target = folder.segment() if of_segment else folder.path
    ran = pulsemark("dump", target, "--json")
    assert ran.status == 1
    rows = ran.json()
    damaged = rows.pop(number)
    assert damaged["entry_id"] == number
    assert "checksum" in damaged["damaged"]
    del whole[number]
    assert rows == whole
    text = pulsemark("dump", target)
    assert text.status == 1
    assert " DAMAGED " in text.out.splitlines()[2 + number]


def test_segment_without_header(folder: Folder, pulsemark: Command) -> None:
    """A segment file that cannot be assigned to a topic any more is reported, not skipped."""
    path = folder.segment()
    data = path.read_bytes()
    path.write_bytes(bytes(200) + data[200:])
    path.with_suffix(".idx").unlink()  # it has a copy of the header
    ran = pulsemark("dump", folder.path, "--json")
    assert ran.status == 1
    (damaged,) = ran.json()
    assert path.name in damaged["damaged"]


def test_segment_with_a_damaged_header(folder: Folder, pulsemark: Command) -> None:
    """Where a damaged header can be put together again all entries are shown, and the damage."""
    path = folder.segment()
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    ran = pulsemark("dump", folder.path, "--json")
    assert ran.status == 1
    *rows, damaged = ran.json()
    assert len(rows) == 10
    assert path.name in damaged["damaged"]


def test_torn_tail_of_a_segment_file(folder: Folder, pulsemark: Command) -> None:
    """Bytes after the last whole record of a segment file are reported as damage."""
    path = folder.segment()
    path.write_bytes(path.read_bytes() + b"\xf7PM\x1ehalf a record")
    ran = pulsemark("dump", path, "--json")
    assert ran.status == 1
    *rows, tail = ran.json()
    assert len(rows) == 10
    assert tail["entry_id"] == 10
    assert "after the last whole record" in tail["damaged"]


def test_room_kept_free_is_no_damage(folder: Folder, pulsemark: Command) -> None:
    """Zeros after the last record are room for more, not damage."""
    path = folder.segment()
    path.write_bytes(path.read_bytes() + bytes(5_000))
    ran = pulsemark("dump", path, "--json")
    assert ran.status == 0
    assert len(ran.json()) == 10


def test_lost_records_of_a_segment_file(folder: Folder, pulsemark: Command) -> None:
    """Records whose headers are gone are counted, and the dump goes on after them."""
    path = folder.segment()
    data = bytearray(path.read_bytes())
    begin, end = data.index(folder.bodies[3]), data.index(folder.bodies[5])
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
    ran = pulsemark("dump", path, "--json")
    assert ran.status == 1
    damaged = [row for row in ran.json() if "damaged" in row]
    assert [row["entry_id"] for row in ran.json() if "damaged" not in row] == [0, 1, 2, 6, 7, 8, 9]
    assert min(row["entry_id"] for row in damaged) == 3


def test_reader_that_goes_away(folder: Folder, pulsemark: Command, tmp_path: Path) -> None:
    """`dump | head` ends without a traceback."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "pulsemark", "dump", str(folder.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 141
    assert said == ""


def test_bad_input(folder: Folder, pulsemark: Command, tmp_path: Path) -> None:
    """What is not a folder, topic, segment, index or position is refused in one line naming it."""
    (tmp_path / "text.txt").write_text("not a segment")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "holiday.jpg").write_bytes(b"\xff\xd8")
    refused: list[tuple[list[str | Path], str]] = [
        (["nowhere"], "nowhere"),
        ([tmp_path / "nowhere"], "nowhere"),
        ([tmp_path / "text.txt"], "text.txt"),
        ([tmp_path / "foreign"], "foreign"),
        (["orders", "--data-dir", tmp_path / "nowhere"], "nowhere"),
        (["orders", "--data-dir", tmp_path / "foreign"], "foreign"),
        (["orders", "--data-dir", tmp_path / "text.txt"], "text.txt"),
        (["invoices", "--data-dir", folder.path], "public/default/invoices"),
        (["../orders", "--data-dir", folder.path], "../orders"),
        (["orders\0", "--data-dir", folder.path], "orders"),
        (["orders", "--data-dir", folder.path, "--from-index", "99"], "99"),
        (["orders", "--data-dir", folder.path, "--from-time", "lunchtime"], "lunchtime"),
        ([folder.segment(), "--from-index", "3"], "segment file"),
    ]
    for arguments, named in refused:
        assert named in pulsemark("dump", *arguments).error()
    assert "nowhere" in pulsemark.process("dump", tmp_path / "nowhere").error()


def test_folder_of_the_future(folder: Folder, pulsemark: Command) -> None:
    """A folder or segment of a newer format is unsupported, not damaged."""
    marker = folder.path / "PULSEMARK"
    text = marker.read_text()
    marker.write_text(text.replace('"version": 1', '"version": 2'))
    assert "not supported" in pulsemark("dump", folder.path).error()
    marker.write_text(text)
    path = folder.segment()
    data = bytearray(path.read_bytes())
    data[8] = 0x7F
    end = int.from_bytes(data[12:16], "little") - 4
    data[end : end + 4] = crc32c(bytes(data[:end])).to_bytes(4, "little")
    path.write_bytes(data)
    assert "not supported" in pulsemark("dump", path).error()


def test_tags(tmp_path: Path, pulsemark: Command) -> None:
    """Tags are shown by name after each row, and with all of the prefix's fields in JSON."""
    store = LocalStore.open(tmp_path / "tagged")
    try:
        ledger = store.open_topic("persistent://public/default/orders")
        names = ["index", "producer", "message-count", "property-tags:region,raw"]
        ledger.stampers = StamperChain.from_names(names)
        sender = Sender("till-1", {"region": "eu"})
        body = unbatched_message(b"x", publish_time_ms=1)
        ledger.append(body, message_count=2, sender=sender)
        ledger.append_control(CONTROL_TXN_COMMIT, "t", tags={"raw": b"\xff"}).commit.wait(10)
    finally:
        store.close()
    data, control = pulsemark("dump", store.folder, "--json").json()
    assert data["prefix"] == {
        "index": 1,
        "message_count": 2,
        "application_tags": {"region": "eu"},
        "producer_name": "till-1",
    }
    assert control["prefix"]["application_tags"] == {"raw": "ff"}
    assert control["prefix"]["control_type"] == "CONTROL_TXN_COMMIT"
    assert "tags" not in data
    heading, first, second = pulsemark("dump", store.folder).out.splitlines()[1:]
    assert heading.endswith(" crc  tags")
    at = heading.index("tags")
    assert first[at:] == "message_count=2 region=eu producer_name=till-1"
    assert second[at:].split() == [
        "message_count=1", "entry_kind=CONTROL", "control_type=CONTROL_TXN_COMMIT", "raw=ff",
        "control_name=t",
    ]  # fmt: skip


def test_payload(pulsemark, tmp_path):
    """--payload shows each message: of batches, compressed, encrypted, without a value."""
    path = tmp_path / "data"
    with running_broker(data_dir=path) as broker, RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC)
        producer.send(b"alone", key="k")
        producer.send_batch([b"one", b"two"])
        producer.send(None)
        producer.send(b"\xff" * 300)
    rows = pulsemark("dump", path, "--payload", "--json").json()
    assert [[each.get("value") for each in row["messages"]] for row in rows] == [
        ["alone"], ["one", "two"], [None], [None],
    ]  # fmt: skip
    assert rows[3]["messages"][0]["value_base64"] == base64.b64encode(b"\xff" * 300).decode()
    assert [each["index"] for each in rows[1]["messages"]] == [1, 2]
    text = pulsemark("dump", path, "--payload").out
    for part in ("key=k  alone", "1  one", "null", "... (300 bytes)"):
        assert part in text
    assert "messages" not in pulsemark("dump", path, "--json").json()[0]
    assert "control entries" in pulsemark("dump", path, "--payload", "--control").error()


def test_payload_that_cannot_be_opened(pulsemark, folder):
    """It is said for that entry, and the dump goes on."""
    rows = pulsemark("dump", folder.path, "--payload", "--json").json()
    assert len(rows) == len(folder.bodies)
    for row in rows:
        assert isinstance(row["messages"], list) or row["messages"]["unreadable"]
    assert pulsemark("dump", folder.path, "--payload").status == 0


def test_a_topic_of_a_broker(pulsemark, tmp_path):
    """`--url` prints the rows of the folder behind the broker, but for the unchecked checksum."""
    with running_broker(data_dir=tmp_path / "data") as broker:
        with RawClient.from_url(broker.service_url) as client:
            producer = client.create_producer(TOPIC)
            bodies = [message_body(b"x", sequence_id=n, publish_time_ms=1) for n in range(120)]
            producer.send_many(bodies)
            producer.send_batch([b"a", b"b"])
        here = ("dump", "orders", "--json", "--data-dir", str(tmp_path / "data"))
        there = ("dump", "orders", "--json", "--url", broker.http_url)
        for start in ((), ("--from-index", "100"), ("--limit", "3"), ("--control",)):
            expected = [{**row, "crc": "-"} for row in pulsemark(*here, *start).json()]
            assert pulsemark(*there, *start).json() == expected
        refused = pulsemark(*there, "--payload").error()
        assert "--payload" in refused
        assert "absent not found" in pulsemark("dump", "absent", "--url", broker.http_url).error()
