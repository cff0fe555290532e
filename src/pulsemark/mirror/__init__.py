"""Mirrors topics from one cluster or data folder to another, without opening an entry.

The producer's bytes go over as they are. The receiver stamps them again, and keeps the source's
cluster, position, index and time as tags. `MirrorRun` is a run of `pulsemark mirror`;
docs/mirror.md has its promises.
"""

from ..client import Pace, RateLimit
from .endpoints import Selection, folder_of, open_source, open_target
from .entries import Gap, Options, Resume, SourceEntry
from .errors import (
    EndpointError,
    KafkaEntryError,
    LostError,
    MirrorError,
    NoDeduplicationError,
    NoTopicsError,
    OffsetsDifferError,
    OtherSourceError,
    PartitionCountError,
    SchemaVersionError,
    SourceBusyError,
    TargetNotEmptyError,
    TargetRefusedError,
    TopicMissingError,
)
from .follow import FollowReport, FollowRun, NotFollowerError, open_follower, promote
from .follow_source import open_followed
from .run import MirrorRun
from .subscriptions import open_carrier
from .topic_mirror import Report, Totals
from .verify import Comparison, compare

__all__ = [
    "Comparison",
    "EndpointError",
    "FollowReport",
    "FollowRun",
    "Gap",
    "KafkaEntryError",
    "LostError",
    "MirrorError",
    "MirrorRun",
    "NoDeduplicationError",
    "NoTopicsError",
    "NotFollowerError",
    "OffsetsDifferError",
    "Options",
    "OtherSourceError",
    "Pace",
    "PartitionCountError",
    "RateLimit",
    "Report",
    "Resume",
    "SchemaVersionError",
    "Selection",
    "SourceBusyError",
    "SourceEntry",
    "TargetNotEmptyError",
    "TargetRefusedError",
    "TopicMissingError",
    "Totals",
    "compare",
    "folder_of",
    "open_carrier",
    "open_followed",
    "open_follower",
    "open_source",
    "open_target",
    "promote",
]
