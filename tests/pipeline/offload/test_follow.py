"""A continuous offload, with its tasks in this process: what is new, kills, and its lag."""

from __future__ import annotations

import threading
import urllib.request
from typing import Any

import pytest

from pulsemark.pipeline import OffloadFollower, offload, verify_offload
from pulsemark.pipeline.errors import DataLossError
from pulsemark.pipeline.offload import manifest, places
from pulsemark.until_signal import serve_metrics


class Runs:
    """A follower of a folder that grows between its runs, and ends after some of them."""

    def __init__(
        self, folder: Any, table: Any, grow: Any, *, files_before_kill: Any = None
    ) -> None:
        self._grow = grow
        spark = folder.in_process(files_before_kill)
        self.follower = OffloadFollower(spark, folder.path, table, every_s=0, on_run=self._next)
        self.left = 0

    def _next(self, _: object) -> None:
        self.left -= 1
        if self.left <= 0:
            self.follower.stop()
        self._grow()

    def run(self, runs: int) -> None:
        """So many runs."""
        self.left = runs
        self.follower.run()


def test_what_came_meanwhile_is_copied_by_the_next_run(
    folder: Any, run: Any, make_table: Any
) -> None:
    """Each message once, and a lag that is what came after the last run."""
    topic = folder.topic("a")
    run.fill(topic, folder, 2)
    table = make_table()
    runs = Runs(folder, table, lambda: run.fill(topic, folder, 1, each=2))
    assert runs.follower.lags()[topic.name].messages == 62
    runs.run(3)
    assert runs.follower.runs == 3
    assert run.rows_in(table) == run.truth(topic)[: runs.follower.messages]
    lag = runs.follower.lags()[topic.name]
    assert lag.messages == 11  # one round, with its control entry
    assert 0 < lag.seconds <= 3600
    offload(folder.in_process(), folder.path, table)
    assert run.rows_in(table) == run.truth(topic)
    assert all(check.good for check in verify_offload(folder.path, table))


@pytest.mark.parametrize("files", range(5))
def test_a_killed_follower_is_started_again(
    folder: Any, run: Any, make_table: Any, files: int
) -> None:
    """After any file of any run: the table has each message once."""
    topic = folder.topic("a")
    run.fill(topic, folder, 3)
    table = make_table()
    runs = Runs(folder, table, lambda: run.fill(topic, folder, 1), files_before_kill=files)
    with pytest.raises(KeyboardInterrupt):
        runs.run(9)
    Runs(folder, table, lambda: None).run(1)
    assert run.rows_in(table) == run.truth(topic)


def test_the_metrics_are_those_of_the_moment(folder: Any, run: Any, make_table: Any) -> None:
    """A message that came since the last run is in the lag; sums are those of all runs."""
    topic = folder.topic("a")
    run.fill(topic, folder, 1)
    runs = Runs(folder, make_table(), lambda: topic.single(b"late"))
    port = serve_metrics("127.0.0.1", 0, runs.follower)
    runs.run(2)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert f'pulsemark_offload_lag_messages{{topic="{topic.name}"}} 1.0' in text
    assert "pulsemark_offload_runs_total 2.0" in text
    assert "pulsemark_offload_messages_total 31.0" in text


def test_it_ends_while_it_waits(folder: Any, make_table: Any) -> None:
    """Without the pause's end; and a loss ends it by itself."""
    topic = folder.topic("a")
    topic.single(b"x")
    ran = threading.Event()
    follower = OffloadFollower(
        folder.in_process(), folder.path, make_table(), every_s=1e6, on_run=lambda _: ran.set()
    )
    thread = threading.Thread(target=follower.run)
    thread.start()
    assert ran.wait(60)
    follower.stop()
    thread.join(60)
    assert not thread.is_alive()
    topic.ledger.roll()
    topic.single(b"y")
    topic.ledger.roll()
    topic.single(b"z")
    topic.ledger.trim(topic.ledger.segments()[-1].first_position)
    again = OffloadFollower(folder.in_process(), folder.path, follower.target, every_s=0)
    with pytest.raises(DataLossError, match="trimmed"):
        again.run()


def test_a_long_chain_is_read_once(folder: Any, make_table: Any, monkeypatch: Any) -> None:
    """A run reads the manifest that the one before it has written, and no earlier one."""
    topic = folder.topic("a")
    reads: list[str] = []

    def counted(place: Any, path: str) -> bytes:
        reads.append(path)
        return places.read_bytes(place, path)

    monkeypatch.setattr(manifest, "read_bytes", counted)
    Runs(folder, make_table(), lambda: topic.single(b"x")).run(12)
    assert len([path for path in reads if "manifest-" in path]) <= 12
