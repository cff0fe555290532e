"""Targets that know no mirrors: a broker that behaves as Apache Pulsar does, seen by a mirror.

Apache Pulsar itself is not part of these tests. The broker here ignores what a mirror says, and
answers PRODUCER with the last sequence id that a deduplicating Pulsar would know.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.broker.handlers import producing
from pulsemark.metadata.source_stamp import MIRROR_PRODUCER_PREFIX
from pulsemark.mirror import NoDeduplicationError, TargetNotEmptyError
from pulsemark.testing import running_broker
from pulsemark.wire import commands

from .conftest import CLUSTER, TOPIC, Mirror, batch, bodies_of, fill, message, publish, stamps_of

MESSAGES = [(message(number), 1) for number in range(12)]
Knows = Callable[[int], int]


@pytest.fixture
def like_pulsar(monkeypatch: pytest.MonkeyPatch, target: BrokerThread) -> Callable[[Knows], None]:
    """Make brokers ignore mirrors; `knows` makes the last sequence id of the true last index."""
    plain = commands.producer_success

    def behave(knows: Knows) -> None:
        def success(request_id: int, name: str, **more: Any) -> bytes:
            if name == MIRROR_PRODUCER_PREFIX + CLUSTER:
                ledger = target.broker.services.topics.open_topics[TOPIC].ledger
                more["last_sequence_id"] = knows(ledger.next_index - 1)
            return plain(request_id, name, **more)

        monkeypatch.setattr(producing, "mirror_name", lambda command: "")
        monkeypatch.setattr(commands, "producer_success", success)

    return behave


def test_sequence_ids_are_the_sources_indexes(
    tmp_path: Path, target: BrokerThread, mirror: Mirror, like_pulsar: Callable[[Knows], None]
) -> None:
    """A target that deduplicates says how far it is; nothing is sent twice, no tag is written."""
    like_pulsar(lambda last: last)
    fill(tmp_path / "a", [*MESSAGES, batch(b"x", b"y", b"z"), batch(b"x"), batch(b"x", b"y")])
    assert mirror(tmp_path / "a", target.service_url).entries == 15
    assert mirror(tmp_path / "a", target.service_url).entries == 0
    fill(tmp_path / "a", MESSAGES[:2])
    assert mirror(tmp_path / "a", target.service_url).entries == 2
    assert bodies_of(target.data_dir) == bodies_of(tmp_path / "a")
    assert set(stamps_of(target.data_dir)) == {None}


@pytest.mark.parametrize("forgotten", [1, 5, 100])
def test_a_target_that_forgot_its_newest_entries(
    source: BrokerThread,
    target: BrokerThread,
    mirror: Mirror,
    like_pulsar: Callable[[Knows], None],
    forgotten: int,
) -> None:
    """If the sequence id is older than the entries, the last entry's bytes say where it goes on."""
    publish(source, range(1, 5))
    like_pulsar(lambda last: last)
    mirror(source.service_url, target.service_url)
    publish(source, range(6, 14))
    mirror(source.service_url, target.service_url)
    for new in (0, 3, 0):
        publish(source, range(21, 21 + new))
        like_pulsar(lambda last: max(last - forgotten, -1))
        done = mirror(source.service_url, target.service_url, without_deduplication=True)
        assert (done.complete, done.entries) == (True, new)
        assert bodies_of(target.data_dir) == bodies_of(source.data_dir)


def test_without_deduplication_it_is_refused(
    tmp_path: Path, target: BrokerThread, mirror: Mirror, like_pulsar: Callable[[Knows], None]
) -> None:
    """It shows after the first entry; with the option mirroring goes on by the entries' bytes."""
    like_pulsar(lambda _: -1)
    fill(tmp_path / "a", MESSAGES)
    with pytest.raises(NoDeduplicationError, match="switch deduplication on"):
        mirror(tmp_path / "a", target.service_url)
    assert len(bodies_of(target.data_dir)) == 1
    for count in (11, 0):
        done = mirror(tmp_path / "a", target.service_url, without_deduplication=True)
        assert done.entries == count
    assert bodies_of(target.data_dir) == bodies_of(tmp_path / "a")


def test_other_entries_are_refused(
    tmp_path: Path, target: BrokerThread, mirror: Mirror, like_pulsar: Callable[[Knows], None]
) -> None:
    """A topic whose last entry is not the source's is refused; --append begins after it."""
    like_pulsar(lambda _: -1)
    fill(tmp_path / "a", MESSAGES)
    publish(target, range(90, 93))
    with pytest.raises(TargetNotEmptyError):
        mirror(tmp_path / "a", target.service_url, without_deduplication=True)
    assert len(bodies_of(target.data_dir)) == 3
    done = mirror(tmp_path / "a", target.service_url, without_deduplication=True, append=True)
    assert done.entries == 12


def test_positions_where_the_source_shows_no_indexes(
    target: BrokerThread, mirror: Mirror, like_pulsar: Callable[[Knows], None]
) -> None:
    """Then the sequence id is the position, and mirroring goes on after it."""
    positions: list[int] = []
    like_pulsar(lambda last: positions[-1] if last >= 0 else -1)
    with running_broker() as source:
        publish(source, range(1, 5))
        positions.append((1 << 28) + 3)
        assert mirror(source.service_url, target.service_url).entries == 4
        publish(source, range(6, 9))
        assert mirror(source.service_url, target.service_url).entries == 3
        assert bodies_of(target.data_dir, TOPIC) == bodies_of(source.data_dir, TOPIC)
