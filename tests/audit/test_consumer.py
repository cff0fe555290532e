"""The consumer's side: what it counts, and that posting loses nothing and doubles nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from pulsemark.audit import AuditInputError, AuditPostError, ConsumerAudit
from pulsemark.audit.report import Labels
from pulsemark.audit.rows import MAX_TIME_MS, row_from_json
from pulsemark.finder.message_stamps import MessageNotStoredError, MessageStamp
from pulsemark.ledger import Position
from pulsemark.testing import SettableClock

NAME = "persistent://public/default/orders"
NOW_MS = 1_700_000_000_000
NO_BROKER = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Id:
    """A message id as Pulsar's client has it."""

    entry: int
    batch: int = -1

    def ledger_id(self) -> int:
        """Always the same ledger."""
        return 3

    def entry_id(self) -> int:
        """The entry."""
        return self.entry

    def batch_index(self) -> int:
        """Place in the batch."""
        return self.batch


@dataclass(frozen=True)
class Received:
    """A message as Pulsar's client has it."""

    id: Id
    publish_ms: int = NOW_MS
    own: Mapping[str, str] = field(default_factory=dict)
    topic: str = NAME

    def message_id(self) -> Id:
        """Its id."""
        return self.id

    def topic_name(self) -> str:
        """Its topic."""
        return self.topic

    def data(self) -> bytes:
        """Ten bytes."""
        return bytes(10)

    def publish_timestamp(self) -> int:
        """By the producer's clock."""
        return self.publish_ms

    def properties(self) -> Mapping[str, str]:
        """Its properties."""
        return self.own

    def producer_name(self) -> str:
        """Always the same producer."""
        return "till"


class Stamps:
    """Stamps of entries: index and broker time by number, none from entry 100 on."""

    def of(self, message: Received) -> MessageStamp:
        """The stamp."""
        number = message.id.entry
        if number >= 100:
            raise MessageNotStoredError(NAME, Position(3, number))
        time_ms = NOW_MS - number * 60_000
        return MessageStamp(number, time_ms if number % 2 == 0 else None, time_ms, {"service": "s"})


def made(**options: Any) -> ConsumerAudit:
    """An audit that stands at NOW_MS."""
    return ConsumerAudit(NO_BROKER, clock=SettableClock(NOW_MS), **options)


def test_without_stamps_the_publish_time_decides() -> None:
    """Tags are the producer's name and the message's properties; there are no indexes."""
    audit = made(tags="producer,service", labels=Labels(application="app"), bucket="1 second")
    for number in range(3):
        audit.received(Received(Id(0, number), NOW_MS + 999, {"service": "shop"}))
    audit.received(Received(Id(1), NOW_MS + 1_000))
    first, second = audit.rows(NAME)
    assert first.tags == {"producer_name": "till", "service": "shop"}
    assert (first.bucket_start_ms, first.count, first.bytes) == (NOW_MS, 3, 30)
    assert (first.min_index, first.application, first.tier) == (None, "app", "consumer")
    assert second.tags == {"producer_name": "till", "service": None}


def test_with_stamps_the_brokers_time_decides() -> None:
    """By the stamp's or the append time; late and out of order by them; removed entries by publish
    time, which is counted.
    """
    audit = made(stamps=Stamps(), tags="service", late_after_ms=60_000)
    for number in (2, 1, 0, 3):
        audit.received(Received(Id(number), publish_ms=7))
    rows = audit.rows(NAME)
    minutes = [(NOW_MS - row.bucket_start_ms) // 60_000 for row in rows]
    assert minutes == [3, 2, 1, 0]
    assert [(r.count, r.late, r.out_of_order, r.min_index) for r in rows] == [
        (1, 1, 1, 3),
        (1, 1, 0, 2),
        (1, 0, 0, 1),
        (1, 0, 0, 0),
    ]
    audit.received(Received(Id(100), publish_ms=NOW_MS))
    assert audit.by_publish_time == 1


def test_what_is_received_again_is_doubled() -> None:
    """Within the ids that are remembered; a message of the same batch is another one."""
    audit = made(remembered_ids=3)
    for entry, batch in ((1, 0), (1, 1), (1, 0), (2, -1), (2, -1), (3, -1), (1, 0)):
        audit.received(Received(Id(entry, batch)))
    (row,) = audit.rows(NAME)
    assert (row.count, row.doubled) == (7, 2)


def test_a_failed_post_keeps_its_rows() -> None:
    """The error names the address; the next post has the same rows."""
    audit = made()
    assert audit.post() == 0
    audit.received(Received(Id(1)))
    for _ in range(2):
        with pytest.raises(AuditPostError, match=r"127\.0\.0\.1:9"):
            audit.post()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tier": "broker"}, "tier"),
        ({"tier": "all"}, "tier"),
        ({"tier": ""}, "tier"),
        ({"source": "a\n"}, "source"),
        ({"tags": "a,,b"}, "tag"),
        ({"bucket": "often"}, "bucket"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], field: str) -> None:
    """The error names the argument."""
    with pytest.raises(AuditInputError) as raised:
        made(**options)
    assert raised.value.field == field


