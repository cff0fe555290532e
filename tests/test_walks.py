"""The walks of ARCHITECTURE.md, held against a broker that is traced."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pulsemark
from pulsemark.broker.subscriptions.subscription import Subscription
from pulsemark.ledger import StoreOptions
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message

PACKAGE = Path(pulsemark.__file__).parent
DOCUMENT = Path(__file__).resolve().parent.parent / "ARCHITECTURE.md"
TOPIC = "persistent://public/default/walked"
BODY = unbatched_message(b"walked", publish_time_ms=1)
SEND = "### One SEND, from socket to receipt\n"
DELIVERY = "### One delivery, from commit to consumer\n"
SEND_STOPS_MAX = 16
DELIVERY_STOPS_MAX = 12
#: The modules that a SEND enters beside the walk, and what for.
BESIDE_SEND = {
    "connection_memory.py": "output memory is counted",
    "broker/counters.py": "counters, once for each run",
    "broker/topics/registry.py": "hands the waking of the committer on",
    "broker/topics/topic.py": "is told of new entries, for its subscriptions",
    "ledger/commit/read_throttle.py": "readers may read on",
    "ledger/run.py": "what all engines' runs have in common",
    "ledger/store_core.py": "hands the waking of the committer on",
    "ledger/store_state.py": "this process is the one that opened the store",
    "metadata/message.py": "the producer's checksum",
    "metadata/protobuf_fields.py": "varints of the stamp and of the receipt",
}
#: The modules that a delivery enters beside the walk, and what for.
BESIDE_DELIVERY = {
    "broker/cooperative.py": "subscriptions share a turn of the event loop",
    "connection_memory.py": "output memory is counted",
    "broker/subscriptions/kafka_entries.py": "looks at each entry: is it in Kafka's format",
    "ledger/cursors/cursor.py": "which entries are acknowledged already",
    "ledger/cursors/position_ranges.py": "which entries are acknowledged already",
    "ledger/position.py": "the position after an entry",
    "ledger/commit/read_throttle.py": "pending commits go first",
    "ledger/local/io/fd_cache.py": "the segment's file is open",
    "ledger/local/io/files.py": "reads of the segment's file",
    "ledger/local/segment/time_index.py": "where the entry's record begins in the file",
    "ledger/run.py": "what all engines' runs have in common",
    "metadata/protobuf_fields.py": "varints of the frame's header",
}
#: The test's own client and broker.
TEST_KIT = ("client/", "testing/", "broker/embed.py", "wire/message_id.py")


class Trace:
    """The package's modules whose functions are called, in any thread, while it is on.

    With `below`, a function's code, only the calls count that it makes, directly or not, and those
    through which it is called itself.
    """

    def __init__(self, below: CodeType | None = None) -> None:
        self.is_on = False
        self._modules: set[str] = set()
        self._below = below

    @property
    def modules(self) -> set[str]:
        """The modules' paths in the package, without those of the test kit."""
        return {module for module in self._modules if not module.startswith(TEST_KIT)}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note the module of a function that is called."""
        if not self.is_on or event != "call":
            return
        if self._below is None:
            self._note(frame)
            return
        stack = [frame]
        while (caller := stack[-1].f_back) is not None:
            stack.append(caller)
        if any(each.f_code is self._below for each in stack):
            for each in stack:
                self._note(each)

    def _note(self, frame: FrameType) -> None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            self._modules.add(path.relative_to(PACKAGE).as_posix())


@contextmanager
def profiled(trace: Trace) -> Iterator[None]:
    """Call the trace for each call in this thread, and in those that begin meanwhile."""
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def stops(heading: str) -> list[str]:
    """The first module of each step of a walk."""
    text = DOCUMENT.read_text(encoding="utf-8")
    walk = re.split("^##", text.partition(heading)[2], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", walk, re.MULTILINE)


def test_a_send_goes_the_way_that_the_walk_says():
    """A SEND enters the walk's modules and those beside it that are named here, and no others."""
    trace = Trace()
    with (
        profiled(trace),
        running_broker() as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(TOPIC)
        for _ in range(3):  # the first one begins a segment
            producer.send_raw(BODY)
        trace.is_on = True
        producer.send_raw(BODY)
        trace.is_on = False
    walk = stops(SEND)
    assert 10 < len(walk) <= SEND_STOPS_MAX
    assert {"broker/connection/session.py", "ledger/writer.py"} <= trace.modules
    assert trace.modules - {*walk} <= BESIDE_SEND.keys()


def test_a_delivery_goes_the_way_that_the_walk_says():
    """From the commit to the consumer an entry enters each module of the walk, and those beside it
    that are named here, and no others.
    """
    trace = Trace(below=Subscription.dispatch.__code__)
    no_cache = StoreOptions(tail_cache_bytes=0)  # so each entry comes from its segment
    with (
        profiled(trace),
        running_broker(store_options=no_cache) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer, consumer = client.create_producer(TOPIC), client.subscribe(TOPIC, "walked")
        consumer.flow(100)
        for _ in range(3):  # the first one begins a segment
            producer.send_raw(BODY)
            consumer.receive()
        trace.is_on = True
        for _ in range(10):  # on a busy machine one may go on in a later turn, from elsewhere
            producer.send_raw(BODY)
            consumer.receive()
        trace.is_on = False
    walk = stops(DELIVERY)
    assert len(walk) <= DELIVERY_STOPS_MAX
    assert {*walk} <= trace.modules
    assert trace.modules - {*walk} == BESIDE_DELIVERY.keys()
