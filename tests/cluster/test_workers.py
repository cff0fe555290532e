"""`pulsemark standalone --workers N`, as a user runs it."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import kafka_exactly_once
import psutil
import pulsar
import pytest
from confluent_kafka import Consumer, Producer
from kafka.admin import KafkaAdminClient, NewTopic

from pulsemark import cli
from pulsemark.finder import SeekClient, ServerUnavailableError

TOPICS = [f"persistent://public/default/t-{number}" for number in range(8)]
LIMIT_S = 60


class Workers:
    """Runs the command, and ends it."""

    def __init__(self, folder):
        self.folder = folder
        self.log = folder.with_suffix(".log")

    def command(self, *options):
        """The command's words."""
        words = [sys.executable, "-m", "pulsemark", "standalone", "--json", "--port", "0"]
        return [*words, "--http-port", "0", "--data-dir", str(self.folder), *options]

    def __call__(self, *options):
        """Start it; what it says of itself."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(*options), stdout=subprocess.PIPE, stderr=log
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return json.loads(line)

    def refused(self, *options):
        """Start it, which fails; what it says."""
        done = subprocess.run(
            self.command(*options), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 2, done.stderr
        return done.stderr

    def end(self):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LIMIT_S)
        self.close()
        return code

    def close(self):
        """Close what it printed."""
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def workers(tmp_path):
    """Starts workers on a folder of their own, and ends them."""
    made = Workers(tmp_path / "data")
    yield made
    process = getattr(made, "process", None)
    if process is not None and process.poll() is None:
        made.end()


def page(facts):
    """The metrics of a worker."""
    with urllib.request.urlopen(f"{facts['http_url']}/metrics", timeout=LIMIT_S) as answer:
        return answer.read().decode()


class At:
    """Where REST calls go."""

    def __init__(self, facts):
        self.http_url = facts["http_url"]


def test_workers_divide_the_topics(workers, rest, eventually):
    """Topics are divided among the workers and found through each of them; a worker that is killed
    comes back with its topics, and so do all after an orderly end.
    """
    ready = workers("--workers", "2")
    first, second = ready["workers"]
    client = pulsar.Client(ready["service_url"], operation_timeout_seconds=30)
    producers = {topic: client.create_producer(topic) for topic in TOPICS}
    for topic, producer in producers.items():
        producer.send(topic.encode())
    owners = {topic: owner(rest, first, topic) for topic in TOPICS}
    assert set(owners.values()) == {first["service_url"], second["service_url"]}
    assert owners == {topic: owner(rest, second, topic) for topic in TOPICS}
    assert rest(At(first), "GET", "/admin/v2/persistent/public/default")[1] == sorted(TOPICS)
    assert len(rest(At(second), "GET", "/admin/v2/brokers")[1]) == 2
    os.kill(second["pid"], signal.SIGKILL)
    eventually(lambda: len(rest(At(first), "GET", "/admin/v2/brokers")[1]) == 1, "one worker")
    eventually(lambda: len(rest(At(first), "GET", "/admin/v2/brokers")[1]) == 2, "two workers")
    for topic, producer in producers.items():
        producer.send(topic.encode() + b" again")
    client.close()
    assert workers.end() == 0
    assert not psutil.pid_exists(first["pid"])
    again = workers("--workers", "2")
    client = pulsar.Client(again["service_url"], operation_timeout_seconds=30)
    for topic in TOPICS:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [reader.read_next(20_000).data() for _ in range(2)] == [
            topic.encode(),
            topic.encode() + b" again",
        ]
    client.close()


def owner(rest, worker, topic):
    """The worker of a topic, as one of them says."""
    status, body = rest(At(worker), "GET", f"/lookup/v2/topic/{topic.replace('://', '/')}")
    assert status == 200, body
    return body["brokerUrl"]


def test_a_port_in_use_is_named_in_one_line(workers):
    """By the worker that wants it, as by a broker alone."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = workers.refused("--workers", "2", "--kafka-port", str(port))
    assert f"127.0.0.1:{port} is in use by another process" in said
    assert "Traceback" not in said


def test_what_does_not_go_with_workers(workers, tmp_path):
    """Another number of workers, a folder of a broker alone, a broker alone on the workers' folder,
    and settings of which a worker has only a part are refused, and say why.
    """
    workers("--workers", "2")
    assert "in use by other workers" in workers.refused("--workers", "2")
    assert workers.end() == 0
    assert "start it with --workers 2" in workers.refused("--workers", "3")
    assert "several workers" in workers.refused()
    assert "a broker in memory has no data folder" in workers.refused(
        "--workers", "2", "--storage", "memory"
    )
    assert "1 to 4 workers" in workers.refused("--workers", "9")
    alone = Workers(tmp_path / "alone")
    alone()
    assert alone.end() == 0
    assert "a folder of their own" in alone.refused("--workers", "2")


