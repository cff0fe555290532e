"""Entries that are all built alike are read together; one that is not changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsemark.metadata import StamperChain
from pulsemark.pipeline.columns import COLUMNS
from pulsemark.pipeline.decode import protoscan
from pulsemark.testing.raw_messages import BatchMember

COUNT = 12
PLACES = (0, 1, 6, COUNT - 1)
SHOWN = tuple(name for name in COLUMNS if name not in ("__tags", "__error"))


def usual(topic: Any, number: int) -> None:
    """One of the entries that are alike."""
    topic.single(b"%08d" % number, key="k", publish_time_ms=1_700_000_000_000 + number)


def without_stamp(topic: Any) -> None:
    """An entry without a prefix, among stamped ones."""
    stampers, topic.ledger.stampers = topic.ledger.stampers, StamperChain(())
    usual(topic, 77)
    topic.ledger.stampers = stampers


ODD: dict[str, Callable[[Any], None]] = {
    "none": lambda topic: usual(topic, 99),
    "larger": lambda topic: topic.single(b"x" * 9, key="k"),
    # The same size: three bytes of value instead of a key.
    "same size": lambda topic: topic.single(b"x" * 11, publish_time_ms=1_700_000_000_000),
    "shorter time": lambda topic: topic.single(b"x" * 8, key="k", publish_time_ms=5),
    "null": lambda topic: topic.single(None, key="k"),
    "empty": lambda topic: topic.single(b"", key="k"),
    "no key": lambda topic: topic.single(b"x" * 8, null_partition_key=True),
    "properties": lambda topic: topic.single(b"x", key="k", properties={"a": "b", "c": ""}),
    "event time": lambda topic: topic.single(b"x", key="k", event_time_ms=6),
    "batch": lambda topic: topic.batch(
        [BatchMember(payload=b"m%d" % n, key=f"b{n}") for n in range(3)]
    ),
    "batch of one": lambda topic: topic.batch([BatchMember(payload=b"m", key="b")]),
    "compressed": lambda topic: topic.single(b"x" * 50, key="k", compression=1),
    "encrypted": lambda topic: topic.encrypted(b"\x13" * 20, 2),
    "control": lambda topic: topic.control(),
    "no checksum": lambda topic: topic.single(b"x" * 8, key="k", checksum=False),
    "no stamp": without_stamp,
}


@pytest.mark.parametrize("odd", ODD)
def test_one_entry_unlike_the_others(
    folder: Any, tools: Any, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    """Wherever it is among equal ones, all columns of all rows are what was sent."""
    monkeypatch.setattr(protoscan, "FEW_ALIKE", 4)
    topics = []
    for place in PLACES:
        topic = folder.topic(f"at-{place}", partition=1)
        topic.ledger.stampers = StamperChain.from_names(["broker-time", "index"])
        for number in range(COUNT):
            if number == place:
                ODD[odd](topic)
            else:
                usual(topic, number)
        topics.append(topic)
    for topic in topics:
        for columns in (SHOWN, ("__index", "__brokerPublishTime"), ("value",), ("__key", "value")):
            rows = tools.rows_of(folder.path, topic=topic.name, columns=",".join(columns))
            assert rows == tools.only(topic.rows, columns)
