"""Attacks a broker with hostile clients, and measures its memory and the service for others.

    python campaigns/hostile_clients.py [--only NAME ...] [--scale 1.0] [--store zk://...]

Each attack has its own broker process. During the attack, a normal client sends a message every
50 ms and uses the HTTP port. Prints a row for each attack: the growth of the broker's memory, the
longest wait of the normal client for a receipt, and the handler that blocked the event loop for the
longest time. Then prints one line of JSON. Exit code 1 if an attack exceeded its limit.
"""

from __future__ import annotations

import argparse
import atexit
import base64
import contextlib
import json
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jwt
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest
from monitored_broker import MonitoredBroker

from pulsemark.client import RequestRefusedError
from pulsemark.kafka.records.batch import BatchFields, build
from pulsemark.kafka.records.layout import Record, Work
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient
from pulsemark.testing.raw_kafka import RawKafka, fetch_fields, produce_fields
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import commands

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.support.kafka_worst_cases import worst_cases

MIB = 1 << 20
SUCCESS = commands.success(1)
CONNECT = commands.connect("hostile")
TOPIC = "persistent://public/default/attacked"


@dataclass
class Result:
    """One attack's figures."""

    attack: str
    grown_mib: float
    bound_mib: int
    worst_send_ms: float
    longest_stall_ms: int
    stall: str
    note: str

    @property
    def is_good(self) -> bool:
        """Whether memory stayed within the bound."""
        return self.grown_mib <= self.bound_mib


