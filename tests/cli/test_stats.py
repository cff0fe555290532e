"""`pulsemark stats`: its order, and its table on a terminal."""

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


def test_sorted(stats):
    """The highest numbers come first."""
    lines = stats("--sort", "backlog").out.splitlines()
    assert len(lines) == 31
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
