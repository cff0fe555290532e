"""A Pulsar-compatible broker over the ledger.

async with Broker(BrokerConfig(data_dir=folder, port=0)) as broker: ...
with BrokerThread(BrokerConfig(data_dir=folder, port=0)) as broker: ...

Providers of own authentication and authorisation implement `AuthenticationProvider` and
`AuthorizationProvider` (docs/embedding.md).
"""

from ..ledger.bookkeeper.loop_thread import new_event_loop
from .configuration.config import BrokerConfig
from .configuration.security_config import SecurityConfig
from .embed import BrokerThread
from .errors import (
    BrokerError,
    BrokerStateError,
    CannotListenError,
    ConfigError,
    NoDataFolderError,
    OwnLoopError,
    PortInUseError,
)
from .security.authentication import Authenticated, AuthenticationFailed
from .security.authentication import Provider as AuthenticationProvider
from .security.authorization import AuthorizationProvider, Target
from .security.needs import Need, Scope
from .server import Broker

__all__ = [
    "Authenticated",
    "AuthenticationFailed",
    "AuthenticationProvider",
    "AuthorizationProvider",
    "Broker",
    "BrokerConfig",
    "BrokerError",
    "BrokerStateError",
    "BrokerThread",
    "CannotListenError",
    "ConfigError",
    "Need",
    "NoDataFolderError",
    "OwnLoopError",
    "PortInUseError",
    "Scope",
    "SecurityConfig",
    "Target",
    "new_event_loop",
]
