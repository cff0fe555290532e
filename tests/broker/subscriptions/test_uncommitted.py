"""Consumers and transactions: nothing of an open one is sent, nothing of an aborted one ever."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from pulsemark.metadata import BrokerEntryMetadata, payload_of
from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_ABORT, CONTROL_TXN_COMMIT
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing.raw_messages import unbatched_message

TYPES = [
    CommandSubscribe.Exclusive,
    CommandSubscribe.Failover,
    CommandSubscribe.Shared,
    CommandSubscribe.Key_Shared,
]


@pytest.fixture
def put(broker, raw, topic):
    """Appends to the topic: text of a transaction (None: of none), or its end."""
    raw.create_producer(topic).send(b"first")

    def append(what: str, transaction: str | None) -> None:
        async def in_broker(running: Any) -> None:
            ledger = running.services.topics.open_topics[topic].ledger
            if what in ("commit", "abort"):
                kind = CONTROL_TXN_COMMIT if what == "commit" else CONTROL_TXN_ABORT
                appended = ledger.append_control(kind, transaction)
            else:
                base = None
                if transaction is not None:
                    base = BrokerEntryMetadata(transaction=transaction)
                body = unbatched_message(what.encode(), publish_time_ms=1, key="k")
                appended = ledger.append(body, base=base)
            await running.services.run_blocking(appended.commit.wait, 10)

        broker.call(in_broker)

    return append


@pytest.mark.parametrize("kind", TYPES)
def test_consumers_get_what_is_committed(raw, topic, put, http, kind):
    """In the order of the log, once the first open transaction has ended; backlogs count it."""
    consumer = raw.subscribe(topic, "s", sub_type=kind, earliest=True)
    consumer.flow(100)
    (first,) = consumer.receive_many(1)
    put("of one", "(0,1)")
    put("of another", "(0,2)")
    put("of none", None)
    put("abort", "(0,2)")
    assert consumer.drain() == []
    put("of one, too", "(0,1)")
    put("commit", "(0,1)")
    received = consumer.receive_many(3)
    texts = [bytes(payload_of(each.headers_and_payload)) for each in received]
    assert texts == [b"of one", b"of none", b"of one, too"]
    path = f"/admin/v2/{topic.replace('://', '/')}/stats"
    assert http("GET", path).json["subscriptions"]["s"]["msgBacklog"] == 4
    for each in (first, *received):
        consumer.ack(each.message_id)
    put("the end", None)
    (last,) = consumer.receive_many(1)
    consumer.ack(last.message_id)
    assert http("GET", path).json["subscriptions"]["s"]["msgBacklog"] == 0


def test_a_reader_ends_before_an_open_transaction(client, topic, put):
    """The last message's id is that of the last one that readers get."""
    put("aborted", "1:0")
    put("abort", "1:0")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)

    def read() -> list[bytes]:
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(10_000).data())
        return found

    assert read() == [b"first"]
    put("open", "2:0")
    put("second", None)
    assert read() == []
    put("commit", "2:0")
    assert read() == [b"open", b"second"]
    put("aborted", "2:0")
    put("abort", "2:0")
    assert read() == []
