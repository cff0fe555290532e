"""Reading a folder while its writer's disk fails: entries that were seen never disappear."""

import errno
import threading
from random import Random
from typing import Any

import pytest

from pulsemark.ledger import EARLIEST, FolderReader, Position, StoreOptions, TopicNotFoundError
from pulsemark.testing.store_model import StoreModel
from tests.support.simulated_store import NEVER_MS, SimulatedStore

ORDERS = "persistent://public/default/orders"
OPTIONS = StoreOptions(
    checkpoint_interval_ms=NEVER_MS,
    journal_size_bytes=NEVER_MS,
    segment_size_bytes=3000,
    ledger_entries=40,
)


class Watcher(threading.Thread):
    """Reads a topic over and over, and compares with what it saw before."""

    def __init__(self, simulated):
        super().__init__()
        self.simulated = simulated
        self.seen = {}
        self.problems = []
        self.rounds = 0
        self.stopping = threading.Event()
        self.start()

    def run(self):
        """Look until asked to stop, and once more."""
        with FolderReader(self.simulated.folder, files=self.simulated.disk.process()) as reader:
            log = None
            while True:
                last_round = self.stopping.is_set()
                try:
                    if log is None:
                        log = reader.log(ORDERS)
                    log.refresh()
                    self.look(log)
                except TopicNotFoundError:
                    pass
                except Exception as error:
                    self.problems.append(repr(error))
                if last_round:
                    return

    def look(self, log):
        """One reading from the beginning."""
        self.rounds += 1
        there, place, index = {}, EARLIEST, 0
        while part := log.read(place, max_entries=500):
            for entry in part:
                there[entry.position] = (entry.index, bytes(entry.body))
                if entry.first_index != index:
                    self.problems.append(
                        f"{entry.position}: index {entry.first_index}, not {index}"
                    )
                index = entry.index + 1
            place = Position(part[-1].position.ledger_id, part[-1].position.entry_id + 1)
        for position, what in self.seen.items():
            if there.get(position) != what:
                self.problems.append(f"{position} was taken back or changed")
        self.seen = there

    def finish(self):
        """Stop and tell what was wrong."""
        self.stopping.set()
        self.join(30)
        return self.problems


@pytest.mark.parametrize("seed", range(3))
def test_what_was_seen_is_never_taken_back(tmp_path, seed):
    """Failed writes, half-written batches, new ledgers: readers only ever see more."""
    random = Random(seed)
    simulated = SimulatedStore(tmp_path / "data", seed=seed, options=OPTIONS)
    files = simulated.files()
    store, model = simulated.open(files), StoreModel()
    topic = store.open_topic(ORDERS)
    watcher = Watcher(simulated)
    for _ in range(60):
        if random.random() < 0.3:
            path = random.choice([".log", ".log", "journal"])
            error = random.choice([errno.EIO, errno.ENOSPC])
            operation = random.choice(["pwritev", "pwritev", "fdatasync"])
            times = 1 if operation == "fdatasync" else 2  # after two of them the store stops
            call = random.randint(1, 3)
            files.fail(operation, call=call, times=times, path_part=path, error=error)
        with store.committer.lock:
            for _ in range(random.randint(1, 30)):
                body = random.randbytes(random.randint(0, 300))
                model.topic(ORDERS).append(topic, b"\1" + body, random.randint(0, 2))
        store.committer.flush()
        if random.random() < 0.1:
            store.checkpoint()
    files.heal()
    assert watcher.finish() == []
    assert watcher.rounds > 1
    assert model.topic(ORDERS).problems(topic) == []
    # All that anybody saw is there after a power cut, too.
    simulated.power_off()
    topic = simulated.open().open_topic(ORDERS)
    assert model.topic(ORDERS).problems(topic, reopened=True) == []
    with FolderReader(simulated.folder, files=simulated.disk.process()) as reader:
        after: dict[Any, Any] = {}
        place, log = EARLIEST, reader.log(ORDERS)
        while part := log.read(place, max_entries=500):
            after |= {e.position: (e.index, bytes(e.body)) for e in part}
            place = Position(part[-1].position.ledger_id, part[-1].position.entry_id + 1)
    assert watcher.seen.items() <= after.items()
    simulated.close()
