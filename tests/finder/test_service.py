"""The seek service's calls, asked over a real connection."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import uvloop

from pulsemark.finder import (
    Finder,
    IndexOutOfRangeError,
    NotPossibleError,
    SearchMethod,
    SeekClient,
    SubscriptionNotFoundError,
    rpc,
)
from pulsemark.finder.errors import (
    CursorBusyError,
    DeadlineExceededError,
    InvalidFieldError,
    SeekCallError,
    ServerUnavailableError,
)
from pulsemark.finder.server import ServerOptions
from pulsemark.finder.service import TopicSource, full_name
from pulsemark.ledger import (
    EARLIEST,
    LATEST,
    CorruptEntryError,
    Position,
    StoreClosedError,
    TopicNotFoundError,
)
from pulsemark.proto import seek_pb2 as pb


@pytest.fixture
def orders(topics):
    """Ten batches of three messages, 10 ms apart."""
    return topics.fill([topics.message(bytes([n]) * 20) for n in range(10)], message_count=3)


@pytest.fixture
def seek(serve, topics, orders):
    """A client of a server over the topic."""
    with SeekClient(serve(topics).target) as client:
        yield client


@pytest.fixture
def call(serve, topics, orders):
    """Send any message to any call; returns the answer, or the RpcError."""
    with grpc.insecure_channel(serve(topics).target) as channel:

        def ask(method, request):
            codec = rpc.client_codec(method)
            try:
                if method == "ReadEntries":
                    return list(channel.unary_stream(rpc.path(method), **codec)(request))
                return channel.unary_unary(rpc.path(method), **codec)(request, timeout=10)
            except grpc.RpcError as error:
                return error

        yield ask


class Wrapped(TopicSource):
    """A source whose logs are watched or changed on the way."""

    def __init__(self, topics, wrap):
        self.topics = topics
        self.wrap = wrap

    def log(self, topic):
        """The wrapped log."""
        return self.wrap(self.topics.log(topic))


class SlowLog:
    """A log whose every read takes a while; counts them."""

    def __init__(self, log, delay_s):
        self._log = log
        self._delay_s = delay_s
        self.reads = 0

    def __getattr__(self, name):
        return getattr(self._log, name)

    def read(self, *args, **more):
        """One entry, after a while."""
        self.reads += 1
        time.sleep(self._delay_s)
        return self._log.read(*args, **{**more, "max_entries": 1})


# Answers


@pytest.mark.parametrize("method", list(SearchMethod))
def test_answers_are_the_finders_own(seek, topics, orders, method):
    """Every time, index and range gives over gRPC what the finder gives beside the ledger."""
    finder = Finder(orders)
    for offset_ms in range(-5, 105, 5):
        time_ms = topics.FIRST_MS + offset_ms
        remote, local = seek.by_time(topics.ORDERS, time_ms, method=method), finder.by_time(time_ms)
        assert (remote.position, remote.first_index, remote.index, remote.message_count) == (
            (local.position, local.first_index, local.index, local.message_count)
        )
        assert (remote.time_ms, remote.end) == (local.time_ms, local.end)
    for index in range(30):
        place = seek.by_index(topics.ORDERS, index, method=method)
        assert (place.position, place.batch_index) == (
            (Position(orders.ledger_id, index // 3), index % 3)
        )
        assert (place.first_index, place.index) == (index - index % 3, index - index % 3 + 2)
        assert place.time_ms == topics.FIRST_MS + 10 * (index // 3)
    answer = seek.range(topics.ORDERS, topics.FIRST_MS + 10, topics.FIRST_MS + 31, method=method)
    assert (answer.first_index, answer.end_index, answer.count) == (3, 12, 9)
    assert (answer.first.entry_id, answer.end.entry_id) == (1, 4)


def test_behind_the_last_entry_is_the_end(seek, topics, orders):
    """A time after the last entry is not an error, and never the beginning."""
    found = seek.by_time(topics.ORDERS, topics.FIRST_MS + 91)
    assert (found.end, found.position, found.index) == (True, orders.end_position, 30)
    assert seek.by_time(topics.ORDERS, 2**63 - 1).end
    assert not seek.by_time(topics.ORDERS, topics.FIRST_MS + 90).end


def test_the_work_is_counted(seek, topics):
    """A search by prefixes says how many reads it took, and how little it read."""
    found = seek.by_time(topics.ORDERS, topics.FIRST_MS + 45, method=SearchMethod.PREFIXES)
    assert found.reads > 0
    assert 0 < found.bytes_read <= 64 * found.reads


def test_entries_come_as_stored(seek, topics, orders):
    """Prefix and body are the stored bytes; a range's positions are what to read."""
    answer = seek.range(topics.ORDERS, topics.FIRST_MS + 10, topics.FIRST_MS + 31)
    entries = list(seek.read_entries(topics.ORDERS, start=answer.first, end=answer.end))
    stored = orders.read(answer.first, max_entries=3)
    assert [entry.prefix + entry.body for entry in entries] == [bytes(e.stored) for e in stored]
    assert [entry.first_index for entry in entries] == [3, 6, 9]
    bare = list(seek.read_entries(topics.ORDERS, max_entries=2, prefixes_only=True))
    assert [entry.body for entry in bare] == [None, None]


