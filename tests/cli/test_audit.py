"""`pulsemark audit`: rows of a folder or a broker, tiers compared, and their exit codes."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.testing import RawClient, SettableClock, running_broker

Command = Any
NAME = "persistent://public/default/orders"
#: Long ago: the bucket has ended.
START_MS = 1_700_000_000_000 // 60_000 * 60_000


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """A broker that has ten messages of two producers in one bucket."""
    settings: dict[str, Any] = {
        "audit_enabled": True,
        "stampers": ("broker-time", "index", "producer"),
        "storage": "memory",
        "clock": SettableClock(START_MS + 5),
    }
    with running_broker(**settings) as running, RawClient.from_url(running.service_url) as client:
        for name, count in (("a", 6), ("b", 4)):
            producer = client.create_producer(NAME, producer_name=name)
            producer.send_batch([b"x"] * count)
        yield running


def post(broker: BrokerThread, tier: str, producer: str, **counts: int) -> None:
    """What a consumer says that it received."""
    row = {
        "tier": tier,
        "bucket_start_ms": START_MS,
        "bucket_end_ms": START_MS + 60_000,
        "tags": {"producer": producer},
        **counts,
    }
    body = json.dumps({"source": f"{tier} {producer!r}", "rows": [row]}).encode()
    url = f"{broker.http_url}/admin/v2/persistent/public/default/orders/audit"
    with urllib.request.urlopen(urllib.request.Request(url, body, method="POST"), timeout=30):
        pass


def test_rows_of_a_broker(pulsemark: Command, broker: BrokerThread) -> None:
    """As a table and as JSON, whole and by producer."""
    ran = pulsemark("audit", "orders", "--admin-url", broker.http_url)
    assert (ran.status, ran.err) == (0, "")
    head, line = ran.out.splitlines()
    assert head.split()[:3] == ["bucket", "tier", "count"]
    assert line.split()[1:4] == ["broker", "10", "0"]
    ran = pulsemark("audit", "orders", "--admin-url", broker.http_url, "--by", "producer", "--json")
    facts, *rows = ran.json()
    assert facts["next_index"] == 10
    assert [(row["tags"]["producer_name"], row["count"]) for row in rows] == [("a", 6), ("b", 4)]


def test_rows_of_a_folder(pulsemark: Command, folder: Any) -> None:
    """Without a broker, by any tags and width; each entry of the fixture is a second apart."""
    place = ("--data-dir", folder.path, "--json")
    _, *rows = pulsemark(
        "audit", "orders", *place, "--bucket", "2 seconds", "--by", "has_keys"
    ).json()
    assert sum(row["count"] for row in rows) == sum(folder.counts)
    assert len(rows) == 5
    _, *rows = pulsemark("audit", "orders", *place, "--from", str(folder.start_ms + 60_000)).json()
    assert rows == []


@pytest.mark.parametrize("options", [(), ("--by", "producer")])
def test_a_missing_entry_makes_exit_code_1(
    pulsemark: Command, folder: Any, options: tuple[str, ...]
) -> None:
    """Its head cannot be read; also by tags, whose rows have no column for what is missing."""
    path = folder.segment()
    data = bytearray(path.read_bytes())
    at = data.index(folder.bodies[4]) - 10
    data[at] ^= 1
    path.write_bytes(data)
    ran = pulsemark("audit", "orders", "--data-dir", folder.path, *options)
    assert ran.status == 1
    assert f"missing: {folder.counts[4]} messages" in ran.err


def test_a_log_without_a_readable_entry_makes_exit_code_1(pulsemark: Command, folder: Any) -> None:
    """It has no rows, and its index file still knows how much it had."""
    folder.segment().write_bytes(b"")
    ran = pulsemark("audit", "orders", "--data-dir", folder.path)
    assert ran.status == 1
    assert f"missing: {sum(folder.counts)} messages" in ran.err


def test_tiers_that_agree(pulsemark: Command, broker: BrokerThread) -> None:
    """Exit code 0; the sum over consumers counts."""
    post(broker, "c", "a", count=6)
    post(broker, "c", "b", count=5, doubled=1, late=0)
    place = ("--admin-url", broker.http_url)
    ran = pulsemark("audit", "compare", "orders", *place, "--by", "producer")
    assert ran.status == 1
    assert [line.split()[2:] for line in ran.out.splitlines()[1:]] == [
        ["a", "6", "6", "0", "0", "0", "ok"],
        ["b", "4", "5", "0", "1", "0", "WRONG"],
    ]
    post(broker, "c", "b", count=4)
    ran = pulsemark("audit", "compare", "orders", *place, "--by", "producer")
    assert ran.status == 0
    ran = pulsemark("audit", "compare", "orders", *place, "--json")
    _, row = ran.json()
    assert (row["broker_count"], row["tier_count"], row["is_problem"]) == (10, 10, False)


def test_a_name_cannot_draw_on_the_table(pulsemark: Command, broker: BrokerThread) -> None:
    """Line ends and escape sequences in a producer's name are shown as text."""
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer(NAME, producer_name="a\n9 \x1b[31m").send(b"x")
    post(broker, "c", "a\n9 \x1b[31m", count=1)
    place = ("--admin-url", broker.http_url, "--by", "producer")
    for words, lines in ((("orders",), 4), (("compare", "orders"), 4)):
        out = pulsemark("audit", *words, *place).out
        assert "a\\n9 \\x1b[31m" in out
        assert len(out.splitlines()) == lines