def test_a_bad_address_is_refused() -> None:
    """Only http and https."""
    with pytest.raises(AuditInputError, match="admin_url"):
        ConsumerAudit("pulsar://127.0.0.1:6650")


class Posts(BaseHTTPRequestHandler):
    """Keeps rows as a broker does: those of a source replace its earlier ones."""

    absent = ""
    kept: ClassVar[dict[tuple[str, int], int]]
    first: threading.Event
    second: threading.Event

    def do_POST(self) -> None:
        """Take the rows. The first post is answered after another one came, or a moment later."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.absent and self.absent in self.path:
            self.send_error(404)
            return
        if self.first.is_set():
            self.second.set()
        else:
            self.first.set()
            self.second.wait(1)
        for row in body["rows"]:
            self.kept[self.path, row["bucket_start_ms"]] = row["count"]
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def posts() -> Iterator[tuple[str, type[Posts]]]:
    """A server that keeps what is posted, and its address."""

    class Kept(Posts):
        kept: ClassVar[dict[tuple[str, int], int]] = {}
        first, second = threading.Event(), threading.Event()

    with ThreadingHTTPServer(("127.0.0.1", 0), Kept) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", Kept
        server.shutdown()
        thread.join(30)


def test_posts_of_two_threads_lose_nothing(posts: tuple[str, type[Posts]]) -> None:
    """Two threads that post at once: the broker ends with the last counts, not with older ones."""
    url, server = posts
    audit = ConsumerAudit(url, clock=SettableClock(NOW_MS))
    audit.received(Received(Id(1)))
    slow = threading.Thread(target=audit.post)
    slow.start()
    assert server.first.wait(30)
    audit.received(Received(Id(2)))
    audit.post()
    slow.join(30)
    assert list(server.kept.values()) == [2]


def test_a_topic_that_is_gone_keeps_no_other_from_posting(
    posts: tuple[str, type[Posts]],
) -> None:
    """The other topics' rows are posted; then the error is raised."""
    url, server = posts
    server.absent = "gone"
    server.second.set()
    audit = ConsumerAudit(url, clock=SettableClock(NOW_MS))
    audit.received(Received(Id(1), topic="persistent://public/default/gone"))
    audit.received(Received(Id(2)))
    with pytest.raises(AuditPostError, match="404"):
        audit.post()
    assert list(server.kept.values()) == [1]


class Elsewhere(BaseHTTPRequestHandler):
    """Redirects each call, as a cluster's broker does that does not serve the topic."""

    owner: ClassVar[str]

    def do_POST(self) -> None:
        """Not here."""
        self.send_response(307)
        self.send_header("Location", f"{self.owner}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_a_topic_of_another_broker(posts: tuple[str, type[Posts]]) -> None:
    """Its rows are posted to the broker that serves it."""
    url, server = posts
    server.second.set()
    here = type("Here", (Elsewhere,), {"owner": url})
    with ThreadingHTTPServer(("127.0.0.1", 0), here) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        audit = ConsumerAudit(f"http://127.0.0.1:{other.server_port}", clock=SettableClock(NOW_MS))
        audit.received(Received(Id(1)))
        assert audit.post() == 1
    assert list(server.kept.values()) == [1]


def test_an_interrupted_post_keeps_its_rows(
    posts: tuple[str, type[Posts]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that raises in a post: the next one has the rows."""
    url, server = posts
    server.second.set()
    audit = ConsumerAudit(url, clock=SettableClock(NOW_MS))
    audit.received(Received(Id(1)))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("http.client.HTTPConnection.connect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            audit.post()
    assert audit.post() == 1
    assert list(server.kept.values()) == [1]


@pytest.mark.parametrize("publish_ms", [2**63, MAX_TIME_MS, -5])
def test_an_impossible_publish_time_is_no_time(publish_ms: int) -> None:
    """A message whose producer states a time that no bucket has is counted when it is received."""
    audit = made()
    audit.received(Received(Id(1), publish_ms))
    (row,) = audit.rows(NAME)
    assert row.bucket_start_ms == NOW_MS - NOW_MS % 60_000
    assert row_from_json(row.to_json()) == row


def test_a_value_that_no_row_can_have_is_in_the_rest() -> None:
    """Too long, or not Unicode: the broker would refuse every later post."""
    audit = made(tags="a")
    for value in ("x" * 257, "\ud800"):
        audit.received(Received(Id(1), own={"a": value}))
    (row,) = audit.rows(NAME)
    assert (row.is_rest, row.count) == (True, 2)
    assert row_from_json(row.to_json()) == row
