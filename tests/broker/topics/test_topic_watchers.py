"""Watchers of topics' names: what they are notified of, in small and large namespaces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from pulsemark.broker.topics.topic_names import TopicNames
from pulsemark.broker.topics.topic_watchers import (
    NAMES_AT_ONCE,
    TopicWatcher,
    TopicWatchers,
    compile_if_safe,
    matches,
    topics_hash,
)

NS = "public/default"


class Recorded:
    """A watcher's client."""

    def __init__(self, names, pattern):
        self.updates: list[Any] = []
        self.watcher = TopicWatcher(1, NS, re.compile(pattern), self.notify)
        names.watchers.add(self.watcher)

    def notify(self, watcher, new, deleted, digest):
        """Keep what a client would be sent."""
        assert watcher is self.watcher
        self.updates.append((new, deleted, digest))


def full(name):
    """The full name of a topic of the namespace."""
    return f"persistent://{NS}/{name}"


@pytest.fixture
def started(monkeypatch):
    """The work that a broker would run in pieces."""
    found: list[Iterator[None]] = []
    kept = property(lambda _: found.append, lambda *_: None)
    monkeypatch.setattr(TopicWatchers, "run", kept, raising=False)
    return found


def test_watchers_are_notified_of_names_that_match():
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


def test_changes_are_gathered(started):
    """One work in pieces tells of all changes; a topic that came and went is not named."""
    names = TopicNames(full(f"t{n}") for n in range(NAMES_AT_ONCE + 50))
    received = Recorded(names, f"{NS}/t.*")
    for n in range(3):
        names.add(full(f"t-new-{n}"))
    names.discard(full("t-new-1"))
    names.discard(full("t0"))
    assert len(started) == 1
    assert not received.updates
    assert sum(1 for _ in started[0]) == 4  # the changes, the names in two pieces, the watcher
    expected = [full("t-new-0"), full("t-new-2")], [full("t0")], topics_hash(names.of(NS))
    assert received.updates == [expected]


def test_a_change_during_the_work_is_sent_after_it(started):
    """Nothing is lost that happens while the digest is computed, with its own digest."""
    names = TopicNames(full(f"t{n}") for n in range(NAMES_AT_ONCE + 1))
    received = Recorded(names, f"{NS}/t.*")
    names.add(full("t-one"))
    first = topics_hash(names.of(NS))
    next(started[0])
    names.add(full("t-two"))
    assert [*started[0]]
    assert received.updates == [
        ([full("t-one")], [], first),
        ([full("t-two")], [], topics_hash(names.of(NS))),
    ]
    assert len(started) == 1


def test_many_watchers_cost_a_change_nothing(started, steps_of):
    """A change takes as many steps with 30,000 watchers as with one, and so does each piece."""
    few, many = TopicNames([full("t0")]), TopicNames([full("t0")])
    Recorded(few, f"{NS}/t.*")
    received = [Recorded(many, f"{NS}/t.*") for _ in range(300)]
    others = [Recorded(many, f"{NS}/t{n}-.*") for n in range(300)]
    for names in (few, many):
        names.add(full("t1"))  # the namespace's work has begun
    assert steps_of(lambda: many.add(full("t2"))) == steps_of(lambda: few.add(full("t2")))
    assert [*started[0]]
    longest = max(steps_of(lambda: next(started[1], None)) for _ in range(1_000))
    assert longest < 2_000
    expected: Any = ([full("t1"), full("t2")], [], topics_hash(many.of(NS)))
    assert all(each.updates == [expected] for each in received)
    assert not any(each.updates for each in others)


def test_a_pattern_is_compared_once_for_all_who_have_it(started, monkeypatch):
    """What it matches, and the digest, are found once."""
    compared: list[str] = []

    def counting(pattern, name):
        compared.append(name)
        return matches(pattern, name)

    monkeypatch.setattr("pulsemark.broker.topics.topic_watchers.matches", counting)
    names = TopicNames([full("t0")])
    received = [Recorded(names, f"{NS}/t.*") for _ in range(50)]
    names.add(full("t1"))
    assert [*started[0]]
    assert compared == [full("t1"), full("t0"), full("t1")]
    assert all(len(each.updates) == 1 for each in received)


def test_a_watcher_that_left_gets_nothing(started):
    """Leaving twice is harmless, also while the others are being notified."""
    names = TopicNames()
    received, other = Recorded(names, ".*"), Recorded(names, ".*")
    names.add(full("a"))
    next(started[0])
    received.watcher.leave()
    received.watcher.leave()
    assert [*started[0]]
    assert not received.updates
    assert len(other.updates) == 1
    other.watcher.leave()
    names.add(full("b"))
    assert len(started) == 1
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
