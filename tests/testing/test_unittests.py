"""The broker for unittest."""

from __future__ import annotations

import unittest
from typing import ClassVar

from pulsemark.testing import PulsarTestCase, RawClient


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
