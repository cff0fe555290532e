"""Topics that are created together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsemark.ledger import CatalogError, TopicStore
from pulsemark.testing import RawClient, running_broker
from pulsemark.wire import commands

COUNT = 300
NAMES = [f"persistent://public/default/t{number}" for number in range(COUNT)]


def subscribe_all(client: RawClient) -> None:
    """Ask for a subscription of each topic at once. A refusal raises."""
    requests = {number: client.new_id() for number in range(COUNT)}
    client.write(
        b"".join(commands.subscribe(NAMES[n], "s", n, request) for n, request in requests.items())
    )
    for request in requests.values():
        client.wait_response(request)


def test_topics_that_are_opened_together_share_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 new topics take few changes of the catalog, and all exist after a restart."""
    batches: list[int] = []
    add = TopicStore.add_topics

    def counting(store: TopicStore, names: Sequence[str]) -> None:
        batches.append(len(names))
        add(store, names)

    monkeypatch.setattr(TopicStore, "add_topics", counting)
    with (
        running_broker(data_dir=tmp_path / "data", http_port=None) as broker,
        RawClient.from_url(broker.service_url, timeout_s=60) as client,
    ):
        subscribe_all(client)
        assert sum(batches) == COUNT
        assert len(batches) <= COUNT // 5
    with (
        running_broker(data_dir=tmp_path / "data", http_port=None) as broker,
        RawClient.from_url(broker.service_url, timeout_s=60) as client,
    ):
        found = client.request(
            lambda number: commands.get_topics_of_namespace("public/default", number)
        )
        assert sorted(found.topics) == sorted(NAMES)
        assert sum(batches) == COUNT


def test_topics_are_opened_alone_where_they_cannot_be_created_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change of the catalog that fails for many is tried again for each of them."""
    tried: list[int] = []

    def failing(_: TopicStore, names: Sequence[str]) -> None:
        tried.append(len(names))
        raise CatalogError(Path("catalog"), "disk I/O error")

    monkeypatch.setattr(TopicStore, "add_topics", failing)
    with (
        running_broker(http_port=None) as broker,
        RawClient.from_url(broker.service_url, timeout_s=60) as client,
    ):
        subscribe_all(client)
        assert sum(tried) == COUNT
