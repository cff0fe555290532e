"""Transactions, as a broker answers that has them switched off."""

from __future__ import annotations

from typing import Any

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import commands

from ..peers import RawConnection, Recorder
from .common import fill, lookup, message, received, scenario, subscribe

_T = pb.BaseCommand.Type


def _ask(link: RawConnection, label: str, body: Any) -> None:
    link.say(label, commands.frame(body))


@scenario
def transactions_off(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    ids: Any = {"txnid_least_bits": 1, "txnid_most_bits": 0}
    sub = pb.Subscription(topic=topic, subscription="s")
    for label, body in (
        (
            "coordinator",
            pb.CommandTcClientConnectRequest(tc_id=0, request_id=1),
        ),
        ("new", pb.CommandNewTxn(request_id=2, txn_ttl_millis=1000, tc_id=0)),
        (
            "partition",
            pb.CommandAddPartitionToTxn(request_id=3, partitions=[topic], **ids),
        ),
        (
            "subscription",
            pb.CommandAddSubscriptionToTxn(request_id=4, subscription=[sub], **ids),
        ),
        ("end", pb.CommandEndTxn(request_id=5, txn_action=pb.COMMIT, **ids)),
        (
            "end on partition",
            pb.CommandEndTxnOnPartition(request_id=6, topic=topic, txn_action=pb.ABORT, **ids),
        ),
        (
            "end on subscription",
            pb.CommandEndTxnOnSubscription(
                request_id=7, subscription=sub, txn_action=pb.ABORT, **ids
            ),
        ),
    ):
        _ask(link, label, body)
        if link.closed:
            link = broker.connect()


@scenario
def transactional_clients(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    lookup(link, topic)
    command = pb.CommandProducer(
        topic=topic, producer_id=1, request_id=link.next_request(), txn_enabled=True
    )
    _ask(link, "transactional producer", command)
    body = message(0)
    for label, sent in (
        (
            "in a transaction",
            pb.CommandSend(producer_id=1, sequence_id=0, txnid_least_bits=1, txnid_most_bits=0),
        ),
        ("outside", pb.CommandSend(producer_id=1, sequence_id=1)),
    ):
        base = pb.BaseCommand(type=_T.SEND, send=sent).SerializeToString()
        size = len(base).to_bytes(4, "big")
        link.say(label, (len(base) + 4 + len(body)).to_bytes(4, "big") + size + base + body)


@scenario
def transactional_ack(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 2)
    subscribe(link, topic)
    link.say("flow", commands.flow(10, 10))
    ids = [one.to_data() for one in received(broker)]
    for kind in (pb.CommandAck.Individual, pb.CommandAck.Cumulative):
        body = pb.CommandAck(
            consumer_id=10,
            ack_type=kind,
            message_id=ids[:1],
            request_id=link.next_request(),
            txnid_least_bits=1,
            txnid_most_bits=0,
        )
        _ask(link, "ack in a transaction", body)
