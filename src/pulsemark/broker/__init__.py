"""A Pulsar-compatible broker over the ledger.

async with Broker(BrokerConfig(data_dir=folder, port=0)) as broker: ...
with BrokerThread(BrokerConfig(data_dir=folder, port=0)) as broker: ...
"""

from .configuration.config import BrokerConfig
from .embed import BrokerThread, new_event_loop
from .errors import BrokerError, BrokerStateError, ConfigError, PortInUseError
from .server import Broker

__all__ = [
    "Broker",
    "BrokerConfig",
    "BrokerError",
    "BrokerStateError",
    "BrokerThread",
    "ConfigError",
    "PortInUseError",
    "new_event_loop",
]
