"""The broker in a process of its own."""

from __future__ import annotations

import os

import pytest

from pulsemark.testing import BrokerProcess, BrokerProcessError, RawClient

TOPIC = "persistent://public/default/orders"


def test_a_real_kill_loses_nothing_acknowledged():
    """After kill -9 and a new start, at the same addresses, what was acknowledged is there."""
    with BrokerProcess("--grpc-port", "0") as broker:
        addresses, first = (broker.service_url, broker.http_url), broker.pid
        assert broker.grpc_url
        assert broker.kafka_url == ""
        with RawClient.from_url(broker.service_url) as client:
            client.create_producer(TOPIC).send(b"before")
        broker.kill()
        with pytest.raises(OSError, match="No such process"):
            os.kill(first, 0)
        assert [each.value for each in broker.messages("orders")] == [b"before"]
        broker.start()
        assert (broker.service_url, broker.http_url) == addresses
        broker.restart()
        with RawClient.from_url(broker.service_url) as client:
            client.create_producer(TOPIC).send(b"after")
        broker.assert_published("orders", value=b"after", count=1)
        assert broker.admin.topics() == [TOPIC]
        folder = broker.data_dir
    assert not folder.exists()


def test_a_process_that_does_not_get_ready(tmp_path):
    """Its error says why, and the folder of the test stays as it is."""
    (tmp_path / "data").write_text("a file")
    with pytest.raises(BrokerProcessError, match="is a file, not a folder"):
        BrokerProcess(data_dir=tmp_path / "data").start()
    assert (tmp_path / "data").read_text() == "a file"
