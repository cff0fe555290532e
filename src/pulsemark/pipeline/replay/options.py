"""The options of a replay; they are checked before Spark starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...client import Service, ServiceUrlError
from ...metadata.partition_names import partition_name, partition_of
from ..errors import OptionError
from ..options import full_topic_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The target of a replay, its rates, and other options."""

    service_url: str
    """The target's: ``pulsar://HOST:PORT``."""
    target_topic: str | None = None
    """None: each topic goes to the topic of its own name."""
    messages_per_s: float | None = None
    """Over all tasks."""
    bytes_per_s: float | None = None
    """Over all tasks; bytes of entries as they are published."""
    without_deduplication: bool = False
    """Replay also into a topic that does not deduplicate."""
    token: str | None = None
    """A token for authentication at the target."""
    reconnect_s: float = 60.0
    """How long the target may be away, without anything being stored meanwhile."""

    def checked(self) -> ReplayOptions:
        """These options, with the full name of the target topic.

        Raises OptionError: one of them is malformed.
        """
        try:
            Service(self.service_url)
        except ServiceUrlError as error:
            raise OptionError("serviceUrl", self.service_url, error.reason) from error
        for name, value in (
            ("messagesPerSecond", self.messages_per_s),
            ("bytesPerSecond", self.bytes_per_s),
        ):
            if value is not None and not 0 < value < 1e15:
                raise OptionError(name, f"{value:g}", "is not above 0")
        if not 0 <= self.reconnect_s <= 86_400:
            raise OptionError("reconnectS", f"{self.reconnect_s:g}", "is not from 0 to 86400")
        if self.target_topic is None:
            return self
        try:
            name = full_topic_name(self.target_topic)
        except ValueError as error:
            raise OptionError("targetTopic", self.target_topic, str(error)) from error
        return replace(self, target_topic=name)


def shared_by(tasks: int, options: ReplayOptions) -> ReplayOptions:
    """The options of each task, of ``tasks`` that together keep the rates."""
    rates = {name: getattr(options, name) for name in ("messages_per_s", "bytes_per_s")}
    return replace(options, **{name: rate and rate / tasks for name, rate in rates.items()})


def service_of(options: ReplayOptions) -> Service:
    """The target's cluster; nothing is connected yet."""
    if options.token is None:
        return Service(options.service_url)
    return Service(options.service_url, auth_method_name="token", auth_data=options.token.encode())


def target_topic_of(topic: str, options: ReplayOptions) -> str:
    """The target topic of a source topic; for a partition, the partition of the same number."""
    if options.target_topic is None:
        return topic
    _, index = partition_of(topic)
    if index >= 0 and partition_of(options.target_topic)[1] < 0:
        return partition_name(options.target_topic, index)
    return options.target_topic


def settings_of(
    path: str | os.PathLike[str],
    topics: Sequence[str] | None,
    bounds: Mapping[str, str],
    options: ReplayOptions,
) -> dict[str, Any]:
    """The settings that must not change when a replay goes on; speed and credentials may."""
    return {
        "path": str(Path(path).absolute()),
        "topics": None if topics is None else sorted(topics),
        **{name: bounds.get(name) for name in _BOUNDS},
        "serviceUrl": options.service_url,
        "targetTopic": options.target_topic,
    }


_BOUNDS = ("startingTime", "endingTime", "startingOffsets", "endingOffsets")