def test_kafka_clients_of_workers(workers, eventually):
    """A Kafka client of any worker finds all partitions and its group; it goes on after a worker
    was killed, with the offsets that its group committed.
    """
    ready = workers("--workers", "2", "--kafka-port", "0")
    urls = [one["kafka_url"].rpartition("/")[2] for one in ready["workers"]]
    assert ready["kafka_url"] == ready["workers"][0]["kafka_url"]
    admin = KafkaAdminClient(bootstrap_servers=urls[1])
    admin.create_topics([NewTopic("t", 4, 1)])
    admin.close()
    producer = Producer({"bootstrap.servers": urls[0], "enable.idempotence": True})
    partitions = producer.list_topics("t", LIMIT_S).topics["t"].partitions
    assert {one.leader for one in partitions.values()} == {1, 2}
    failures = []
    for number in range(40):
        producer.produce(
            "t",
            str(number),
            partition=number % 4,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        if number % 20 == 19:
            assert producer.flush(LIMIT_S) == 0
            os.kill(ready["workers"][number // 20]["pid"], signal.SIGKILL)
    assert failures == []
    consumer = Consumer(
        {"bootstrap.servers": urls[1], "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    got = []

    def has_all():
        got.extend(polled(consumer))
        return len(set(got)) == 40

    eventually(has_all, "all messages")
    consumer.close()


def test_each_order_is_settled_once_by_workers(workers):
    """The example of exactly once, on topics of two workers, each of which is killed (SIGKILL)."""
    started = workers("--workers", "2", "--kafka-port", "0")
    servers = ",".join(one["kafka_url"].rpartition("/")[2] for one in started["workers"])
    kafka_exactly_once.publish_orders(servers, 60)
    settling = kafka_exactly_once.start_worker(servers)
    try:
        for number, one in enumerate(started["workers"]):
            kafka_exactly_once.settlements(servers, 20 * (number + 1))
            os.kill(one["pid"], signal.SIGKILL)
        found = kafka_exactly_once.settlements(servers, 60)
    finally:
        settling.kill()
        settling.wait()
    assert sorted(found) == list(range(60))


def polled(consumer):
    """What one poll gives."""
    message = consumer.poll(0.2)
    if message is None or message.error() is not None:
        return []
    return [message.value()]


def test_searches_at_any_worker(workers, eventually):
    """The seek service of each worker answers for all topics, and again after a worker was killed,
    at the same port.
    """
    ready = workers("--workers", "2", "--grpc-port", "0")
    assert ready["grpc_url"] == ready["workers"][0]["grpc_url"]
    client = pulsar.Client(ready["service_url"], operation_timeout_seconds=30)
    for topic in TOPICS:
        client.create_producer(topic).send(topic.encode())
    client.close()

    def all_answer():
        try:
            for one in ready["workers"]:
                with SeekClient(one["grpc_url"]) as seek:
                    for topic in TOPICS:
                        assert seek.by_index(topic, 0).index == 0
                        (entry,) = seek.read_entries(topic)
                        assert (entry.body or b"").endswith(topic.encode())
        except ServerUnavailableError:
            return False
        return True

    assert all_answer()
    for one in ready["workers"]:
        os.kill(one["pid"], signal.SIGKILL)
    eventually(all_answer, "all topics at all workers again")


def test_workers_that_are_stopped_close_their_folders(workers):
    """Nothing is left in their journals, which the next start would have to recover."""
    ready = workers("--workers", "2")
    for topic in "abcdef":
        url = ready["workers"][0]["service_url"]
        assert cli.main(["produce", topic, "--message", "x", "--url", url]) == 0
    assert workers.end() == 0
    assert len(list(workers.folder.glob("worker-*/ledgers/*.log"))) == 6
    assert list(workers.folder.glob("worker-*/journal/*")) == []


def test_workers_end_with_their_supervisor(workers, eventually):
    """If the supervisor is killed, no worker is left."""
    ready = workers("--workers", "2")
    workers.process.kill()
    workers.process.wait(LIMIT_S)
    workers.close()
    for one in ready["workers"]:
        eventually(lambda pid=one["pid"]: not psutil.pid_exists(pid), "the worker has ended")


def test_a_worker_that_hangs(workers, rest, eventually):
    """A stopped worker is noticed: no lookup leads to it, health and metrics of the others say so,
    it is killed and restarted, and its topics are there again. One that goes on is left alone.
    """
    ready = workers("--workers", "2")
    first, second = ready["workers"]
    client = pulsar.Client(ready["service_url"], operation_timeout_seconds=30)
    for topic in TOPICS:
        client.create_producer(topic).send(topic.encode())
    client.close()
    hung = [topic for topic in TOPICS if owner(rest, first, topic) == second["service_url"]]
    path = f"/lookup/v2/topic/{hung[0].replace('://', '/')}"
    health = "/admin/v2/brokers/health"
    os.kill(second["pid"], signal.SIGSTOP)
    eventually(lambda: rest(At(first), "GET", path)[0] == 503, "the lookup is refused")
    os.kill(second["pid"], signal.SIGCONT)
    eventually(lambda: rest(At(first), "GET", path)[0] == 200, "the worker is heard again")
    assert rest(At(first), "GET", health)[0] == 200
    assert psutil.pid_exists(second["pid"])
    os.kill(second["pid"], signal.SIGSTOP)
    eventually(lambda: rest(At(first), "GET", path)[0] == 503, "the lookup is refused")
    status, answer = rest(At(first), "GET", health)
    assert (status, "worker 1 of 2 has said nothing for 2 s" in str(answer)) == (503, True), answer
    assert 'pulsemark_workers_away{cluster="standalone"} 1' in page(first)
    eventually(lambda: not psutil.pid_exists(second["pid"]), "the worker is killed")
    eventually(lambda: rest(At(first), "GET", path)[0] == 200, "the worker runs again")
    eventually(lambda: rest(At(first), "GET", health)[0] == 200, "all workers are well")
    client = pulsar.Client(ready["service_url"], operation_timeout_seconds=30)
    for topic in TOPICS:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert reader.read_next(20_000).data() == topic.encode()
    client.close()
    assert "has said nothing for 5 s, and is killed" in workers.log.read_text()