@pytest.mark.parametrize(
    ("counts", "wrong"),
    [
        ({"count": 9}, "lost"),
        ({"count": 10, "doubled": 1}, "lost"),
        ({"count": 11}, "doubled"),
        ({"count": 10, "late": 2}, "late"),
    ],
)
def test_tiers_that_differ(
    pulsemark: Command, broker: BrokerThread, counts: dict[str, int], wrong: str
) -> None:
    """Exit code 1, and the row says how; another tier is not concerned."""
    post(broker, "c", "a", **counts)
    post(broker, "good", "a", count=10)
    place = ("--admin-url", broker.http_url, "--json")
    ran = pulsemark("audit", "compare", "orders", *place)
    assert ran.status == 1
    bad = [row for row in ran.json()[1:] if row["is_problem"]]
    assert [row["tier"] for row in bad] == ["c"]
    assert bad[0][wrong] > 0
    assert pulsemark("audit", "compare", "orders", *place, "--tier", "good").status == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("orders", "more"), "'orders more'"),
        (("persistent://x",), "persistent://x"),
        (("orders", "--by", "a,,b"), "tag"),
        (("orders", "--by", "service"), "service"),
        (("orders", "--bucket", "1 minute"), "--bucket"),
        (("orders", "--grace", "1 minute"), "--grace"),
        (("orders", "--from", "often"), "often"),
        (("orders", "--from", "2000000000000", "--to", "1000000000000"), "--to"),
        (("unknown",), "404"),
        (("compare", "orders"), "nothing was posted"),
        (("compare", "orders", "--tier", "x"), "tier x"),
        (("compare", "orders", "--grace", "often"), "often"),
    ],
)
def test_bad_input(
    pulsemark: Command, broker: BrokerThread, arguments: tuple[str, ...], named: str
) -> None:
    """One line that names it, and exit code 2."""
    if "often" in arguments:
        post(broker, "c", "a", count=1)
    assert named in pulsemark("audit", *arguments, "--admin-url", broker.http_url).error()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("orders", "--bucket", "often"), "often"),
        (("orders", "--tier", "c"), "--tier"),
        (("unknown",), "unknown"),
        (("compare", "orders"), "compare"),
    ],
)
def test_bad_input_for_a_folder(
    pulsemark: Command, folder: Any, arguments: tuple[str, ...], named: str
) -> None:
    """The same."""
    assert named in pulsemark("audit", *arguments, "--data-dir", folder.path).error()


def test_a_folder_that_is_none(pulsemark: Command, tmp_path: Path) -> None:
    """The path is named."""
    assert str(tmp_path) in pulsemark("audit", "orders", "--data-dir", tmp_path).error()
