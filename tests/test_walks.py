"""The walk of a SEND in ARCHITECTURE.md, held against a broker that is traced."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType

import pulsemark
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message

PACKAGE = Path(pulsemark.__file__).parent
DOCUMENT = Path(__file__).resolve().parent.parent / "ARCHITECTURE.md"
TOPIC = "persistent://public/default/walked"
STOPS_MAX = 16
#: What a SEND enters beside the walk, and what for.
BESIDE = {
    "broker/memory.py": "output memory is counted",
    "broker/counters.py": "counters, once for each run",
    "broker/topics/registry.py": "hands the waking of the committer on",
    "broker/topics/topic.py": "is told of new entries, for its subscriptions",
    "ledger/commit/read_throttle.py": "readers may read on",
    "ledger/run.py": "what all engines' runs have in common",
    "ledger/store_core.py": "hands the waking of the committer on",
    "ledger/store_state.py": "this process is the one that opened the store",
    "metadata/message.py": "the producer's checksum",
}
#: The test's own client and broker.
TEST_KIT = ("client/", "testing/", "wire/message_id.py")


class Trace:
    """The package's modules whose functions are called, in any thread, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note the module of a function that is called."""
        if self.is_on and event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                self.modules.add(path.relative_to(PACKAGE).as_posix())


def stops() -> list[str]:
    """The first module of each step of the walk."""
    text = DOCUMENT.read_text(encoding="utf-8")
    walk = text.partition("### One SEND, from socket to receipt\n")[2].partition("\nLater, ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", walk, re.MULTILINE)


def test_a_send_goes_the_way_that_the_walk_says():
    """A SEND enters the walk's modules and those beside it that are named here, and no others."""
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        with running_broker() as broker, RawClient.from_url(broker.service_url) as client:
            producer = client.create_producer(TOPIC)
            body = unbatched_message(b"walked", publish_time_ms=1)
            for _ in range(3):  # the first one begins a segment
                producer.send_raw(body)
            trace.is_on = True
            producer.send_raw(body)
            trace.is_on = False
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    entered = {module for module in trace.modules if not module.startswith(TEST_KIT)}
    walk = stops()
    assert 10 < len(walk) <= STOPS_MAX
    assert {"broker/connection/session.py", "ledger/writer.py"} <= entered
    assert entered - {*walk} <= BESIDE.keys()
