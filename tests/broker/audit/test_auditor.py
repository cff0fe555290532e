"""The broker's auditor: its counts are right after restarts, retention, deletions and failures."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.broker.audit.auditor import Auditor
from pulsemark.ledger import CatalogError, StoreClosedError
from pulsemark.testing import running_broker

from .conftest import NAME, PATH, SETTINGS, ask, counted, publish


def test_counts_go_on_after_a_restart(tmp_path: Path) -> None:
    """What was counted is kept; what was removed from the log meanwhile, too."""
    with running_broker(data_dir=tmp_path, **SETTINGS) as broker:
        publish(broker, 20)
        assert ask(broker, "DELETE", f"{PATH}/truncate") == (204, None)
        publish(broker, 5, "office")
    with running_broker(data_dir=tmp_path, **SETTINGS) as broker:
        publish(broker, 3, "office")
        assert counted(broker) == {"till": 20, "office": 8}
        _, found = ask(broker)
        assert (found["counted_from_index"], found["log_first_index"]) == (0, 20)
        assert found["uncounted"] == found["left"] == found["recounts"] == 0


def test_removed_entries_are_counted_on_disk_before_they_go(tmp_path: Path) -> None:
    """A broker that ends right after a truncation, however it ends, has lost no count."""
    with running_broker(data_dir=tmp_path / "data", **SETTINGS) as broker:
        publish(broker, 30)
        assert ask(broker, "DELETE", f"{PATH}/truncate") == (204, None)
        # As a kill would leave it.
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    with running_broker(data_dir=tmp_path / "killed", **SETTINGS) as broker:
        assert counted(broker) == {"till": 30}
        assert ask(broker)[1]["uncounted"] == 0


def test_a_failing_catalog_does_not_stop_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are removed; after a restart the report says how many no row has."""
    failing = threading.Event()
    with running_broker(data_dir=tmp_path, **SETTINGS) as broker:
        publish(broker, 10)
        assert counted(broker) == {"till": 10}
        catalog = broker.call(_catalog)
        put = catalog.put

        def fail(kind: str, key: str, value: bytes) -> None:
            if kind == "audit" and failing.is_set():
                raise CatalogError(Path("catalog.sqlite"), "the disk is full")
            put(kind, key, value)

        monkeypatch.setattr(catalog, "put", fail)
        failing.set()
        publish(broker, 7)
        assert ask(broker, "DELETE", f"{PATH}/truncate") == (204, None)
        assert counted(broker) == {"till": 17}
        assert "pulsemark_audit_failures_total" in metrics(broker)
    with running_broker(data_dir=tmp_path, **SETTINGS) as broker:
        publish(broker, 1)
        _, found = ask(broker, path=f"{PATH}/audit?by=")
        total = sum(row["count"] for row in found["rows"])
        assert total + found["uncounted"] == 18 - found["counted_from_index"]
        gaps = [row[n] for row in found["rows"] for n in ("missing", "missing_before")]
        assert set(gaps) == {0}


async def _catalog(broker: Any) -> Any:
    return broker.services.topics.catalog


def metrics(broker: BrokerThread) -> str:
    """The metrics page."""
    import urllib.request

    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=30) as answer:
        page: str = answer.read().decode()
    return page


def test_a_deleted_topics_counts_go_with_it(tmp_path: Path) -> None:
    """A topic that is made again under the name begins at nothing; so do the posted rows."""
    row = {"tier": "c", "bucket_start_ms": 0, "bucket_end_ms": 60_000, "count": 1}
    with running_broker(data_dir=tmp_path, **SETTINGS) as broker:
        publish(broker, 5)
        body = {"source": "s", "rows": [row]}
        assert ask(broker, "POST", f"{PATH}/audit", body) == (204, None)
        assert counted(broker, "?tier=all") == {"till": 5, None: 1}
        assert ask(broker, "DELETE", f"{PATH}?force=true")[0] == 204
        assert ask(broker)[0] == 404
        publish(broker, 2, "office")
        assert counted(broker, "?tier=all") == {"office": 2}
    with running_broker(data_dir=tmp_path, **SETTINGS) as broker:
        assert counted(broker, "?tier=all") == {"office": 2}


def test_more_topics_than_rows_in_memory(tmp_path: Path) -> None:
    """Trails that do not fit are stored and read again: every count is right."""
    settings = SETTINGS | {"max_audit_rows": 1, "storage": "memory"}
    names = [f"{NAME}-{number}" for number in range(4)]
    with running_broker(**settings) as broker:
        for turn in range(40):
            publish(broker, 1, "till", names[turn % 4])
            assert ask(broker, path=f"{PATH}-{turn % 4}/audit")[0] == 200
        for number in range(4):
            _, found = ask(broker, path=f"{PATH}-{number}/audit")
            assert sum(row["count"] for row in found["rows"]) == 10
        trails = broker.call(_trails_in_memory)
        assert trails < 4


async def _trails_in_memory(broker: Any) -> int:
    auditor = broker.services.auditor
    topics = broker.services.topics.open_topics
    return sum(auditor.trail_in_memory(name) is not None for name in topics)


