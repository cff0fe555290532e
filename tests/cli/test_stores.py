"""Topics of a data folder: the default folder, short names, partitions."""

from __future__ import annotations

import pytest

from pulsemark.ledger import LocalStore, TopicNotFoundError

from .conftest import TOPIC, message_body


@pytest.fixture
def here(tmp_path, monkeypatch, folder):
    """A working folder whose ./pulsemark-data has ten entries of `orders`."""
    monkeypatch.chdir(tmp_path)
    folder.path.rename(tmp_path / "pulsemark-data")
    return tmp_path


def partitioned(here, count=3):
    """A partitioned topic `parts`, with as many entries in each partition as its number says."""
    with LocalStore.open(here / "pulsemark-data") as store:
        for number in range(count):
            ledger = store.open_topic(f"parts-partition-{number}")
            for each in range(number + 1):
                body = message_body(b"x", sequence_id=each, publish_time_ms=1)
                ledger.append(body).commit.wait(10)


def test_the_default_folder(here, pulsemark):
    """`dump`, `verify` and `seek` of a topic need no --data-dir where `seek` needs none."""
    assert len(pulsemark("dump", "orders", "--json").json()) == 10
    assert pulsemark("verify", "orders").out.startswith("1 topic,")
    assert pulsemark("seek", "orders", "2025-11-12T11:05:00Z", "--json").status == 0
    assert len(pulsemark("dump", "pulsemark-data", "--json").json()) == 10
    assert "nosuch" in pulsemark("dump", "nosuch").error()
    assert "does not exist" in pulsemark("dump", "no/such/file.log").error()


def test_without_a_folder(tmp_path, monkeypatch, pulsemark):
    """The error says that neither a path nor a folder is there, and which option names one."""
    monkeypatch.chdir(tmp_path)
    for command in ("dump", "verify"):
        error = pulsemark(command, "orders").error()
        assert "orders" in error
        assert "--data-dir" in error


def test_a_partitioned_topic(here, pulsemark):
    """All partitions, in the order of their numbers; where one is needed they are named."""
    partitioned(here, 12)
    rows = pulsemark("dump", "parts", "--json").json()
    assert len(rows) == sum(range(13))
    assert rows[0]["topic"].endswith("-0")
    assert rows[-1]["topic"].endswith("-11")
    assert pulsemark("verify", "parts").out.startswith("12 topics")
    assert len(pulsemark("seek", "parts", "now", "--json").json()) == 12
    assert "name one of parts-partition-0, parts-partition-1" in (
        pulsemark("control", "list", "parts").error()
    )
    rows = pulsemark("audit", "parts", "--data-dir", "pulsemark-data", "--json").json()
    assert sum(row.get("count", 0) for row in rows) == sum(range(13))


def test_an_audit_of_all_topics(here, pulsemark, folder):
    """Without a topic all are counted, as many messages as were appended."""
    partitioned(here, 2)
    rows = pulsemark("audit", "--data-dir", "pulsemark-data", "--json").json()
    counts = [row["count"] for row in rows if "count" in row]
    assert sum(counts) == sum(folder.counts) + 3
    ran = pulsemark("audit", "--data-dir", "pulsemark-data")
    assert ran.status == 0
    assert [line for line in ran.out.splitlines() if "://" in line] == [
        TOPIC,
        "persistent://public/default/parts-partition-0",
        "persistent://public/default/parts-partition-1",
    ]
    assert "TOPIC is missing" in pulsemark("audit").error()


def test_an_audit_finds_what_is_missing(here, pulsemark, folder):
    """A damaged entry is missing in the figures, and the exit code says so."""
    path = next(
        each
        for each in (here / "pulsemark-data" / "ledgers").glob("*.log")
        if TOPIC.encode() in each.read_bytes()
    )
    data = bytearray(path.read_bytes())
    data[data.index(folder.bodies[3]) - 20] ^= 0xFF  # in the record's header or the prefix
    path.write_bytes(data)
    ran = pulsemark("audit", "--data-dir", "pulsemark-data", "--json")
    assert ran.status == 1
    facts, *rows = ran.json()
    assert facts["missing"] == sum(row["missing"] for row in rows) == folder.counts[3]


def test_short_names_of_a_store(tmp_path):
    """`orders` in a store is the topic that a client calls so; "" and a/b are not names."""
    with LocalStore.open(tmp_path / "data") as store:
        ledger = store.open_topic("orders")
        assert ledger.name == TOPIC
        assert store.open_topic(TOPIC) is ledger
        assert store.open_topic("acme/ns/t").name == "persistent://acme/ns/t"
        assert store.topic_names() == ["persistent://acme/ns/t", TOPIC]
        with pytest.raises(ValueError, match="1 to"):
            store.open_topic("")
        for name in ("a/b", "a//b", "a/b/c/d"):
            with pytest.raises(ValueError, match="of the form"):
                store.open_topic(name)
        store.delete_topic("orders")
        with pytest.raises(TopicNotFoundError):
            store.open_topic(TOPIC, create=False)


def test_a_topic_of_an_older_store(tmp_path):
    """A topic that was made under a short name keeps it, with its entries."""
    with LocalStore.open(tmp_path / "data") as store:
        store.open_view("orders").append(b"x", message_count=1).commit.wait(10)
    with LocalStore.open(tmp_path / "data") as store:
        assert store.open_topic("orders").name == "orders"
        assert store.open_topic("orders").next_index == 1
