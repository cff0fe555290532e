"""The test controls over HTTP: clock, faults, assertions and forgetting, in another process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pulsar
import pytest

from pulsemark.client import AdminError, ConnectionLostError, SendRefusedError, UnreachableError
from pulsemark.testing import BrokerProcess, BrokerProcessError, RawClient
from pulsemark.testing.faults import TEST_PATH

TOPIC = "persistent://public/default/orders"


@pytest.fixture(scope="module")
def shared():
    """A process that most tests of this file share: each resets it."""
    with BrokerProcess(kafka=True, test_controls=True) as broker:
        yield broker


@pytest.fixture
def broker(shared):
    """The process, as new."""
    shared.admin.request("POST", f"{TEST_PATH}/reset")
    return shared


@pytest.fixture
def raw(broker):
    """A client that sees each answer."""
    with RawClient.from_url(broker.service_url, timeout_s=10) as raw:
        yield raw


def call(broker, method, path, value=None, **query):
    """The answer of a control."""
    return broker.admin.request(method, f"{TEST_PATH}{path}", value, **query)


def ended_with(pid):
    """The signal that ended a child process; its status can still be asked for."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    return ended.si_status


def published(broker, topic="orders"):
    """The payloads of a topic, over HTTP."""
    return [each["value"] for each in call(broker, "GET", "/messages", topic=topic)]


