"""Fixtures of all tests: stores in temporary folders, and what a call costs."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings

from pulsemark.ledger import LocalStore, ManagedLedger, StoreOptions
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.pipeline.session import BRIEF_JVM
from pulsemark.testing.clock import A_TIME_MS, SettableClock

sys.path.append(str(Path(__file__).resolve().parent.parent / "campaigns"))

from bookkeeper_peer import BookKeeperPeer, PeerError, missing

# An example may take any time: the machine may have other work.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Sessions of the programs that tests run are short, whatever options they have.
os.environ.setdefault("SPARK_SUBMIT_OPTS", BRIEF_JVM)

SPARK_MODULES = frozenset(
    f"tests/pipeline/{name}.py"
    for name in (
        "test_broker_audit",
        "test_spark",
        "test_spark_docs",
        "test_spark_jobs",
        "test_spark_stream",
        "test_testing_doc",
    )
)
"""The modules whose tests use the fixture `spark`; one worker of a parallel run gets them all."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Divide a parallel run by modules, with those for Spark as one.

    A Spark session is a JVM, and costs a worker more than most modules do.
    """
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            scope = str(super()._split_scope(nodeid))
            return "spark" if scope in SPARK_MODULES else scope

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test of another module that uses the session."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "spark" in names and item.nodeid.partition("::")[0] not in SPARK_MODULES:
            raise pytest.UsageError(f"{item.nodeid} uses `spark`: see SPARK_MODULES")


@pytest.fixture(autouse=True)
def _logs_end_with_their_test() -> Iterator[None]:
    """A command that runs in this process logs to what was its stderr only while its test runs."""
    yield
    root = logging.getLogger()
    for handler in [each for each in root.handlers if getattr(each, "is_ours", False)]:
        root.removeHandler(handler)


OpenStore = Callable[..., LocalStore]
OPTION_NAMES = set(StoreOptions.__dataclass_fields__)


@pytest.fixture
def clock() -> SettableClock:
    """The clock of the stores that `open_store` opens."""
    return SettableClock(A_TIME_MS)


@pytest.fixture
def open_store(tmp_path: Path, clock: SettableClock) -> Iterator[OpenStore]:
    """Open the test's store: store options and `files` by name. Closed when the test ends."""
    with ExitStack() as stack:

        def open_it(**options: Any) -> LocalStore:
            others = {name: options.pop(name) for name in set(options) - OPTION_NAMES}
            folder = others.pop("folder", tmp_path / "data")
            store = LocalStore.open(
                folder, clock=others.pop("clock", clock), options=StoreOptions(**options), **others
            )
            stack.callback(store.close)
            return store

        yield open_it


@pytest.fixture(scope="session")
def bookkeeper_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperPeer]:
    """A real ZooKeeper and three bookies; skips without Java or BookKeeper's jars.

    $BOOKKEEPER_PEER_FOLDER names the folder of one that runs already: it is used, and not ended.
    """
    if (reason := missing()) is not None:
        pytest.skip(reason)
    running = os.environ.get("BOOKKEEPER_PEER_FOLDER")
    if running:
        yield BookKeeperPeer(Path(running))
        return
    with started_peer(tmp_path_factory) as peer:
        yield peer


@contextmanager
def started_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperPeer]:
    """Three bookies. Another test process may take a port that was free: then it is tried again."""
    for attempt in range(3):
        peer = BookKeeperPeer(tmp_path_factory.mktemp("bookkeeper"))
        try:
            peer.start(3)
        except PeerError:
            peer.stop()
            if attempt == 2:
                raise
            continue
        try:
            yield peer
        finally:
            peer.stop()
        return


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in memory where the machine has one: a catalog's syncs cost nothing there."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def stamped() -> Callable[[ManagedLedger], ManagedLedger]:
    """Switch stamps (time and index) on."""

    def switch_on(topic: ManagedLedger) -> ManagedLedger:
        topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
        return topic

    return switch_on


@pytest.fixture
def steps_of() -> Callable[[Callable[[], object]], int]:
    """How many bytecode instructions a call runs: a cost that does not depend on the machine."""

    def count(function: Callable[[], object]) -> int:
        steps = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal steps
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            steps += event == "opcode"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)
        return steps

    def monitored(function: Callable[[], object]) -> int:
        steps, thread, monitoring = 0, threading.get_ident(), sys.monitoring  # type: ignore[attr-defined]

        def step(*_: object) -> None:
            nonlocal steps
            steps += threading.get_ident() == thread

        tool, event = monitoring.PROFILER_ID, monitoring.events.INSTRUCTION
        monitoring.use_tool_id(tool, "steps_of")
        monitoring.register_callback(tool, event, step)
        monitoring.set_events(tool, event)
        try:
            function()
        finally:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)
        return steps

    # From Python 3.12 on a function that is traced for the first time has no opcodes.
    return count if sys.version_info < (3, 12) else monitored
