"""The rules of a log: a clean history has no anomaly, and each rule finds what breaks it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.ledger.bookkeeper.client import BookKeeperClient
from pulsemark.ledger.cursors.cursor import Cursor
from pulsemark.testing.histories import (
    RULES,
    S_NS,
    Anomaly,
    History,
    HistoryError,
    Step,
    check,
    picture,
    table,
)
from tests.support.simulated_history import simulated_history

T = "orders"


def clean(count=6, kind="Exclusive"):
    """A producer sends, a consumer receives and acknowledges, and a reader reads the log."""
    steps = [
        Step(
            client="c", what="subscribe", topic=T, subscription="s", kind=kind, begin_ns=0, end_ns=1
        )
    ]
    for number in range(count):
        at = (10 + number) * S_NS
        message: dict[str, Any] = {"topic": T, "value": f"v{number}", "position": f"3:{number}:0"}
        told = {**message, "index": number, "time_ms": 1_000 + number, "key": f"k{number % 2}"}
        read = {**told, "begin_ns": 900 * S_NS + number, "end_ns": 901 * S_NS + number}
        got = {**told, "subscription": "s", "kind": kind, "client": "c"}
        steps += [
            Step(client="p", what="send", begin_ns=at, end_ns=at + 5, is_once=True, **message),
            Step(what="receive", begin_ns=at + 6, end_ns=at + 7, **got),
            Step(what="acknowledge", begin_ns=at + 8, end_ns=at + 9, ok=None, **got),
            Step(client="r", what="read", **read),
        ]
    drained: dict[str, Any] = {
        "topic": T,
        "subscription": "s",
        "begin_ns": 800 * S_NS,
        "end_ns": 801 * S_NS,
    }
    return [*steps, Step(client="c", what="drained", **drained)]


def changed(steps, what, number, **values):
    """The steps with another one in place of the number-th of a kind."""
    place = [at for at, step in enumerate(steps) if step.what == what][number]
    return [*steps[:place], replace(steps[place], **values), *steps[place + 1 :]]


def without(steps, what, number):
    """The steps without the number-th of a kind."""
    place = [at for at, step in enumerate(steps) if step.what == what][number]
    return steps[:place] + steps[place + 1 :]


def again(steps, what, number, at_s, **values):
    """The steps with the number-th of a kind once more at another time."""
    step = [step for step in steps if step.what == what][number]
    return [*steps, replace(step, begin_ns=at_s * S_NS, end_ns=at_s * S_NS + 1, **values)]


KEY_SHARED = clean(kind="Key_Shared")
SEEK = Step(client="s", what="seek", topic=T, time_ms=1_002, value="v3", begin_ns=1, end_ns=2)


def setting(*, forgets=False, first=True):
    """A setting is changed twice and read; `first`: what is known of the first change."""
    told = [("set", "7", first), ("set", "8", True), ("get", "7" if forgets else "8", True)]
    return [
        Step(what=what, value=value, ok=ok, client="a", topic="limit", begin_ns=at, end_ns=at)
        for at, (what, value, ok) in enumerate(told, 1)
    ]


def moved(outcome=True, count=6):
    """A transaction for each message: it receives and acknowledges it, and sends another one to
    each of two topics.
    """
    steps = clean(count, kind="Shared")
    receives = [step for step in steps if step.what == "receive"]
    acknowledgements = [step for step in steps if step.what == "acknowledge"]
    for number, (got, ack) in enumerate(zip(receives, acknowledgements, strict=True)):
        about: dict[str, Any] = {"client": "m", "transaction": f"t{number}"}
        at, end = got.end_ns, ack.end_ns
        steps[steps.index(got)] = replace(got, **about)
        steps[steps.index(ack)] = replace(ack, ok=outcome, **about)
        steps.append(Step(what="commit", ok=outcome, begin_ns=at + 4, end_ns=end, **about))
        for topic in ("left", "right"):
            sent: dict[str, Any] = {"topic": topic, "value": f"{topic}{number}"}
            sent["position"] = f"4:{number}:0"
            read = {**sent, "client": "r", "begin_ns": 900 * S_NS, "end_ns": 901 * S_NS}
            steps += [
                Step(what="send", begin_ns=at + 1, end_ns=at + 2, **sent, **about),
                Step(what="read", **read),
            ]
    return steps


def in_a_circle():
    """Two transactions, and each receives what the other one has sent."""
    steps = moved()
    got = next(step for step in steps if step.what == "receive")
    for reader, value in (("t0", "left1"), ("t1", "left0")):
        more = {"topic": "left", "value": value, "transaction": reader, "subscription": "other"}
        steps.append(replace(got, begin_ns=700 * S_NS, end_ns=700 * S_NS, position=None, **more))
    return steps


EARLY: Step = next(step for step in moved() if step.what == "send" and step.topic == "left")
BROKEN = {
    "lost-change": setting(forgets=True),
    "precommitted-read": [
        *moved(),
        replace(EARLY, what="receive", client="c", begin_ns=1, end_ns=2, transaction=None),
    ],
    "torn-transaction": without(moved(None), "read", 6),
    "processed-twice": again(moved(), "acknowledge", 3, 100, transaction="t4"),
    "unprocessed": changed(moved(), "acknowledge", 3, ok=False),
    "cycle": in_a_circle(),
    "lost-write": without(without(clean(), "read", 5), "receive", 5),
    "lost-read": without(changed(clean(), "send", 5, ok=None), "read", 5),
    "duplicate": again(clean(), "read", 2, 902, position="3:6:0", index=6, time_ms=1_006),
    "aborted-read": changed(clean(), "send", 3, ok=False),
    "unsent-read": without(clean(), "send", 3),
    "inconsistent-position": changed(clean(), "send", 3, position="3:4:0"),
    "nonmonotonic-send": changed(clean(), "send", 3, position="3:1:0", value="v1"),
    "index-gap": changed(clean(), "read", 3, index=4),
    "time-falls": changed(clean(), "read", 3, time_ms=999),
    "seek-not-first": [*clean(), SEEK],
    "nonmonotonic-poll": changed(
        again(clean(), "receive", 2, 15, client="c"), "acknowledge", 2, value="other"
    ),
    "backlog": [
        *clean(),
        Step(client="r", what="backlog", topic=T, subscription="s", count=1, begin_ns=1, end_ns=2),
    ],
    "skipped": without(clean(), "receive", 3),
    "unseen": without(clean(), "receive", 5),
    "redelivered": again(clean(), "receive", 5, 100),
    "too-early": changed(clean(), "send", 3, due_ns=60 * S_NS),
    "key-order": changed(
        changed(KEY_SHARED, "receive", 1, begin_ns=19 * S_NS, end_ns=19 * S_NS + 1),
        "receive", 3, begin_ns=12 * S_NS, end_ns=12 * S_NS + 1,
    ),
    "two-consumers": changed(clean(), "receive", 3, client="other"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared", "Group"])
def test_a_clean_history_has_no_anomaly(kind):
    """What a right broker shows breaks no rule."""
    assert check(History(clean(kind=kind))) == []


@pytest.mark.parametrize("name", RULES)
def test_each_rule_finds_what_breaks_it(name):
    """The anomaly is named, with its topic and the steps that show it."""
    found = [each for each in check(History(BROKEN[name])) if each.name == name]
    assert found
    assert all(each.topic and each.steps for each in found)
    assert any(f"| {name} | {len(found)} |" in line for line in table(History([]), found))


@given(st.lists(st.sampled_from([True, None]), min_size=1, max_size=8), st.randoms())
def test_what_is_unknown_may_be_there_or_not(outcomes, random):
    """A send without an answer may be stored or not, and may be received if it is."""
    steps = clean(len(outcomes))
    for number, ok in enumerate(outcomes):
        steps = changed(steps, "send", number, ok=ok)
    lost = [number for number, ok in enumerate(outcomes) if ok is None and random.random() < 0.5]
    kept = [step for step in steps if step.value not in {f"v{number}" for number in lost}
            or step.what == "send"]  # fmt: skip
    reads = sorted((step for step in kept if step.what == "read"), key=lambda step: step.place)
    for index, step in enumerate(reads):
        kept[kept.index(step)] = replace(step, index=index)
    assert check(History(kept)) == []


@pytest.mark.parametrize("outcome", [True, None])
def test_transactions_that_were_committed_have_no_anomaly(outcome):
    """Neither if their clients know of it, nor if nobody does."""
    assert check(History(moved(outcome))) == []


def test_what_was_aborted_is_not_there():
    """It need not be in the log, and must not be; its acknowledgements do not count."""
    steps = [step for step in moved() if step.transaction != "t3" or step.what != "commit"]
    names = {each.name for each in check(History(steps))}
    assert names == {"aborted-read"}
    steps = [step for step in steps if step.what != "read" or step.value not in ("left3", "right3")]
    assert check(History(steps)) == []
    steps = changed(steps, "acknowledge", 3, ok=False)
    steps = again(again(steps, "receive", 3, 100), "acknowledge", 3, 101, transaction="t9", ok=True)
    assert check(History(steps)) == []


def test_of_a_committed_transaction_all_must_be_there():
    """Also if it is only one of its messages that is lost."""
    steps = without(moved(), "read", 6)
    assert [each.name for each in check(History(steps))] == ["lost-write"]


def test_what_is_acknowledged_after_the_end_need_not_be_seen():
    """A producer that had to connect again, and its consumer did not wait for it."""
    steps = changed(without(clean(), "receive", 5), "send", 5, end_ns=10_000 * S_NS)
    assert "unseen" not in {each.name for each in check(History(steps))}


def test_a_change_without_an_answer_may_be_made_after_a_later_one():
    """And until it was answered, the value may be any."""
    assert check(History(setting())) == []
    assert check(History(setting(forgets=True, first=None))) == []
    assert check(History(setting(forgets=True)[::2])) == []
    for forgets in (False, True):  # in virtual time all may be at one moment, in any order
        at_once = [replace(step, begin_ns=9, end_ns=9) for step in setting(forgets=forgets)]
        assert check(History(at_once)) == []


def test_a_message_may_come_again_after_a_fault():
    """An acknowledgement without a receipt may be lost with the broker; the same without the fault
    is an anomaly.
    """
    steps = again(clean(), "receive", 5, 100)
    fault = Step(client="f", what="fault", begin_ns=16 * S_NS, end_ns=17 * S_NS, value="kill")
    assert check(History([*steps, fault])) == []
    steps = changed(steps, "acknowledge", 5, ok=True)  # the broker has said that it is durable
    assert [each.name for each in check(History([*steps, fault]))] == ["redelivered"]


def test_a_message_may_be_stored_twice_only_after_a_fault():
    """Without deduplication a client sends again what a fault has disturbed, and nothing else."""
    steps = again(clean(), "read", 2, 902, position="3:6:0", index=6, time_ms=1_006)
    steps = changed(steps, "send", 2, is_once=False)
    fault = Step(client="f", what="fault", begin_ns=11 * S_NS, end_ns=12 * S_NS, value="kill")
    assert [each.name for each in check(History(steps))] == ["duplicate"]
    assert check(History([*steps, fault])) == []


@pytest.mark.parametrize("steps", [clean(kind="Shared"), moved()])
def test_a_message_that_is_stored_twice_comes_twice(steps):
    """A client has sent it again, without deduplication: each of the two is acknowledged."""
    name = "t9" if any(step.transaction for step in steps) else None
    place: Any = {"position": "3:6:0"}
    steps = again(changed(steps, "send", 5, is_once=False), "read", 5, 902, index=6, **place)
    steps = again(steps, "receive", 5, 100, **place)
    steps = again(steps, "acknowledge", 5, 101, transaction=name, ok=True, **place)
    fault = Step(client="f", what="fault", begin_ns=14 * S_NS, end_ns=15 * S_NS, value="kill")
    assert check(History([*steps, fault])) == []


@pytest.mark.parametrize("what", ["subscribe", "closed"])
def test_another_consumer_may_be_active_after_one_has_come_or_gone(what):
    """Failover changes over when a consumer subscribes or closes, and only then."""
    steps = changed(clean(kind="Failover"), "receive", 3, client="other")
    change = Step(client="other", what=what, topic=T, subscription="s", kind="Failover",
                  begin_ns=13 * S_NS + 8, end_ns=13 * S_NS + 9)  # fmt: skip
    assert {each.name for each in check(History(steps))} == {"two-consumers"}
    assert check(History([*steps, change])) == []


@pytest.mark.parametrize("name", RULES)
def test_an_anomaly_has_a_picture(name):
    """It is well-formed SVG, names the anomaly and its clients, and shows the log."""
    history = History(BROKEN[name])
    anomaly = next(each for each in check(history) if each.name == name)
    drawn = picture(history, anomaly)
    texts = [each.text or "" for each in ET.fromstring(drawn).iter() if each.text]
    assert any(text.startswith(f"{name} on {anomaly.topic}") for text in texts)
    assert {step.client for step in anomaly.steps if step.what != "read"} <= set(texts)
    assert any(text.startswith("the log") for text in texts)


def test_a_history_is_saved_and_read(tmp_path):
    """The lines are JSON, and say the same again."""
    path = tmp_path / "history.jsonl"
    History(BROKEN["too-early"]).save(path)
    loaded = History.load(path)
    assert loaded.steps == History(BROKEN["too-early"]).steps
    assert [each.name for each in check(loaded)] == ["too-early"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{}", "line 2: .*missing 4 required"),
        ("nonsense", "line 2: Expecting value"),
        ('{"client": "c", "what": "send", "begin_ns": 1, "end_ns": 2, "place": 3}', "'place'"),
        ('{"client": "c", "what": "went", "begin_ns": 1, "end_ns": 2}', "what='went'"),
        ('{"client": "c", "what": "send", "begin_ns": 1, "end_ns": 2, "position": "x"}', "'x'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, reason):
    """A file that is no history is refused with the number of the line."""
    path = tmp_path / "history.jsonl"
    path.write_text('{"client": "c", "what": "fault", "begin_ns": 1, "end_ns": 2}\n' + line + "\n")
    with pytest.raises(HistoryError, match=reason):
        History.load(path)


def test_an_anomaly_shows_its_steps():
    """Its text has each step with its times, in seconds."""
    step = Step(
        client="p", what="send", topic=T, value="v1", begin_ns=S_NS, end_ns=2 * S_NS, ok=None
    )
    text = str(Anomaly("lost-write", T, "v1 is gone", (step,)))
    assert (
        text
        == "lost-write on orders: v1 is gone\n  1.000 to 2.000 s  p send orders value=v1: unknown"
    )


def test_a_seed_repeats_its_history_and_it_is_clean(tmp_path):
    """Kills and power cuts in virtual time, in transactions and with Kafka's
    clients, too: they see nothing wrong.
    """
    for seed in range(3, 20):  # each change of the broker gives a seed another history
        first = simulated_history(tmp_path / str(seed), seed=seed, minutes=1)
        if {fault.value for fault in first.faults} >= {"kill", "power", "unload"}:
            break
    second = simulated_history(tmp_path / "second", seed=seed, minutes=1)
    assert first.steps == second.steps
    assert {fault.value for fault in first.faults} >= {"kill", "power", "unload"}
    assert {step.what for step in first.steps} >= {"set", "get"}
    assert {step.what for step in first.of("", "commit", "abort")} == {"commit", "abort"}
    assert check(first) == []


def test_a_broker_that_forgets_acknowledgements_is_found_in_virtual_time(tmp_path, monkeypatch):
    """The control: what is wrong with a broker is seen by its clients."""
    monkeypatch.setattr(Cursor, "ack_cumulative", lambda *_: None)
    found = check(simulated_history(tmp_path / "data", seed=7, minutes=1))
    assert {each.name for each in found} >= {"redelivered", "backlog"}


def test_brokers_on_bookies_repeat_exactly_in_virtual_time(tmp_path):
    """A seed decides a history of a cluster, too, whose brokers fence each other."""
    wanted = {"pause", "power"}
    seen: set[str | None] = set()
    for seed in count(5):
        first = simulated_history(tmp_path, seed=seed, minutes=0.3, on="cluster")
        faults = {fault.value for fault in first.faults} & wanted
        if faults - seen:
            second = simulated_history(tmp_path, seed=seed, minutes=0.3, on="cluster")
            assert first.steps == second.steps
            assert check(first) == []
            seen |= faults
        if seen == wanted:
            break


def test_a_broker_that_recovers_no_ledger_is_found_on_bookies(tmp_path, monkeypatch):
    """The control: what a broker before has had acknowledged must be there."""
    without = BookKeeperClient.open_ledger_no_recovery
    monkeypatch.setattr(BookKeeperClient, "open_ledger", without)
    names: set[str] = set()
    for seed in range(9, 29):  # what a seed does changes with the broker
        found = check(simulated_history(tmp_path, seed=seed, minutes=0.5, on="cluster"))
        names = {each.name for each in found}
        if "lost-write" in names:
            break
    assert "lost-write" in names