class Scene:
    """A broker under attack, and a normal client."""

    def __init__(self, broker: MonitoredBroker, scale: float) -> None:
        self.broker = broker
        self.scale = scale
        self.links: list[socket.socket] = []
        self.before_bytes = broker.memory_bytes()
        self.most_bytes = 0
        self.worst_send_s = 0.0
        self.stalls: list[dict[str, Any]] = []
        self.clients: list[Any] = []
        self._other = RawClient.from_url(broker.service_url, timeout_s=60)
        self._producer = self._other.create_producer("persistent://public/default/other")

    def times(self, count: int) -> range:
        """A number, multiplied by the scale."""
        return range(max(1, int(count * self.scale)))

    def dial(
        self, *, http: bool = False, tls: bool = False, small_window: bool = False
    ) -> socket.socket:
        """Open a connection that stays open; with `tls` to the port with TLS, still plain."""
        url = self.broker.http_url if http else self.broker.service_url
        url = self.broker.service_url_tls if tls else url
        host, _, port = url.partition("://")[2].rpartition(":")
        link = socket.socket()
        if small_window:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(2)
        link.connect((host, int(port)))
        self.links.append(link)
        return link

    def look(self) -> None:
        """Send a message as the normal client, and note the memory."""
        began_s = time.monotonic()
        self._producer.send(unbatched_message(b"x", publish_time_ms=1))
        self.worst_send_s = max(self.worst_send_s, time.monotonic() - began_s)
        self.most_bytes = max(self.most_bytes, self.broker.memory_bytes())
        self.stalls += [line for line in self.broker.stalls() if line["held"]]

    def watch(self, seconds: float) -> None:
        """Call `look` for some time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            time.sleep(0.05)

    def fill(self, count: int, size_bytes: int) -> None:
        """Publish messages that the attackers can request."""
        with RawClient.from_url(self.broker.service_url) as client:
            producer = client.create_producer(TOPIC)
            for _ in range(count):
                producer.send(unbatched_message(bytes(size_bytes), publish_time_ms=1))

    def close(self) -> None:
        """Close all connections."""
        for link in self.links:
            link.close()
        for client in self.clients:
            client.close()
        self._other.close()


def push(link: socket.socket, data: bytes) -> bool:
    """Send as much as possible; False if the broker has closed or accepts no more."""
    try:
        link.sendall(data)
    except OSError:
        return False
    return True


def announced_frames(scene: Scene) -> str:
    """400 connections announce 5 MiB each and send six bytes."""
    for _ in scene.times(400):
        push(scene.dial(), CONNECT + struct.pack(">IH", 5 * MIB, 0))
        scene.look()
    return "400 x 6 bytes"


def half_frames(scene: Scene) -> str:
    """200 connections send all of a 5 MiB frame but its last byte."""
    closed = 0
    frame = struct.pack(">II", 5 * MIB, 100) + bytes(5 * MIB - 10)
    for _ in scene.times(200):
        closed += not push(scene.dial(), CONNECT + frame)
        scene.look()
    return f"{closed} closed while they sent"


def trickled_frame(scene: Scene) -> str:
    """A byte every 0.1 s keeps a half frame open; closed after stalled_frame_timeout_ms (3 s)."""
    link = scene.dial()
    push(link, CONNECT + struct.pack(">II", 1000, 900))
    link.settimeout(0.05)
    began_s = time.monotonic()
    while time.monotonic() - began_s < 20:
        scene.look()
        try:
            link.sendall(b"x")
            if not link.recv(1000):
                break
        except TimeoutError:
            pass
        except OSError:
            break
        time.sleep(0.1)
    return f"closed after {time.monotonic() - began_s:.1f} s"


def pipelined_gets(scene: Scene) -> str:
    """100 connections send GETs of a large page and read nothing."""
    with RawClient.from_url(scene.broker.service_url) as client:
        for number in range(200):
            client.create_producer(f"persistent://public/default/m{number}")
    get = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _ in scene.times(100):
        link = scene.dial(http=True, small_window=True)
        link.settimeout(0.05)
        push(link, get * 10_000)
        scene.look()
    scene.watch(2)
    return "100 connections, 10,000 GETs each"


def unread_messages(scene: Scene) -> str:
    """300 consumers with many permits read nothing."""
    scene.fill(64, MIB)
    for number in scene.times(300):
        link = scene.dial(small_window=True)
        subscribe = commands.subscribe(
            TOPIC, f"s{number}", 1, 1, initial_position=pb.CommandSubscribe.Earliest
        )
        push(link, CONNECT + subscribe)
        # It has no permits before it is open: wait for the answer, then read no more.
        answer = b""
        while SUCCESS not in answer:
            answer += link.recv(4096)
        push(link, commands.flow(1, 1_000_000))
        scene.look()
    scene.watch(2)
    return "300 subscriptions of 64 MiB each"


def unread_at_once(scene: Scene) -> str:
    """100 consumers get their permits at the same time and read nothing."""
    scene.fill(64, MIB)
    links = []
    for number in scene.times(100):
        link = scene.dial(small_window=True)
        subscribe = commands.subscribe(
            TOPIC, f"s{number}", 1, 1, initial_position=pb.CommandSubscribe.Earliest
        )
        push(link, CONNECT + subscribe)
        answer = b""
        while SUCCESS not in answer:
            answer += link.recv(4096)
        links.append(link)
    for link in links:
        push(link, commands.flow(1, 1_000_000))
    scene.watch(3)
    return f"{len(links)} subscriptions of 64 MiB each"


def kafka_link(scene: Scene) -> socket.socket:
    """A connection to Kafka's port that takes little from the broker at once."""
    host, _, port = scene.broker.kafka_url.rpartition(":")
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(10)
    link.connect((host, int(port)))
    scene.links.append(link)
    return link


def frame_of(request: Any, version: int, fields: dict[str, Any]) -> bytes:
    """A request of Kafka's protocol."""
    made = request(version=version, **fields)
    made.with_header(1, "hostile")
    return bytes(made.encode(header=True, framed=True))


def kafka_client(scene: Scene) -> RawKafka:
    """A client that reads its answers, with a topic "t"."""
    client = RawKafka.from_url(scene.broker.kafka_url, timeout_s=120)
    scene.clients.append(client)
    client.produce("t", None)
    topics = [MetadataRequest.MetadataRequestTopic(name="t")]
    client.call(MetadataRequest, 1, topics=topics)
    return client


def value_set(count: int, size_bytes: int, codec: int = 0) -> bytes:
    """A set of equal records."""
    records = [Record(number, 1, None, bytes(size_bytes)) for number in range(count)]
    return build(records, BatchFields(codec=codec), Work())


