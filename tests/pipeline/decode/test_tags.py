"""The column `__tags`: the stamp's tags in the row of every message, read from the prefix alone."""

from __future__ import annotations

from typing import Any

from pulsemark.metadata import BrokerEntryMetadata, Sender, StampContext, StamperChain
from pulsemark.metadata.prefix import pack_encoded
from pulsemark.pipeline.columns import DEFAULT_COLUMNS
from pulsemark.pipeline.decode.tags import tag_maps
from pulsemark.testing.raw_messages import BatchMember, batched_message, unbatched_message

ALL_STAMPERS = (
    "broker-time", "index", "message-count", "has-keys", "raw-size", "producer", "send-time",
    "broker", "property-tags:region,bytes",
)  # fmt: skip


def test_every_message_has_its_entry_s_tags(folder: Any, tools: Any) -> None:
    """Numbers, flags, text and bytes are shown as text; entries without tags have an empty map."""
    topic = folder.topic("a")
    ledger = topic.ledger
    ledger.append(unbatched_message(b"plain", publish_time_ms=1))
    ledger.stampers = StamperChain.from_names(ALL_STAMPERS).at_broker("here:6650")
    sender = Sender("till", {"region": "eu"})
    body = batched_message([BatchMember(payload=b"12")] * 2, publish_time_ms=7)
    ledger.append(body, message_count=2, sender=sender)
    ledger.append(unbatched_message(b"345", publish_time_ms=8, key="k"), sender=sender)
    ledger.stampers = StamperChain()
    ledger.append(unbatched_message(b"unstamped", publish_time_ms=9)).commit.wait(10)
    rows = tools.rows_of(folder.path, topic="a", columns="__index,__tags")
    common = {"producer_name": "till", "broker_name": "here:6650", "region": "eu"}
    raw_size = rows[1]["__tags"]["raw_size_bytes"]
    batch = {"message_count": "2", "raw_size_bytes": raw_size, "send_time_ms": "7"}
    single = {"message_count": "1", "raw_size_bytes": "3", "send_time_ms": "8", "has_keys": "true"}
    tags = [{}, {**common, **batch}, {**common, **batch}, {**common, **single}, {}]
    assert rows == [{"__index": index, "__tags": told} for index, told in enumerate(tags)]


class Foreign:
    """A plugin that is not installed where the folder is read."""

    name = "foreign"
    fields = frozenset({1000, 109})

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Field 1000 is 7; an application tag that is not text, and one that is a forgery."""
        metadata.MergeFromString(bytes.fromhex("c03e07"))
        metadata.application_tags.add(key="bytes", value=b"\xff\x00")
        metadata.application_tags.add(key="producer_name", value=b"not me")


def test_foreign_fields_and_bytes(folder: Any, tools: Any) -> None:
    """A foreign field goes by its number, bytes are hexadecimal, and no tag forges the broker's."""
    topic = folder.topic("a")
    topic.ledger.stampers = StamperChain([Foreign()])
    topic.ledger.append(unbatched_message(b"x", publish_time_ms=1)).commit.wait(10)
    (row,) = tools.rows_of(folder.path, topic="a", columns="__tags")
    assert row == {"__tags": {"1000": "7", "bytes": "ff00"}}


def test_bodies_of_large_entries_are_not_read_for_it(folder: Any, tools: Any) -> None:
    """Long tags of large entries are there although only the heads are read."""
    topic = folder.topic("a")
    topic.ledger.stampers = StamperChain.from_names(["property-tags:region"])
    for number in range(3):
        body = unbatched_message(b"x" * 50_000, publish_time_ms=1)
        topic.ledger.append(body, sender=Sender("p", {"region": f"{number}" * 300}))
    topic.ledger.append(b"end", message_count=0).commit.wait(10)
    rows = tools.rows_of(folder.path, topic="a", columns="__tags")
    assert rows == [{"__tags": {"region": f"{number}" * 300}} for number in range(3)]


def test_a_prefix_of_another_program_never_raises(folder: Any, tools: Any) -> None:
    """Bytes in the prefix that are no metadata give no tags; the rows stay."""
    from pulsemark.ledger import EARLIEST
    from pulsemark.pipeline.decode.entries import table_of_entries

    topic = folder.topic("a")
    topic.ledger.append(unbatched_message(b"x", publish_time_ms=1)).commit.wait(10)
    table = table_of_entries(topic.ledger.read(EARLIEST))
    bad = pack_encoded(b"\xff\xff")
    table.data = bad + table.data
    table.starts[:], table.prefix_sizes[:] = 0, len(bad)
    type_ = tools.arrow_schema(["__tags"]).field("__tags").type
    assert tag_maps(table, type_).to_pylist() == [[]]
    assert DEFAULT_COLUMNS.count("__tags") == 0
