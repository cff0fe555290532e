"""Bounds that every engine keeps, so that a topic can move from one engine to another."""

from __future__ import annotations

import resource

MAX_ENTRY_ID = 2**32 - 1
MAX_PREFIX_BYTES = 2**16 - 1
MAX_TOPIC_NAME_BYTES = 4096
MAX_RUN_BYTES = 2**32 - 1
"""The largest size of one run of entries, and so twice the size of the largest entry."""
MAX_RUN_MESSAGES = 2**32 - 1
MAX_MESSAGE_COUNT = 2**20
"""Messages in one entry. No batch of Pulsar's largest size, 5 MiB, can hold as many: each message
takes at least six bytes. Higher counts would end a run every few entries, because a run's messages
are counted in 32 bits."""
MAX_INDEX = 2**63 - 1
MAX_TIME_MS = 2**63 - 1
"""The latest time that a clock may give."""

BODY_CRC_OURS = 0
"""The body has no checksum of its own: the engine must store one."""
BODY_CRC_PRODUCER = 1
"""The body begins with Pulsar's magic and a CRC32C that was verified."""
CHECKED_BODY_BYTES = 6
"""Size of the first bytes of such a body: the producer's magic and CRC32C."""


def default_fd_limit() -> int:
    """How many files a store keeps open: half of what the process may open, at most 4096."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(4096, soft // 2)) if soft > 0 else 4096
