"""The endpoint for Kafka's clients: the same topics, read and written by Kafka's protocol.

A partition's offset is the index in the prefix. An entry holds one set of records, as the client
sent it. The package `pulsemark.kafka` has the protocol and the formats of records. These modules
take 30 MB with kafka-python, so the broker imports them only if a port for Kafka's clients is
configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...extras import install_command
from ..configuration.config import BrokerConfig
from ..errors import ConfigError

if TYPE_CHECKING:
    from .endpoint import Endpoint


def endpoint_class(config: BrokerConfig) -> type[Endpoint] | None:
    """The class of the endpoint; None without a port for Kafka's clients. Raises ConfigError."""
    if config.kafka_port is None and config.security.kafka_tls_port is None:
        return None
    from ...kafka import importing_kafka

    try:
        with importing_kafka():
            from .endpoint import Endpoint
    except ImportError as error:
        reason = f"needs kafka-python ({install_command('kafka')}): {error}"
        raise ConfigError("kafka_port", config.kafka_port, reason) from error
    return Endpoint
