"""Bundles: parts of a namespace, by ranges of the hash of topics' names.

Pulsar gives each bundle to one broker. Here they only name groups of topics, for calls that are
about a bundle; this broker serves all of them. A namespace has `bundles` in its settings if it was
created with them or if one was split, otherwise it has four of equal size.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from .messages import HttpError, Request

__all__ = [
    "BUNDLES",
    "boundaries_of",
    "bundle_of",
    "bundles_of",
    "check_bundle",
    "split",
    "topics_in_bundle",
    "with_count",
]

BUNDLES = "bundles"
DEFAULT_COUNT = 4
#: A namespace is asked for as a whole, so its bundles must not make answers of any size.
MAX_BUNDLES = 4096
FULL = 0xFFFFFFFF
RANGE = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")


def boundaries_of(settings: Any) -> list[int]:
    """The boundaries of a namespace's bundles, from 0 to 0xffffffff."""
    found = settings.get(BUNDLES)
    if not isinstance(found, dict) or not isinstance(found.get("boundaries"), list):
        return with_count(DEFAULT_COUNT)
    return [int(text, 16) for text in found["boundaries"]]


def bundles_of(boundaries: Sequence[int]) -> dict[str, Any]:
    """The bundles as Pulsar shows them."""
    texts = [f"0x{boundary:08x}" for boundary in boundaries]
    return {"boundaries": texts, "numBundles": len(texts) - 1}


def with_count(count: int) -> list[int]:
    """The boundaries of bundles of equal size. Raises `HttpError` 412."""
    if count > MAX_BUNDLES:
        raise HttpError(412, f"Invalid number of bundles: {count} is over {MAX_BUNDLES}")
    if count <= 0:
        count = DEFAULT_COUNT
    size = FULL // count
    if FULL % count == count - 1:
        size += 1
    return [*(number * size for number in range(count)), FULL]


def bundle_of(boundaries: Sequence[int], topic: str) -> str:
    """The bundle of a topic, by the hash of its full name."""
    value = min(zlib.crc32(topic.encode()), FULL - 1)
    high = bisect_right(boundaries, value)
    return f"0x{boundaries[high - 1]:08x}_0x{boundaries[high]:08x}"


def check_bundle(request: Request, namespace: str, bundle: str) -> tuple[int, int]:
    """The range of one of the namespace's bundles. Raises `HttpError` 412."""
    found = RANGE.fullmatch(bundle)
    if found is None:
        raise HttpError(412, f"Invalid bundle range: {bundle[:80]}")
    low, high = int(found[1], 16), int(found[2], 16)
    boundaries = boundaries_of(request.services.topics.namespaces[namespace])
    if low not in boundaries[:-1]:
        raise HttpError(412, f"Invalid lower boundary for bundle {namespace}/{bundle}")
    wanted = boundaries[boundaries.index(low) + 1]
    if high != wanted:
        raise HttpError(
            412,
            f"Invalid upper boundary for bundle {namespace}/{bundle}. "
            f"Expected upper boundary of {namespace}/0x{low:08x}_0x{wanted:08x}",
        )
    return low, high


def topics_in_bundle(request: Request, namespace: str, bundle: str) -> list[str]:
    """The topics of one bundle. Raises `HttpError` 412."""
    check_bundle(request, namespace, bundle)
    boundaries = boundaries_of(request.services.topics.namespaces[namespace])
    names = request.services.topics.names_in(namespace)
    return [name for name in names if bundle_of(boundaries, name) == bundle]


async def split(request: Request, namespace: str, low: int, high: int) -> None:
    """Split a bundle in the middle. Raises `HttpError` 412 if it cannot be split."""
    middle = low + (high - low) // 2 + (1 if high == FULL else 0)
    boundaries = boundaries_of(request.services.topics.namespaces[namespace])
    if high - low < 2 or len(boundaries) > MAX_BUNDLES:
        raise HttpError(412, "Failed to split bundle: it is too small, or there are too many")
    changed = bundles_of(sorted({*boundaries, middle}))
    await request.services.topics.namespaces.change(
        namespace, lambda settings: {**settings, BUNDLES: changed}
    )
