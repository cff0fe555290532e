"""A broker for `unittest`.

class OrdersTest(PulsarTestCase):
    def test_an_order_is_published(self):
        publish_order(self.broker.service_url)
        self.broker.assert_published("orders", key="42")
"""

from __future__ import annotations

import unittest
from typing import Any, ClassVar

from .broker import PulsarBroker
from .running import running_broker

__all__ = ["PulsarTestCase"]


class PulsarTestCase(unittest.TestCase):
    """A test case with a broker, which all tests of the class share."""

    #: Fields of `BrokerConfig`; a subclass sets its own.
    broker_settings: ClassVar[dict[str, Any]] = {"storage": "memory"}
    broker: ClassVar[PulsarBroker]

    @classmethod
    def setUpClass(cls) -> None:
        """Start the broker."""
        super().setUpClass()
        cls.broker = cls.enterClassContext(running_broker(**cls.broker_settings))
