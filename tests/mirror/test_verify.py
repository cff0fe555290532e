"""Comparing a topic with its mirror."""

from __future__ import annotations

from pathlib import Path

from pulsemark.broker import BrokerThread
from pulsemark.ledger import LocalStore, Position
from pulsemark.metadata.source_stamp import SourceStamp
from pulsemark.mirror import Options, compare

from .conftest import CLUSTER, TOPIC, Mirror, fill, message, publish

MESSAGES = [(message(number), 1) for number in range(10)]
OPTIONS = Options(source_cluster=CLUSTER)


def write(folder: Path, entries: list[tuple[int, bytes]]) -> None:
    """Write copies of source entries by hand."""
    with LocalStore.open(folder) as store:
        ledger = store.open_topic(TOPIC)
        for entry_id, body in entries:
            ledger.append(body, base=SourceStamp(CLUSTER, 1, entry_id).metadata()).commit.wait()


def test_every_difference_is_found(tmp_path: Path) -> None:
    """A lost, doubled, exchanged, changed or added entry makes the comparison fail."""
    fill(tmp_path / "a", MESSAGES)
    good = [(number, body) for number, (body, _) in enumerate(MESSAGES)]
    cases = {
        "": good,
        "the source has 10 entries, the target 9": good[:-1],
        "entry 1:1 of the source is 1:0 in": [good[0], *good],
        "is 1:5 in": [*good[:4], good[5], good[4], *good[6:]],
        "checksum": [*good[:3], (3, message(99)), *good[4:]],
        "entries, the target 11": [*good, (11, message(11))],
    }
    for number, (reason, entries) in enumerate(cases.items()):
        write(tmp_path / f"b{number}", entries)
        result = compare(str(tmp_path / "a"), str(tmp_path / f"b{number}"), TOPIC, OPTIONS)
        assert reason in result.difference
        assert result.is_equal == (not reason)


def test_what_the_source_removed_is_not_compared(tmp_path: Path, mirror: Mirror) -> None:
    """The mirror may be older than what the source still has."""
    fill(tmp_path / "a", MESSAGES)
    mirror(tmp_path / "a", tmp_path / "b")
    with LocalStore.open(tmp_path / "a") as store:
        first = store.open_topic(TOPIC).first_position
        assert first is not None
        store.open_topic(TOPIC).truncate_head(Position(first.ledger_id, 6))
    result = compare(str(tmp_path / "a"), str(tmp_path / "b"), TOPIC, OPTIONS)
    assert (result.is_equal, result.source_entries, result.target_entries) == (True, 4, 10)


def test_brokers_are_compared_by_their_bytes(
    source: BrokerThread, target: BrokerThread, mirror: Mirror
) -> None:
    """Over the protocol an entry that only one side has is found, too."""
    publish(source, range(1, 260))
    mirror(source.service_url, target.service_url)
    endpoints = source.service_url, target.service_url
    assert compare(*endpoints, TOPIC, OPTIONS).is_equal
    publish(source, range(1, 2))
    assert compare(*endpoints, TOPIC, OPTIONS).difference == (
        "the source has 260 entries, the target 259"
    )
    publish(target, range(7, 8))
    assert "checksum" in compare(*endpoints, TOPIC, OPTIONS).difference
