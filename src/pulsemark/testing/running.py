"""A broker that runs during a `with` block, on free ports and with a temporary data folder.

    with running_broker() as broker:
        client = pulsar.Client(broker.service_url)

Every setting of `BrokerConfig` can be given by name. The broker runs in a thread of this process;
when the block ends it is closed in order, and a temporary data folder is removed. With
`storage="memory"` it needs no disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..broker import BrokerConfig, BrokerThread

__all__ = ["running_broker"]


@contextmanager
def running_broker(**config: Any) -> Iterator[BrokerThread]:
    """A started broker; see `.service_url`, `.http_url`, `.grpc_url` and `.data_dir`.

    Args:
        config: fields of `BrokerConfig`. Ports default to free ones, gRPC to off.

    Raises what starting a broker raises (see `Broker.start`), ConfigError for a wrong value, and
    TypeError for a field that does not exist.
    """
    settings = {"port": 0, "http_port": 0, **config}
    with BrokerThread(BrokerConfig(**settings)) as broker:
        yield broker
