"""Kafka's names of topics."""

from __future__ import annotations

import re

from ..metadata.partition_names import partition_of

__all__ = ["is_name"]

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_name(name: str | None) -> bool:
    """Whether a topic can have this name: Kafka's rule, and not the name of a partition."""
    return (
        name is not None
        and _NAME.fullmatch(name) is not None
        and name not in (".", "..")
        and partition_of(name)[1] < 0
    )
