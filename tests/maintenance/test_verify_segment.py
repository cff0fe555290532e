"""Verification compares each stamp with the record that it stands in."""

from __future__ import annotations

import pytest

from pulsemark.maintenance import findings
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import StamperChain, load_stampers, pack, peek
from pulsemark.metadata.prefix import pack_encoded
from pulsemark.proto.broker_entry_pb2 import CONTROL, CONTROL_TXN_COMMIT
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/orders"
STAMPERS = ("broker-time", "index", "message-count")


class LyingChain(StamperChain):
    """Stamps, and then changes the stamp: what is stored has good checksums all the same."""

    def __init__(self, change):
        super().__init__(load_stampers(STAMPERS))
        self._change = change

    def prefix(self, *args, **kwargs):
        """The changed prefix."""
        return self._change(peek(super().prefix(*args, **kwargs)))


def wrong(open_store, change):
    """What is said of a folder with a sound entry and one whose stamp was changed."""
    store = open_store()
    ledger = store.open_topic(TOPIC)
    for chain in (StamperChain.from_names(STAMPERS), LyingChain(change)):
        ledger.stampers = chain
        body = unbatched_message(b"order", publish_time_ms=1)
        last = ledger.append(body, message_count=2)
    last.commit.wait(10)
    store.close()
    found = [f for f in verify_folder(store.folder) if isinstance(f, findings.WrongRecord)]
    assert all(finding.position == last.position for finding in found)
    return [finding.reason for finding in found]


def changed(**fields):
    """The stamp with other values."""

    def change(metadata):
        for name, value in fields.items():
            setattr(metadata, name, value)
        return pack(metadata)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(index=2), "index 2, the record 3"),
        (changed(broker_timestamp=1_600_000_000_000), "broker time 1600000000000, the record"),
        (changed(message_count=1), "message count 1, the record 2"),
        (changed(entry_kind=CONTROL), "CONTROL"),
        (lambda metadata: pack_encoded(b"\xff" * 9), "not a BrokerEntryMetadata"),
    ],
)
def test_stamp_that_contradicts_its_record(open_store, change, words):
    """Index, time, count and kind of a whole stamp are compared with the record's."""
    (reason,) = wrong(open_store, change)
    assert words in reason


def test_stamp_that_agrees_with_its_record(open_store):
    """A stamp that is packed the same way, unchanged, gives no finding."""
    assert wrong(open_store, pack) == []


@pytest.mark.parametrize("names", [(), ("index",), STAMPERS])
def test_stamps_that_the_ledger_writes_agree(open_store, names):
    """Unstamped entries, entries with one stamp and control entries give no finding."""
    store = open_store()
    ledger = store.open_topic(TOPIC)
    ledger.stampers = StamperChain.from_names(names)
    ledger.append(unbatched_message(b"order", publish_time_ms=1), message_count=3)
    ledger.append_control(CONTROL_TXN_COMMIT, "t", tags={"k": b"v"})
    ledger.append(b"bare").commit.wait(10)
    store.close()
    assert not [f for f in verify_folder(store.folder) if isinstance(f, findings.WrongRecord)]
