"""The FROM and TO of a mirror: brokers' URLs, data folders, and Kafka clusters."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..extras import install_command
from ..kafka import importing_kafka
from ..wire import InvalidTopicNameError, TopicName
from .broker_source import BrokerSource
from .broker_target import BrokerTarget
from .entries import Options, Source, Target
from .errors import (
    EndpointError,
    MirrorError,
    NoTopicsError,
    PartitionCountError,
    TopicMissingError,
)
from .folders import FolderSource, FolderTarget

if TYPE_CHECKING:
    from ..kafka.client import KafkaCluster

# Which topics are mirrored: a list of names, or patterns.
#
# As in Pulsar's tools a pattern is a topic's name whose local part is a regular expression, such as
# `persistent://public/default/orders-.*`; it must match the whole name. A partitioned topic is
# chosen by its own name and brings all of its partitions.


@dataclass(frozen=True, slots=True)
class Selection:
    """The names or patterns of topics to mirror. Raises InvalidTopicNameError."""

    names: tuple[str, ...]
    is_regex: bool = False

    def __post_init__(self) -> None:
        for name in self.names:
            if not TopicName.parse(name).is_persistent:
                raise InvalidTopicNameError(name, "only persistent topics can be mirrored")
            if self.is_regex:
                try:
                    re.compile(name)
                except re.error as error:
                    raise InvalidTopicNameError(name, f"not a pattern: {error}") from error

    def has(self, topic: str) -> bool:
        """Whether a topic, or partition, is chosen."""
        top = str(TopicName.parse(topic).partitioned) if "://" in topic else topic
        for name in map(str, map(TopicName.parse, self.names)):
            if re.fullmatch(name, top) if self.is_regex else name in (topic, top):
                return True
        return False

    def find(
        self, source: Source, target: Target, left_out: Callable[[MirrorError], None] | None = None
    ) -> list[str]:
        """Full names of the topics to mirror, each partition by itself, in order.

        Numbers of partitions are compared with the target's. `left_out` is called with the reason
        why a topic is left out. Raises NoTopicsError, TopicMissingError, PartitionCountError.
        """
        parsed = [TopicName.parse(name) for name in self.names]
        there = source.topics(sorted({name.namespace for name in parsed}))
        found: dict[str, None] = {}
        for name in parsed:
            for topic in self._matching(name, there):
                try:
                    parts = self._parts(TopicName.parse(topic), source, target, there)
                except (TopicMissingError, PartitionCountError) as error:
                    if left_out is None:
                        raise
                    left_out(error)
                    continue
                found.update(dict.fromkeys(parts))
        if not found:
            raise NoTopicsError(source.endpoint, self.names)
        return list(found)

    def _matching(self, name: TopicName, there: list[str]) -> list[str]:
        """The topics, without partition numbers, that match this name or pattern."""
        if not self.is_regex:
            return [str(name)]
        pattern = re.compile(str(name))
        tops = dict.fromkeys(str(TopicName.parse(topic).partitioned) for topic in there)
        return [topic for topic in tops if pattern.fullmatch(topic)]

    def _parts(
        self, name: TopicName, source: Source, target: Target, there: list[str]
    ) -> list[str]:
        """The topic itself, or its partitions."""
        partitions = [
            topic
            for topic in there
            if (part := TopicName.parse(topic)).partition_index >= 0 and part.partitioned == name
        ]
        highest = max((TopicName.parse(part).partition_index for part in partitions), default=-1)
        count = 0 if name.partition_index >= 0 else source.partitions(str(name))
        if count is None and highest < 0 and str(name) not in there:
            raise TopicMissingError(source.endpoint, str(name))
        if name.partition_index < 0:
            target.check_partitions(str(name), count, highest)
        if count or highest >= 0:
            return sorted(partitions, key=lambda part: TopicName.parse(part).partition_index)
        if str(name) not in there:
            raise TopicMissingError(source.endpoint, str(name))
        return [str(name)]


BROKER_SCHEMES = ("pulsar", "pulsar+ssl", "kafka", "kafka+ssl")


def folder_of(endpoint: str) -> Path | None:
    """The data folder that an endpoint means; None for a broker's URL. Raises EndpointError."""
    scheme, separator, rest = endpoint.partition("://")
    if not separator:
        if not endpoint:
            raise EndpointError(endpoint, "neither a broker's URL nor a data folder")
        return Path(endpoint)
    if scheme == "file":
        return Path(rest)
    if scheme not in BROKER_SCHEMES:
        known = ", ".join((*BROKER_SCHEMES, "file"))
        raise EndpointError(endpoint, f"unknown scheme {scheme!r}; known are {known}")
    return None


def open_source(endpoint: str, options: Options) -> Source:
    """The source at an endpoint. Raises EndpointError, ServiceUrlError, LedgerError, OSError."""
    folder = folder_of(endpoint)
    if is_kafka(endpoint):
        cluster = kafka_cluster(endpoint, options, options.source_token)
        from .kafka import KafkaSource

        return KafkaSource(cluster, options.source_cluster)
    if folder is None:
        return BrokerSource(endpoint, options)
    if not folder.is_dir():
        raise EndpointError(endpoint, "there is no such data folder")
    return FolderSource(folder, options.source_cluster)


def open_target(endpoint: str, options: Options) -> Target:
    """The target at an endpoint. Raises as `open_source`, and StampError for a stamper."""
    folder = folder_of(endpoint)
    if is_kafka(endpoint):
        cluster = kafka_cluster(endpoint, options, options.target_token)
        from .kafka import KafkaTarget

        return KafkaTarget(cluster, options)
    return BrokerTarget(endpoint, options) if folder is None else FolderTarget(folder, options)


def is_kafka(endpoint: str) -> bool:
    """Whether an endpoint is the URL of a Kafka cluster."""
    return endpoint.startswith(("kafka:", "kafka+ssl:"))


def kafka_cluster(endpoint: str, options: Options, token: str | None) -> KafkaCluster:
    """The Kafka cluster at a URL; not connected yet. Raises EndpointError, ServiceUrlError."""
    try:
        # This module takes 30 MB with kafka-python, which most mirrors do not need.
        with importing_kafka():
            from ..kafka.client import KafkaCluster
    except ImportError as error:
        reason = f"needs kafka-python ({install_command('kafka')})"
        raise EndpointError(endpoint, reason) from error
    return KafkaCluster(endpoint, ssl_context=options.tls(endpoint), token=token)
