"""Stamps switched at random: searches answer as a plain look at every entry does.

A topic gets entries while its stampers change, while the broker's clock steps and producers' clocks
are wrong, over rolled and reopened ledgers and a trimmed head. The model knows of each entry what
was stamped on it, and looks through all of them.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.finder import Finder, IndexOutOfRangeError, SearchMethod
from pulsemark.ledger import FolderReader, LocalStore, Position, StoreOptions
from pulsemark.metadata import StamperChain, StampingError, peek
from pulsemark.testing.clock import SettableClock
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/mixed"
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000

CHAINS = [
    StamperChain.from_names(names)
    for names in (
        (),
        ("broker-time", "index"),
        ("index",),
        ("broker-time",),
        ("property-tags:region",),
        ("broker-time", "index", "property-tags:region"),
    )
]


@dataclass(frozen=True)
class Append:
    """So many entries alike; the producer's clock is off by `skew_ms`, None: no message at all."""

    entries: int
    message_count: int
    skew_ms: int | None
    step_ms: int


@dataclass(frozen=True)
class Switch:
    """From now on these stampers."""

    chain: StamperChain


appends = st.builds(
    Append,
    st.sampled_from([1, 1, 1, 2, 5, 90]),
    st.sampled_from([0, 1, 1, 1, 2, 7]),
    st.one_of(st.none(), st.integers(-HOUR_MS, HOUR_MS), st.integers(-3, 3), st.just(0)),
    st.sampled_from([0, 0, 1, 1, 10, -300_000, 86_400_000]),
)
steps = st.lists(
    st.one_of(
        appends,
        appends,
        st.builds(Switch, st.sampled_from(CHAINS)),
        st.sampled_from(["roll", "reopen", "trim", "cut"]),
    ),
    min_size=1,
    max_size=14,
)


@dataclass
class Known:
    """What the model knows of an entry."""

    position: Position
    first_index: int
    message_count: int
    time_ms: int

    @property
    def index(self) -> int:
        """Of its last message."""
        return self.first_index + self.message_count - 1


