"""A broker that runs during a `with` block, on free ports and with a temporary data folder.

    with running_broker() as broker:
        client = pulsar.Client(broker.service_url)

Every setting of `BrokerConfig` can be given by name. The broker runs in a thread of this process;
when the block ends it is closed in order, and a temporary data folder is removed. With
`storage="memory"` it needs no disk. For `unittest`:

    class OrdersTest(PulsarTestCase):
        def test_an_order_is_published(self):
            publish_order(self.broker.service_url)
            self.broker.assert_published("orders", key="42")
"""

from __future__ import annotations

import unittest
from typing import Any, ClassVar

from .broker import PulsarBroker

__all__ = ["PulsarTestCase", "running_broker"]


def running_broker(**settings: Any) -> PulsarBroker:
    """A broker for a `with` block; see `PulsarBroker`.

    Args:
        settings: fields of `BrokerConfig`. Ports default to free ones, gRPC and Kafka to off.

    Raises what starting a broker raises (see `Broker.start`), ConfigError for a wrong value, and
    TypeError for a field that does not exist.
    """
    return PulsarBroker(**settings)


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
