"""Faults of Kafka's requests, as kafka-python's clients and the codec see them."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import aiokafka.errors
import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from pulsemark.kafka.protocol import APIS, Request, encode
from pulsemark.pipeline.session import BRIEF_JVM
from pulsemark.testing import running_broker
from pulsemark.testing.kafka_faults import FAILING_APIS, refusal


@pytest.fixture
def broker():
    """A broker with Kafka's port."""
    with running_broker(storage="memory", kafka_port=0) as running:
        yield running


@pytest.fixture
def producer(broker):
    """kafka-python's producer; it is idempotent, as by default."""
    producer = KafkaProducer(
        bootstrap_servers=broker.kafka_url, client_id="shop", delivery_timeout_ms=10_000,
        request_timeout_ms=5_000, linger_ms=0,
    )  # fmt: skip
    yield producer
    producer.close(timeout=1)


def values(broker):
    """The payloads of the topic."""
    return [each.value for each in broker.messages("orders")]


def filled(kind, version):
    """A request with one item in each of its lists."""
    values: dict[str, object] = {}
    for name, field in kind.fields.items():
        if field.is_struct_array() and field.for_version_q(version):
            values[name] = [filled(field.data_class, version)]
        elif name in ("name", "topic") and field.for_version_q(version):
            values[name] = "orders"
        elif name in ("index", "partition_index", "partition") and field.for_version_q(version):
            values[name] = 3
        elif name == "partition_indexes" and field.for_version_q(version):
            values[name] = [3]
    return kind(version=version, **values)


def codes_of(answer):
    """All error codes of an answer, with the partitions beside them."""
    for name, value in answer.items():
        if name == "error_code":
            partition = answer.get("index", answer.get("partition_index", answer.get("partition")))
            yield value, partition
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, dict):
                    yield from codes_of(each)


@pytest.mark.parametrize("name", sorted(FAILING_APIS))
def test_an_answer_has_the_error(name):
    """In each version the answer of each of these requests has the error once, where it was asked
    about, or else at the top.
    """
    api = APIS[FAILING_APIS[name]]
    for version in range(api.lowest, api.highest + 1):
        request = Request(api, version, 1, "c", filled(api.request, version), 10)
        frame = bytes(encode(request, refusal(request, 6)))
        decoded = api.response.decode(frame[4:], version=version, header=True)
        found = [each for each in codes_of(decoded.to_dict()) if each[0] == 6]
        assert found, version
        assert all(partition in (3, None) for _, partition in found), version


def test_a_failing_produce_is_sent_again(broker, producer):
    """An error that the client may repeat costs nothing: the message is stored once."""
    with broker.faults.failing_kafka("Produce", "orders", error="NOT_LEADER_OR_FOLLOWER", times=2):
        assert producer.send("orders", b"paid").get(10).offset == 0
    assert values(broker) == [b"paid"]


def test_a_final_error_reaches_the_application(broker, producer):
    """An error that must not be repeated is raised; other topics and clients are not touched."""
    with broker.faults.failing_kafka("Produce", "orders", error="MESSAGE_TOO_LARGE", client="shop"):
        producer.send("others", b"stored").get(10)
        with pytest.raises(MessageSizeTooLargeError):
            producer.send("orders", b"refused").get(10)
        with KafkaProducer(bootstrap_servers=broker.kafka_url, client_id="bank") as other:
            other.send("orders", b"stored").get(10)
    assert values(broker) == [b"stored"]


def test_a_lost_answer_is_stored_once_by_an_idempotent_producer(broker, producer):
    """The set is stored, the connection breaks, the client sends it again, and it counts once."""
    producer.send("orders", b"first").get(10)
    with broker.faults.losing_kafka_answers("Produce", "orders", times=1):
        producer.send("orders", b"second").get(10)
    assert values(broker) == [b"first", b"second"]


def test_a_fault_begins_with_its_call(broker):
    """With `on_call` the requests before it are answered; the count is kept."""
    with running_broker(storage="memory", kafka_port=0) as broker:
        consumer = KafkaConsumer(bootstrap_servers=broker.kafka_url, request_timeout_ms=5_000)
        broker.admin.create_topic("orders", partitions=1)
        partition = TopicPartition("orders", 0)
        with broker.faults.failing_kafka(
            "ListOffsets", "orders", error="NOT_LEADER_OR_FOLLOWER", on_call=2, times=1
        ):
            assert [consumer.end_offsets([partition])[partition] for _ in range(3)] == [0, 0, 0]
        consumer.close()


def test_a_delayed_produce(broker, producer):
    """What Kafka's producers send is delayed as SENDs are, and stored when the delay is over."""
    with broker.faults.delaying_sends():
        sent = producer.send("orders", b"late")
        with pytest.raises(KafkaTimeoutError):
            sent.get(0.3)
        assert values(broker) == []
    assert sent.get(10).offset == 0


def test_unknown_names_are_refused(broker):
    """The error names the option, its value and what there is."""
    for arguments, error in (
        ({"api": "Produc", "error": "CORRUPT_MESSAGE"}, "api='Produc': must be one of Produce"),
        ({"api": "Fetch", "error": "NONE"}, "error='NONE': must be one of"),
    ):
        with pytest.raises(ValueError, match=error), broker.faults.failing_kafka(**arguments):
            pass


