"""What was skipped does not count as read, and a request for everything is a kind of FLOW."""

from __future__ import annotations

import json
import urllib.request

import pytest

from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient, running_broker

TOPIC = "persistent://public/default/t"
PATH = "/admin/v2/persistent/public/default/t"
Exclusive, Shared = CommandSubscribe.Exclusive, CommandSubscribe.Shared


def call(broker, method, path):
    """The JSON of a REST call; None without a body."""
    request = urllib.request.Request(broker.http_url + path, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def test_permits_are_for_what_was_not_skipped():
    """As in Pulsar: two permits bring two entries, though the one before them was skipped."""
    with running_broker() as broker, RawClient.from_url(broker.service_url) as raw:
        consumer = raw.subscribe(TOPIC, "s", earliest=True)
        producer = raw.create_producer(TOPIC)
        producer.send(b"skipped")
        call(broker, "POST", f"{PATH}/subscription/s/skip_all")
        producer.send_batch([b"a", b"b", b"c"])
        producer.send(b"d")
        consumer.flow(2)
        found = [consumer.receive() for _ in range(2)]
        assert [one.message_id.entry_id for one in found] == [1, 2]


@pytest.mark.parametrize("sub_type", [Exclusive, Shared])
def test_a_request_for_everything_counts_as_a_flow(sub_type):
    """It leaves its time with the subscription, as in Pulsar, and not with the consumer."""
    with running_broker() as broker, RawClient.from_url(broker.service_url) as raw:
        consumer = raw.subscribe(TOPIC, "s", sub_type=sub_type, earliest=True)
        before = call(broker, "GET", f"{PATH}/stats")["subscriptions"]["s"]
        assert before["lastConsumedFlowTimestamp"] == 0
        consumer.redeliver()
        consumer.get_last_message_id()  # so the command before it has been read
        after = call(broker, "GET", f"{PATH}/stats")["subscriptions"]["s"]
        assert after["lastConsumedFlowTimestamp"] > 0
        assert after["consumers"][0]["lastConsumedFlowTimestamp"] == 0
