"""Simulates the life of a store on a bad disk, from a seed, and checks it with a model.

    report = torture(seed=7, cycles=100, folder=folder)
    assert not report.problems

Each cycle has its own seed, made from the campaign's seed and the cycle's number. So a failing
cycle can be repeated with its seed alone (`cycles=1`).

A cycle is one data folder and several lives of a process. In each life the process opens the store,
appends in bursts to a few topics (with and without stamps), rolls, trims, deletes, acknowledges,
makes checkpoints, and moves the clock forwards and backwards. Some calls fail. A life ends by
closing, by a kill or by a power cut, at any call, also during opening. After each life the store is
opened on a good disk and compared with the model (see `store_model`).

`interval=True` is the campaign in interval mode, where a power cut may take what was acknowledged
since the last sync, and nothing older, whatever was cleaned meanwhile. Its lives compact
subscriptions and topics, too, and commits of the catalog fail.

`syncs=False` is the control run: syncs do nothing, and the campaign must report losses.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from pulsemark.compaction.compaction import compact
from pulsemark.compaction.current_view import current_view, state_of
from pulsemark.ledger import (
    EARLIEST,
    FolderReader,
    ForeignFolderError,
    LocalStore,
    ManagedLedger,
    StoreOptions,
)
from pulsemark.ledger.cursors import cursor_store as _cursor_store
from pulsemark.maintenance.findings import Severity
from pulsemark.maintenance.verify import verify_folder
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.faulty_files import FaultyFiles, Short
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.testing.store_model import ACKED, SEEN, StoreModel, is_expected
from tests.support.simulated_disk import Survival
from tests.support.simulated_store import NEVER_MS, SimulatedStore, settle

LIVES_PER_CYCLE = 4
STEPS_PER_LIFE = 25
_TOPICS = [f"persistent://public/default/tortured-{number}" for number in range(3)]
_FAULTS: dict[str, list[int | type[Short]]] = {
    "open": [errno.EIO, errno.ENOSPC, errno.EMFILE],
    "pread": [errno.EIO, errno.EINTR, Short],
    "pwritev": [errno.EIO, errno.ENOSPC, errno.EINTR, Short],
    "fdatasync": [errno.EIO, errno.ENOSPC],
    "sync_folder": [errno.EIO],
    "ftruncate": [errno.EIO],
    "unlink": [errno.EIO],
    "size": [errno.EIO],
}
_SQLITE_FAULTS: dict[str, list[int | type[Short]]] = {
    "commit_write": [errno.EIO, errno.ENOSPC],
    "commit_sync": [errno.EIO, errno.ENOSPC],
}
_CLOCK_STEPS_MS = [0, 1, 10, 1000, -1, -300_000, 86_400_000]


@dataclass(slots=True)
class TortureReport:
    """What a campaign did, and the problems it found."""

    seed: int
    cycles: int = 0
    lives: int = 0
    appended: int = 0
    acknowledged: int = 0
    calls: int = 0
    failed_calls: int = 0
    power_cuts: int = 0
    kills: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    """Each text begins with the seed of its cycle."""

    def figures(self) -> dict[str, object]:
        """All fields, with the number of problems instead of their texts."""
        return {**asdict(self), "problems": len(self.problems), "seconds": round(self.seconds, 1)}


def cycle_seed(seed: int, number: int) -> int:
    """The seed of a campaign's cycle. The first cycle has the campaign's own seed."""
    return seed + 1_000_003 * number


def torture(
    seed: int,
    cycles: int,
    folder: Path,
    *,
    syncs: bool = True,
    faults: bool = True,
    survival: Survival = "some",
    interval: bool = False,
) -> TortureReport:
    """Run a campaign.

    Args:
        seed: decides everything that happens.
        cycles: the number of data folders.
        folder: the place of the catalogs; a folder in memory (/dev/shm) is faster.
        syncs: False for a control run.
        faults: whether calls fail, in addition to kills and power cuts.
        survival: how much unsynced data survives a power cut.
        interval: whether entries are acknowledged before they are synced.
    """
    report = TortureReport(seed)
    began = time.monotonic()
    for number in range(cycles):
        kind = _Cycle if not interval else _IntervalCycle
        cycle = kind(folder, cycle_seed(seed, number), report, syncs, faults, survival)
        cycle.run()
        report.cycles += 1
    report.seconds = time.monotonic() - began
    return report


class _Cycle:
    """One data folder."""

    sync_interval_ms = 0
    segment_sizes: tuple[int, ...] = (400, 2000, 100_000)
    ledger_sizes: tuple[int, ...] = (5, 50, 10_000)
    snapshots_at_once = _cursor_store.SNAPSHOTS_AT_ONCE
    faults_of = _FAULTS

    def __init__(
        self,
        folder: Path,
        seed: int,
        report: TortureReport,
        syncs: bool,
        faults: bool,
        survival: Survival,
    ) -> None:
        self.seed = seed
        self.report = report
        self.faults = faults
        self.random = random = Random(seed)
        self.clock = SettableClock(A_TIME_MS)
        self.model = StoreModel()
        self.store: LocalStore | None = None
        self._power_cuts = 0
        self.simulated = SimulatedStore(
            folder / f"cycle-{seed}",
            seed=random.getrandbits(32),
            survival=survival,
            syncs=syncs,
            clock=self.clock,
            options=StoreOptions(
                segment_size_bytes=random.choice(self.segment_sizes),
                ledger_entries=random.choice(self.ledger_sizes),
                ledger_age_ms=random.choice([1000, 4 * 60 * 60 * 1000]),
                checkpoint_interval_ms=NEVER_MS,
                journal_size_bytes=NEVER_MS,
                fd_limit=random.choice([4, 64]),
                sync_interval_ms=self.sync_interval_ms,
            ),
        )

    def run(self) -> None:
        """Run all lives, and check the store after each."""
        kept = _cursor_store.COMPACT_MIN_RECORDS, _cursor_store.SNAPSHOTS_AT_ONCE
        _cursor_store.COMPACT_MIN_RECORDS = 20
        _cursor_store.SNAPSHOTS_AT_ONCE = self.snapshots_at_once
        try:
            for _ in range(LIVES_PER_CYCLE):
                self._live()
                if not self._check():
                    return
        finally:
            _cursor_store.COMPACT_MIN_RECORDS, _cursor_store.SNAPSHOTS_AT_ONCE = kept
            self.report.acknowledged += self.model.acknowledged
            self.report.power_cuts += self.simulated.disk.power_cuts
            self.simulated.end()

    def _problem(self, text: str) -> None:
        self.report.problems.append(f"{self.seed}: {text}")

    # A life

    def _live(self) -> None:
        random, files = self.random, self.simulated.files()
        self.report.lives += 1
        ending = random.choice(["close", "kill", "power", "kill at", "power at", "power at"])
        if ending.endswith(" at"):
            end = self.simulated.disk.power_off if ending[0] == "p" else self.simulated.disk.kill
            files.at_call(int(random.expovariate(1 / 150)) + 1, end)
        try:
            self.store = self.simulated.open(files)
            for _ in range(random.randint(0, STEPS_PER_LIFE)):
                if self.faults and random.random() < 0.06:
                    self._break_something(files)
                self._step(self.store)
                settle(self.store)
            files.heal()
            self._end(ending)
        except Exception as error:
            if not is_expected(error):
                self._problem(f"unexpected {type(error).__name__}: {error}")
            files.heal()
            self._end("power" if ending == "close" else ending)
        self.report.calls += files.total_calls
        self.report.failed_calls += files.failed_calls
        for violation in files.violations:
            self._problem(violation)

    def _end(self, ending: str) -> None:
        if ending == "close":
            self.simulated.close()
        elif ending.startswith("power"):
            self.simulated.power_off()
        else:
            self.report.kills += 1
            self.simulated.kill()

    def _break_something(self, files: FaultyFiles) -> None:
        operation = self.random.choice(list(self.faults_of))
        files.fail(
            operation,
            call=self.random.randint(1, 4),
            error=self.random.choice(self.faults_of[operation]),
            times=self.random.choice([1, 1, 1, 3]),
        )

    def _steps(self) -> dict[Callable[[LocalStore, ManagedLedger], None], float]:
        """What can be done, and how often."""
        return {
            self._append: 12, self._acknowledge: 6, self._roll: 1, self._trim: 1,
            self._truncate_head: 0.5, self._truncate_tail: 0.5, self._checkpoint: 2,
            self._delete_cursor: 0.5, self._delete_topic: 0.3, self._read: 2,
        }  # fmt: skip

    def _step(self, store: LocalStore) -> None:
        random, steps = self.random, self._steps()
        step = random.choices(list(steps), list(steps.values()))[0]
        name = random.choice(_TOPICS)
        self.clock.advance(by_ms=random.choice(_CLOCK_STEPS_MS))
        try:
            step(store, store.open_topic(name))
        except Exception as error:
            if not is_expected(error) or self.simulated.ended:
                raise

    def _append(self, _store: LocalStore, topic: ManagedLedger) -> None:
        random = self.random
        stamped = random.random() < 0.7
        topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()] if stamped else [])
        for _ in range(random.choice([1, 1, 3, 10, 40])):
            body = random.randbytes(random.choice([0, 5, 50, 300]))
            if random.random() < 0.5:
                body = unbatched_message(body, publish_time_ms=random.randrange(2**41))
            else:
                body = b"\1" + body
            self.report.appended += 1
            self.model.topic(topic.name).append(topic, body, random.choice([0, 1, 1, 7]))

    def _acknowledge(self, _store: LocalStore, topic: ManagedLedger) -> None:
        random = self.random
        cursor = self.model.topic(topic.name).open_cursor(topic, random.choice("abc"))
        for _ in range(random.randint(1, 5)):
            place = cursor.first_unacked
            for _ in range(random.randint(0, 4)):
                place = cursor.next_unacked(place)
            if random.random() < 0.2:
                cursor.ack_cumulative(place)
            elif random.random() < 0.05:
                cursor.reset(place)
            else:
                cursor.ack(place)
        self.model.topic(topic.name).persist(cursor)

    def _delete_cursor(self, _: LocalStore, topic: ManagedLedger) -> None:
        name = self.random.choice("abc")
        if name in topic.cursors:
            self.model.topic(topic.name).delete_cursor(topic, name)

    def _roll(self, _: LocalStore, topic: ManagedLedger) -> None:
        topic.roll()

    def _trim(self, _: LocalStore, topic: ManagedLedger) -> None:
        segments = topic.segments()
        if segments:
            before = self.random.choice(segments).first_position
            self.model.topic(topic.name).trim(topic, before)

    def _truncate_head(self, _: LocalStore, topic: ManagedLedger) -> None:
        if topic.first_position is not None:
            positions = [e.position for e in topic.read(EARLIEST, max_entries=10)]
            before = self.random.choice([*positions, topic.end_position])
            self.model.topic(topic.name).truncate_head(topic, before)

    def _truncate_tail(self, _: LocalStore, topic: ManagedLedger) -> None:
        model = self.model.topic(topic.name)
        there = [s for s in model.sent.values() if s.state in (ACKED, SEEN) and s.message_count]
        there = [s for s in there if topic.first_position and s.position >= topic.first_position]
        if there:
            first = self.random.choice(there[-10:])
            model.truncate_tail(topic, first, topic.epoch + 1)

    def _delete_topic(self, store: LocalStore, topic: ManagedLedger) -> None:
        self.model.delete_topic(store, topic.name)

    def _checkpoint(self, store: LocalStore, _: ManagedLedger) -> None:
        store.checkpoint()

    def _read(self, _: LocalStore, topic: ManagedLedger) -> None:
        for entry in topic.read(EARLIEST, max_entries=20):
            for problem in self.model.topic(topic.name).problems_of(entry):
                self._problem(problem)

    # The check after it

    def _check(self) -> bool:
        before = len(self.report.problems)
        try:
            with suppress(ForeignFolderError):  # the life may have ended before there was a folder
                self._verify("as the crash left it")
            store = self.simulated.open()
            self.model.forget_deleted(store)
            for name in self.model.topics:
                self._check_topic(store.open_topic(name))
            if self.model.topics:
                self._check_reader()
            self.simulated.close()
            self._verify("recovered")
        except Exception as error:
            self._problem(f"on a good disk: {type(error).__name__}: {error}")
        return len(self.report.problems) == before

    def _check_topic(self, topic: ManagedLedger) -> None:
        for problem in self.model.topic(topic.name).problems(topic, reopened=True):
            self._problem(problem)

    def _verify(self, state: str) -> None:
        """Verify finds no damage: the disk had failures, but no bytes on it were changed."""
        files = self.simulated.disk.process()
        for finding in verify_folder(self.simulated.folder, files=files):
            if finding.severity >= Severity.DAMAGE:
                self._problem(f"verified {state}: {finding}")

    def _check_reader(self) -> None:
        """A reader without lock and catalog sees the same entries."""
        with FolderReader(self.simulated.folder, files=self.simulated.disk.process()) as reader:
            for name in set(reader.topics()) & self.model.topics.keys():
                for problem in self.model.topic(name).problems(reader.log(name)):
                    self._problem(f"read by a folder reader: {problem}")


class _IntervalCycle(_Cycle):
    """One data folder whose entries are synced only now and then, with all that cleans it."""

    sync_interval_ms = 60_000
    segment_sizes = (2000, 100_000)  # a segment's first block is synced in this mode, too
    ledger_sizes = (10_000,)
    snapshots_at_once = 1  # so that a compaction takes several batches
    faults_of = _FAULTS | _SQLITE_FAULTS

    def _steps(self) -> dict[Callable[[LocalStore, ManagedLedger], None], float]:
        return {**super()._steps(), self._compact_cursors: 2, self._compact_topic: 1}

    def _compact_cursors(self, store: LocalStore, _: ManagedLedger) -> None:
        store.cursors.compact()
        while store.cursors.is_compacting:
            settle(store)
            store.cursors.compact_further()
        settle(store)

    def _compact_topic(self, _: LocalStore, topic: ManagedLedger) -> None:
        compact(topic)

    def _checkpoint(self, store: LocalStore, topic: ManagedLedger) -> None:
        super()._checkpoint(store, topic)
        store.sync_acknowledged()  # raises if a sync has failed
        for model in self.model.topics.values():
            model.synced()

    def _check(self) -> bool:
        if self.simulated.disk.power_cuts > self._power_cuts:
            self._power_cuts = self.simulated.disk.power_cuts
            for model in self.model.topics.values():
                model.power_lost()
        is_good = super()._check()
        for model in self.model.topics.values():
            model.synced()  # the check has closed the store in order
        return is_good

    def _check_topic(self, topic: ManagedLedger) -> None:
        super()._check_topic(topic)
        if current_view(topic) is None and state_of(topic).view_lost:
            self._problem(f"{topic.name}: its compacted view is lost")
