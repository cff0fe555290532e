"""Watchers of topics' names: what they are notified of, in small and large namespaces."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pulsemark.broker.topics.name_patterns import compile_if_safe, matches, topics_hash
from pulsemark.broker.topics.topic_names import TopicNames
from pulsemark.broker.topics.topic_watchers import NAMES_AT_ONCE, TopicWatcher

NS = "public/default"


class Recorded:
    """A watcher's client, and the work that the broker would run in pieces."""

    def __init__(self, names, pattern):
        self.updates: list[Any] = []
        self.started: list[TopicWatcher] = []
        self.watcher = TopicWatcher(1, NS, re.compile(pattern), self.notify, self.started.append)
        names.watchers.add(self.watcher)

    def notify(self, watcher, new, deleted, digest):
        """Keep what a client would be sent."""
        assert watcher is self.watcher
        self.updates.append((new, deleted, digest))


def full(name):
    """The full name of a topic of the namespace."""
    return f"persistent://{NS}/{name}"


def test_a_small_namespace_is_notified_in_the_same_step():
    """Only names that match the pattern, and only those of the namespace."""
    names = TopicNames()
    received = Recorded(names, f"{NS}/a.*")
    for name in (full("a1"), full("b1"), "persistent://public/other/a2"):
        names.add(name)
    names.discard(full("a1"))
    names.discard(full("a1"))
    assert received.updates == [
        ([full("a1")], [], topics_hash([full("a1")])),
        ([], [full("a1")], "00000000"),
    ]
    assert not received.started


def test_changes_in_a_large_namespace_are_gathered():
    """One work in pieces tells of all changes; a topic that came and went is not named."""
    names = TopicNames(full(f"t{n}") for n in range(NAMES_AT_ONCE + 50))
    received = Recorded(names, f"{NS}/t.*")
    for n in range(3):
        names.add(full(f"t-new-{n}"))
    names.discard(full("t-new-1"))
    names.discard(full("t0"))
    assert len(received.started) == 1
    assert not received.updates
    pieces = sum(1 for _ in received.watcher.notifying(names))
    assert pieces == 2
    expected = [full("t-new-0"), full("t-new-2")], [full("t0")], topics_hash(names.of(NS))
    assert received.updates == [expected]


def test_a_change_during_the_work_is_sent_after_it():
    """Nothing is lost that happens while the digest is computed."""
    names = TopicNames(full(f"t{n}") for n in range(NAMES_AT_ONCE + 1))
    received = Recorded(names, f"{NS}/t.*")
    names.add(full("t-one"))
    work = received.watcher.notifying(names)
    next(work)
    names.add(full("t-two"))
    assert [*work]
    assert [new for new, _, _ in received.updates] == [[full("t-one")], [full("t-two")]]
    assert len(received.started) == 1


def test_a_watcher_that_left_gets_nothing():
    """Leaving twice is harmless."""
    names = TopicNames()
    received = Recorded(names, ".*")
    received.watcher.leave()
    received.watcher.leave()
    names.add(full("a"))
    assert not received.updates
    assert names.watchers.count() == 0


@pytest.mark.parametrize(
    ("pattern", "is_safe"),
    [
        (f"persistent://{NS}/.*", True),
        (f"persistent://{NS}/(a|b)-.*", True),
        (f"persistent://{NS}/(?!x)a\\.b\\d", True),
        ("(a+)+b", False),
        (".*.*.*x", False),
        (r"(.)\1", False),
        ("x" * 257, False),
    ],
)
def test_only_patterns_that_match_quickly_are_used(pattern, is_safe):
    """Groups are allowed if they are not repeated, and two repetitions."""
    assert (compile_if_safe(pattern) is not None) == is_safe


def test_the_domain_does_not_count():
    """A pattern with any domain, or with none, matches the name."""
    for pattern in (f"persistent://{NS}/a", f"non-persistent://{NS}/a", f"{NS}/a"):
        compiled: Any = compile_if_safe(pattern)
        assert matches(compiled, full("a"))
        assert not matches(compiled, full("ab"))