@dataclass
class Run:
    """A store, its topic, and the model beside it."""

    folder: Path
    clock: SettableClock = field(default_factory=lambda: SettableClock(START_MS))
    entries: list[Known] = field(default_factory=list)
    chain: StamperChain = CHAINS[1]
    next_index: int = 0
    last_ms: int = 0

    def open(self) -> None:
        """Open the folder, as a broker does at its start: with the stampers of the policy."""
        options = StoreOptions(segment_size_bytes=6_000)
        self.store = LocalStore.open(self.folder, clock=self.clock, options=options)
        self.topic = self.store.open_topic(TOPIC)
        self.topic.stampers = self.chain

    def do(self, step: Append | Switch | str) -> None:
        """One step, in the store and in the model."""
        if isinstance(step, Switch):
            self.topic.stampers = self.chain = step.chain
        elif isinstance(step, Append):
            for _ in range(step.entries):
                self._append(step)
        elif step == "roll":
            self.topic.roll()
        elif step == "reopen":
            self.store.close()
            self.open()
        elif self.entries:
            # Only what is durable can be removed.
            self.store.committer.flush()
            before = self.entries[len(self.entries) // 2].position
            if step == "trim":
                self.topic.trim(before)
            else:
                self.topic.truncate_head(before)
            first = self.topic.first_position or self.topic.end_position
            self.entries = [entry for entry in self.entries if entry.position >= first]

    def _append(self, step: Append) -> None:
        self.clock.set(self.clock.now_ms() + step.step_ms)
        now_ms = max(self.clock.now_ms(), self.last_ms)
        if step.skew_ms is None:
            body, publish_time_ms = b"no message", now_ms
        else:
            publish_time_ms = self.clock.now_ms() + step.skew_ms
            properties = {"region": "eu"} if step.skew_ms % 2 else {}
            body = unbatched_message(b"x", publish_time_ms=publish_time_ms, properties=properties)
        names = self.chain.names
        if step.skew_ms is None and "property-tags" in names and step.message_count:
            with pytest.raises(StampingError):  # and nothing of it counts
                self.topic.append(body, message_count=step.message_count)
            return
        appended = self.topic.append(body, message_count=step.message_count)
        stamped = "broker-time" in names and step.message_count
        self.entries.append(
            Known(
                appended.position,
                self.next_index,
                step.message_count,
                now_ms if stamped else publish_time_ms,
            )
        )
        self.next_index += step.message_count
        self.last_ms = now_ms

    def find(self, time_ms: int) -> Known | None:
        """The first entry at or after a time, by looking at all of them."""
        return next((entry for entry in self.entries if entry.time_ms >= time_ms), None)

    def times(self) -> list[int]:
        """Moments worth asking for."""
        own = sorted({entry.time_ms for entry in self.entries})
        chosen = own[:8] + own[8 :: max(1, len(own) // 8)] + own[-3:]
        return sorted({0, 2**62, *chosen, *(t + 1 for t in chosen), *(t - 1 for t in chosen)})


@settings(max_examples=30, deadline=None)
@given(steps)
def test_searches_agree_with_a_look_at_every_entry(script) -> None:
    """by_time, by_index, range: both methods, in the store, over the folder, after opening anew."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "data")
        run.open()
        try:
            for step in script:
                run.do(step)
            run.store.committer.flush()
            compare(run, run.topic)
            check_stamps(run)
            if run.entries:  # the folder tells nothing of a topic before its first entry
                with FolderReader(run.folder) as reader:
                    compare(run, reader.log(TOPIC))
            run.do("reopen")
            compare(run, run.topic)
        finally:
            run.store.close()


def compare(run: Run, log) -> None:
    """Every answer of the finder with the model's."""
    finder = Finder(log)
    times = run.times()
    found = {}
    for method in SearchMethod:
        for time_ms in times:
            expected = run.find(time_ms)
            answer = finder.by_time(time_ms, method=method)
            found[time_ms] = expected.first_index if expected else run.next_index
            if expected is None:
                assert (answer.end, answer.first_index) == (True, run.next_index)
                assert answer.position == log.end_position
            else:
                assert not answer.end
                place = Known(
                    answer.position, answer.first_index, answer.message_count, answer.time_ms
                )
                assert place == expected
                assert answer.index == expected.index
        for from_ms, to_ms in zip(times, times[1:] + times[:1], strict=True):
            if from_ms > to_ms:
                with pytest.raises(ValueError, match="before"):
                    finder.range(from_ms, to_ms, method=method)
                continue
            span = finder.range(from_ms, to_ms, method=method)
            assert (span.first_index, span.end_index) == (found[from_ms], found[to_ms])
            assert span.count == found[to_ms] - found[from_ms]
        compare_indexes(run, finder, method)


def compare_indexes(run: Run, finder: Finder, method: SearchMethod) -> None:
    """Messages of some entries by their index, and those outside."""
    holding = [entry for entry in run.entries if entry.message_count]
    for entry in holding[:5] + holding[5 :: max(1, len(holding) // 10)] + holding[-3:]:
        for index in {entry.first_index, entry.index}:
            place = finder.by_index(index, method=method)
            assert (place.position, place.batch_index) == (
                entry.position,
                index - entry.first_index,
            )
            assert (place.first_index, place.index) == (entry.first_index, entry.index)
            assert place.time_ms == entry.time_ms
    for index in (-1, run.next_index):
        with pytest.raises(IndexOutOfRangeError):
            finder.by_index(index, method=method)


def check_stamps(run: Run) -> None:
    """What is stamped is the model's index and a time that never falls; indexes have no gap."""
    position, last_ms, expected = Position(-1, -1), 0, iter(run.entries)
    while entries := run.topic.read(position):
        for entry in entries:
            known = next(expected)
            assert (entry.position, entry.first_index) == (known.position, known.first_index)
            assert entry.message_count == known.message_count
            stamp = peek(entry.prefix)
            if stamp is not None and stamp.HasField("index"):
                assert stamp.index == known.index
            if stamp is not None and stamp.HasField("broker_timestamp"):
                assert stamp.broker_timestamp == known.time_ms >= last_ms
                last_ms = stamp.broker_timestamp
        position = Position(entry.position.ledger_id, entry.position.entry_id + 1)
    assert next(expected, None) is None