# What Kafka's clients make of each fault: the table of docs/testing.md is what is expected.

BRIEF = BRIEF_JVM.split()
SEND_JAVA = """
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

class Send {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "linger.ms", 0,
                "delivery.timeout.ms", 2000, "request.timeout.ms", 1000, "max.block.ms", 30000);
        var text = new StringSerializer();
        var producer = new KafkaProducer<String, String>(settings, text, text);
        producer.send(new ProducerRecord<>("orders", "first")).get();
        System.out.println("ready");
        System.in.read();
        try {
            producer.send(new ProducerRecord<>("orders", "paid")).get();
            System.out.println("nothing");
        } catch (java.util.concurrent.ExecutionException error) {
            System.out.println("`" + error.getCause().getClass().getSimpleName() + "`");
        }
        Runtime.getRuntime().halt(0);
    }
}
"""


@contextmanager
def sending_with_kafka_python(url, _):
    """A function that sends, and returns the error as the table names it."""
    producer = KafkaProducer(
        bootstrap_servers=url, linger_ms=0, delivery_timeout_ms=2000, request_timeout_ms=1000
    )
    producer.send("orders", b"first").get(10)

    def send():
        try:
            producer.send("orders", b"paid").get(10)
        except KafkaError as error:
            return f"`{type(error).__name__}`"
        return "nothing"

    yield send
    producer.close(timeout=0)


@contextmanager
def sending_with_aiokafka(url, _):
    """The same."""
    with asyncio.Runner() as runner:

        async def start():
            producer = AIOKafkaProducer(bootstrap_servers=url, request_timeout_ms=1000)
            await producer.start()
            await producer.send_and_wait("orders", b"first")
            return producer

        async def send(producer):
            try:
                await producer.send_and_wait("orders", b"paid")
            except aiokafka.errors.KafkaError as error:
                return f"`{type(error).__name__}`"
            return "nothing"

        started = runner.run(start())
        yield lambda: runner.run(send(started))
        runner.run(started.stop())


@contextmanager
def sending_with_librdkafka(url, _):
    """The same."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": url, "linger.ms": 0, "message.timeout.ms": 2000,
         "socket.timeout.ms": 1000, "log_level": 0}
    )  # fmt: skip
    errors = []

    def send(value=b"paid"):
        producer.produce("orders", value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(20) == 0
        return f"`{errors[-1].name()}`" if errors[-1] else "nothing"

    assert send(b"first") == "nothing"
    yield send


@contextmanager
def sending_with_java(url, tmp_path):
    """The same."""
    jars = [
        max(map(str, (Path.home() / ".m2/repository" / name).rglob("*[0-9].jar")), default="")
        for name in ("org/apache/kafka/kafka-clients", "org/slf4j/slf4j-api")
    ]
    if not all([*jars, shutil.which("javac")]):
        pytest.skip("Maven has no kafka-clients in its cache, or there is no JDK")
    classes = tmp_path.parent / "send"  # compiled once for all tests
    if not (classes / "Send.class").exists():
        classes.mkdir(exist_ok=True)
        (classes / "Send.java").write_text(SEND_JAVA)
        quickly = [f"-J{option}" for option in BRIEF]
        javac = ["javac", *quickly, "-cp", ":".join(jars), "-d", classes]
        subprocess.run([*javac, classes / "Send.java"], check=True)
    with subprocess.Popen(
        ["java", *BRIEF, "-cp", ":".join([*jars, str(classes)]), "Send", url],
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def send():
            return process.communicate("\n")[0].strip()

        yield send


SENDERS = {
    "kafka-python": sending_with_kafka_python,
    "aiokafka": sending_with_aiokafka,
    "librdkafka": sending_with_librdkafka,
    "Java": sending_with_java,
}
STORED = {"not stored": 0, "stored": 1, "stored later": 0, "stored twice": 2}


def table_of_faults():
    """The table's cells: how the fault is made, the client, and what is said of it."""
    page = Path(__file__).parents[2] / "docs" / "testing.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| fault | kafka-python "))
    head, _, *rows = lines[start : lines.index("", start)]
    for row in rows:
        fault, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        for call in re.findall(r"`([^`]*)`", fault):
            for title, cell in zip(head.strip("|").split("|")[1:], cells, strict=True):
                name = next(name for name in SENDERS if name in title)
                yield pytest.param(call, name, cell, id=f"{call}-{name}")


@pytest.mark.parametrize(("call", "name", "said"), list(table_of_faults()))
def test_what_a_client_makes_of_a_fault(broker, tmp_path, call, name, said):
    """What its producer says, and how often its message is then stored, is what the guide says."""
    fault = eval(f"faults.{call}", {"faults": broker.faults})  # from our own page
    errors, _, stored = said.partition(", ")
    with SENDERS[name](broker.kafka_url, tmp_path) as send:
        with fault:
            assert send() in errors.split(" or ")
            assert values(broker).count(b"paid") == STORED[stored]
        if stored == "stored later":
            broker.wait_for_messages("orders", 2)
