"""Figures of topics whose entries are removed while the figures are taken."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from pulsemark.broker.cooperative import at_once
from pulsemark.broker.metrics.internal_stats import internal_stats
from pulsemark.broker.metrics.stats import StatsOptions, topic_stats
from pulsemark.ledger import StoreOptions
from pulsemark.testing import RawClient, running_broker
from pulsemark.wire import TopicName

TOPIC = "persistent://public/default/t"
#: Each ledger's index is in its file then, and none of it in memory.
OPTIONS = StoreOptions(ledger_entries=300)


@pytest.mark.parametrize("figures", [partial(topic_stats, wanted=StatsOptions()), internal_stats])
@pytest.mark.parametrize("how", ["delete", "trim"])
def test_entries_that_are_removed_between_two_slices_count_nothing(figures, how):
    """The figures are taken to their end, whatever was removed after their first slice."""
    with running_broker(store_options=OPTIONS) as broker:
        with RawClient.from_url(broker.service_url) as client:
            client.create_producer(TOPIC).send_many([b"\x00\x00\x00\x00x"] * 1_000)

        async def remove_between_slices(running):
            topic = running.services.topics.open_topics[TOPIC]
            run_blocking = asyncio.get_running_loop().run_in_executor
            await run_blocking(None, running.store.checkpoint)
            assert len(topic.ledger.segments()) > 2
            pieces = figures(topic)
            next(pieces)
            if how == "delete":
                await running.services.topics.delete(TopicName.parse(TOPIC), force=True)
            else:
                last = topic.ledger.last_position
                await run_blocking(None, topic.ledger.truncate_head, last)
            running.store.drop_read_caches()
            at_once(pieces)

        broker.call(remove_between_slices)
