"""Checks a history of what a broker's clients did and saw against the rules of a log.

    history = History.load("history.jsonl")
    for anomaly in check(history):
        print(anomaly)
        Path(f"{anomaly.name}.svg").write_text(picture(history, anomaly))

A history is a list of steps, one JSON object a line: client, request, answer and times (`Step`).
The clients' programs write it; they may use any protocol and any broker. `check` knows nothing of
the broker, only what a log with subscriptions may never show. The rules and their names follow
Jepsen's tests of Kafka (jepsen-io/jepsen, `tests/kafka.clj`); those of subscriptions, broker times
and indexes are ours.

Each value that is sent must be unique in the history, as must each client's name. At the end of the
history one client reads each topic from its first message to its last: these are the steps `read`,
which are taken for the log.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

Place = tuple[int, ...]
"""A position that can be compared with others of its topic."""
Message = tuple[str | None, str | None]
"""A value, and where it is."""
S_NS = 1_000_000_000

KINDS = ("send", "receive", "acknowledge", "subscribe", "closed", "seek", "drained", "backlog",
         "commit", "abort", "set", "get", "fault", "read")  # fmt: skip
#: Subscriptions whose consumer gets the messages in the order of the log.
IN_ORDER = ("Exclusive", "Failover", "Reader")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A client's request, and its result."""

    client: str
    what: str
    """`send`, `receive`, `acknowledge`, `subscribe`, `closed` (a consumer), `seek` (to a time),
    `drained` (a subscription got no more for a while, at the end), `backlog` (the broker was asked
    for it, at the end), `commit` and `abort` (of a transaction), `set` and `get` (a setting or
    something else with a value, whose name is the topic), `fault` (something was done to the
    broker), `read`."""
    begin_ns: int
    end_ns: int
    topic: str = ""
    ok: bool | None = True
    """Whether it succeeded. None: unknown, such as after a time-out."""
    value: str | None = None
    """The message. Of a seek: the first message after it."""
    position: str | None = None
    """The message's position, as numbers with colons: `3:14:0`, or Kafka's offset."""
    subscription: str | None = None
    kind: str | None = None
    """`Exclusive`, `Failover`, `Shared`, `Key_Shared`, `Reader` or `Group` (Kafka's)."""
    key: str | None = None
    index: int | None = None
    time_ms: int | None = None
    """The broker's time of the message. Of a seek: the time that was asked for."""
    count: int | None = None
    """Of a backlog: how many messages wait, as the broker says."""
    due_ns: int | None = None
    """A delayed message may not be received before."""
    is_once: bool = False
    """The message may be stored only once: deduplication, or an idempotent producer."""
    transaction: str | None = None
    """That which sends, receives or acknowledges the message, or is ended; unique in the history.
    Such an acknowledgement ends with its transaction, and is `ok` if that was committed."""

    @property
    def message(self) -> Message:
        """The message's identity. A client that sends a value again may have it stored twice."""
        return self.value, self.position

    @property
    def place(self) -> Place:
        """The position as numbers."""
        assert self.position is not None
        return tuple(int(part) for part in self.position.split(":"))

    def __str__(self) -> str:
        told = {True: "ok", False: "refused", None: "unknown"}[self.ok]
        shown = ("value", "position", "subscription", "kind", "key", "index", "time_ms", "count",
                 "due_ns", "transaction")  # fmt: skip
        rest = [
            f"{name}={getattr(self, name)}" for name in shown if getattr(self, name) is not None
        ]
        seconds = f"{self.begin_ns / S_NS:.3f} to {self.end_ns / S_NS:.3f} s"
        return f"{seconds}  {self.client} {self.what} {self.topic} {' '.join(rest)}: {told}"


class HistoryError(ValueError):
    """A line that is no step: its number, and the fault."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A violation of a rule, with the steps that show it."""

    name: str
    topic: str
    text: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.topic}: {self.text}", *(f"  {step}" for step in self.steps)]
        return "\n".join(lines)