def unread_fetches(scene: Scene) -> str:
    """400 clients of Kafka's fetch 16 MiB each at the same time and read nothing."""
    client = kafka_client(scene)
    for _ in range(24):
        client.produce("t", value_set(1, 900_000))
    links = [kafka_link(scene) for _ in scene.times(400)]
    asked = [("t", 0, 0, 16 * MIB, -1)]
    frame = frame_of(FetchRequest, 11, fetch_fields(asked, 0, 1, 16 * MIB))
    for link in links:
        push(link, frame)
    scene.watch(10)
    return f"{len(links)} connections"


def bombs(scene: Scene) -> str:
    """40 clients of Kafka's send a small set that has 60 MB after decompression, at once."""
    kafka_client(scene)
    bomb = value_set(60, 1_000_000, codec=4)
    links = [kafka_link(scene) for _ in scene.times(40)]
    frame = frame_of(ProduceRequest, 7, produce_fields([("t", 0, bomb)], -1))
    for link in links:
        push(link, frame)
    scene.watch(20)
    return f"{len(links)} sets of {len(bomb):,} bytes"


def same_set_for_old_clients(scene: Scene) -> str:
    """20 old clients of Kafka's read one set that has to be converted for them."""
    client = kafka_client(scene)
    client.produce("t", value_set(200_000, 100, codec=1))
    frame = frame_of(FetchRequest, 3, fetch_fields([("t", 0, 0, MIB, -1)], 0, 1, MIB))
    links = [kafka_link(scene) for _ in scene.times(20)]
    for link in links:
        push(link, frame)
    scene.watch(15)
    return f"{len(links)} clients"


def answers_of_one_thing(scene: Scene) -> str:
    """Each kind of Kafka's requests names one thing 20,000 times."""
    client = kafka_client(scene)
    cases = worst_cases("t", 20_000).values()
    for case in cases:
        client.send(case.request, case.version, **case.fields)
        client.receive_frame()
        scene.look()
    return f"{len(cases)} kinds of requests"


def tiny_properties(scene: Scene) -> str:
    """Producers with 60 KiB of tiny properties each, on ten connections."""
    properties = {str(number): "" for number in range(6000)}
    opened = refused = 0
    for _ in range(10):
        client = RawClient.from_url(scene.broker.service_url)
        scene.clients.append(client)
        for number in scene.times(200):
            try:
                client.create_producer(TOPIC, properties=properties)
                opened += 1
            except RequestRefusedError:
                refused += 1
            if number % 20 == 0:
                scene.look()
    return f"{opened} let in, {refused} refused"


def waiting_requests(scene: Scene) -> str:
    """20 connections send 200 schemas of 900 kB at once."""
    scene.fill(1, 10)
    schema = pb.Schema(name="s", schema_data=bytes(900_000), type=pb.Schema.Json)
    data = b"".join(commands.get_or_create_schema(TOPIC, n, schema) for n in range(20))
    for _ in scene.times(20):
        link = scene.dial()
        push(link, CONNECT)
        for _ in range(10):
            push(link, data)
            scene.look()
    scene.watch(1)
    return "20 connections, 180 MB each"


def unknown_schemas(scene: Scene) -> str:
    """The schemas of 50,000 topics that do not exist are asked for."""
    link = scene.dial()
    link.settimeout(30)
    push(link, CONNECT)
    for start in range(0, int(50_000 * scene.scale), 500):
        names = (f"persistent://public/default/{n}{'x' * 200}" for n in range(start, start + 500))
        push(link, b"".join(commands.get_schema(name, 1) for name in names))
        with contextlib.suppress(OSError):
            link.recv(1 << 20)
        scene.look()
    return "50,000 names of 200 characters"


def long_names(scene: Scene) -> str:
    """Producers ask for initial subscriptions with names of 900,000 bytes."""
    refused = 0
    with RawClient.from_url(scene.broker.service_url) as client:
        for number in scene.times(100):
            try:
                name = f"{number}" + "x" * 900_000
                client.create_producer(TOPIC, initial_subscription_name=name)
            except RequestRefusedError:
                refused += 1
            scene.look()
    return f"{refused} of 100 refused"


