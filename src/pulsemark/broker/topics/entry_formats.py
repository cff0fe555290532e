"""Which topics take Kafka's record sets: those with the policy `kafka`.

The policy's value are the topic's settings by Kafka's names. It is set when a Kafka client creates
the topic or changes its settings, or over REST. After that Kafka's clients may write to the topic.
It stays until the topic is deleted, since entries in that format stay too.

Some of the settings are also the broker's own policy of retention. A topic with the cleanup policy
"compact" has rules for its cleaner, and everyone reads its compacted form, which is its log
(`compaction.cleaner`); under another policy, too, once something was cleaned.
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
    """Show a topic what its settings say of deleting keys; {}: it is not for Kafka's clients."""
    topic.tombstone_stage = int(settings.get(TOMBSTONE_STAGE, "1"))
    topic.cleaner_rules = cleaner_rules_of(settings) if settings else None


async def open_cleaned_form(topic: Topic, run_blocking: Callable[..., Awaitable[Any]]) -> None:
    """Let a topic that is being opened read its compacted form. Raises RefusedError."""
    with persisting():
        form = await run_blocking(cleaned_form, topic)
    if form is not None:
        topic.read_compacted(form)


async def revise_entry_format(
    topics: Topics, name: TopicName, revise: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> None:
    """Give a topic the settings that `revise` makes of its own, and checks; durable on return.

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
    """The policies of a topic with these settings, which were checked."""
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
    """How a topic with these settings is cleaned; None: its policy is not to compact."""
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
    """What everyone reads of a topic that is cleaned, or was once; None: its log. Blocks."""
    from ...compaction.current_view import compacted_log, state_of

    if topic.cleaner_rules is None and state_of(topic.ledger).cleaner is None:
        return None
    return compacted_log(topic.ledger)


def _whole(amount: int, unit: int) -> int:
    """So many whole units as hold an amount, one at least; -1: there is no limit."""
    return -1 if amount < 0 else min(max(-(-amount // unit), 1), INT_MAX)
