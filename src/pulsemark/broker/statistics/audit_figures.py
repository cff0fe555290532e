"""The audit's metrics: what is counted so far of the topics whose counts are in memory.

Asking for the page counts nothing and reads nothing. The figures are sums over the buckets that are
kept, so they fall when old buckets are dropped. Figures by tags have one series for each
combination of values, at most `MAX_SERIES` for each topic: the combinations with the most messages.
The others are added up in a series with `rest="true"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from ...audit.counts import Key
from ...audit.trail import Trail
from ..services import Services
from ..topics.topic import Topic

__all__ = ["audit_families"]

MAX_SERIES = 100

Labels: TypeAlias = dict[str, str]
Samples: TypeAlias = Iterable[tuple[Labels, float]]

BY_TAGS = (
    ("pulsemark_audit_messages", "Messages that the audit has counted"),
    ("pulsemark_audit_bytes", "Bytes of entries that the audit has counted"),
    ("pulsemark_audit_out_of_order", "Messages stored after an entry of a later bucket"),
)

OF_TOPIC: tuple[tuple[str, str, Callable[[Topic, Trail], float]], ...] = (
    (
        "pulsemark_audit_missing",
        "Indexes that are not in the log although no one removed them",
        lambda topic, trail: trail.missing,
    ),
    (
        "pulsemark_audit_uncounted",
        "Indexes that were removed before they were counted",
        lambda topic, trail: trail.uncounted,
    ),
    (
        "pulsemark_audit_left",
        "Messages that are not counted yet",
        lambda topic, trail: trail.left(topic.ledger),
    ),
    (
        "pulsemark_audit_rows",
        "Rows of counts that are kept",
        lambda topic, trail: trail.counts.row_count,
    ),
    (
        "pulsemark_audit_dropped_messages",
        "Messages in rows that were dropped to stay below the limit of rows",
        lambda topic, trail: trail.counts.dropped_messages,
    ),
)


def audit_families(services: Services) -> Iterator[tuple[str, str, Samples]]:
    """Name, text and samples of each metric; none if the broker keeps no audit."""
    auditor = services.auditor
    if not auditor.is_on:
        return
    found = []
    for topic in tuple(services.topics.open_topics.values()):
        trail = auditor.trail_in_memory(topic.name)
        if trail is not None:
            found.append((topic, trail))
    names = _label_names(services.config.audit_tags)
    for number, (name, text) in enumerate(BY_TAGS):
        yield name, text, _by_tags(found, names, number)
    for name, text, read in OF_TOPIC:
        yield name, text, ((_of(topic), read(topic, trail)) for topic, trail in found)
    text = "How often counting or storing failed; the next round goes on"
    yield "pulsemark_audit_failures_total", text, [({}, auditor.failures)]
    text = "Processor time of the thread that counts, in seconds"
    yield "pulsemark_audit_cpu_seconds_total", text, [({}, auditor.cpu_s)]


def _by_tags(found: list[tuple[Topic, Trail]], names: list[str], number: int) -> Samples:
    for topic, trail in found:
        # One step of the interpreter: the auditor's thread may be counting.
        sums = tuple(trail.counts.sums.items())
        rest = sum(values[number] for key, values in sums if key is None)
        ranked = sorted(
            ((key, values[number]) for key, values in sums if key is not None),
            key=lambda item: item[1],
            reverse=True,
        )
        for key, value in ranked[:MAX_SERIES]:
            yield _of(topic) | _shown(names, key), value
        rest += sum(value for _, value in ranked[MAX_SERIES:])
        if rest:
            yield _of(topic) | {"rest": "true"}, rest


def _of(topic: Topic) -> Labels:
    return {"namespace": topic.topic_name.namespace, "topic": topic.name}


def _shown(names: list[str], key: Key) -> Labels:
    return {name: value or "" for name, value in zip(names, key or (), strict=True)}


def _label_names(tags: Iterable[str]) -> list[str]:
    """Names that Prometheus allows; different tags keep different names."""
    names: list[str] = []
    for tag in tags:
        name = base = "tag_" + re.sub(r"[^a-zA-Z0-9_]", "_", tag)
        while name in names:
            name = f"{base}_{len(names)}"
        names.append(name)
    return names
