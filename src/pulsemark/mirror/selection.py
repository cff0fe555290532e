"""Which topics are mirrored: a list of names, or patterns.

As in Pulsar's tools a pattern is a topic's name whose local part is a regular expression, such as
`persistent://public/default/orders-.*`; it must match the whole name. A partitioned topic is chosen
by its own name and brings all of its partitions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..wire import InvalidTopicNameError, TopicName
from .entries import Source, Target
from .errors import NoTopicsError, TopicMissingError

__all__ = ["Selection"]


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

    def find(self, source: Source, target: Target) -> list[str]:
        """Full names of the topics to mirror, each partition by itself, in order.

        The numbers of partitions of partitioned topics are compared with the target's. Raises
        NoTopicsError, TopicMissingError, PartitionCountError.
        """
        parsed = [TopicName.parse(name) for name in self.names]
        there = source.topics(sorted({name.namespace for name in parsed}))
        found: dict[str, None] = {}
        for name in parsed:
            for topic in self._matching(name, there):
                for each in self._parts(TopicName.parse(topic), source, target, there):
                    found[each] = None
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
