"""The demo: its checks refuse wrong answers, its sums are right, and it runs from end to end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import checks
from demo.__main__ import main
from demo.answers import AuditCounts, Audited, Stored, by_client_time, first_at_or_after
from demo.checks import CheckError
from demo.publish import SENDERS, WRONG_CLOCKS
from demo.story import Story
from demo.truth import Key, Truth, key_of, make_payload

ROOT = Path(__file__).resolve().parent.parent
A0, A1, B0, C0 = (0, "a", 0), (0, "a", 1), (1, "b", 0), (2, "c", 0)
KEYS: list[Key] = [A0, A1, B0, C0]
SENT = {key: make_payload(key, 60) for key in KEYS}
PAYLOADS = list(SENT.values())
AUDITED: Audited = {(0, "a"): AuditCounts(4, 9, 0, 3, 0)}


@pytest.mark.parametrize("size_bytes", [0, 10, 60, 500])
@pytest.mark.parametrize("key", KEYS)
def test_payloads_have_their_key(key: Key, size_bytes: int) -> None:
    """A payload begins with its key and is as long as asked, but never too short for the key."""
    payload = make_payload(key, size_bytes)
    assert key_of(payload) == key
    assert len(payload) == max(size_bytes, len(f"{key[0]}/{key[1]}/{key[2]}/"))


def test_right_answers_pass() -> None:
    """No check refuses what is right."""
    assert checks.payloads_are_what_was_sent(SENT, PAYLOADS) == KEYS
    checks.nothing_acknowledged_is_lost(set(KEYS), KEYS)
    assert checks.nothing_is_stored_twice([A0, A1, A1], {A1}) == 1
    checks.senders_keep_their_order([A0, B0, A1, A0, A1])
    checks.indexes_are_gapless([(0, 0), (1, 9), (10, 10)], 11)
    checks.broker_times_are_true([5, 5, 7], 5, 7)
    assert checks.first_index_of_round(KEYS, 1) == 2
    assert checks.first_index_of_round(KEYS, 9) == 4
    checks.search_finds_the_moment("gRPC", 3, 3)
    checks.range_counts_the_round(1, 5, 5)
    checks.client_time_misses_something(1)
    checks.audit_is_complete(4, 0, 4)
    checks.audits_agree(dict(AUDITED), dict(AUDITED))
    checks.offload_is_complete(dict(enumerate(PAYLOADS)), 4, PAYLOADS)
    checks.second_offload_copies_nothing(0, ())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: checks.payloads_are_what_was_sent(SENT, [PAYLOADS[0][:-1]]), "message 0"),
        (lambda: checks.offload_is_complete(dict(enumerate(PAYLOADS)), 5, PAYLOADS), "5 messages"),
        (lambda: checks.offload_is_complete({0: PAYLOADS[0]}, 4, PAYLOADS), "4 messages"),
        (
            lambda: checks.offload_is_complete(dict(enumerate(PAYLOADS[::-1])), 4, PAYLOADS),
            "message 0",
        ),
        (lambda: checks.second_offload_copies_nothing(3, ()), "3 messages again"),
        (lambda: checks.second_offload_copies_nothing(0, ("x: is missing",)), "x: is missing"),
        (lambda: checks.payloads_are_what_was_sent(SENT, [*PAYLOADS, b"x"]), "message 4"),
        (lambda: checks.payloads_are_what_was_sent(SENT, [PAYLOADS[0] + b"x"]), "never sent"),
        (lambda: checks.nothing_acknowledged_is_lost(set(KEYS), KEYS[:-1]), "1 acknowledged"),
        (lambda: checks.nothing_is_stored_twice([A0, A0], set()), "stored twice"),
        (lambda: checks.nothing_is_stored_twice([A0, A0, A1, A1], {A0}), str(A1)),
        (lambda: checks.senders_keep_their_order([A1, A0]), "after number 1"),
        (lambda: checks.indexes_are_gapless([(0, 0), (2, 2)], 3), "2 to 2"),
        (lambda: checks.indexes_are_gapless([(0, 1), (1, 2)], 3), "1 to 2"),
        (lambda: checks.indexes_are_gapless([(1, 1)], 1), "not from 0"),
        (lambda: checks.indexes_are_gapless([(0, 1)], 3), "end at 2"),
        (lambda: checks.indexes_are_gapless([(0, -1)], 0), "0 to -1"),
        (lambda: checks.broker_times_are_true([5, 4], 0, 9), "falls from 5 to 4"),
        (lambda: checks.broker_times_are_true([5, 6], 6, 9), "not within"),
        (lambda: checks.broker_times_are_true([5, 10], 5, 9), "not within"),
        (lambda: checks.first_index_of_round([A0, B0, A1], 1), str(A1)),
        (lambda: checks.search_finds_the_moment("gRPC", 2, 3), "gRPC found index 2"),
        (lambda: checks.range_counts_the_round(1, 4, 5), "counts 4"),
        (lambda: checks.client_time_misses_something(0), "missed nothing"),
        (lambda: checks.audit_is_complete(4, 1, 4), "misses 1"),
        (lambda: checks.audit_is_complete(3, 0, 4), "counts 3"),
        (lambda: checks.audits_agree(AUDITED, {}), "from 0 ms for a"),
        (lambda: checks.audits_agree({}, AUDITED), "the broker has None"),
        (lambda: checks.audits_agree(AUDITED, {(0, "a"): AuditCounts(4, 9, 0, 3, 1)}), "Spark has"),
    ],
)
def test_wrong_answers_are_refused(wrong: Callable[[], object], named: str) -> None:
    """Every check refuses what is wrong, in one line that names it."""
    with pytest.raises(CheckError) as caught:
        wrong()
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_failed_check_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed check makes exit code 1 and one clear line, and no table."""

    def run(story: Story) -> None:
        checks.audit_is_complete(3, 0, 4)

    monkeypatch.setattr(Story, "run", run)
    assert main(["--folder", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "\ndemo: FAILED: the audit counts 3 messages, 4 were read\n"


def test_what_client_time_makes_of_a_round() -> None:
    """Found, missed and foreign messages are counted by client time alone."""
    stored = Stored([A0, A1, B0, C0], [10, 99, 20, 21], [10, 11, 20, 30])
    assert by_client_time(stored, 1, 20, 30) == (2, 0, 1)
    assert by_client_time(stored, 0, 10, 20) == (1, 1, 0)
    assert first_at_or_after(stored.client_times_ms, 20) == 1
    assert first_at_or_after(stored.broker_times_ms, 20) == 2
    assert first_at_or_after(stored.broker_times_ms, 31) == 4


def test_record_of_the_truth() -> None:
    """What is sent is under way until it is acknowledged, and moments are apart."""
    truth = Truth()
    truth.add(A0, b"x")
    truth.add(A1, b"y")
    truth.acknowledge(A0)
    assert truth.counts() == (2, 1)
    assert truth.unacknowledged() == {A1}
    assert truth.add_moment(1) < truth.add_moment(1)


def test_senders_share_the_round() -> None:
    """The producers' shares make up the whole, both wrong clocks among them."""
    assert sum(sender.share for sender in (*SENDERS, *WRONG_CLOCKS)) == 100
    assert min(clock.offset_ms for clock in WRONG_CLOCKS) < 0
    assert max(clock.offset_ms for clock in WRONG_CLOCKS) > 0
    assert {sender.batched for sender in SENDERS} == {True, False}
    assert len({sender.compression for sender in SENDERS}) >= 3


@pytest.mark.timeout(300)
def test_whole_demo(tmp_path: Path) -> None:
    """The demo runs through with fewer messages: kill, searches, audit, tables and picture."""
    command = [sys.executable, "-m", "demo", "--folder", str(tmp_path), "--messages", "6000"]
    ran = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT / "examples")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for claim in (
        "kill -9 with",
        "none of 6,000 acknowledged is lost",
        "0 missing",
        "in order",
        "counted by Spark",
    ):
        assert claim in ran.stdout
    assert re.search(r"every check passed", ran.stdout)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