def test_an_entry_of_five_mebibytes_passes_the_default_limits(serve, topics):
    """Large entries are cut into pieces that every client takes, and come out whole."""
    bodies = [b"a" * 100, bytes(range(256)) * 20 * 1024 + b"!", b"b" * 100]
    topics.fill(bodies)
    with SeekClient(serve(topics).target) as seek:
        assert [entry.body for entry in seek.read_entries(topics.ORDERS)] == bodies
    with grpc.insecure_channel(serve(topics).target) as channel:
        codec = rpc.client_codec("ReadEntries")
        responses = channel.unary_stream(rpc.path("ReadEntries"), **codec)(
            pb.ReadEntriesRequest(topic=topics.ORDERS)
        )
        assert max(response.ByteSize() for response in responses) <= (1 << 20) + 1024


# Refusals

BAD_REQUESTS = [
    ("SeekByTime", pb.SeekByTimeRequest(time_ms=1), "topic"),
    ("SeekByTime", pb.SeekByTimeRequest(topic="orders", time_ms=1), "topic"),
    ("SeekByTime", pb.SeekByTimeRequest(topic="x" * 2000, time_ms=1), "topic"),
    ("SeekByTime", pb.SeekByTimeRequest(topic="ORDERS"), "time_ms"),
    ("SeekByTime", pb.SeekByTimeRequest(topic="ORDERS", time_ms=-1), "time_ms"),
    ("SeekByTime", pb.SeekByTimeRequest(topic="ORDERS", time_ms=1, method=9), "method"),  # type: ignore[arg-type]
    ("SeekByIndex", pb.SeekByIndexRequest(topic="ORDERS"), "index"),
    ("SeekByIndex", pb.SeekByIndexRequest(topic="ORDERS", index=-1), "index"),
    ("SeekByIndex", pb.SeekByIndexRequest(topic="ORDERS", index=1, method=-1), "method"),  # type: ignore[arg-type]
    ("Range", pb.RangeRequest(topic="ORDERS", to_ms=1), "from_ms"),
    ("Range", pb.RangeRequest(topic="ORDERS", from_ms=1), "to_ms"),
    ("Range", pb.RangeRequest(topic="ORDERS", from_ms=2, to_ms=1), "to_ms"),
    ("Range", pb.RangeRequest(topic="ORDERS", from_ms=1, to_ms=1, method=3), "method"),  # type: ignore[arg-type]
    ("ReadEntries", pb.ReadEntriesRequest(), "topic"),
    ("ReadEntries", pb.ReadEntriesRequest(topic="ORDERS", max_entries=-1), "max_entries"),
    ("ReadEntries", pb.ReadEntriesRequest(topic="ORDERS", content=3), "content"),  # type: ignore[arg-type]
    (
        "ReadEntries",
        pb.ReadEntriesRequest(topic="ORDERS", start=pb.Position(ledger_id=-2)),
        "start.ledger_id",
    ),
    (
        "ReadEntries",
        pb.ReadEntriesRequest(topic="ORDERS", end=pb.Position(entry_id=-2)),
        "end.entry_id",
    ),
]