def metrics_of_many_topics(scene: Scene) -> str:
    """The metrics page of 3,000 topics, five times."""
    with RawClient.from_url(scene.broker.service_url, timeout_s=60) as client:
        for number in scene.times(3000):
            client.create_producer(f"persistent://public/default/m{number}")
    scene.stalls.clear()
    scene.broker.stalls()
    scene.worst_send_s = 0.0
    scene.before_bytes = scene.broker.memory_bytes()
    longest_s = 0.0
    for _ in range(5):
        began_s = time.monotonic()
        with urllib.request.urlopen(scene.broker.http_url + "/metrics", timeout=60) as answer:
            size = len(answer.read())
        longest_s = max(longest_s, time.monotonic() - began_s)
        scene.look()
    return f"{size >> 10} KiB in {longest_s * 1000:.0f} ms"


def many_watchers(scene: Scene) -> str:
    """300 connections watch 100 lists of topics each, half of them with the same pattern."""
    links = [RawClient.from_url(scene.broker.service_url) for _ in scene.times(300)]
    scene.clients += links
    for at, link in enumerate(links):
        for number in range(100):
            pattern = f"public/default/w{'' if number % 2 else at * 100 + number}.*"
            link.request(
                partial(
                    commands.watch_topic_list,
                    "public/default",
                    watcher_id=number,
                    topics_pattern=pattern,
                )
            )
    with RawClient.from_url(scene.broker.service_url) as client:
        for number in range(20):
            client.create_producer(f"persistent://public/default/w{number}")
            scene.watch(0.5)
    return f"{len(links) * 100} watchers, 20 new topics"


def properties_of_subscriptions(scene: Scene) -> str:
    """1,000 subscriptions of ten topics, with 64 KB of tiny properties each; then GET stats."""
    tiny = {f"{number:04}": "v" for number in range(5_000)}
    refused = 0
    with RawClient.from_url(scene.broker.service_url) as client:
        for number in scene.times(1000):
            try:
                topic = f"{TOPIC}{number % 10}"
                client.subscribe(topic, f"s{number}", subscription_properties=tiny).close()
            except RequestRefusedError:
                refused += 1
            scene.look()
    for number in range(10):
        path = f"{TOPIC}{number}/stats".replace("://", "/")
        with urllib.request.urlopen(f"{scene.broker.http_url}/admin/v2/{path}") as answer:
            answer.read()
        scene.look()
    return f"{refused} refused"


def names_of_producers(scene: Scene) -> str:
    """20,000 producers with names of 1,000 bytes publish to ten topics with deduplication."""
    for number in scene.times(20_000):
        if number % 100 == 0:
            client = RawClient.from_url(scene.broker.service_url)
            scene.clients.append(client)
        name = f"{number}" + "\N{POSTAL HORN}" * 200
        producer = client.create_producer(f"{TOPIC}{number % 10}", producer_name=name)
        producer.send(unbatched_message(b"x", publish_time_ms=1))
        if number % 100 == 99:
            client.close()
            scene.look()
    scene.watch(3)
    return "names of 800 bytes"


def repeated_fields(scene: Scene) -> str:
    """Commands with as many properties as the broker reads."""
    pairs = {f"{number:x}": "" for number in range(16_384)}
    refused = 0
    with RawClient.from_url(scene.broker.service_url) as client:
        consumer = client.subscribe(TOPIC, "s")
        for _ in scene.times(20):
            for ask in (client.create_producer, lambda topic, **given: client.subscribe(
                topic, "other", **given
            )):  # fmt: skip
                try:
                    ask(TOPIC, properties=pairs)
                except RequestRefusedError:
                    refused += 1
                scene.look()
        consumer.close()
    return f"{refused} refused"


