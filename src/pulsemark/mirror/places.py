"""FROM and TO of a mirror: a broker's URL, or a data folder."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..extras import install_command
from ..kafka import importing_kafka
from ..wire import InvalidTopicNameError, TopicName
from .broker_source import BrokerSource
from .broker_target import BrokerTarget
from .entries import Source, Target
from .errors import NoTopicsError, PlaceError, TopicMissingError
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
    """The chosen names, or patterns.

    Raises InvalidTopicNameError for what is not a topic's name, and for a pattern that is not a
    regular expression.
    """

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

    def find(self, source: Source, target: Target, *, must_exist: bool = True) -> list[str]:
        """Full names of the topics to mirror, each partition by itself, in order.

        The numbers of partitions of partitioned topics are compared with the target's.
        `must_exist` False: names of topics that do not exist are left out. Raises NoTopicsError,
        TopicMissingError, PartitionCountError.
        """
        parsed = [TopicName.parse(name) for name in self.names]
        there = source.topics(sorted({name.namespace for name in parsed}))
        found: dict[str, None] = {}
        for name in parsed:
            for topic in self._matching(name, there):
                try:
                    parts = self._parts(TopicName.parse(topic), source, target, there)
                except TopicMissingError:
                    if must_exist:
                        raise
                    continue
                found.update(dict.fromkeys(parts))
        if not found:
            raise NoTopicsError(source.place, self.names)
        return list(found)

    def _matching(self, name: TopicName, there: list[str]) -> list[str]:
        """Topics, without partition numbers, that this name or pattern means."""
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
            raise TopicMissingError(source.place, str(name))
        if name.partition_index < 0:
            target.check_partitions(str(name), count, highest)
        if count or highest >= 0:
            return sorted(partitions, key=lambda part: TopicName.parse(part).partition_index)
        if str(name) not in there:
            raise TopicMissingError(source.place, str(name))
        return [str(name)]


BROKER_SCHEMES = ("pulsar", "pulsar+ssl", "kafka", "kafka+ssl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to mirror. The command's options have the same names (docs/mirror.md)."""

    source_cluster: str = "standalone"
    subscription: str = "pulsemark-mirror"
    stampers: tuple[str, ...] = ("broker-time", "index")
    append: bool = False
    without_deduplication: bool = False
    renumber: bool = False
    source_token: str | None = None
    target_token: str | None = None
    trusted_certificates: str | os.PathLike[str] | None = None
    source_grpc: str | None = None
    target_grpc: str | None = None


def folder_of(place: str) -> Path | None:
    """The data folder that a place means; None for a broker's URL. Raises PlaceError."""
    scheme, separator, rest = place.partition("://")
    if not separator:
        if not place:
            raise PlaceError(place, "neither a broker's URL nor a data folder")
        return Path(place)
    if scheme == "file":
        return Path(rest)
    if scheme not in BROKER_SCHEMES:
        known = ", ".join((*BROKER_SCHEMES, "file"))
        raise PlaceError(place, f"unknown scheme {scheme!r}; known are {known}")
    return None


def open_source(place: str, options: Options) -> Source:
    """The source at a place. Raises PlaceError, ServiceUrlError, LedgerError, OSError."""
    folder = folder_of(place)
    if is_kafka(place):
        cluster = kafka_cluster(place, options, options.source_token)
        from .kafka import KafkaSource

        return KafkaSource(cluster, options.source_cluster)
    if folder is None:
        return BrokerSource(
            place,
            options.source_cluster,
            options.subscription,
            ssl_context=_tls(place, options),
            token=options.source_token,
        )
    if not folder.is_dir():
        raise PlaceError(place, "there is no such data folder")
    return FolderSource(folder, options.source_cluster)


def open_target(place: str, options: Options) -> Target:
    """The target at a place. Raises as `open_source`, and StampError for a stamper."""
    folder = folder_of(place)
    if is_kafka(place):
        cluster = kafka_cluster(place, options, options.target_token)
        from .kafka import KafkaTarget

        return KafkaTarget(
            cluster, options.source_cluster, append=options.append, renumber=options.renumber
        )
    if folder is None:
        return BrokerTarget(
            place,
            options.source_cluster,
            append=options.append,
            without_deduplication=options.without_deduplication,
            ssl_context=_tls(place, options),
            token=options.target_token,
        )
    return FolderTarget(
        folder, options.source_cluster, stampers=options.stampers, append=options.append
    )


def is_kafka(place: str) -> bool:
    """Whether a place is a Kafka's URL."""
    return place.startswith(("kafka:", "kafka+ssl:"))


def kafka_cluster(place: str, options: Options, token: str | None) -> KafkaCluster:
    """The Kafka at a URL; nothing is connected yet. Raises PlaceError, ServiceUrlError."""
    try:
        # With kafka-python it takes 30 MB, which most mirrors do not need.
        with importing_kafka():
            from ..kafka.client import KafkaCluster
    except ImportError as error:
        raise PlaceError(place, f"needs kafka-python ({install_command('kafka')})") from error
    return KafkaCluster(place, ssl_context=_tls(place, options), token=token)


def _tls(place: str, options: Options) -> ssl.SSLContext | None:
    if "+ssl:" not in place or options.trusted_certificates is None:
        return None
    return ssl.create_default_context(cafile=str(options.trusted_certificates))
