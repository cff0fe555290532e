"""`pulsemark perf`: what it publishes, receives and seeks, and its figures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pulsemark.testing import SettableClock, running_broker

pulsar = pytest.importorskip("pulsar")


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
    first, _, heading, *bars = ran.out.splitlines()
    assert first.startswith("50 messages in ")
    assert heading.split()[:2] == ["latency", "mean"]
    assert any(line.endswith("#") for line in bars)
    assert broker.backlog("orders", "sub") == 0
    (sought,) = perf("seek", "orders", "-m", "5", "--json").json()
    assert sought["seeks"] == 5


@pytest.mark.parametrize("partitions", [0, 3])
def test_seeks_after_the_end(pulsemark, monkeypatch, partitions):
    """Moments of a producer whose clock is ahead lie after the last message: no seek waits there.

    The poll is counted: were it to wait for a message, it would poll until its limit.
    """
    polls = 0
    read_next = pulsar.Reader.read_next

    def counted(reader, timeout_millis=None):
        nonlocal polls
        polls += 1
        return read_next(reader, timeout_millis)

    monkeypatch.setattr(pulsar.Reader, "read_next", counted)
    slow = SettableClock(datetime.now(UTC) - timedelta(hours=1), running=True)
    with running_broker(storage="memory", clock=slow) as broker:
        if partitions:
            broker.admin.create_topic("orders", partitions=partitions)
        client = pulsar.Client(broker.service_url)
        producer = client.create_producer("orders", batching_enabled=True)
        for number in range(30):
            producer.send_async(b"%d" % number, lambda *_: None)
        producer.flush()
        client.close()
        ran = pulsemark("perf", "seek", "orders", "-m", "4", "--json",
                        "--service-url", broker.service_url)  # fmt: skip
        (sought,) = ran.json()
        assert sought["seeks"] == 4
        assert sought["bytes_per_s"] == 0
        assert polls < 30


def test_a_rate_and_a_time(perf):
    """It ends when the time is over, after no more than rate times time."""
    (made,) = perf("produce", "orders", "-r", "50", "--time", "0.5", "--json").json()
    assert 1 <= made["messages"] <= 26
    (got,) = perf("consume", "orders", "--time", "0.3", "--json").json()
    assert (got["messages"], got["max_ms"]) == (0, 0.0)


def test_figures_on_a_terminal(perf, terminal):
    """The latencies and the histogram are tables there."""
    shown = terminal("stdout")
    perf("produce", "orders", "-m", "5", "-r", "0", "-s", "10")
    text = shown.getvalue()
    assert "5 messages in " in text
    assert "99.99 %" in text
    assert "from ms" in text
    assert "#" in text


def test_errors(perf):
    """A topic without messages, wrong numbers, and a message without a receipt."""
    assert "no messages to seek to" in perf("seek", "empty", "-m", "1").error()
    assert "-1" in perf("produce", "orders", "--rate", "-1").error()
    assert "--size" in perf("produce", "orders", "--size", "x").error()
    too_large = perf("produce", "orders", "-m", "1", "--size", str(6 << 20), "--disable-batching")
    assert "orders: a message was not acknowledged: " in too_large.error()
