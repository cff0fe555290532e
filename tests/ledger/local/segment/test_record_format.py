"""Times of entries whose bodies are damaged."""

from __future__ import annotations

import pytest

from pulsemark.finder import Finder
from pulsemark.ledger import FolderReader
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/orders"
START_MS = 1_700_000_000_000


@pytest.mark.parametrize("with_stamps", [True, False])
def test_time_in_a_damaged_body_does_not_hide_later_entries(
    open_store, clock, stamped, with_stamps
):
    """An index that is made again takes no time from a damaged body, so later entries are found."""
    store = open_store()
    topic = store.open_topic(TOPIC)
    if with_stamps:
        stamped(topic)
    for number in range(5):
        body = unbatched_message(b"order %d" % number, publish_time_ms=START_MS + number)
        clock.set(START_MS + number)
        last = topic.append(body)
    last.commit.wait(10)
    path = topic.segments()[0].path
    store.close()
    path.with_suffix(".idx").unlink()
    data = bytearray(path.read_bytes())
    body = unbatched_message(b"order 1", publish_time_ms=START_MS + 1)
    # The highest group of the publish time: centuries later.
    at = data.index(body) + body.index(b"order 1") - 1
    data[at] ^= 0x40
    path.write_bytes(data)
    with FolderReader(store.folder) as reader:
        found = Finder(reader.log(TOPIC)).by_time(START_MS + 3)
    assert found.position == (last.position.ledger_id, 3)
