"""The policy `mirrorSources`: from which clusters a topic accepts mirrors.

Its value is a list of cluster names; "*" allows every cluster, and an empty list none. It can be
set for a topic (with all of its partitions), for a namespace, and in the broker's configuration
(`mirror_sources`); the most specific one that is set applies. A change holds for the next entry
that a mirror sends.
"""

from __future__ import annotations

from typing import Any

from ...metadata.source_stamp import CLUSTER_SIZE_MAX_BYTES
from ...wire import TopicName
from ..policies.levels import Levels
from ..policies.policy import Place, Policy, PolicyValueError

__all__ = ["MIRRORS", "MIRROR_SOURCES", "InvalidSourcesError", "MirrorPolicies", "check_sources"]

MIRROR_SOURCES = "mirrorSources"
MAX_SOURCES = 100


class InvalidSourcesError(PolicyValueError):
    """A value that the policy cannot have: `value`, with the `reason`."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(MIRROR_SOURCES, value, reason)


def check_sources(value: Any) -> list[str]:
    """The policy's value, sorted and without doubles. Raises `InvalidSourcesError`."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidSourcesError(value, "must be a list of cluster names")
    if len(value) > MAX_SOURCES:
        raise InvalidSourcesError(value, f"{len(value)} clusters; at most {MAX_SOURCES}")
    for name in value:
        if not 0 < len(name.encode(errors="replace")) <= CLUSTER_SIZE_MAX_BYTES:
            reason = f"{name[:40]!r} must have 1 to {CLUSTER_SIZE_MAX_BYTES} bytes"
            raise InvalidSourcesError(value, reason)
    return sorted(set(value))


MIRRORS = Policy(
    name=MIRROR_SOURCES,
    key=MIRROR_SOURCES,
    what="the clusters from which mirrors may publish",
    read=check_sources,
    default=lambda config: list(config.mirror_sources),
    namespace=Place(MIRROR_SOURCES, empty="null"),
    topic=Place(MIRROR_SOURCES, empty="null"),
    is_ours=True,
)


class MirrorPolicies(Levels[list[str]]):
    """The policy at all levels."""

    def sources_of(self, name: TopicName) -> frozenset[str]:
        """The clusters from which a topic accepts mirrors."""
        return frozenset(self.applied(name))
