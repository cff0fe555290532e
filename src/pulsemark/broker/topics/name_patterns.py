"""Regular expressions over topics' names, as clients send them, and the digest of a list of names.

A client's pattern runs on the event loop, which serves all other clients, too. So only patterns
that take about linear time are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...metadata import crc32c
from ...metadata.partition_names import partition_of

__all__ = ["compile_if_safe", "matches", "topics_hash", "without_domain"]

PATTERN_SIZE_MAX_BYTES = 256
MAX_REPETITIONS = 2
#: Escapes that stand for one character, or for one of a class.
_ESCAPES = re.compile(r"\\[.dDwWsS/_:-]")
#: What makes matching slow: a repeated group, or an escape with another meaning (\1).
_SLOW = re.compile(r"\)[*+?{]|\\")


def compile_if_safe(pattern: str) -> re.Pattern[str] | None:
    """The compiled pattern; None if matching could take too long. Raises re.error."""
    compiled = re.compile(without_domain(pattern))
    if len(pattern.encode()) > PATTERN_SIZE_MAX_BYTES:
        return None
    plain = _ESCAPES.sub("", pattern)
    repetitions = sum(plain.replace("(?", "(").count(sign) for sign in "*+{?")
    if _SLOW.search(plain) or repetitions > MAX_REPETITIONS:
        return None
    return compiled


def matches(pattern: re.Pattern[str], name: str) -> bool:
    """Whether the pattern matches the whole name.

    As in Pulsar, the domain does not count, and a partition has the name of its topic: Java clients
    look for a topic's partitions with ``^persistent://tenant/namespace/topic$``.
    """
    return pattern.fullmatch(partition_of(without_domain(name))[0]) is not None


def topics_hash(names: Iterable[str]) -> str:
    """Pulsar's digest of a list of topics: CRC32C of the sorted names, little-endian hex."""
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


def without_domain(name: str) -> str:
    """A name or pattern without `persistent://` or `non-persistent://`."""
    return name.partition("://")[2] or name
