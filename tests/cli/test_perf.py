"""`pulsemark perf`: what it publishes, receives and seeks, and its figures."""

from __future__ import annotations

import pytest

from pulsemark.testing import running_broker

pytest.importorskip("pulsar")


@pytest.fixture
def perf_and_broker(pulsemark):
    """How to run `pulsemark perf` with a broker in this process, and the broker."""
    with running_broker(storage="memory") as broker:

        def run(*arguments: str):
            return pulsemark("perf", *arguments, "--service-url", broker.service_url)

        yield run, broker


@pytest.fixture
def perf(perf_and_broker):
    """How to run it."""
    return perf_and_broker[0]


def test_there_and_back(perf_and_broker):
    """As many messages as were asked for, of that size, are published, received and sought."""
    perf, broker = perf_and_broker
    (made,) = perf("produce", "orders", "-m", "50", "-r", "200", "-s", "10", "-db", "--json").json()
    assert (made["messages"], made["is_total"]) == (50, True)
    assert 0 < made["p50_ms"] <= made["p99_ms"] <= made["max_ms"]
    assert sum(len(each.value or b"") for each in broker.messages("orders")) == 500
    ran = perf("consume", "orders", "-sp", "earliest", "-m", "50")
    first, second, *bars = ran.out.splitlines()
    assert first.startswith("50 messages in ")
    assert second.startswith("latency mean ")
    assert any(line.endswith("#") for line in bars)
    assert broker.backlog("orders", "sub") == 0
    (sought,) = perf("seek", "orders", "-m", "5", "--json").json()
    assert sought["seeks"] == 5


def test_a_rate_and_a_time(perf):
    """It ends when the time is over, after no more than rate times time."""
    (made,) = perf("produce", "orders", "-r", "50", "--time", "0.5", "--json").json()
    assert 1 <= made["messages"] <= 26
    (got,) = perf("consume", "orders", "--time", "0.3", "--json").json()
    assert (got["messages"], got["max_ms"]) == (0, 0.0)


def test_errors(perf, tmp_path):
    """A topic without messages, wrong numbers, and a certificate that it cannot show."""
    assert "no messages to seek to" in perf("seek", "empty", "-m", "1").error()
    assert "-1" in perf("produce", "orders", "--rate", "-1").error()
    assert "--size" in perf("produce", "orders", "--size", "x").error()
