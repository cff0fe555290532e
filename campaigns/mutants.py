"""The brokers that `histories.py` judges: they note what of them is used, and may be mutants.

    python campaigns/mutants.py USED NAME standalone ...

Each mutant replaces a function of the broker, to see whether `histories.py` finds it; NAME `none`
is the broker as it is. Each command, REST route and request of Kafka's that is handled for the
first time is added to the file USED, and when topics are given to another broker. Then the command
line runs as usual.
"""

from __future__ import annotations

import asyncio
import os
import random
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

NO_MUTANT = "none"
MUTANTS: dict[str, Callable[[], None]] = {}
#: The faults under which a mutant shows what it does; none if it is not named.
FAULTS_OF: dict[str, list[str]] = {}
#: Those that need `--on cluster --virtual`.
ON_BOOKIES: set[str] = set()


def mutant(function: Callable[[], None]) -> Callable[[], None]:
    """Add it to `MUTANTS`."""
    MUTANTS[function.__name__] = function
    return function


def mutant_under(*faults: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Add one that shows under these faults."""

    def add(function: Callable[[], None]) -> Callable[[], None]:
        FAULTS_OF[function.__name__] = list(faults)
        return mutant(function)

    return add


def mutant_on_bookies(function: Callable[[], None]) -> Callable[[], None]:
    """Add one that only a broker on BookKeeper shows."""
    ON_BOOKIES.add(function.__name__)
    return mutant(function)


def every(number: int) -> Callable[[], bool]:
    """Whether a call is the number-th, or a multiple of it."""
    calls = count(1)
    return lambda: next(calls) % number == 0


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function by one that is made of it."""
    setattr(owner, name, make(getattr(owner, name)))


def note_use(path: Path) -> None:
    """Add to a file what clients use, a line for each kind of request."""
    from pulsemark.broker import handlers
    from pulsemark.broker.http import routing
    from pulsemark.broker.kafka.endpoint import KafkaSession
    from pulsemark.cluster.bundle_ownership import BundleOwnership
    from pulsemark.proto.pulsar_api_pb2 import BaseCommand

    seen: set[str] = set()

    def note(line: str) -> None:
        if line not in seen:
            seen.add(line)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def noting(line_of: Callable[[Any, Any], str]) -> Callable[[Any], Any]:
        """A function that notes its second argument, or its result."""

        def made(function: Any) -> Any:
            def noted(one: Any, given: Any) -> Any:
                result = function(one, given)
                note(line_of(given, result))
                return result

            return noted

        return made

    name = BaseCommand.Type.Name
    wrap(handlers, "handle_command", noting(lambda event, _: f"commands {name(event.type)}"))
    wrap(routing, "find", noting(lambda _, found: f"routes {found[0].method} {found[0].path}"))
    wrap(KafkaSession, "_handle", noting(lambda request, _: f"requests {request.api.name}"))
    wrap(BundleOwnership, "give", noting(lambda *_: f"moved {time.monotonic_ns()}"))


def served() -> dict[str, set[str]]:
    """All that there is to use, as `note_use` names it."""
    from pulsemark.broker.handlers import COMMANDS
    from pulsemark.broker.http.routing import all_routes
    from pulsemark.broker.kafka.handlers import HANDLERS
    from pulsemark.kafka.protocol import APIS
    from pulsemark.proto.pulsar_api_pb2 import BaseCommand

    return {
        "commands": {BaseCommand.Type.Name(kind) for kind in COMMANDS},
        "routes": {f"{route.method} {route.path}" for route in all_routes()},
        "requests": {APIS[key].name for key in HANDLERS if key in APIS},
    }


def _each_send(strike: Callable[[Any, Any, Any, Any], None], often: int = 50) -> None:
    """Handle SENDs one by one, and one of `often` by `strike(session, event, producer, topic)`."""
    from pulsemark.broker.handlers import handle_sends
    from pulsemark.testing.faults import FaultySession

    now = every(often)

    def take_sends(session: Any, event: Any) -> None:
        for number in range(len(event)):
            one = event.alone(number)
            entry = session.producers.get(one.producer_id)
            if entry is not None and now():
                strike(session, one, *entry)
            elif not session.is_closed:
                handle_sends(session, one)

    wrap(FaultySession, "take_sends", lambda _: take_sends)


@mutant
def drops_a_message() -> None:
    """A message is acknowledged and not stored."""
    from pulsemark.wire import commands

    def strike(session: Any, event: Any, producer: Any, topic: Any) -> None:
        end = topic.ledger.end_position
        session.receipts.answer_in_turn(
            producer,
            commands.send_receipt(
                event.producer_id, event.sequence_ids[0], end.ledger_id, end.entry_id
            ),
        )

    _each_send(strike)


@mutant
def stores_what_it_refuses() -> None:
    """A message is refused and stored."""
    from pulsemark.proto.pulsar_api_pb2 import ServerError
    from pulsemark.wire import commands

    def strike(session: Any, event: Any, producer: Any, topic: Any) -> None:
        topic.ledger.append(bytes(event.bodies[0]), message_count=event.message_counts[0])
        error = ServerError.ChecksumError
        answer = commands.send_error(event.producer_id, event.sequence_ids[0], error, "a mutant")
        session.receipts.answer_in_turn(producer, answer)

    _each_send(strike)


@mutant_under("receipts")
def forgets_what_was_sent() -> None:
    """Deduplication takes every message for a new one."""
    from pulsemark.broker.topics.deduplication import Deduplication

    Deduplication.admit = lambda *_: None  # type: ignore[method-assign]


@mutant_under("answers")
def forgets_sequence_numbers() -> None:
    """Each set of an idempotent Kafka producer is taken for a new one."""
    from pulsemark.broker.kafka.partitions import Sequences

    Sequences.check = lambda *_: None  # type: ignore[method-assign]


@mutant
def forgets_acknowledgements() -> None:
    """Every third acknowledgement is not kept."""
    from pulsemark.ledger.cursors.cursor import Cursor

    now = every(3)
    for name in ("ack", "ack_run"):
        wrap(Cursor, name, lambda ack: lambda *given: None if now() else ack(*given))


@mutant
def drops_a_delivery() -> None:
    """An entry that was read for a consumer is not sent."""
    from pulsemark.broker.subscriptions.consumer import Consumer

    now = every(20)
    wrap(Consumer, "frames", lambda frames: lambda one, entries: frames(
        one, entries[1:] if now() else entries))  # fmt: skip


@mutant
def delivers_again() -> None:
    """Entries that were sent are sent once more."""
    from pulsemark.broker.subscriptions.consumer import Consumer

    now = every(20)
    wrap(Consumer, "frames", lambda frames: lambda one, entries: frames(
        one, [*entries, *entries] if now() else entries))  # fmt: skip


@mutant
def delivers_in_disorder() -> None:
    """Entries are sent in the wrong order."""
    from pulsemark.broker.subscriptions.consumer import Consumer

    wrap(Consumer, "frames", lambda frames: lambda one, entries: frames(one, entries[::-1]))


@mutant
def mixes_positions() -> None:
    """An entry is sent under the position of another one."""
    from pulsemark.broker.subscriptions.consumer import Consumer

    def mixed(entries: Any) -> Any:
        if len(entries) < 2:
            return entries
        first, second = entries[:2]
        changed = [
            replace(first, position=second.position),
            replace(second, position=first.position),
        ]
        return [*changed, *entries[2:]]

    wrap(Consumer, "frames", lambda frames: lambda one, entries: frames(one, mixed(entries)))


@mutant
def delivers_early() -> None:
    """Delayed messages come 1.9 s before their time."""
    from pulsemark.broker.subscriptions.delayed import DelayedEntries

    class Fast:
        def __init__(self, clock: Any) -> None:
            self.now_ms = lambda: clock.now_ms() + 1_900

    def made(begin: Any) -> Any:
        def begin_fast(one: Any, *given: Any, **named: Any) -> None:
            begin(one, *given, **named)
            one._clock = Fast(one._clock)

        return begin_fast

    wrap(DelayedEntries, "__init__", made)


@mutant
def seeks_too_far() -> None:
    """A search by time finds an entry that is half a second later."""
    from pulsemark.finder.search import Finder

    wrap(Finder, "time_in", lambda search: lambda *given, time_ms, **named: search(
        *given, time_ms=time_ms + 500, **named))  # fmt: skip


@mutant
def mixes_keys() -> None:
    """Key_Shared gives the messages of a key to any consumer."""
    from pulsemark.broker.subscriptions.key_shared_dispatcher import KeySharedDispatcher

    KeySharedDispatcher._slot_of = lambda *_: random.randrange(65_536)  # type: ignore[method-assign]
    KeySharedDispatcher._may_go = lambda *_: True  # type: ignore[method-assign]


@mutant
def has_two_active_consumers() -> None:
    """Failover sends to any of its consumers."""
    from pulsemark.broker.subscriptions.dispatcher import SingleActiveDispatcher

    def made(dispatch: Any) -> Any:
        def to_any(one: Any) -> None:
            if one.active is not None and len(one.consumers) > 1:
                one.active = random.choice(list(one.consumers))
            dispatch(one)

        return to_any

    wrap(SingleActiveDispatcher, "dispatch", made)


@mutant
def lets_time_fall() -> None:
    """The stamps follow a clock that is set back."""
    from pulsemark.ledger.writer import RecordBuilder
    from pulsemark.testing.clock import SettableClock

    now = every(50)
    wrap(SettableClock, "now_ms", lambda read: lambda one: read(one) - (700 if now() else 0))

    def made(build: Any) -> Any:
        def without_floor(one: Any, entries: Any, tail: Any) -> Any:
            tail.stamp_floor_ms = 0
            return build(one, entries, tail)

        return without_floor

    wrap(RecordBuilder, "build", made)


@mutant
def skips_an_index() -> None:
    """An index is given to no message."""
    from pulsemark.ledger.writer import RecordBuilder

    now = every(50)

    def made(build: Any) -> Any:
        def with_gap(one: Any, entries: Any, tail: Any) -> Any:
            tail.next_index += now()
            return build(one, entries, tail)

        return with_gap

    wrap(RecordBuilder, "build", made)


@mutant_under("kill")
def loses_the_end() -> None:
    """After a crash the end of each log is gone, as if nothing had been synced."""
    folder = Path(sys.argv[sys.argv.index("--data-dir") + 1])
    for path in folder.rglob("*"):
        if path.is_file() and "journal" in str(path.relative_to(folder)):
            path.unlink()
        elif path.suffix == ".log":
            os.truncate(path, max(0, path.stat().st_size - 2_000))


@mutant_under("kill")
def acknowledges_before_it_is_stored() -> None:
    """Receipts are sent at once, and the write comes 0.3 s later."""
    import asyncio

    from pulsemark.broker.connection.receipts import Receipts
    from pulsemark.ledger.local.commit.batch_writer import BatchWriter

    class Done:
        done = True

        def add_done_callback(self, call: Callable[[], None]) -> None:
            asyncio.get_running_loop().call_soon(call)

    def made(begin_run: Any) -> Any:
        def begin_done(one: Any, *given: Any) -> Any:
            run, begun = begin_run(one, *given)
            if begun is not None:
                del one._unanswered[begun.batch]
                begun.batch = Done()
                one._unanswered[begun.batch] = begun
            return run, begun

        return begin_done

    def late(write: Any) -> Any:
        def write_late(*given: Any, **named: Any) -> Any:
            time.sleep(0.3)
            return write(*given, **named)

        return write_late

    wrap(Receipts, "_begin_run", made)
    wrap(BatchWriter, "write", late)


@mutant_under("kill")
def forgets_policies() -> None:
    """Policies of topics are not stored."""
    from pulsemark.broker.topics.catalog_writer import CatalogWriter
    from pulsemark.broker.topics.policy_store import TOPIC_POLICY_KIND

    wrap(CatalogWriter, "write", lambda write: lambda one, *changes: write(
        one, *(change for change in changes if change[0] != TOPIC_POLICY_KIND)))  # fmt: skip


@mutant_under("power")
def does_not_sync() -> None:
    """What is written stays in the system's memory."""
    from pulsemark.ledger.local.io.files import Files

    for name in ("fdatasync", "fsync"):
        wrap(Files, name, lambda _: lambda *_: None)


@mutant
def gives_an_index_twice() -> None:
    """Two messages have the same index."""
    from pulsemark.ledger.writer import RecordBuilder

    now = every(50)

    def made(build: Any) -> Any:
        def with_twin(one: Any, entries: Any, tail: Any) -> Any:
            tail.next_index -= now() and tail.next_index > 0
            return build(one, entries, tail)

        return with_twin

    wrap(RecordBuilder, "build", made)


@mutant
def names_another_place() -> None:
    """A receipt has the position of the next message."""
    from pulsemark.wire import commands

    now = every(20)
    wrap(commands, "send_receipts", lambda receipts: lambda producer, ledger, publishes: receipts(
        producer, ledger, [(a, b, at + now()) for a, b, at in publishes]))  # fmt: skip


@mutant
def drops_a_receipt() -> None:
    """A message is stored, and its producer never told."""
    from pulsemark.wire import commands

    now = every(20)
    wrap(commands, "send_receipts", lambda receipts: lambda producer, ledger, publishes: receipts(
        producer, ledger, [each for each in publishes if not now()]))  # fmt: skip


@mutant
def forgets_what_a_leaving_consumer_held() -> None:
    """On Shared, entries of a consumer that has left are not given to another one."""
    from pulsemark.broker.subscriptions.shared_dispatcher import SharedDispatcher

    wrap(SharedDispatcher, "wait_again", lambda _: lambda *_: None)


@mutant
def acknowledges_the_next_one_too() -> None:
    """An acknowledgement holds for the entry after it, as well."""
    from pulsemark.ledger.cursors.cursor import Cursor

    now = every(5)
    wrap(Cursor, "ack_run", lambda ack_run: lambda one, ledger_id, first, last: ack_run(
        one, ledger_id, first, last + now()))  # fmt: skip


@mutant
def resets_too_far() -> None:
    """After a seek the first message is left out."""
    from pulsemark.ledger.cursors.cursor import Cursor

    wrap(Cursor, "reset", lambda reset: lambda one, position: reset(
        one, one._log.next_position(position)))  # fmt: skip


@mutant
def delivers_from_before_a_reset() -> None:
    """After a seek a message comes that is before the place."""
    from pulsemark.ledger.cursors.cursor import Cursor

    wrap(Cursor, "reset", lambda reset: lambda one, position: reset(
        one, one._log.previous_position(position)))  # fmt: skip


@mutant
def commits_offsets_too_far() -> None:
    """A Kafka group's offset is three messages after the one that it has committed."""
    from pulsemark.broker.kafka.groups.offsets import Offsets

    wrap(Offsets, "commit", lambda commit: lambda one, group, kind, offsets, done: commit(
        one, group, kind, {
            at: each._replace(offset=each.offset + 3) for at, each in offsets.items()
        }, done))  # fmt: skip


@mutant
def miscounts_the_backlog() -> None:
    """An entry is counted that was acknowledged."""
    from pulsemark.broker.subscriptions.subscription import Subscription

    Subscription.backlog_entries = property(  # type: ignore[assignment]
        lambda one: one.cursor.backlog_entries + 1
    )


@mutant
def loses_permits() -> None:
    """Of the permits that a client gives, only half are kept."""
    from pulsemark.broker.subscriptions.subscription import Subscription

    wrap(Subscription, "flow", lambda flow: lambda one, consumer, permits: flow(
        one, consumer, permits // 2))  # fmt: skip


@mutant
def trims_too_much() -> None:
    """Messages are removed that nothing allows to remove."""
    from pulsemark.broker.handlers import handle_sends

    def strike(session: Any, event: Any, producer: Any, topic: Any) -> None:
        handle_sends(session, event)
        first = topic.ledger.first_position
        if first is not None:
            topic.ledger.truncate_head(replace_entry(first, 2))

    def replace_entry(position: Any, more: int) -> Any:
        return type(position)(position[0], position[1] + more)

    _each_send(strike)


@mutant
def changes_a_message() -> None:
    """A byte of a message is another one when it is delivered."""
    from pulsemark.wire import commands

    now = every(100)

    def changed(body: Any) -> Any:
        return bytes(body[:-1]) + bytes([body[-1] ^ 1]) if now() else body

    wrap(commands, "message_frames", lambda frames: lambda consumer, ledger, entries, **named: (
        frames(consumer, ledger, [(at, changed(body)) for at, body in entries], **named)
    ))  # fmt: skip


@mutant
def shows_what_was_aborted() -> None:
    """Messages of transactions that were aborted are delivered."""
    from pulsemark.ledger.transactions import Transactions

    wrap(Transactions, "_hides", lambda _: lambda *_: False)
    wrap(Transactions, "aborted_in", lambda _: lambda *_: [])


@mutant
def passes_the_last_stable_position() -> None:
    """Messages of open transactions are delivered."""
    from pulsemark.ledger.transactions import Transactions

    wrap(Transactions, "stable_end", lambda _: lambda _, log: log.end_position)
    wrap(Transactions, "stable_index", lambda _: lambda _, log: log.next_index)


@mutant
def commits_half() -> None:
    """In some of its topics a transaction that was committed is aborted."""
    from pulsemark.ledger.writer import ManagedLedger
    from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_ABORT, CONTROL_TXN_COMMIT

    now = every(10)
    wrap(ManagedLedger, "append_control", lambda append: lambda one, kind, *given, **named: append(
        one, CONTROL_TXN_ABORT if kind == CONTROL_TXN_COMMIT and now() else kind,
        *given, **named))  # fmt: skip


@mutant
def acknowledges_what_was_aborted() -> None:
    """The acknowledgements of a transaction that was aborted count."""
    from pulsemark.broker.subscriptions.subscription import Subscription

    wrap(Subscription, "transaction_ended", lambda ended: lambda one, name, **_: ended(
        one, name, committed=True))  # fmt: skip


@mutant_on_bookies
def recovers_without_fencing() -> None:
    """A ledger that is taken over is closed, and its bookies go on taking entries for it."""
    from pulsemark.ledger.bookkeeper.client import client
    from pulsemark.ledger.bookkeeper.client.recovery import RecoveryRules

    rules = RecoveryRules(fence=False, fence_reads=False)
    wrap(client, "recover", lambda recover: lambda core, ledger, password, _: recover(
        core, ledger, password, rules))  # fmt: skip


@mutant_on_bookies
def takes_over_without_recovery() -> None:
    """A ledger that is taken over ends where its bookies say that it is confirmed."""
    from pulsemark.ledger.bookkeeper.client import BookKeeperClient

    wrap(BookKeeperClient, "open_ledger", lambda _: BookKeeperClient.open_ledger_no_recovery)


@mutant_on_bookies
def loses_the_last_entry() -> None:
    """The last entry of a ledger that is opened again does not count."""
    from pulsemark.ledger.bookkeeper.logs import Logs

    def made(end_of: Any) -> Any:
        async def before(*given: Any) -> int:
            end: int = await end_of(*given)
            return max(0, end - 1)

        return before

    wrap(Logs, "_end_of", made)


@mutant_on_bookies
def acknowledges_one_copy() -> None:
    """An entry counts as stored as soon as one bookie has it."""
    from pulsemark.ledger.bookkeeper.client.pipeline import PendingEntries

    wrap(PendingEntries, "held_by", lambda held_by: lambda pending, _: held_by(pending, 1))


def judge_workers(launcher: list[str]) -> None:
    """Let the supervisor start its workers by this program, too."""
    create = asyncio.create_subprocess_exec

    def started(python: str, *words: str, **named: Any) -> Any:
        return create(python, *launcher, *words, **named)

    asyncio.create_subprocess_exec = started  # type: ignore[assignment]


def run() -> Any:
    """Run the command line, or a module: `-m NAME`."""
    launcher, words = sys.argv[:3], sys.argv[3:]
    note_use(Path(launcher[1]))
    if launcher[2] != NO_MUTANT:
        MUTANTS[launcher[2]]()
    if words[0] == "-m":
        sys.argv = words[1:]
        return runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    from pulsemark.cli import main

    judge_workers(launcher)
    sys.argv = [launcher[0], *words]
    return main()


if __name__ == "__main__":
    sys.exit(run())