class History:
    """All steps, by the time at which they began."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps = sorted(steps, key=lambda step: step.begin_ns)
        self.topics = sorted({step.topic for step in self.steps if step.topic})
        self.faults = [step for step in self.steps if step.what == "fault"]
        self._by_topic: dict[tuple[str, str], list[Step]] = defaultdict(list)
        for step in self.steps:
            self._by_topic[step.topic, step.what].append(step)
        #: For each transaction with a commit request: the step with the most certain result.
        self.commits: dict[str | None, Step] = {}
        for step in self.of("", "commit"):
            if step.ok or step.transaction not in self.commits:
                self.commits[step.transaction] = step

    def was_committed(self, transaction: str) -> bool | None:
        """Whether a transaction was committed; None: unknown. False if no one tried."""
        commit = self.commits.get(transaction)
        return commit is not None and commit.ok

    @cached_property
    def shown(self) -> set[str]:
        """The committed transactions with a message in the log."""
        stored = {(step.topic, step.value) for step in self.steps if step.what == "read"}
        return {
            step.transaction
            for step in self.steps
            if step.what == "send" and step.transaction and (step.topic, step.value) in stored
        }

    def is_acknowledged(self, send: Step) -> bool:
        """Whether a message is acknowledged, and its transaction, if it has one, committed."""
        is_committed = send.transaction is None or self.was_committed(send.transaction)
        return bool(send.ok and is_committed)

    def of(self, topic: str, *whats: str) -> list[Step]:
        """The steps of a topic, by time."""
        found = [step for what in whats for step in self._by_topic[topic, what]]
        return sorted(found, key=lambda step: step.begin_ns) if len(whats) > 1 else found

    def was_disturbed(self, from_ns: int, until_ns: int) -> bool:
        """Whether there was a fault at any time between these two."""
        return any(each.begin_ns <= until_ns and from_ns <= each.end_ns for each in self.faults)

    def log(self, topic: str) -> list[Step]:
        """The topic's log: the messages read at the end, in the order of positions."""
        return sorted(self._by_topic[topic, "read"], key=lambda step: step.place)

    def save(self, path: Path) -> None:
        """Write the history, a step a line."""
        names = [each.name for each in fields(Step)]
        with path.open("w", encoding="utf-8") as file:
            for step in self.steps:
                told = {name: getattr(step, name) for name in names}
                line = {name: value for name, value in told.items() if value not in (None, "")}
                line["ok"] = step.ok
                file.write(json.dumps(line) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> History:
        """Read a history. Raises HistoryError, OSError."""
        known = {each.name for each in fields(Step)}
        steps = []
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            try:
                step = Step(**json.loads(line))
                if step.position is not None:
                    _ = step.place
            except (ValueError, TypeError) as error:
                raise HistoryError(f"{path}, line {number}: {error}; a step has {known}") from error
            if step.what not in KINDS:
                raise HistoryError(f"{path}, line {number}: what={step.what!r} is not in {KINDS}")
            steps.append(step)
        return cls(steps)


Found = tuple[str, tuple[Step, ...]]
"""The text of an anomaly, and the steps that show it."""
Rule = Callable[[History, str], Iterator[Found]]
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Add a rule to `RULES`."""

    def add(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return add


def check(history: History, *, rules: Iterable[str] = RULES) -> list[Anomaly]:
    """All anomalies of a history, by rule and topic."""
    return [
        Anomaly(name, topic, text, steps)
        for name in rules
        for topic in history.topics
        for text, steps in RULES[name](history, topic)
    ]


def table(history: History, found: Iterable[Anomaly]) -> list[str]:
    """A table in Markdown: how often each rule was broken, and how often it applied."""
    counts = Counter(anomaly.name for anomaly in found)
    whats = Counter(step.what for step in history.steps)
    steps = ", ".join(f"{count:,} {what}" for what, count in whats.most_common())
    rows = [f"| {name} | {counts[name]} |" for name in RULES]
    return [f"Steps: {steps}", "", "| anomaly | found |", "|---|---|", *rows]


# -- the log ------------------------------------------------------------------------------------


@rule("lost-write")
def lost_writes(history: History, topic: str) -> Iterator[Found]:
    """A message that was acknowledged is not in the log."""
    stored = {step.value for step in history.log(topic)}
    for send in history.of(topic, "send"):
        if history.is_acknowledged(send) and send.value not in stored:
            yield f"{send.value} is not in the log", (send,)


@rule("lost-read")
def lost_reads(history: History, topic: str) -> Iterator[Found]:
    """A message that a consumer got is not in the log: it was delivered before it was durable."""
    stored = {step.value for step in history.log(topic)}
    for step in history.of(topic, "receive"):
        if step.value not in stored:
            yield f"{step.value} was received and is gone", (step,)


#: After a fault clients need some time until they are connected again.
CALM_NS = 5 * S_NS


@rule("duplicate")
def duplicates(history: History, topic: str) -> Iterator[Found]:
    """A message is in the log twice, although it may be stored only once, or nothing happened that
    could let a client send it again.
    """
    once = {
        step.value
        for step in history.of(topic, "send")
        if step.is_once or not history.was_disturbed(step.begin_ns - CALM_NS, step.end_ns)
    }
    seen: dict[str | None, Step] = {}
    for step in history.log(topic):
        if step.value in once and step.value in seen:
            yield f"{step.value} is in the log twice", (seen[step.value], step)
        seen[step.value] = step


@rule("aborted-read")
def aborted_reads(history: History, topic: str) -> Iterator[Found]:
    """A message that was refused, or whose transaction was aborted, was delivered."""
    told: dict[str | None, set[bool | None]] = defaultdict(set)
    sends = {}
    for step in history.of(topic, "send"):
        is_aborted = step.transaction and history.was_committed(step.transaction) is False
        told[step.value].add(False if is_aborted else step.ok)
        sends[step.value] = step
    for step in history.of(topic, "receive", "read"):
        if told.get(step.value) == {False}:
            yield f"{step.value} was refused or aborted, and {step.what}", (sends[step.value], step)
            told[step.value].add(None)  # reported once


@rule("unsent-read")
def unsent_reads(history: History, topic: str) -> Iterator[Found]:
    """A message was delivered that nobody has sent."""
    sent = {step.value for step in history.of(topic, "send")}
    for step in history.of(topic, "receive", "read"):
        if step.value not in sent:
            yield f"nobody has sent {step.value}", (step,)
            sent.add(step.value)


@rule("inconsistent-position")
def inconsistent_positions(history: History, topic: str) -> Iterator[Found]:
    """One position had two messages, as seen by two steps."""
    at: dict[Place, Step] = {}
    for step in history.of(topic, "send", "receive", "read"):
        if step.position is None or not step.ok:
            continue
        first = at.setdefault(step.place, step)
        if first.value != step.value:
            yield f"{step.position} has {first.value} and {step.value}", (first, step)


@rule("nonmonotonic-send")
def nonmonotonic_sends(history: History, topic: str) -> Iterator[Found]:
    """A producer's later message stands before its earlier one."""
    last: dict[str, Step] = {}
    for step in history.of(topic, "send"):
        if not step.ok or step.position is None:
            continue
        before = last.get(step.client)
        if before is not None and step.place <= before.place:
            yield f"{step.value} was sent after {before.value} and stands before it", (before, step)
        last[step.client] = step


@rule("index-gap")
def index_gaps(history: History, topic: str) -> Iterator[Found]:
    """The index of a message does not follow that of the message before it (PIP-70)."""
    for before, step in pairwise(history.log(topic)):
        if before.index is not None and step.index is not None and step.index != before.index + 1:
            yield f"index {step.index} comes after {before.index}", (before, step)


@rule("time-falls")
def falling_times(history: History, topic: str) -> Iterator[Found]:
    """The broker's time of a message is before that of the message before it."""
    for before, step in pairwise(history.log(topic)):
        if (
            before.time_ms is not None
            and step.time_ms is not None
            and step.time_ms < before.time_ms
        ):
            yield f"{step.time_ms} comes after {before.time_ms}", (before, step)


@rule("lost-change")
def lost_changes(history: History, topic: str) -> Iterator[Found]:
    """A value read of a setting is neither the last acknowledged one nor a later one that was
    requested or of unknown result.
    """
    changes = [step for step in history.of(topic, "set") if step.ok is not False]
    for get in history.of(topic, "get"):
        done = [step for step in changes if step.ok and step.end_ns < get.begin_ns]
        last_ns = max((step.begin_ns for step in done), default=None)
        if not get.ok or last_ns is None:
            continue
        possible = [
            step
            for step in changes
            if step.begin_ns <= get.end_ns
            and max(step.begin_ns, step.end_ns - 1 + (0 if step.ok else CALM_NS)) >= last_ns
        ]
        if get.value not in {step.value for step in possible}:
            yield f"{get.value} was read after a change to {possible[-1].value}", (*possible, get)


#: A client that had to connect again since may not have gone on where it had asked for.
SEEK_NS = 2 * S_NS


@rule("seek-not-first")
def wrong_seeks(history: History, topic: str) -> Iterator[Found]:
    """The first message after a seek by time is not the first one with that time or a later one."""
    log = [step for step in history.log(topic) if step.time_ms is not None]
    times = [step.time_ms or 0 for step in log]
    for seek in history.of(topic, "seek"):
        if not seek.ok or seek.value is None or seek.time_ms is None:
            continue
        if history.was_disturbed(seek.begin_ns - SEEK_NS, seek.end_ns):
            continue
        at = bisect_left(times, seek.time_ms)
        expected = log[at].value if at < len(log) else None
        if expected != seek.value:
            text = f"from {seek.time_ms} the first message is {expected}, not {seek.value}"
            yield text, (seek, *log[at : at + 1])


#: For this time before an acknowledgement a fault may have kept it from the broker, and after it
#: may have taken it: without a receipt it is stored within a second.
BEFORE_FAULT_NS, AFTER_FAULT_NS = 15 * S_NS, 5 * S_NS
#: After these a subscription's messages may come from another place, or to another consumer.
CHANGES = ("subscribe", "closed", "seek")


# -- subscriptions ------------------------------------------------------------------------------


def _by_subscription(history: History, topic: str, *whats: str) -> dict[str, list[Step]]:
    """The steps of each subscription in order of their ends: a receive waits first."""
    found: dict[str, list[Step]] = defaultdict(list)
    for step in sorted(history.of(topic, *whats), key=lambda step: step.end_ns):
        if step.subscription is not None:
            found[step.subscription].append(step)
    return found


def _is_surely_before(step: Step, other: Step) -> bool:
    """Whether a client got a message before another one; not known while two clients wait."""
    return step.client == other.client or step.end_ns <= other.begin_ns


@rule("skipped")
def skipped(history: History, topic: str) -> Iterator[Found]:
    """A consumer in order got a later message before one that it never got."""
    log = history.log(topic)
    places = [step.place for step in log]
    for steps in _by_subscription(history, topic, "receive", *CHANGES).values():
        had: set[str | None] = set()
        before: Step | None = None
        for step in steps:
            if step.what != "receive":
                before = None
                continue
            if before is not None and step.kind in IN_ORDER and step.position is not None:
                between = log[
                    bisect_left(places, before.place) + 1 : bisect_left(places, step.place)
                ]
                missed = next((each for each in between if each.value not in had), None)
                if missed is not None and _is_surely_before(before, step):
                    text = f"{step.value} came after {before.value}, without {missed.value}"
                    yield text, (before, missed, step)
            had.add(step.value)
            before = step


@rule("nonmonotonic-poll")
def nonmonotonic_polls(history: History, topic: str) -> Iterator[Found]:
    """A consumer in order got an earlier message again, without a reason."""
    for steps in _by_subscription(history, topic, "receive", *CHANGES).values():
        before: Step | None = None
        for step in steps:
            if step.what != "receive" or step.kind not in IN_ORDER or step.position is None:
                before = None
                continue
            if (
                before is not None
                and before.client == step.client
                and step.place <= before.place
                and not history.was_disturbed(before.begin_ns - BEFORE_FAULT_NS, step.end_ns)
            ):
                text = f"{step.value} came after {before.value}, and stands before it"
                yield text, (before, step)
            before = step


@rule("unseen")
def unseen(history: History, topic: str) -> Iterator[Found]:
    """A subscription never got an acknowledged message that was sent while it was there."""
    made = _by_subscription(history, topic, "subscribe")
    got = _by_subscription(history, topic, "receive")
    stored = {step.value for step in history.log(topic)}
    for name, steps in _by_subscription(history, topic, "drained").items():
        received = {step.value for step in got.get(name, ())}
        since_ns = min((step.end_ns for step in made.get(name, ()) if step.ok), default=None)
        for send in history.of(topic, "send"):
            if since_ns is None or not send.ok or send.begin_ns < since_ns:
                continue
            if send.end_ns > steps[-1].begin_ns:
                continue
            if send.value not in received and send.value in stored:
                yield f"{name} never got {send.value}", (send, steps[-1])


@rule("redelivered")
def redelivered(history: History, topic: str) -> Iterator[Found]:
    """A message came again although its acknowledgement was durable, or could not be lost."""
    for steps in _by_subscription(history, topic, "receive", "acknowledge", *CHANGES).values():
        acknowledged: dict[Message, Step] = {}
        changed_ns = 0
        for step in steps:
            if step.what == "seek":
                acknowledged.clear()
            elif step.what in CHANGES:
                changed_ns = step.begin_ns
            elif step.what == "acknowledge":
                if step.ok or step.transaction is None:
                    acknowledged.setdefault(step.message, step)
            elif step.message in acknowledged:
                ack = acknowledged[step.message]
                # After a change of the active consumer both may have been sent the same messages.
                is_new = step.kind != "Failover" or step.client == ack.client
                is_new = is_new or changed_ns > ack.end_ns + CALM_NS
                is_safe = ack.ok or not history.was_disturbed(
                    ack.begin_ns - BEFORE_FAULT_NS, ack.end_ns + AFTER_FAULT_NS
                )
                if is_new and is_safe and step.begin_ns > ack.end_ns:
                    yield f"{step.value} came again after its acknowledgement", (ack, step)


@rule("too-early")
def too_early(history: History, topic: str) -> Iterator[Found]:
    """A delayed message came before its time."""
    due = {step.value: step for step in history.of(topic, "send") if step.due_ns is not None}
    for step in history.of(topic, "receive"):
        send = due.get(step.value)
        if send is not None and send.due_ns is not None and step.end_ns < send.due_ns:
            early_s = (send.due_ns - step.end_ns) / S_NS
            yield f"{step.value} came {early_s:.3f} s too early", (send, step)


@rule("key-order")
def key_orders(history: History, topic: str) -> Iterator[Found]:
    """On a Key_Shared subscription the messages of a key came out of order, for the first time."""
    for steps in _by_subscription(history, topic, "receive").values():
        had: set[str | None] = set()
        last: dict[str | None, Step] = {}
        for step in steps:
            if step.kind != "Key_Shared" or step.value in had or step.position is None:
                continue
            had.add(step.value)
            before = last.get(step.key)
            if before is None or step.place > before.place:
                last[step.key] = step
            elif _is_surely_before(before, step):
                yield f"{step.value} of key {step.key} came after {before.value}", (before, step)


@rule("two-consumers")
def two_consumers(history: History, topic: str) -> Iterator[Found]:
    """Two consumers of an Exclusive or Failover subscription got messages by turns."""
    for steps in _by_subscription(history, topic, "receive", *CHANGES).values():
        turns: list[Step] = []
        for step in steps:
            if step.what != "receive" or step.kind not in ("Exclusive", "Failover"):
                turns.clear()  # one has come or gone: another one may be the active one
                continue
            if turns and turns[-1].client == step.client:
                turns[-1] = step
                continue
            turns.append(step)
            if (
                len(turns) >= 3
                and turns[-3].client == step.client
                and not history.was_disturbed(turns[-3].begin_ns - BEFORE_FAULT_NS, step.end_ns)
            ):
                text = f"{turns[-3].client}, {turns[-2].client} and {step.client} by turns"
                yield text, tuple(turns[-3:])


@rule("backlog")
def wrong_backlogs(history: History, topic: str) -> Iterator[Found]:
    """The broker reports a backlog although all was received, or none although not."""
    received = _by_subscription(history, topic, "receive")
    stored = {step.value for step in history.log(topic)}
    for name, steps in _by_subscription(history, topic, "backlog").items():
        left = stored - {step.value for step in received.get(name, ())}
        if steps[-1].count != len(left):
            text = f"{name} has a backlog of {steps[-1].count}, and {len(left)} are left"
            yield text, (steps[-1],)


# -- transactions -------------------------------------------------------------------------------


@rule("precommitted-read")
def precommitted_reads(history: History, topic: str) -> Iterator[Found]:
    """A message was delivered before its client wanted to commit its transaction."""
    sends = {step.value: step for step in history.of(topic, "send") if step.transaction}
    for step in history.of(topic, "receive"):
        send = sends.get(step.value)
        commit = send and history.commits.get(send.transaction)
        if send and commit and step.end_ns < commit.begin_ns:
            text = f"{step.value} was received before {send.transaction} was committed"
            yield text, (send, step, commit)


@rule("torn-transaction")
def torn_transactions(history: History, topic: str) -> Iterator[Found]:
    """Of a transaction of unknown end one message is in the log, and another one is not."""
    stored = {step.value for step in history.log(topic)}
    for send in history.of(topic, "send"):
        if send.value in stored or history.is_acknowledged(send):
            continue  # it would be a lost write
        if send.ok and send.transaction in history.shown:
            yield f"{send.value} is not in the log, and others of {send.transaction} are", (send,)


def _by_transactions(
    history: History, topic: str
) -> Iterator[tuple[str, dict[Message, list[Step]]]]:
    """The acknowledgements in transactions, by subscription and message."""
    for name, steps in _by_subscription(history, topic, "acknowledge").items():
        found: dict[Message, list[Step]] = defaultdict(list)
        for step in steps:
            if step.transaction is not None:
                found[step.message].append(step)
        yield name, found


@rule("processed-twice")
def processed_twice(history: History, topic: str) -> Iterator[Found]:
    """Two transactions have acknowledged the same message, and both were committed."""
    for name, acknowledged in _by_transactions(history, topic):
        for (value, _), steps in acknowledged.items():
            done = [step for step in steps if step.ok or step.transaction in history.shown]
            if len(done) > 1:
                yield f"{value} was acknowledged by {len(done)} transactions on {name}", tuple(done)


@rule("unprocessed")
def unprocessed(history: History, topic: str) -> Iterator[Found]:
    """A message that was acknowledged only by transactions that were aborted never came again."""
    drained = _by_subscription(history, topic, "drained")
    for name, acknowledged in _by_transactions(history, topic):
        for (value, _), steps in acknowledged.items():
            if name in drained and all(step.ok is False for step in steps):
                text = f"{value} was acknowledged by none that was committed on {name}"
                yield text, (*steps, drained[name][-1])


@rule("cycle")
def cycles(history: History, topic: str) -> Iterator[Found]:
    """Transactions have read from each other in a circle, one of them from one that had not ended
    (Adya's G1c). A circle of writes (G0) is no anomaly, as with Jepsen: positions in the log are
    given before the end.
    """
    if topic != history.topics[0]:
        return  # they read from all topics
    sends = {step.value: step for step in history.steps if step.what == "send" and step.transaction}
    reads: dict[str, dict[str, Step]] = defaultdict(dict)
    for step in history.steps:
        if step.what == "receive" and step.transaction and step.value in sends:
            writer = sends[step.value].transaction
            if writer and writer != step.transaction:
                reads[step.transaction][writer] = step
    while reads:  # who has read from nobody that is left, or whom nobody has, is in no circle
        were_read = {one for writers in reads.values() for one in writers}
        free = [
            one
            for one, writers in reads.items()
            if one not in were_read or not writers.keys() & reads.keys()
        ]
        if not free:
            steps = tuple(step for writers in reads.values() for step in writers.values())
            yield f"{', '.join(sorted(reads))} have read from each other", steps
            return
        for one in free:
            del reads[one]


# -- a picture ----------------------------------------------------------------------------------

COLOURS = {"send": "#1f77b4", "receive": "#2ca02c", "acknowledge": "#9467bd", "seek": "#ff7f0e",
           "subscribe": "#8c564b", "closed": "#8c564b", "read": "#7f7f7f"}  # fmt: skip
#: In pixels.
WIDTH, LEFT, ROW, LINE = 1200, 190, 56, 15
#: The number of steps and messages shown beside the anomaly's.
NEIGHBOURS, PALE_MAX, LOG_LINES = 3, 400, 60


def picture(history: History, anomaly: Anomaly) -> str:
    """A timeline as SVG: a row for each client, faults as bands, and beneath it the log."""
    return _Picture(history, anomaly).svg()


class _Picture:
    def __init__(self, history: History, anomaly: Anomaly) -> None:
        self._history, self._anomaly = history, anomaly
        told = [step for step in anomaly.steps if step.what != "read"] or list(anomaly.steps)
        begin, end = min(step.begin_ns for step in told), max(step.end_ns for step in told)
        margin_ns = max((end - begin) // 4, S_NS // 4)
        self._begin, self._end, self._told = begin - margin_ns, end + margin_ns, told
        around = [step for step in history.of(anomaly.topic, *COLOURS) if self._is_within(step)]
        self._around = around[:: len(around) // PALE_MAX + 1]
        self._faults = [step for step in history.faults if self._is_within(step)]
        self._rows = sorted({step.client for step in (*self._around, *told)})
        self._height = 60 + ROW * len(self._rows)

    def _is_within(self, step: Step) -> bool:
        return step.begin_ns < self._end and step.end_ns > self._begin

    def _bar(self, step: Step, opacity: float) -> str:
        left, right = (
            LEFT + (WIDTH - LEFT) * (time_ns - self._begin) / (self._end - self._begin)
            for time_ns in (max(step.begin_ns, self._begin), min(step.end_ns, self._end))
        )
        y, height = 50, self._height - 50
        if step.what != "fault":
            y, height = 54 + ROW * self._rows.index(step.client), 10
        return (
            f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 2):.1f}" height="{height}" '
            f'fill="{COLOURS.get(step.what, "#d62728")}" opacity="{opacity}">'
            f"<title>{escape(str(step))}</title></rect>"
        )

    def svg(self) -> str:
        """The whole picture."""
        anomaly, rows = self._anomaly, self._rows
        parts = [self._bar(step, 0.15) for step in (*self._faults, *self._around)]
        for number, name in enumerate(rows):
            parts.append(_text(4, 64 + ROW * number, name))
            mine = [step for step in self._told if step.client == name]
            parts += [self._bar(step, 1) for step in mine]
            for line, step in enumerate(mine[:3], 1):
                told = f"{step.what} {step.value or ''} {step.position or ''}"
                text = f"{step.begin_ns / S_NS:.3f} s {told}"
                parts.append(_text(LEFT, 60 + ROW * number + LINE * line, text))
        seconds = f"{self._begin / S_NS:.3f} s to {self._end / S_NS:.3f} s"
        names = ", ".join(sorted({each.value or "" for each in self._faults})) or "no fault"
        parts.append(_text(4, 20, f"{anomaly.name} on {anomaly.topic}: {anomaly.text}", "bold"))
        parts.append(_text(4, 40, f"{seconds}; {names} in that time"))
        lines = list(self._log_lines())
        for number, (text, weight) in enumerate(lines, 2):
            parts.append(_text(LEFT, self._height + LINE * number, text, weight))
        height = self._height + LINE * (len(lines) + 3)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" '
            f'fill="white"/>{"".join(parts)}</svg>'
        )

    def _log_lines(self) -> Iterator[tuple[str, str]]:
        """The log's messages next to those of the anomaly, which are bold."""
        log, steps = self._history.log(self._anomaly.topic), self._anomaly.steps
        values = {step.value for step in steps}
        places = {step.place for step in steps if step.position is not None}
        hits = {at for at, each in enumerate(log) if each.value in values or each.place in places}
        near = {at + more for at in hits for more in range(-NEIGHBOURS, NEIGHBOURS + 1)}
        shown = sorted(at for at in near if 0 <= at < len(log))[:LOG_LINES]
        yield "the log: position, index, broker time, message", "normal"
        for before, at in pairwise([-1, *shown]):
            step = log[at]
            text = f"{step.position}   {step.index}   {step.time_ms} ms   {step.value}"
            yield ("" if at == before + 1 else "... ") + text, "bold" if at in hits else "normal"


def _text(x: int, y: int, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{escape(text)}</text>'
