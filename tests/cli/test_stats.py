"""`pulsemark stats` on a terminal: a screen that changes, and what stays of it."""

from __future__ import annotations

import re

import pytest

from pulsemark.testing import running_broker


@pytest.fixture
def stats(pulsemark):
    """Run it with a broker that has thirty topics; topic 7 has a backlog."""
    with running_broker(storage="memory") as broker:
        for number in range(30):
            broker.admin.create_topic(f"persistent://public/default/topic-{number:02}")
        topic = "persistent://public/default/topic-07"
        broker.admin.create_subscription(topic, "s", at="earliest")
        assert pulsemark("produce", topic, "-m", "x", "--service-url", broker.service_url).out
        yield lambda *options: pulsemark("stats", "--admin-url", broker.http_url, *options)


def test_a_screen_of_its_own(stats, terminal):
    """It shows what fits and says how much does not; afterwards the whole table stays."""
    shown = terminal("stdout", 200, 12)
    assert stats("--interval", "1", "--count", "2").status == 0
    screen, stays = shown.getvalue().split("\x1b[?1049l")
    assert screen.count("30 topics  every 1 s") == 2
    (left, _) = re.findall(r"not shown: (\d+) topics", screen)
    topics = {f"topic-{number:02}" for number in range(30)}
    seen = {name for name in topics if name in screen}
    assert len(seen) + int(left) == 30
    assert 5 <= len(seen) <= 9
    assert all(name in stays for name in topics)


def test_a_tiny_terminal(stats, terminal):
    """Where not even one row fits, it says how many there are."""
    shown = terminal("stdout", 30, 4)
    assert stats("--interval", "1", "--count", "1").status == 0
    assert "30 topics" in " ".join(shown.getvalue().split())


def test_sorted(stats):
    """The highest numbers come first; piped tables follow each other."""
    lines = stats("--sort", "backlog", "--interval", "1", "--count", "2").out.splitlines()
    assert len(lines) == 62
    assert lines[1].split()[0].endswith("topic-07")
    assert [row["backlog"] for row in stats("--sort", "backlog", "--json").json()][:2] == [1, 0]
    assert "--sort" in stats("--sort", "size").error()


def test_a_row_fits_80_columns(stats, terminal):
    """Names of the default namespace and headings are short, so that nothing is folded."""
    shown = terminal("stdout", 80)
    assert stats().status == 0
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.getvalue().splitlines()]
    assert lines[0].split()[-4:] == ["stored", "backlog", "prod", "cons"]
    assert all("persistent:" not in line and len(line) <= 80 for line in lines)
