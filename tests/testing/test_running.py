"""The broker of the test kit."""

from __future__ import annotations

import unittest
from typing import ClassVar

import pytest

from pulsemark.broker import ConfigError
from pulsemark.testing import PulsarTestCase, RawClient, running_broker


def test_a_broker_says_where_it_is_and_ends_with_its_block():
    """Free ports, a temporary folder, and nothing listens afterwards."""
    with running_broker(grpc_port=0) as broker:
        assert broker.service_url.startswith("pulsar://127.0.0.1:")
        assert broker.http_url.startswith("http://127.0.0.1:")
        assert broker.grpc_url.startswith("127.0.0.1:")
        assert broker.data_dir.is_dir()
        url = broker.service_url
        RawClient.from_url(url).close()
    with pytest.raises(OSError, match="refused"):
        RawClient.from_url(url)


def test_many_brokers_live_side_by_side():
    """Each on its own ports and folder."""
    with running_broker() as one, running_broker() as two:
        assert len({one.service_url, two.service_url, one.http_url, two.http_url}) == 4
        assert one.data_dir != two.data_dir


def test_settings_are_the_brokers_own():
    """A wrong value is a ConfigError, an unknown name a TypeError."""
    with pytest.raises(ConfigError), running_broker(max_connections=0):
        pass
    with pytest.raises(TypeError, match="no_such_setting"), running_broker(no_such_setting=1):
        pass


def test_the_tests_of_a_class_share_a_broker():
    """It runs during the class, with the class' settings."""
    seen = []

    class Orders(PulsarTestCase):
        broker_settings: ClassVar = {"storage": "memory", "cluster": "mine"}

        def test_one(self):
            with RawClient.from_url(self.broker.service_url) as client:
                client.create_producer("persistent://public/default/orders").send(b"x")
            seen.append(self.broker)

        def test_two(self):
            self.broker.assert_published("orders", value=b"x")
            assert self.broker.admin.request("GET", "clusters") == ["mine"]
            seen.append(self.broker)

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Orders).run(result)
    assert (result.errors, result.failures, result.testsRun) == ([], [], 2)
    assert seen[0] is seen[1]
    assert not seen[0].is_running