@pytest.mark.parametrize(
    ("method", "request_", "field"), BAD_REQUESTS, ids=[f"{b[0]}-{b[2]}" for b in BAD_REQUESTS]
)
def test_a_bad_field_is_named(call, topics, method, request_, field):
    """INVALID_ARGUMENT begins its text with the field's name, for people and in the details."""
    if request_.topic == "ORDERS":
        request_ = type(request_).FromString(request_.SerializeToString())
        request_.topic = topics.ORDERS
    error = call(method, request_)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(field + ": ")
    raised = rpc.decode(error.code(), error.details(), error.trailing_metadata())
    assert isinstance(raised, InvalidFieldError)
    assert raised.field == field


@pytest.mark.parametrize("method", ["SeekByTime", "ReadEntries"])
@pytest.mark.parametrize("garbage", [b"\xff", b"\x0a\x05ab", b"\x0a\x01\xff"])
def test_bytes_that_are_no_request_are_the_callers_fault(serve, topics, caplog, method, garbage):
    """Garbage (the last: a name that is not UTF-8) is refused without an alarm in the log."""
    with grpc.insecure_channel(serve(topics).target) as channel:
        kind = channel.unary_stream if method == "ReadEntries" else channel.unary_unary
        with pytest.raises(grpc.RpcError) as refused:
            list(kind(rpc.path(method))(garbage))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith("request: ")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_topic_that_is_not_there_is_not_found(seek):
    """NOT_FOUND for every call, with the topic's name."""
    absent = "persistent://public/default/nobody"
    for ask in (
        lambda: seek.by_time(absent, 1),
        lambda: seek.by_index(absent, 1),
        lambda: seek.range(absent, 1, 2),
        lambda: list(seek.read_entries(absent)),
    ):
        with pytest.raises(TopicNotFoundError) as caught:
            ask()
        assert caught.value.topic == absent


def test_the_longest_topic_name_can_be_reported(seek):
    """Name, text and details together stay below gRPC's limit for headers."""
    absent = "persistent://public/default/" + "ü" * 498
    with pytest.raises(TopicNotFoundError) as caught:
        seek.by_time(absent, 1)
    assert caught.value.topic == absent


def test_an_index_outside_the_topic_is_out_of_range(seek, topics, orders):
    """OUT_OF_RANGE tells which indexes there are, beyond the end and before what was trimmed."""
    with pytest.raises(IndexOutOfRangeError) as caught:
        seek.by_index(topics.ORDERS, 30)
    assert (caught.value.index, caught.value.first_index, caught.value.next_index) == (30, 0, 30)
    orders.roll()
    topics.fill([b"last"])
    orders.trim(orders.last_position)
    with pytest.raises(IndexOutOfRangeError) as caught:
        seek.by_index(topics.ORDERS, 29)
    assert (caught.value.index, caught.value.first_index, caught.value.next_index) == (29, 30, 31)


