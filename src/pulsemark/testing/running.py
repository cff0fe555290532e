"""A broker that runs during a `with` block, on free ports and with a temporary data folder.

    with running_broker() as broker:
        client = pulsar.Client(broker.service_url)

Every setting of `BrokerConfig` can be given by name. The broker runs in a thread of this process;
when the block ends it is closed in order, and a temporary data folder is removed. With
`storage="memory"` it needs no disk.
"""

from __future__ import annotations

from typing import Any

from .broker import PulsarBroker

__all__ = ["running_broker"]


def running_broker(**settings: Any) -> PulsarBroker:
    """A broker for a `with` block; see `PulsarBroker`.

    Args:
        settings: fields of `BrokerConfig`. Ports default to free ones, gRPC and Kafka to off.

    Raises what starting a broker raises (see `Broker.start`), ConfigError for a wrong value, and
    TypeError for a field that does not exist.
    """
    return PulsarBroker(**settings)