def test_an_hour_moved_delivers_what_is_then_due(broker):
    """The answer to a move of the clock comes when delayed messages can be received."""
    client = pulsar.Client(
        broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
    client.create_producer(TOPIC).send(b"pay!", deliver_after=timedelta(hours=1))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    moved = call(broker, "POST", "/clock/advance", {"minutes": 50, "seconds": 600, "by_ms": 1})
    assert moved["now_ms"] - time.time() * 1000 > 3_590_000
    assert consumer.receive(5_000).data() == b"pay!"
    client.close()


def test_the_clock_is_set_and_read(broker):
    """It takes milliseconds and ISO 8601, goes on by itself, and stamps what is published."""
    wanted = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    broker.clock.set(wanted)
    assert timedelta(0) <= broker.clock.now() - wanted < timedelta(minutes=1)
    later = call(broker, "PUT", "/clock", {"now": "2032-01-01T00:00:00Z"})
    assert later["now"].startswith("2032-01-01T00:00:0")
    assert broker.clock.advance(hours=-1) < later["now_ms"]
    with RawClient.from_url(broker.service_url) as raw:
        raw.create_producer(TOPIC).send(b"stamped")
    (message,) = call(broker, "GET", "/messages", topic="orders")
    assert message["broker_time_ms"] >= datetime(2031, 12, 31, 23, tzinfo=UTC).timestamp() * 1000


def test_a_fault_is_installed_listed_and_removed(broker, raw):
    """Of a fault with `on_call` and `times` exactly those messages fail, and the list counts."""
    producer = raw.create_producer(TOPIC)
    wanted = {"fault": "failing_sends", "topic": "orders", "on_call": 2, "times": 1}
    number = call(broker, "POST", "/faults", wanted)["id"]
    producer.send(b"first")
    with pytest.raises(SendRefusedError):
        producer.send(b"refused")
    producer.send(b"third")
    (listed,) = call(broker, "GET", "/faults")
    assert (listed["id"], listed["calls"], listed["hits"]) == (number, 3, 1)
    call(broker, "DELETE", f"/faults/{number}")
    assert call(broker, "GET", "/faults") == []
    assert published(broker) == ["first", "third"]


def test_the_faults_of_the_kit_work_in_another_process(broker, raw):
    """`BrokerProcess.faults` has the methods of a broker in the test's own process."""
    producer = raw.create_producer(TOPIC)
    with broker.faults.failing_sends("orders"), pytest.raises(SendRefusedError):
        producer.send(b"refused")
    with broker.faults.full_disk(), pytest.raises(SendRefusedError):
        producer.send(b"refused, too")
    assert broker.faults.drop_connections() == 1
    assert published(broker) == []


def test_assertions_say_what_there_is(broker, raw):
    """One that holds is answered with the messages, one that fails with 417 and the topic's."""
    raw.create_producer(TOPIC).send(b"paid")
    (found,) = call(broker, "POST", "/assertions", {"topic": "orders", "value": "paid", "count": 1})
    assert (found["index"], found["value_base64"]) == (0, "cGFpZA==")
    with pytest.raises(AdminError, match=r"(?s)has no message like this.*paid") as error:
        call(broker, "POST", "/assertions", {"topic": "orders", "key": "42", "timeout_ms": 50})
    assert error.value.status == 417


def test_reset_forgets_everything(broker, raw):
    """Topics, subscriptions, faults, groups and the moved clock are gone; clients may go on."""
    raw.create_producer(TOPIC).send(b"old")
    broker.admin.create_topic("parts", partitions=3)
    call(broker, "POST", "/faults", {"fault": "failing_sends"})
    broker.clock.advance(days=9)
    call(broker, "POST", "/reset")
    assert broker.admin.topics() == []
    assert broker.admin.partitioned_topics() == []
    assert abs(broker.clock.now_ms() - time.time() * 1000) < 60_000
    with RawClient.from_url(broker.service_url) as again:
        assert again.create_producer(TOPIC).send(b"new").entry_id == 0


def test_several_resets_at_once(broker):
    """Each is answered as if it were alone."""
    for number in range(20):
        broker.admin.create_topic(f"t{number}")
    broker.admin.create_topic("parts", partitions=3)
    with ThreadPoolExecutor(4) as threads:
        for answer in [threads.submit(call, broker, "POST", "/reset") for _ in range(4)]:
            assert "now_ms" in answer.result()
    assert broker.admin.topics() == []


@pytest.mark.parametrize(
    ("method", "path", "value", "status", "reason"),
    [
        ("POST", "/faults", {"fault": "nonsense"}, 400, "fault='nonsense': must be one of"),
        ("POST", "/faults", {"fault": "failing_sends", "time": 1}, 400, "no option 'time'; it has"),
        ("POST", "/faults", {"fault": "delaying_sends", "delay_ms": 10**400}, 400, "from 0 to"),
        (
            "POST",
            "/faults",
            {"fault": "failing_sends", "times": "2"},
            400,
            "times='2': must be int",
        ),
        ("POST", "/faults", {"fault": "failing_sends", "times": -1}, 400, "times=-1: must be at"),
        ("POST", "/faults", {"fault": "failing_sends", "error": "No"}, 400, "error='No': must be"),
        ("POST", "/faults", {"fault": "losing_receipts", "topic": "a//b"}, 400, "a//b"),
        ("POST", "/faults", {"fault": "losing_receipts", "probability": 0}, 400, "probability=0"),
        ("POST", "/faults", [1], 400, "must be an object"),
        ("DELETE", "/faults/77777", None, 404, "no fault '77777'"),
        ("DELETE", "/faults/x", None, 404, "no fault 'x'"),
        ("POST", "/clock/advance", {}, 400, "days, hours"),
        ("POST", "/clock/advance", {"hours": 1e300}, 400, "must be from 0"),
        ("POST", "/clock/advance", {"hour": 1}, 400, "'hour': the body may have"),
        ("PUT", "/clock", {"now": "2031-05-06T07:08:09"}, 400, "time zone"),
        ("PUT", "/clock", {"now": "soon"}, 400, "soon"),
        ("PUT", "/clock", {"now_ms": -5}, 400, "-5"),
        ("PUT", "/clock", {"now_ms": 10**30}, 400, "must be from 0"),
        ("GET", "/messages", None, 400, "must have a topic"),
        ("POST", "/assertions", {"topic": "a", "timeout_ms": 10**9}, 400, "timeout_ms=1000000000"),
        ("POST", "/clock", None, 405, "has GET, PUT"),
        ("GET", "/nonsense", None, 404, "there is no"),
    ],
)
def test_wrong_requests_name_what_is_wrong(broker, method, path, value, status, reason):
    """Each is refused with its option and value, and the broker goes on with a sane clock."""
    with pytest.raises(AdminError) as error:
        call(broker, method, path, value)
    assert (error.value.status, reason in error.value.reason) == (status, True), error.value.reason
    assert abs(broker.clock.now_ms() - time.time() * 1000) < 60_000


@pytest.mark.parametrize(("point", "stored"), [("before_append", []), ("after_append", [b"paid"])])
def test_a_crash_at_a_point(point, stored):
    """The process ends as by kill -9; what is durable then is what the point says."""
    with BrokerProcess(test_controls=True) as broker:
        call(broker, "POST", "/faults", {"fault": "crashing", "point": point})
        with RawClient.from_url(broker.service_url, timeout_s=10) as raw:
            producer = raw.create_producer(TOPIC)
            with pytest.raises(ConnectionLostError):
                producer.send(b"paid")
        assert ended_with(broker.pid) == signal.SIGKILL
        broker.kill()
        assert [each.value for each in broker.messages("orders")] == stored


def test_kill_ends_the_process():
    """POST /kill is kill -9 of the broker's own process."""
    with BrokerProcess(test_controls=True) as broker:
        with pytest.raises(UnreachableError):
            call(broker, "POST", "/kill")
        assert ended_with(broker.pid) == signal.SIGKILL
        broker.kill()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--test-controls", "--host", "0.0.0.0"], "write --test-controls everywhere"),
        (["--test-controls", "--workers", "2"], "is for one broker"),
        (["--test-controls", "--test-controls-token-file", "/nowhere"], "/nowhere"),
        (["--test-controls-token-file", "/nowhere"], "needs --test-controls"),
        (["--test-controls", "nonsense"], "choose from loopback"),
    ],
)
def test_what_is_not_for_them_is_refused(tmp_path, options, reason):
    """`standalone` ends with exit code 1 or 2 and one line that says why."""
    command = [sys.executable, "-m", "pulsemark", "standalone", "--port", "0", "--http-port", "0"]
    command += ["--data-dir", str(tmp_path / "data"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2)
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_guards_them(tmp_path):
    """Without the token no control answers; without the option there are none."""
    (tmp_path / "token").write_text("secret\n")
    option = f"--test-controls-token-file={tmp_path / 'token'}"
    with BrokerProcess(option, test_controls=True) as broker:
        url = f"{broker.http_url}{TEST_PATH}/clock"
        with pytest.raises(HTTPError, match="401"):
            urlopen(url)
        with urlopen(Request(url, headers={"Authorization": "Bearer secret"})) as answer:
            assert json.load(answer)["now_ms"] > 0
    with BrokerProcess() as broker:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{broker.http_url}{TEST_PATH}/clock")
        with pytest.raises(AdminError):
            broker.clock.now_ms()


def test_a_process_that_refuses_its_options_says_so():
    """`BrokerProcess` raises with what the process wrote."""
    with pytest.raises(BrokerProcessError, match="write --test-controls everywhere"):
        BrokerProcess("--host", "0.0.0.0", test_controls=True).start()