def test_a_damaged_entry_is_data_loss_with_its_place(seek, topics, orders):
    """Entries before the damage arrive; the error says where it is and where to go on."""
    [segment] = orders.segments()
    data = bytearray(segment.path.read_bytes())
    data[data.index(bytes([4]) * 20) + 3] ^= 0x80
    segment.path.write_bytes(data)
    seen: list[Any] = []
    with pytest.raises(CorruptEntryError) as caught:
        seen.extend(e.position.entry_id for e in seek.read_entries(topics.ORDERS))
    assert seen == [0, 1, 2, 3]
    damage = caught.value
    assert (damage.topic, damage.position.entry_id, damage.next_position.entry_id) == (
        (topics.ORDERS, 4, 5)
    )
    rest = seek.read_entries(topics.ORDERS, start=damage.next_position)
    assert [entry.position.entry_id for entry in rest] == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreClosedError("orders"), "UNAVAILABLE"),
        (KeyError("a secret"), "INTERNAL"),
    ],
)
def test_trouble_at_the_source_has_a_code(serve, topics, caplog, error, code):
    """A closing store asks to try again; an unexpected error is logged, not sent."""

    class Broken(TopicSource):
        def log(self, topic):
            raise error

    with SeekClient(serve(Broken()).target) as seek:
        with pytest.raises(SeekCallError) as caught:
            seek.by_time(topics.ORDERS, 1)
        assert caught.value.code == code
        assert "secret" not in caught.value.details
    logged = [record for record in caplog.records if record.name == "pulsemark.finder.service"]
    assert len(logged) == (1 if code == "INTERNAL" else 0)


def test_what_a_topic_cannot_do_is_a_failed_precondition(serve, topics):
    """A source can say that a topic keeps no entries (a non-persistent one, say)."""

    class Memory(TopicSource):
        def log(self, topic):
            raise NotPossibleError(f"{topic} keeps no entries")

    with SeekClient(serve(Memory()).target) as seek, pytest.raises(NotPossibleError, match="keeps"):
        seek.by_time("non-persistent://public/default/orders", 1)


# Topic names


def test_short_names_work_with_a_normaliser(serve, topics, orders, monkeypatch):
    """With a normaliser short names work, and what it refuses is a bad field."""

    def normalise(name):
        if ".." in name:
            raise ValueError(f"{name!r} is no topic name")
        return name if "://" in name else f"persistent://public/default/{name}"

    monkeypatch.setattr(topics, "full_name", normalise)
    with SeekClient(serve(topics).target) as seek:
        assert seek.by_index("orders", 0) == seek.by_index(topics.ORDERS, 0)
        with pytest.raises(InvalidFieldError, match=r"^topic: '\.\.' is no topic name"):
            seek.by_time("..", 1)


@pytest.mark.parametrize(
    "name", ["orders", "public/default/orders", "http://a/b/c", "persistent://a/b", "://a/b/c"]
)
def test_without_a_normaliser_only_full_names_are_taken(name):
    """A short name is refused rather than guessed at."""
    with pytest.raises(ValueError, match="not a full name"):
        full_name(name)
    assert full_name("non-persistent://a/b/c") == "non-persistent://a/b/c"


# Cursors


class Cursors(TopicSource):
    """Moves cursors as a broker does; remembers what it was asked."""

    def __init__(self, topics, error=None):
        self.topics = topics
        self.asked = []
        self.error = error

    def log(self, topic):
        """The test's topics."""
        return self.topics.log(topic)

    async def reset_cursor(self, topic, subscription, position):
        """Note it, or refuse."""
        self.asked.append((topic, subscription, position))
        if self.error is not None:
            raise self.error


