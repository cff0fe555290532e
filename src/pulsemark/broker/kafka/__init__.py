"""The endpoint for Kafka's clients inside a broker.

`ports` connects the endpoint (package `pulsemark.kafka`) with the broker's topics, its
authentication and authorisation, and the other brokers. It imports kafka-python, so the broker
imports it only if a port for Kafka's clients is configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...extras import install_command
from ..configuration.config import BrokerConfig
from ..errors import ConfigError

if TYPE_CHECKING:
    from .ports import KafkaServer


def make_kafka_server(config: BrokerConfig) -> KafkaServer | None:
    """The endpoint for Kafka's clients; None without a port for them. Raises ConfigError."""
    if config.kafka_port is None and config.security.kafka_tls_port is None:
        return None
    from ...kafka import importing_kafka

    try:
        # With kafka-python it takes 30 MB, which most brokers do not need.
        with importing_kafka():
            from .ports import KafkaServer
    except ImportError as error:
        reason = f"needs kafka-python ({install_command('kafka')}): {error}"
        raise ConfigError("kafka_port", config.kafka_port, reason) from error
    return KafkaServer(config)
