"""The endpoint for Kafka's clients inside a broker.

`ports` connects the endpoint (package `pulsemark.kafka`) with the broker's topics, its
authentication and authorisation, and the other brokers. It imports kafka-python, so the broker
imports it only if a port for Kafka's clients is configured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...extras import install_command
from ..configuration.config import BrokerConfig
from ..connection.accepting import Listening
from ..errors import ConfigError

if TYPE_CHECKING:
    from .ports import KafkaServer


def make_kafka_server(
    config: BrokerConfig, has_room: Callable[[int], bool], listening: Listening
) -> KafkaServer:
    """The listeners for Kafka's clients. Raises ConfigError, PortInUseError, OSError."""
    from ...kafka import importing_kafka

    try:
        # With kafka-python it takes 30 MB, which most brokers do not need.
        with importing_kafka():
            from .ports import KafkaServer
    except ImportError as error:
        reason = f"needs kafka-python ({install_command('kafka')}): {error}"
        raise ConfigError("kafka_port", config.kafka_port, reason) from error
    tls = None if config.security.kafka_tls_port is None else listening.tls
    return KafkaServer(config, has_room, tls, listening.per_address)