def test_a_cursor_is_put_where_the_search_says(serve, topics, orders):
    """Times, indexes and positions are resolved to an existing entry, or the end."""
    cursors = Cursors(topics)
    ledger = orders.ledger_id
    [segment] = orders.segments()
    data = bytearray(segment.path.read_bytes())
    data[data.index(bytes([4]) * 20)] ^= 1  # damage is no reason not to stand there
    segment.path.write_bytes(data)
    with SeekClient(serve(cursors).target) as seek:

        def reset(**target):
            place = seek.reset_cursor(topics.ORDERS, "audit", **target)
            assert cursors.asked[-1] == (topics.ORDERS, "audit", place.position)
            return place.position.ledger_id, place.position.entry_id, place.batch_index, place.end

        assert reset(time_ms=topics.FIRST_MS + 25) == (ledger, 3, 0, False)
        assert reset(time_ms=2**62) == (ledger, 10, 0, True)
        assert reset(index=7) == (ledger, 2, 1, False)
        assert reset(position=Position(ledger, 4)) == (ledger, 4, 0, False)
        assert reset(position=EARLIEST) == (ledger, 0, 0, False)
        assert reset(position=LATEST) == (ledger, 10, 0, True)
        assert reset(position=Position(ledger, 99)) == (ledger, 10, 0, True)
        assert reset(position=Position(0, 5)) == (ledger, 0, 0, False)


