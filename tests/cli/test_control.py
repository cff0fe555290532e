"""`pulsemark control` and `dump --control`: bad input, JSON, and folders without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.ledger import LocalStore
from pulsemark.proto.broker_entry_pb2 import CONTROL_CHECKPOINT, CONTROL_USER
from pulsemark.testing import RawClient, running_broker

Command = Any
TOPIC = "persistent://public/default/orders"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with messages and control entries in two epochs."""
    path = tmp_path / "data"
    with LocalStore.open(path) as store:
        ledger = store.open_topic(TOPIC)
        ledger.append(b"x").commit.wait(10)
        ledger.append_control(CONTROL_CHECKPOINT, "c1", tags={"raw": b"\xff", "by": b"me"})
        ledger.begin_epoch(3, leader="b").commit.wait(10)
        ledger.append(b"y").commit.wait(10)
        ledger.append_control(CONTROL_USER, "com.example.x").commit.wait(10)
    return path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker with a token, and a topic."""
    path = tmp_path_factory.mktemp("secret") / "token"
    path.write_text("secret")
    with (
        running_broker(grpc_port=0, http_port=None, grpc_control_token_file=path) as running,
        RawClient.from_url(running.service_url) as client,
    ):
        client.create_producer(TOPIC)
        yield running


def test_a_folder_is_listed_as_json(pulsemark: Command, folder: Path) -> None:
    """One object for each entry, with bytes that are not text in hexadecimal."""
    rows = pulsemark("control", "list", "orders", "--data-dir", folder, "--json").json()
    assert [(r["index"], r["control"]["type"], r["control"]["name"]) for r in rows] == [
        (1, "checkpoint", "c1"), (2, "leader-change", "b"), (4, "user", "com.example.x")
    ]  # fmt: skip
    assert rows[0]["control"]["tags"] == {"by": "me", "raw": "ff"}
    assert [r["control"]["epoch"] for r in rows] == [0, 3, 3]
    one = pulsemark("control", "list", "orders", "--data-dir", folder, "--json", "--limit", "1")
    assert one.json() == rows[:1]
    dumped = pulsemark("dump", folder, "--control", "--json").json()
    assert [r["control"] for r in dumped] == [r["control"] for r in rows]
    assert len(pulsemark("dump", folder, "--json").json()) == 5


def test_a_single_segment_is_filtered_too(pulsemark: Command, folder: Path) -> None:
    """`dump SEGMENT --control`."""
    paths = sorted(folder.glob("**/*.log"))
    kinds = [r["kind"] for p in paths for r in pulsemark("dump", p, "--control", "--json").json()]
    assert set(kinds) == {"control"}
    assert len(kinds) >= 3


def test_epochs_of_a_folder(pulsemark: Command, folder: Path) -> None:
    """Each with its end, as a table and as JSON."""
    rows = pulsemark("control", "epochs", "orders", "--data-dir", folder, "--json").json()
    assert [(r["epoch"], r["first_index"], r["end_index"], r["leader"]) for r in rows] == [
        (0, 0, 2, ""), (3, 2, 5, "b")
    ]  # fmt: skip
    table = pulsemark("control", "epochs", "orders", "--data-dir", folder).out.splitlines()
    assert table[0].split()[:3] == ["epoch", "first_index", "end_index"]
    assert table[2].split() == ["3", "2", "5", str(rows[1]["ledger_id"]), "0", "b"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("txn-start",), "name"),
        (("txn-start", "a\tb"), "name"),
        (("txn-start", "x" * 300), "name"),
        (("nonsense", "x"), "nonsense"),
        (("user", "x", "--tag", "novalue"), "novalue"),
        (("user", "x", "--tag", "a=1", "--tag", "a=2"), "--tag"),
        (("user", "x", "--tag", "index=1"), "index"),
        (("leader-change", "--epoch", "4294967296"), "4294967296"),
        (("checkpoint", "x", "--epoch", "5"), "5"),
        (("checkpoint", "x", "--epoch", "-5"), "-5"),
    ],
)
def test_bad_input_is_one_line(
    pulsemark: Command, broker: BrokerThread, tmp_path: Path, arguments: tuple[str, ...],
    reason: str,
) -> None:  # fmt: skip
    """It names what is wrong, and nothing is stored."""
    token = tmp_path / "token"
    token.write_text("secret")
    call = ("control", "append", "orders", *arguments)
    ran = pulsemark(*call, "--grpc", broker.grpc_url, "--token-file", token)
    assert reason in ran.error()
    listed = pulsemark("control", "list", "orders", "--grpc", broker.grpc_url, "--json")
    assert listed.json() == []


def test_without_the_right_token(pulsemark: Command, broker: BrokerThread, tmp_path: Path) -> None:
    """No token, a wrong one, a file without one; topics that do not exist."""
    call = ("control", "append", "orders", "checkpoint", "c", "--grpc", broker.grpc_url)
    assert "UNAUTHENTICATED" in pulsemark(*call).error()
    token = tmp_path / "token"
    token.write_text("wrong")
    assert "UNAUTHENTICATED" in pulsemark(*call, "--token-file", token).error()
    token.write_text("two words")
    assert "does not hold a token" in pulsemark(*call, "--token-file", token).error()
    assert "absent" in pulsemark(*call, "--token-file", tmp_path / "absent").error()
    missing = pulsemark("control", "list", "absent", "--grpc", broker.grpc_url, "--json")
    assert "absent" in missing.error()
    assert (
        "127.0.0.1:1" in pulsemark("control", "epochs", "orders", "--grpc", "127.0.0.1:1").error()
        or "UNAVAILABLE"
        in pulsemark("control", "epochs", "orders", "--grpc", "127.0.0.1:1").error()
    )


@pytest.mark.parametrize(
    "target", ["", "here", "127.0.0.1:99999", "127.0.0.1:0", ":1", "\udcff:1", "a:b"]
)
@pytest.mark.parametrize("command", [("control", "epochs", "orders"), ("seek", "orders", "-5m")])
def test_an_address_that_is_none(pulsemark: Command, command: Any, target: str) -> None:
    """It is refused in one line; no other port is called with the token."""
    error = pulsemark(*command, "--grpc", target).error()
    assert f"{target!r} is not of the form HOST:PORT" in error


def test_tags_stay_in_their_line(pulsemark: Command, tmp_path: Path) -> None:
    """A value cannot end the line or command the terminal; letters of all languages are shown."""
    with LocalStore.open(tmp_path) as store:
        tags = {"a": b"1\n2\x1b[31m", "b": "Zürich\u202e".encode()}
        store.open_topic(TOPIC).append_control(CONTROL_USER, "x", tags=tags).commit.wait(10)
    for command in (("control", "list", "orders", "--data-dir"), ("dump", "orders", "--data-dir")):
        text = pulsemark(*command, tmp_path).out
        assert len(text.splitlines()) == 3
        assert r"a=1\n2\x1b[31m b=Zürich\u202e" in text
