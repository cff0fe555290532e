"""Every claim of the demo, as a function that compares an answer with the truth.

The functions use only plain data, no broker and no client. So a test can call them with wrong
answers and check that they fail. Each raises `CheckError` with one line that says what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from .answers import Audited
from .truth import Key


class CheckError(Exception):
    """An answer differs from the truth."""


def payloads_are_what_was_sent(sent: Mapping[Key, bytes], received: Sequence[bytes]) -> list[Key]:
    """Every received payload equals, byte by byte, one that was sent; returns their keys."""
    key_by_payload = {payload: key for key, payload in sent.items()}
    keys = []
    for index, payload in enumerate(received):
        key = key_by_payload.get(payload)
        if key is None:
            raise CheckError(f"message {index} was never sent like this: {payload[:40]!r}...")
        keys.append(key)
    return keys


def nothing_acknowledged_is_lost(acknowledged: AbstractSet[Key], received: Iterable[Key]) -> None:
    """Every acknowledged message was received."""
    lost = acknowledged - set(received)
    if lost:
        raise CheckError(f"{len(lost)} acknowledged messages are lost, e.g. {min(lost)}")


def nothing_is_stored_twice(received: Sequence[Key], may_be_twice: AbstractSet[Key]) -> int:
    """Only messages in flight at the kill have a second copy; returns the number of copies."""
    extra = {key: count - 1 for key, count in Counter(received).items() if count > 1}
    wrong = extra.keys() - may_be_twice
    if wrong:
        raise CheckError(f"{len(wrong)} messages are stored twice without need, e.g. {min(wrong)}")
    return sum(extra.values())


def senders_keep_their_order(received: Sequence[Key]) -> None:
    """The first copies of each sender's messages are in the order in which they were sent."""
    seen: set[Key] = set()
    last: dict[tuple[int, str], int] = {}
    for key in received:
        if key in seen:
            continue
        seen.add(key)
        sender = key[:2]
        if key[2] < last.get(sender, -1):
            raise CheckError(f"{key} comes after number {last[sender]} of its sender")
        last[sender] = key[2]


def indexes_are_gapless(entries: Sequence[tuple[int, int]], message_count: int) -> None:
    """The entries' (first index, index) follow each other from 0 to the number of messages."""
    expected = 0
    for first_index, index in entries:
        if first_index != expected or index < first_index:
            raise CheckError(f"an entry has indexes {first_index} to {index}, not from {expected}")
        expected = index + 1
    if expected != message_count:
        raise CheckError(f"the indexes end at {expected}, but {message_count} messages were read")


def broker_times_are_true(times_ms: Sequence[int], start_ms: int, end_ms: int) -> None:
    """Broker times never decrease, and are between the demo's first and last send."""
    for before, after in pairwise(times_ms):
        if after < before:
            raise CheckError(f"broker time falls from {before} to {after}")
    if times_ms and not start_ms <= times_ms[0] <= times_ms[-1] <= end_ms:
        raise CheckError(
            f"broker times {times_ms[0]} to {times_ms[-1]} are not within {start_ms} to {end_ms}"
        )


def first_index_of_round(received: Sequence[Key], number: int) -> int:
    """The index of the first message of round `number` or later; the end if there is none.

    Also checks that no later message belongs to an earlier round: nothing was sent in the pauses.
    """
    first = next((i for i, key in enumerate(received) if key[0] >= number), len(received))
    stray = next((key for key in received[first:] if key[0] < number), None)
    if stray is not None:
        raise CheckError(f"{stray} was stored after the moment before round {number}")
    return first


def search_finds_the_moment(what: str, found_index: int, true_index: int) -> None:
    """A search by broker time finds exactly the first message after the moment."""
    if found_index != true_index:
        raise CheckError(f"{what} found index {found_index}, the truth is {true_index}")


def range_counts_the_round(number: int, counted: int, true_count: int) -> None:
    """The range between two moments holds exactly the messages of the round between them."""
    if counted != true_count:
        raise CheckError(f"round {number}: the range counts {counted}, the truth is {true_count}")


def client_time_misses_something(missed: int) -> None:
    """A search by client time is wrong; otherwise the demo would show nothing."""
    if missed == 0:
        raise CheckError("searching by client time missed nothing: the clocks were not wrong")


def audit_is_complete(count: int, missing: int, message_count: int) -> None:
    """The audit found every index once and none missing."""
    if missing != 0:
        raise CheckError(f"the audit misses {missing} messages")
    if count != message_count:
        raise CheckError(f"the audit counts {count} messages, {message_count} were read")


def audits_agree(broker: Audited, spark: Audited) -> None:
    """The broker has counted what Spark counts: the same rows, with the same numbers."""
    for row in sorted({*broker, *spark}, key=repr):
        ours, theirs = broker.get(row), spark.get(row)
        if ours != theirs:
            start_ms, producer = row
            raise CheckError(
                f"the audits differ in the bucket from {start_ms} ms for {producer}: "
                f"the broker has {ours}, Spark has {theirs}"
            )


def offload_is_complete(values: Mapping[int, bytes], rows: int, sent: Sequence[bytes]) -> None:
    """Every message is in the table once, at its index, with the bytes that were sent."""
    if rows != len(sent) or len(values) != len(sent):
        raise CheckError(f"the offload has {rows} messages, {len(sent)} were read")
    for index, payload in enumerate(sent):
        if values.get(index) != payload:
            raise CheckError(f"the offload's message {index} is not what was sent")


def second_offload_copies_nothing(rows: int, problems: Sequence[str]) -> None:
    """A repeated offload adds nothing, and the table is as its manifest says."""
    if rows:
        raise CheckError(f"the second offload copied {rows} messages again")
    if problems:
        raise CheckError(f"the offload is not verified: {problems[0]}")
