"""Topics that take Kafka's record sets: those with the policy `kafka`.

The policy's value are the topic's settings by Kafka's names. It is set when a Kafka client creates
the topic or changes its settings, or over REST. After that Kafka's clients may write to the topic.
It stays until the topic is deleted, since entries in that format stay, too.

Some settings also set the broker's own policy of retention. A topic with the cleanup policy
"compact" has rules for its cleaner, and everyone reads its compacted form (`compaction.cleaner`).
That is so under another policy, too, once something was cleaned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...wire import TopicName
from ..policies.policy import INT_MAX
from ..policies.pulsar_policies import MIB, MINUTE_MS, RETENTION
from ..storage import persisting

if TYPE_CHECKING:
    from ...compaction.cleaner import CleanerRules
    from ...compaction.compacted_log import CompactedLog
    from .registry import Topics
    from .topic import Topic

KAFKA_POLICY = "kafka"
TOMBSTONE_STAGE = "pulsemark.tombstone.stage"


def apply_settings(topic: Topic, settings: Mapping[str, str]) -> None:
    """Set a topic's tombstone stage and cleaner rules; {}: it is not for Kafka's clients."""
    topic.tombstone_stage = int(settings.get(TOMBSTONE_STAGE, "1"))
    topic.cleaner_rules = cleaner_rules_of(settings) if settings else None


async def open_cleaned_form(topic: Topic, run_blocking: Callable[..., Awaitable[Any]]) -> None:
    """Let an opening topic read its compacted form, if it has one. Raises RefusedError."""
    with persisting():
        form = await run_blocking(cleaned_form, topic)
    if form is not None:
        topic.read_compacted(form)


async def revise_entry_format(
    topics: Topics, name: TopicName, revise: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> None:
    """Change a topic's settings with `revise`, which also checks them; durable on return.

    A topic that had none keeps leader epochs from then on. Its retention stays if its settings ask
    for the same as before: it may be an operator's. Raises `RefusedError`, `LedgerError`, and as
    `revise`.
    """

    def changes() -> dict[str, Any]:
        policies = topics.policies.policies_of_topic(name)
        before = policies.get(KAFKA_POLICY) or {}
        changed = policies_of(revise(before))
        if (
            RETENTION.key in policies
            and changed[RETENTION.key] == policies_of(before)[RETENTION.key]
        ):
            del changed[RETENTION.key]
        return changed

    await topics.policies.change_in_topic(name, changes)


def policies_of(settings: Mapping[str, str]) -> dict[str, Any]:
    """The policies that follow from these settings, which were checked."""
    # Imported with the first topic of that kind: most brokers never have one.
    from ...kafka.topic_settings import CLEANUP_POLICY, RETENTION_BYTES, RETENTION_MS, value_of

    time_ms = size_bytes = -1
    if "delete" in value_of(settings, CLEANUP_POLICY):
        time_ms = int(value_of(settings, RETENTION_MS))
        size_bytes = int(value_of(settings, RETENTION_BYTES))
    retention = {
        "retentionTimeInMinutes": _whole(time_ms, MINUTE_MS),
        "retentionSizeInMB": _whole(size_bytes, MIB),
    }
    return {KAFKA_POLICY: dict(settings), RETENTION.key: retention}


def cleaner_rules_of(settings: Mapping[str, str]) -> CleanerRules | None:
    """The cleaner's rules that follow from these settings; None: the topic is not compacted."""
    from ...compaction.cleaner import CleanerRules
    from ...kafka import topic_settings as names

    cleanup = names.value_of(settings, names.CLEANUP_POLICY)
    if "compact" not in cleanup:
        return None

    def number(name: str) -> int:
        return int(names.value_of(settings, name))

    is_limited = "delete" in cleanup
    time_ms, size_bytes = number(names.RETENTION_MS), number(names.RETENTION_BYTES)
    return CleanerRules(
        dirty_ratio=float(names.value_of(settings, names.DIRTY_RATIO)),
        min_lag_ms=number(names.MIN_COMPACTION_LAG_MS),
        max_lag_ms=number(names.MAX_COMPACTION_LAG_MS),
        tombstone_ms=number(names.DELETE_RETENTION_MS),
        free_after_ms=number(names.FILE_DELETE_DELAY_MS),
        retention_ms=time_ms if is_limited and time_ms >= 0 else None,
        retention_size_bytes=size_bytes if is_limited and size_bytes >= 0 else None,
    )


def cleaned_form(topic: Topic) -> CompactedLog | None:
    """The form of a cleaned topic that everyone reads; None: the log is read. Blocks."""
    from ...compaction.current_view import compacted_log, state_of

    if topic.cleaner_rules is None and state_of(topic.ledger).cleaner is None:
        return None
    return compacted_log(topic.ledger)


def _whole(amount: int, unit: int) -> int:
    """Round up to whole units, at least one; -1: no limit."""
    return -1 if amount < 0 else min(max(-(-amount // unit), 1), INT_MAX)
