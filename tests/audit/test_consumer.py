"""The consumer's side: what it counts, and that posting loses nothing and doubles nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from pulsemark.audit import AuditInputError, AuditPostError, ConsumerAudit
from pulsemark.audit.report import Labels
from pulsemark.finder.message_stamps import MessageNotStoredError, MessageStamp
from pulsemark.ledger import Position
from pulsemark.testing import SettableClock

NAME = "persistent://public/default/orders"
NOW_MS = 1_700_000_000_000
NOBODY = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Id:
    """A message id as Pulsar's client has it."""

    entry: int
    batch: int = -1

    def ledger_id(self) -> int:
        """Always the same ledger."""
        return 3

    def entry_id(self) -> int:
        """The entry."""
        return self.entry

    def batch_index(self) -> int:
        """Place in the batch."""
        return self.batch


@dataclass(frozen=True)
class Received:
    """A message as Pulsar's client has it."""

    id: Id
    publish_ms: int = NOW_MS
    own: Mapping[str, str] = field(default_factory=dict)

    def message_id(self) -> Id:
        """Its id."""
        return self.id

    def topic_name(self) -> str:
        """Always the same topic."""
        return NAME

    def data(self) -> bytes:
        """Ten bytes."""
        return bytes(10)

    def publish_timestamp(self) -> int:
        """By the producer's clock."""
        return self.publish_ms

    def properties(self) -> Mapping[str, str]:
        """Its properties."""
        return self.own

    def producer_name(self) -> str:
        """Always the same producer."""
        return "till"


class Stamps:
    """Stamps of entries: index and broker time by number, none from entry 100 on."""

    def of(self, message: Received) -> MessageStamp:
        """The stamp."""
        number = message.id.entry
        if number >= 100:
            raise MessageNotStoredError(NAME, Position(3, number))
        time_ms = NOW_MS - number * 60_000
        return MessageStamp(number, time_ms if number % 2 == 0 else None, time_ms, {"service": "s"})


def made(**options: Any) -> ConsumerAudit:
    """An audit that stands at NOW_MS."""
    return ConsumerAudit(NOBODY, clock=SettableClock(NOW_MS), **options)


def test_without_stamps_the_publish_time_decides() -> None:
    """Tags are the producer's name and the message's properties; there are no indexes."""
    audit = made(tags="producer,service", labels=Labels(application="app"), bucket="1 second")
    for number in range(3):
        audit.received(Received(Id(0, number), NOW_MS + 999, {"service": "shop"}))
    audit.received(Received(Id(1), NOW_MS + 1_000))
    first, second = audit.rows(NAME)
    assert first.tags == {"producer_name": "till", "service": "shop"}
    assert (first.bucket_start_ms, first.count, first.bytes) == (NOW_MS, 3, 30)
    assert (first.min_index, first.application, first.tier) == (None, "app", "consumer")
    assert second.tags == {"producer_name": "till", "service": None}


def test_with_stamps_the_brokers_time_decides() -> None:
    """By the stamp's or the append time; late and out of order by them; removed entries by publish
    time, which is counted.
    """
    audit = made(stamps=Stamps(), tags="service", late_after_ms=60_000)
    for number in (2, 1, 0, 3):
        audit.received(Received(Id(number), publish_ms=7))
    rows = audit.rows(NAME)
    minutes = [(NOW_MS - row.bucket_start_ms) // 60_000 for row in rows]
    assert minutes == [3, 2, 1, 0]
    assert [(r.count, r.late, r.out_of_order, r.min_index) for r in rows] == [
        (1, 1, 1, 3),
        (1, 1, 0, 2),
        (1, 0, 0, 1),
        (1, 0, 0, 0),
    ]
    audit.received(Received(Id(100), publish_ms=NOW_MS))
    assert audit.by_publish_time == 1


def test_what_is_received_again_is_doubled() -> None:
    """Within the ids that are remembered; a message of the same batch is another one."""
    audit = made(remembered_ids=3)
    for entry, batch in ((1, 0), (1, 1), (1, 0), (2, -1), (2, -1), (3, -1), (1, 0)):
        audit.received(Received(Id(entry, batch)))
    (row,) = audit.rows(NAME)
    assert (row.count, row.doubled) == (7, 2)


def test_a_failed_post_keeps_its_rows() -> None:
    """The error names the address; the next post has the same rows."""
    audit = made()
    assert audit.post() == 0
    audit.received(Received(Id(1)))
    for _ in range(2):
        with pytest.raises(AuditPostError, match=r"127\.0\.0\.1:9"):
            audit.post()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tier": "broker"}, "tier"),
        ({"tier": ""}, "tier"),
        ({"source": "a\n"}, "source"),
        ({"tags": "a,,b"}, "tag"),
        ({"bucket": "often"}, "bucket"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], field: str) -> None:
    """The error names the argument."""
    with pytest.raises(AuditInputError) as raised:
        made(**options)
    assert raised.value.field == field


def test_a_bad_address_is_refused() -> None:
    """Only http and https."""
    with pytest.raises(AuditInputError, match="admin_url"):
        ConsumerAudit("pulsar://127.0.0.1:6650")
