"""The topics' own views, made by their broker: asked over REST, awaited, and refused by name."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.client import RawProducer, Service
from pulsemark.ledger import FolderReader, TopicNotFoundError
from pulsemark.pipeline import compact_by_broker, run_job
from pulsemark.pipeline.errors import JobFailedError, OptionError
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/odd näme"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    """A broker with forty messages of four keys in a topic."""
    config = BrokerConfig(data_dir=tmp_path / "data", port=0, http_port=0)
    with BrokerThread(config) as running:
        with Service(running.service_url) as service:
            producer = RawProducer(service, TOPIC, name="p", gathers=True)
            for number in range(40):
                body = unbatched_message(b"v%d" % number, publish_time_ms=1, key=f"k{number % 4}")
                producer.publish(body, sequence_id=number)
            producer.flush()
            producer.close()
        yield running


def test_the_broker_makes_the_view(broker: BrokerThread, tmp_path: Path) -> None:
    """The result is that of its compaction, and the folder stays the broker's."""
    assert broker.http_url is not None
    (done,) = compact_by_broker(broker.http_url, tmp_path / "data", timeout_s=60)
    assert (done.topic, done.entries_after) == (TOPIC, 4)
    assert done.bytes_after > 0


def test_what_the_broker_refuses_is_reported(broker: BrokerThread, tmp_path: Path) -> None:
    """Unknown topics, no broker at that port, and texts that are not URLs."""
    url = str(broker.http_url)
    with pytest.raises(TopicNotFoundError):
        compact_by_broker(url, tmp_path / "data", "nope")
    with pytest.raises(JobFailedError, match=r"cannot connect to http://127\.0\.0\.1:1"):
        compact_by_broker("http://127.0.0.1:1", tmp_path / "data")
    for bad in ("ftp://x", "127.0.0.1:8080", "http://", "http://x/admin/v2"):
        with pytest.raises(OptionError, match="--admin-url"):
            compact_by_broker(bad, tmp_path / "data")
    with FolderReader(tmp_path / "data") as folder:
        assert not [h for h in folder.headers() if h.topic.startswith("compacted/")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/o"], "option FOLDER = '/o': the data folder to read is named by --data-dir"),
        (["/o"], "a table to write only by offload (--write-mode upsert: each key's latest)"),
        (["--dry-run", "--admin-url", "http://x:1"], "--dry-run = 'True': is not for --admin-url"),
        (["--admin-url", "x"], "option --admin-url = 'x': is not of the form http://HOST:PORT"),
        (["--tombstone-property", ""], "option --tombstone-property = '': is empty"),
    ],
)
def test_nonsense_is_refused_by_name(folder: Any, arguments: list[str], message: str) -> None:
    """Exit code 2 and one line that names the option, before a session is started."""
    folder.topic("a").single(b"x")
    err = io.StringIO()
    assert run_job("compact", ["--data-dir", str(folder.path), *arguments], err=err) == 2
    assert message in err.getvalue()
    assert err.getvalue().count("\n") == 1
