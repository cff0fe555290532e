"""The worker: what its rounds ask of the event loop, what it counts, and how it fails."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from pulsemark.broker.cleaning import trimming
from pulsemark.broker.cleaning.worker import Cleaning
from pulsemark.ledger import retention
from pulsemark.testing import running_broker
from pulsemark.wire import TopicName

from .conftest import MINUTE_MS, NAME, NAMESPACE, Place, wait_until


def metrics(place: Place) -> dict[str, float]:
    """The metrics page: name and labels to value."""
    import urllib.request

    with urllib.request.urlopen(f"{place.broker.http_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.parametrize("topics", [5, 50])
def test_rounds_ask_nothing_of_the_loop(clock, topics):
    """Retention of any number of topics calls the event loop as often as that of none."""
    hops = []
    with running_broker(clock=clock) as broker:

        async def make(running):
            for number in range(topics):
                name = TopicName.parse(f"persistent://public/default/t{number}")
                topic = await running.services.topics.open(name, create=True)
                topic.ledger.append(b"not opened").commit.wait()
            return running.services.cleaning

        cleaning = broker.call(make)
        place = Place(broker, clock)
        clock.advance(by_ms=MINUTE_MS * 5)
        whole = Cleaning._on_loop

        def counted(self, work):
            hops.append(work)
            return whole(self, work)

        with patch.object(Cleaning, "_on_loop", counted):
            limits = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
            rounds = cleaning.rounds
            place.change("POST", f"{NAMESPACE}/retention", limits)
            wait_until(lambda: cleaning.rounds == rounds + 1)
        removed = broker.call(entries_removed)
        place.client.close()
    assert removed == topics
    assert hops == []


async def entries_removed(running):
    """Of all open topics."""
    return sum(t.cleaning.entries_removed for t in running.services.topics.open_topics.values())


def test_what_is_counted_is_shown(place):
    """Removed entries, expired messages and compactions are on the page of metrics."""
    place.client.subscribe(NAME, "s", earliest=True)
    place.send("a", "b", "a")
    place.compact()
    place.clock.advance(by_ms=MINUTE_MS * 5)
    place.change("POST", "messageTTL?messageTTL=60")
    wait_until(lambda: place.backlog("s") == 0)
    place.retention(1)
    wait_until(lambda: not place.stored())
    found = metrics(place)
    topic = f'{{cluster="standalone",namespace="public/default",topic="{NAME}"}}'
    subscription = topic.replace("}", ',subscription="s"}')
    assert found[f"pulsar_subscription_total_msg_expired{subscription}"] == 3
    assert found[f"pulsar_compaction_succeed_count{topic}"] == 1
    assert found[f"pulsar_compaction_removed_event_count{topic}"] == 1
    assert found[f"pulsar_compaction_compacted_entries_count{topic}"] == 2
    assert found[f"pulsar_compaction_compacted_entries_size{topic}"] > 0
    assert found[f"pulsemark_cleaning_entries_removed_total{topic}"] == 3
    assert found[f"pulsemark_cleaning_bytes_removed_total{topic}"] > 0
    assert found[f"pulsar_storage_size{topic}"] == 0
    here = '{cluster="standalone",namespace="public/default"}'
    assert found[f"pulsar_ml_StoredMessagesSize{here}"] == 0
    rounds = 'pulsemark_cleaning_rounds_total{cluster="standalone"}'
    wait_until(lambda: metrics(place)[rounds] >= 2)


def test_one_topics_failure_leaves_the_others_alone(clock):
    """A topic that cannot be trimmed is counted, the others are trimmed, the next round tries."""
    with running_broker(clock=clock, retention_check_interval_ms=20) as broker:
        place = Place(broker, clock)
        place.send("a")
        other = "persistent://public/default/a-first"
        place.client.create_producer(other).send(b"x")
        clock.advance(by_ms=MINUTE_MS * 5)
        whole = retention.retention_due

        def fails(ledger, **limits):
            if ledger.name == other:
                raise OSError("no space left")
            return whole(ledger, **limits)

        with patch.object(trimming, "retention_due", fails):
            limits = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
            place.change("POST", f"{NAMESPACE}/retention", limits)
            wait_until(lambda: not place.stored())
            assert broker.call(failures) >= 1
        stats = "/admin/v2/persistent/public/default/a-first/internalStats"
        wait_until(lambda: place.get(stats)["numberOfEntries"] == 0)
        place.client.close()


async def failures(running):
    """Topics that could not be cleaned."""
    return running.services.cleaning.failures


def test_a_broker_that_cleans_nothing_starts_no_thread(clock):
    """The lanes' threads begin with the first work."""
    import threading

    def lanes():
        names = ("pulsemark-cleaning", "pulsemark-compaction")
        return [t.name for t in threading.enumerate() if t.name in names]

    before = lanes()
    with running_broker(clock=clock) as broker:
        Place(broker, clock).client.close()
        assert lanes() == before