def every_page(scene: Scene) -> str:
    """Every GET route, about a topic with 3,000 partitions, 20 clients at a time."""
    from concurrent.futures import ThreadPoolExecutor

    from pulsemark.broker.http.routing import all_routes

    base = f"{scene.broker.http_url}/admin/v2/persistent/public/default/p/partitions"
    body = str(scene.times(3000).stop).encode()
    headers = {"content-type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(base, body, headers, method="PUT")).close()
    names = {"tenant": "public", "namespace": "default", "domain": "persistent", "topic": "p"}

    def get(template: str) -> None:
        path = re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "1"), template)
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(scene.broker.http_url + path) as answer,
        ):
            answer.read()

    templates = [route.path for route in all_routes() if route.method == "GET"]
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(get, each) for each in templates]
        while not all(each.done() for each in asked):
            scene.watch(0.2)
    return f"{len(templates)} routes"


def unread_streams(scene: Scene) -> str:
    """300 gRPC streams are not read; then a normal client searches and reads."""
    import grpc

    from pulsemark.finder import SeekClient
    from pulsemark.proto import seek_pb2

    scene.fill(32, MIB)
    for _ in scene.times(20):
        channel = grpc.insecure_channel(
            scene.broker.grpc_url, options=(("grpc.use_local_subchannel_pool", 1),)
        )
        scene.clients.append(channel)
        read = channel.unary_stream(
            "/pulsemark.seek.v1.SeekService/ReadEntries",
            request_serializer=seek_pb2.ReadEntriesRequest.SerializeToString,
            response_deserializer=seek_pb2.ReadEntriesResponse.FromString,
        )
        scene.clients += [
            _Unread(read(seek_pb2.ReadEntriesRequest(topic=TOPIC))) for _ in range(15)
        ]
        scene.look()
    scene.watch(2)
    with SeekClient(scene.broker.grpc_url) as seek:
        seek.by_index(TOPIC, 3)
        entries = len(list(seek.read_entries(TOPIC)))
    return f"a search was answered, and another stream of {entries} entries read"


def stalled_handshakes(scene: Scene) -> str:
    """2,000 connections begin a TLS handshake, and do not go on; others send plain text."""
    for number in scene.times(2_000):
        link = scene.dial(tls=True)
        push(link, b"\x16\x03\x01" if number % 2 else CONNECT)
        if not number % 20:
            scene.look()
    scene.watch(3)
    return "the plain port was served all the while"


def full_handshakes(scene: Scene) -> str:
    """Twenty connections at a time do whole TLS handshakes, 1,000 in all, and leave."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    done = 0
    for number in scene.times(1_000):
        with contextlib.suppress(OSError), context.wrap_socket(scene.dial(tls=True)):
            done += 1
        if not number % 20:
            scene.look()
    return f"{done} handshakes done"


def wrong_credentials(scene: Scene) -> str:
    """2,000 connections send tokens of 16 KiB with wrong signatures, and wrong passwords."""
    text = b"eyJhbGciOiJIUzI1NiJ9." + b"e30A" * 4_000 + b".AAAA"
    frames = (
        commands.connect("hostile", auth_method_name="token", auth_data=text),
        commands.connect("hostile", auth_method_name="basic", auth_data=b"ann:wrong"),
    )
    for number in scene.times(2_000):
        push(scene.dial(), frames[number % 2])
        if not number % 20:
            scene.look()
    scene.watch(3)
    return "all refused"


def answers_without_a_challenge(scene: Scene) -> str:
    """20 connections send 5,000 AUTH_RESPONSEs each."""
    answer = commands.auth_response("hostile", 21, "token", TOKEN)
    connect = commands.connect("hostile", auth_method_name="token", auth_data=TOKEN)
    for _ in scene.times(20):
        link = scene.dial()
        push(link, connect)
        push(link, answer * 5_000)
        scene.look()
    scene.watch(3)
    return "all checked"


SECRET = bytes(range(32))
TOKEN = jwt.encode({"sub": "hostile"}, SECRET, algorithm="HS256").encode()


def secured() -> dict[str, Any]:
    """Settings with TLS and authentication; the normal client is anonymous."""
    folder = Path(tempfile.mkdtemp(prefix="pulsemark-certificate-"))
    atexit.register(shutil.rmtree, folder)
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", *files],
        check=True,
        capture_output=True,
    )
    bcrypt = "$2b$12$R9h/cIPz0gi.URNNX3kh2OPST9/PgBkqquzi.Ss7KIUgO2t0jWMUW"
    security = {
        "tls_port": 0,
        "tls_certificate_file": str(folder / "cert.pem"),
        "tls_key_file": str(folder / "key.pem"),
        "authentication_enabled": True,
        "authentication_providers": ["token", "basic"],
        "anonymous_user_role": "normal",
        "token_secret_key": "data:;base64," + base64.b64encode(SECRET).decode(),
        "basic_auth_conf": "data:;base64," + base64.b64encode(f"ann:{bcrypt}".encode()).decode(),
    }
    return {"security": security}


class _Unread:
    """A stream that is kept and never read."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def close(self) -> None:
        self.call.cancel()


