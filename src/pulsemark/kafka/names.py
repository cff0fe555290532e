"""Kafka's names of topics."""

from __future__ import annotations

import re

__all__ = ["is_name"]

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
#: The broker's names of partitions.
_PARTITION = re.compile(r".+-partition-(0|[1-9][0-9]{0,9})")


def is_name(name: str | None) -> bool:
    """Whether a topic can have this name: Kafka's rule, and not the name of a partition."""
    return (
        name is not None
        and _NAME.fullmatch(name) is not None
        and name not in (".", "..")
        and _PARTITION.fullmatch(name) is None
    )
