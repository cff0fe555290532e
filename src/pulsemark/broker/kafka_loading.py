"""Loads the listeners for Kafka's clients, for a broker that is configured to have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..kafka.importing import importing_kafka
from .configuration.config import BrokerConfig
from .errors import ConfigError
from .listening import Listening

if TYPE_CHECKING:
    from .kafka_bridge import KafkaServer

__all__ = ["make_kafka_server"]


def make_kafka_server(
    config: BrokerConfig, has_room: Callable[[int], bool], listening: Listening
) -> KafkaServer:
    """The listeners for Kafka's clients. Raises ConfigError, PortInUseError, OSError."""
    try:
        # With kafka-python it takes 30 MB, which most brokers do not need.
        with importing_kafka():
            from .kafka_bridge import KafkaServer
    except ImportError as error:
        reason = f"needs kafka-python (pip install 'pulsemark[kafka]'): {error}"
        raise ConfigError("kafka_port", config.kafka_port, reason) from error
    tls = None if config.security.kafka_tls_port is None else listening.tls
    return KafkaServer(config, has_room, tls)
