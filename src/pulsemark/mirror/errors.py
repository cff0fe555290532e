"""Errors of mirroring. Each names the thing and the value; nothing is copied after one."""

from __future__ import annotations


class MirrorError(Exception):
    """Base of all errors of mirroring."""


class EndpointError(MirrorError, ValueError):
    """`endpoint` is neither a broker's URL nor a data folder, for the `reason`."""

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(f"{endpoint!r}: {reason}")
        self.endpoint = endpoint
        self.reason = reason


class NoTopicsError(MirrorError):
    """The source `endpoint` has no topic with one of these `names` (or patterns)."""

    def __init__(self, endpoint: str, names: tuple[str, ...]) -> None:
        super().__init__(f"{endpoint} has no topic {', '.join(names)}")
        self.endpoint = endpoint
        self.names = names


class TopicMissingError(MirrorError):
    """`endpoint` has no `topic`, for the `reason`."""

    def __init__(self, endpoint: str, topic: str, reason: str = "no such topic") -> None:
        super().__init__(f"{endpoint}: {topic}: {reason}")
        self.endpoint = endpoint
        self.topic = topic
        self.reason = reason


class PartitionCountError(MirrorError):
    """`topic` has `source` partitions in the source, `target` in the target (0: it has none)."""

    def __init__(self, topic: str, source: int, target: int) -> None:
        super().__init__(
            f"{topic} has {source} partitions in the source and {target} in the target; "
            "create it there with the same number"
        )
        self.topic = topic
        self.source = source
        self.target = target


class TargetNotEmptyError(MirrorError):
    """The target's `topic` has entries, but none from `cluster`.

    `end` of a Kafka partition: its last record is not from there, so the progress is unknown.
    """

    def __init__(self, endpoint: str, topic: str, cluster: str, end: int | None = None) -> None:
        super().__init__(
            f"{endpoint}: {topic} is not empty, and has no entry that was mirrored from cluster "
            f"{cluster!r}; --append mirrors after what is there"
            if end is None
            else f"{endpoint}: the last record of {topic} was not mirrored from cluster "
            f"{cluster!r}; --append goes on at offset {end} of the source, and leaves out "
            "whatever is missing before it"
        )
        self.endpoint = endpoint
        self.topic = topic
        self.cluster = cluster


class TargetRefusedError(MirrorError):
    """The target does not take a mirror of `topic`, or an entry of it, for the `reason`."""

    def __init__(self, endpoint: str, topic: str, reason: str) -> None:
        super().__init__(f"{endpoint} refuses {topic}: {reason}")
        self.endpoint = endpoint
        self.topic = topic
        self.reason = reason


class SourceBusyError(MirrorError):
    """The source refuses `subscription` on `topic`, because another consumer has it."""

    def __init__(self, endpoint: str, topic: str, subscription: str, reason: str) -> None:
        super().__init__(
            f"{endpoint}: {topic}: subscription {subscription!r} is in use ({reason}); "
            "each mirror needs its own: --subscription"
        )
        self.endpoint = endpoint
        self.topic = topic
        self.subscription = subscription


class OtherSourceError(MirrorError):
    """The source of `topic` is not the log that the target was mirrored from."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic}: the target was mirrored from another log: {reason}")
        self.topic = topic
        self.reason = reason


class OffsetsDifferError(MirrorError):
    """The source's ``offset`` of ``topic`` cannot be kept in a Kafka, for the ``reason``."""

    def __init__(self, topic: str, offset: int, reason: str) -> None:
        super().__init__(f"{topic}: offset {offset} of the source: {reason}")
        self.topic = topic
        self.offset = offset
        self.reason = reason


class KafkaEntryError(MirrorError):
    """An entry of `topic` is a Kafka client's record set, and one side knows no such sets."""

    def __init__(self, topic: str, position: tuple[int, int], reason: str) -> None:
        entry = f"{topic}: entry {position[0]}:{position[1]}"
        super().__init__(f"{entry} is a record set of a Kafka client: {reason}")
        self.topic = topic
        self.position = position
        self.reason = reason


class NoDeduplicationError(MirrorError):
    """The target is a Pulsar broker that does not deduplicate `topic`."""

    def __init__(self, endpoint: str, topic: str) -> None:
        super().__init__(
            f"{endpoint} does not deduplicate {topic}: a failure could store entries twice; switch "
            "deduplication on for the namespace, or give --without-deduplication"
        )
        self.endpoint = endpoint
        self.topic = topic


class SchemaVersionError(MirrorError):
    """Version `source` of the topic's schema has, or would get, another number in the target."""

    def __init__(self, topic: str, source: int, reason: str) -> None:
        super().__init__(f"{topic}: version {source} of the source's schema: {reason}")
        self.topic = topic
        self.source = source
        self.reason = reason


class LostError(MirrorError):
    """There was no connection for `waited_s` seconds. Mirroring goes on where it ended."""

    def __init__(self, waited_s: float, reason: str) -> None:
        super().__init__(f"no connection for {waited_s:.0f} s: {reason}")
        self.waited_s = waited_s
        self.reason = reason