KAFKA: dict[str, Any] = {"kafka_port": 0}

#: Attack, bound of what memory may grow by (MiB), settings.
ATTACKS: dict[
    str, tuple[Callable[[Scene], str], int, dict[str, Any] | Callable[[], dict[str, Any]]]
] = {
    "announced_frames": (announced_frames, 32, {}),
    "half_frames": (half_frames, 320, {}),
    "trickled_frame": (trickled_frame, 8, {"stalled_frame_timeout_ms": 3000}),
    "pipelined_gets": (pipelined_gets, 128, {}),
    "unread_messages": (unread_messages, 400, {}),
    "unread_at_once": (unread_at_once, 288, {}),
    "unread_fetches": (unread_fetches, 320, KAFKA),
    "bombs": (bombs, 320, KAFKA),
    "same_set_for_old_clients": (same_set_for_old_clients, 320, KAFKA),
    "answers_of_one_thing": (answers_of_one_thing, 256, KAFKA),
    "tiny_properties": (tiny_properties, 320, {}),
    "waiting_requests": (waiting_requests, 400, {}),
    "unknown_schemas": (unknown_schemas, 64, {}),
    "long_names": (long_names, 32, {}),
    "metrics_of_many_topics": (metrics_of_many_topics, 96, {}),
    "unread_streams": (unread_streams, 320, {"grpc_port": 0}),
    "many_watchers": (many_watchers, 256, {}),
    "properties_of_subscriptions": (properties_of_subscriptions, 256, {}),
    "names_of_producers": (names_of_producers, 128, {"broker_deduplication_enabled": True}),
    "repeated_fields": (repeated_fields, 64, {}),
    "every_page": (every_page, 256, {}),
    "stalled_handshakes": (stalled_handshakes, 64, secured),
    "full_handshakes": (full_handshakes, 64, secured),
    "wrong_credentials": (wrong_credentials, 64, secured),
    "answers_without_a_challenge": (answers_without_a_challenge, 64, secured),
}


def attack(name: str, scale: float, store: str | None = None) -> Result:
    """Run one."""
    run, bound_mib, given = ATTACKS[name]
    settings = given() if callable(given) else given
    with tempfile.TemporaryDirectory(prefix="pulsemark-hostile-") as folder:
        places = Path(folder) / "data", Path(folder) / "log"
        broker = MonitoredBroker(*places, store=store, **settings)
        try:
            scene = Scene(broker, scale)
            note = run(scene)
            scene.look()
            scene.close()
        finally:
            broker.end()
        worst = max(scene.stalls, key=lambda line: line["cpu_ms"], default=None)
        return Result(
            name,
            round((scene.most_bytes - scene.before_bytes) / MIB, 1),
            bound_mib,
            round(scene.worst_send_s * 1000, 1),
            worst["cpu_ms"] if worst else 0,
            worst["stall"] if worst else "",
            note,
        )


def main() -> int:
    """Run the attacks; return 1 if one exceeded its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--store", help="the brokers keep their ledgers in this BookKeeper")
    given = parser.parse_args()
    results = []
    for name in given.only:
        result = attack(name, given.scale, given.store)
        results.append(result)
        print(
            f"{name:24} +{result.grown_mib:6.1f} MiB (bound {result.bound_mib}), "
            f"worst send {result.worst_send_ms:6.1f} ms, "
            f"longest stall {result.longest_stall_ms} ms {result.stall}; {result.note}",
            flush=True,
        )
    print(json.dumps([asdict(result) for result in results]))
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