def test_topics_without_news_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once all topics are counted and stored, rounds over them read and write no catalog."""
    settings = SETTINGS | {
        "max_audit_rows": 2, "storage": "memory", "audit_save_interval_ms": 1,
    }  # fmt: skip
    with running_broker(**settings) as broker:
        for number in range(5):
            publish(broker, 2, "till", f"{NAME}-{number}")
        for number in range(5):
            assert ask(broker, path=f"{PATH}-{number}/audit")[0] == 200

        async def work_left(broker: Any) -> list[str]:
            auditor, topics = broker.services.auditor, broker.services.topics.open_topics
            return [name for name, topic in topics.items() if auditor.has_work(topic)]

        def wait_until_idle() -> None:
            deadline_s = time.monotonic() + 60
            while left := broker.call(work_left):
                assert time.monotonic() < deadline_s, left
                time.sleep(0.05)

        wait_until_idle()
        asked: list[str] = []
        catalog = broker.call(_catalog)
        get = catalog.get

        def noted(kind: str, key: str) -> bytes | None:
            asked.append(key)
            found: bytes | None = get(kind, key)
            return found

        monkeypatch.setattr(catalog, "get", noted)
        wait_until_idle()
        assert asked == []


def test_a_ledger_notifies_the_auditor_once(tmp_path: Path) -> None:
    """However often its topic is opened."""
    with running_broker(data_dir=tmp_path, **SETTINGS) as broker:
        publish(broker, 1)

        async def hooks(broker: Any) -> list[Any]:
            topics = broker.services.topics
            topic = topics.open_topics[NAME]
            for call in topics.on_open:
                call(topic)
            return [hook.func for hook in topic.ledger.before_removal.values()]

        called = broker.call(hooks)
        assert len(called) == len(set(called)) > 1


def test_the_limit_of_values_and_rows_is_reported() -> None:
    """The rest row has what is above the limit; its tags are null."""
    year_ms = 366 * 86_400_000
    settings = SETTINGS | {
        "max_audit_values_per_bucket": 2,
        "audit_bucket_ms": year_ms,
        "storage": "memory",
    }
    with running_broker(**settings) as broker:
        for name in ("a", "b", "c", "d"):
            publish(broker, 1, name)
        _, found = ask(broker)
        rest = [row for row in found["rows"] if row["is_rest"]]
        assert sum(row["count"] for row in found["rows"]) == 4
        assert rest
        assert rest[0]["tags"] == {"producer_name": None}


def test_a_topic_without_the_tag_has_it_as_null() -> None:
    """A policy that stamps no producer: the row says that it is not known."""
    settings = {"audit_enabled": True, "storage": "memory", "stampers": ()}
    with running_broker(**settings) as broker:
        publish(broker, 3)
        assert counted(broker) == {None: 3}


def test_the_metrics_are_the_counts() -> None:
    """Messages by tags, missing and left, once they are counted."""
    with running_broker(storage="memory", **SETTINGS) as broker:
        publish(broker, 6, 'quote"d')
        assert counted(broker) == {'quote"d': 6}
        page = metrics(broker)
    labels = f'cluster="standalone",namespace="public/default",topic="{NAME}"'
    assert f'pulsemark_audit_messages{{{labels},tag_producer_name="quote\\"d"}} 6\n' in page
    for name in ("missing", "uncounted", "left", "dropped_messages"):
        assert f"pulsemark_audit_{name}{{{labels}}} 0\n" in page


def test_without_an_audit_nothing_is_kept() -> None:
    """Off by default: 405 to who asks, no metrics, no thread."""
    with running_broker(storage="memory") as broker:
        publish(broker, 1)
        for method, body in (("GET", None), ("POST", {"source": "s", "rows": []})):
            status, answer = ask(broker, method, body=body)
            assert status == 405
            assert "pulsemarkAuditEnabled" in answer["reason"]
        assert "pulsemark_audit" not in metrics(broker)
        assert not [t for t in threading.enumerate() if t.name == "pulsemark-audit"]


@pytest.mark.parametrize(
    ("urgent", "is_far_behind", "share", "rests"),
    [
        (False, False, 0.5, 1.0),
        (True, False, 1.0, 70.0),
        (True, False, 0.25, 280.0),
        (True, True, 0.25, 1.0),
    ],
)
def test_counting_waits_for_clients_but_not_without_end(
    urgent: bool, is_far_behind: bool, share: float, rests: float
) -> None:
    """While commits are urgent it takes below 2 % of what the broker takes; far behind, half of a
    processor.
    """
    assert Auditor.rests(urgent=urgent, is_far_behind=is_far_behind, share=share) == rests


def test_a_store_that_failed_is_an_error_and_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading fails: 503, and the next request goes on."""
    from pulsemark.audit.trail import Trail

    with running_broker(storage="memory", **SETTINGS) as broker:
        publish(broker, 3)

        def fail(*_: Any, **__: Any) -> bool:
            raise StoreClosedError("the store")

        with monkeypatch.context() as patch:
            patch.setattr(Trail, "advance", fail)
            assert ask(broker)[0] == 503
        assert counted(broker) == {"till": 3}