@pytest.mark.parametrize(
    "error",
    [
        SubscriptionNotFoundError("persistent://public/default/orders", "audit"),
        CursorBusyError("persistent://public/default/orders", "audit"),
        NotPossibleError("a reader's place lives in memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_brokers_refusals_reach_the_client(serve, topics, orders, error):
    """What the source raises is what the client raises."""
    server = serve(Cursors(topics, error))
    with SeekClient(server.target) as seek, pytest.raises(type(error)) as caught:
        seek.reset_cursor(topics.ORDERS, "audit", index=1)
    assert vars(caught.value) == vars(error)


def test_bad_resets_are_refused_before_anything_happens(serve, topics, orders):
    """A reset without subscription or target, or to nowhere, does not reach the broker."""
    cursors = Cursors(topics)
    server = serve(cursors)
    with SeekClient(server.target) as seek:
        for target in ({"time_ms": -1}, {"index": -1}, {"position": Position(-2, 0)}):
            with pytest.raises(InvalidFieldError) as caught:
                seek.reset_cursor(topics.ORDERS, "audit", **target)
            assert caught.value.field.partition(".")[0] in target
        with pytest.raises(InvalidFieldError, match=r"^subscription: "):
            seek.reset_cursor(topics.ORDERS, "", index=1)
        with pytest.raises(IndexOutOfRangeError):
            seek.reset_cursor(topics.ORDERS, "audit", index=30)
        with pytest.raises(TopicNotFoundError):
            seek.reset_cursor("persistent://public/default/nobody", "audit", index=1)
        with pytest.raises(ValueError, match="exactly one"):
            seek.reset_cursor(topics.ORDERS, "audit")
    with grpc.insecure_channel(server.target) as channel:
        reset = channel.unary_unary(rpc.path("ResetCursor"), **rpc.client_codec("ResetCursor"))
        with pytest.raises(grpc.RpcError) as refused:
            reset(pb.ResetCursorRequest(topic=topics.ORDERS, subscription="audit"))
        assert refused.value.details().startswith("target: ")
    assert cursors.asked == []


def test_without_a_broker_there_are_no_cursors(seek, topics):
    """A read-only server says that it cannot, not that something failed."""
    with pytest.raises(NotPossibleError):
        seek.reset_cursor(topics.ORDERS, "audit", index=1)


# Deadlines, cancellation, concurrency


def test_a_deadline_stops_a_long_stream(serve, topics):
    """Past its deadline a call is over for the client, and the server stops reading for it."""
    slow = SlowLog(topics.fill([b"x"] * 2000), 0.02)
    server = serve(Wrapped(topics, lambda _: slow))
    with SeekClient(server.target) as seek:
        assert seek.is_serving()
        with pytest.raises(DeadlineExceededError):
            list(seek.read_entries(topics.ORDERS, timeout_s=0.5))
        settled(lambda: slow.reads)
        assert 1 <= slow.reads < 1000


def test_leaving_a_stream_stops_the_server(serve, topics):
    """A client that breaks off its loop does not leave the server reading on."""
    slow = SlowLog(topics.fill([b"x"] * 2000), 0.02)
    server = serve(Wrapped(topics, lambda _: slow))
    with SeekClient(server.target) as seek:
        entries = seek.read_entries(topics.ORDERS)
        next(entries)
        assert isinstance(entries, Generator)
        entries.close()
        settled(lambda: slow.reads)
        assert slow.reads < 1000


def test_a_deadline_stops_a_long_search(serve, topics, orders, monkeypatch):
    """An abandoned search gives its thread back at its next step, in the middle of the search."""
    steps = []
    ended = threading.Event()

    def endless(self, time_ms, *, method=SearchMethod.INDEX):
        try:
            while True:
                steps.append(time_ms)
                time.sleep(0.005)
                self._check()
        finally:
            ended.set()

    monkeypatch.setattr(Finder, "by_time", endless)
    server = serve(topics, ServerOptions(search_threads=1))
    with SeekClient(server.target) as seek:
        assert seek.is_serving()
        with pytest.raises(DeadlineExceededError):
            seek.by_time(topics.ORDERS, 1, timeout_s=0.5)
        assert ended.wait(10)
        assert seek.by_index(topics.ORDERS, 0).index == 2


def test_a_slow_search_does_not_hold_up_the_loop(serve, topics, orders):
    """Files are read on threads: while one read is stuck, the server answers others."""
    gate = threading.Event()
    stuck = threading.Event()

    class Stuck(TopicSource):
        def log(self, topic):
            if topic.endswith("stuck"):
                stuck.set()
                assert gate.wait(30)
            return topics.log(topics.ORDERS)

    server = serve(Stuck())
    with SeekClient(server.target) as seek, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(seek.by_time, topics.ORDERS + "-stuck", 1)
        assert stuck.wait(10)
        assert seek.by_time(topics.ORDERS, 1).index == 2
        assert seek.is_serving()
        assert not waiting.done()
        gate.set()
        assert waiting.result(10).index == 2


def test_many_callers_get_their_own_answers(seek, topics):
    """A hundred calls from many threads over one client do not mix."""
    with ThreadPoolExecutor(16) as pool:
        places = list(pool.map(lambda n: seek.by_index(topics.ORDERS, n % 30), range(100)))
    assert [(p.position.entry_id, p.batch_index) for p in places] == [
        (n % 30 // 3, n % 3) for n in range(100)
    ]


def test_too_many_calls_are_refused(serve, topics, orders):
    """Beyond the limit a call is refused at once instead of queueing."""
    gate = threading.Event()
    stuck = threading.Event()

    class Stuck(TopicSource):
        def log(self, topic):
            stuck.set()
            assert gate.wait(30)
            return orders

    server = serve(Stuck(), ServerOptions(max_concurrent_calls=1))
    with SeekClient(server.target) as seek, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(seek.by_time, topics.ORDERS, 1)
        assert stuck.wait(10)
        with pytest.raises(SeekCallError) as caught:
            seek.by_time(topics.ORDERS, 1)
        assert caught.value.code == "RESOURCE_EXHAUSTED"
        gate.set()
        assert waiting.result(10).index == 2


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_runs_on_either_loop(serve, topics, orders, loop_factory):
    """The standard loop and uvloop serve alike."""
    with SeekClient(serve(topics, loop_factory=loop_factory).target) as seek:
        assert seek.by_index(topics.ORDERS, 4).batch_index == 1
        assert len(list(seek.read_entries(topics.ORDERS))) == 10


def test_a_target_without_a_server_is_reported_as_such():
    """A server that is not there is ServerUnavailableError, at once."""
    with SeekClient("127.0.0.1:1") as seek, pytest.raises(ServerUnavailableError):
        seek.by_time("persistent://public/default/orders", 1)


def settled(count):
    """Wait until a counter has stood still for a while."""
    seen, since = count(), time.monotonic()
    while time.monotonic() - since < 0.3:
        time.sleep(0.01)
        if count() != seen:
            seen, since = count(), time.monotonic()
