"""Fuzzes a broker with hostile and failing clients in random order, with a check after each step.

    python campaigns/fuzz_broker.py --seed 1 --cycles 20 [--steps 60] [--minutes 30]
        [--stalls-count] [--store zk://HOST:PORT/ledgers]

A cycle is the life of one broker process. All cycles use the same data folder, or the same store,
which no other broker may use meanwhile.
In each step one of several connections sends some commands (valid, mutated, hostile), connects,
stops reading or disconnects, or an HTTP request is sent. After each step

1. another connection gets an answer within ANSWER_S;
2. the broker's memory is below --memory-mib;
3. its log has no uncaught error.

At a cycle's end all clients disconnect. Then no client may hold anything: each topic must accept an
Exclusive producer, and each subscription a consumer. The process ends by SIGTERM, within 10 s, or
by kill -9, and the next one opens the same folder.

Every third cycle's broker authenticates its clients: some have tokens that end, and answer the
broker's challenge or not. Stalls (times in which the loop was blocked by more than 50 ms of its own
work) are counted by handler; with --stalls-count they are problems. With --minutes cycles begin
until the time is over. Prints a report and one line of JSON. Exit code 1 if there were problems. A
cycle's commands depend only on its seed: `--seed S --cycles 1 --first-cycle C` sends the commands
of cycle C again.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import re
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import jwt
from fuzz_commands import SUBSCRIPTIONS, TOPICS, Sender, http_request
from monitored_broker import MonitoredBroker

from pulsemark.client import RequestRefusedError
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient
from pulsemark.testing.raw_client import RawClientError
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import Command, Connection, Message, MessageId, ProtocolError, Role, commands

ANSWER_S = 5.0
STOP_S = 10.0
PEERS = 6
TWO_LENGTHS = (
    b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
)
RST = struct.pack("ii", 1, 0)
SETTINGS = {"stalled_frame_timeout_ms": 2000, "connection_liveness_check_timeout_ms": 500,
            "active_consumer_failover_delay_ms": 50}  # fmt: skip
SECRET = bytes(range(32))
SECURITY = {
    "authentication_enabled": True,
    "authentication_providers": ["token"],
    "anonymous_user_role": "anyone",
    "token_secret_key": "data:;base64," + base64.b64encode(SECRET).decode(),
    "authentication_refresh_check_ms": 200,
}


def token(random: Random) -> bytes:
    """A token: for a long time, for a second, over, or with another secret."""
    ends_s = time.time() + random.choice([3600, 3600, 1, 1, -10])
    secret = SECRET if random.random() < 0.9 else bytes(32)
    return jwt.encode({"sub": "fuzz", "exp": int(ends_s)}, secret, algorithm="HS256").encode()


class Peer:
    """A client that sends random commands, on a non-blocking socket."""

    def __init__(self, address: tuple[str, int], random: Random, *, is_secured: bool) -> None:
        self.random = random
        self.sender = Sender(random)
        self.reads = random.random() < 0.8
        self.socket: socket.socket | None = socket.create_connection(address, ANSWER_S)
        self.socket.setblocking(False)
        self._connection = Connection(Role.CLIENT)
        if is_secured and random.random() < 0.7:
            self._send(commands.connect("fuzz", auth_method_name="token", auth_data=token(random)))
        else:
            self._send(commands.connect("fuzz"))

    def step(self) -> None:
        """Send some commands at once."""
        count = self.random.choice([1, 1, 2, 5, 20])
        self._send(b"".join(self.sender.next_bytes() for _ in range(count)))
        self.drain()

    def drain(self) -> None:
        """Read what arrived, and remember the ids in it."""
        while self.socket is not None and self.reads:
            try:
                data = self.socket.recv(1 << 16)
                if not data:
                    self.vanish()
                    return
                self._connection.receive_data(data)
                for event in self._connection.events():
                    self._learn(event)
            except BlockingIOError:
                return
            except (OSError, ProtocolError):
                self.vanish()

    def _learn(self, event: object) -> None:
        if isinstance(event, Command) and event.type == pb.BaseCommand.AUTH_CHALLENGE:
            if self.random.random() < 0.7:
                self._send(commands.auth_response("fuzz", 21, "token", token(self.random)))
            return
        if isinstance(event, Message):
            found = event.command.message_id
        elif isinstance(event, Command) and event.type == pb.BaseCommand.SEND_RECEIPT:
            found = event.body.message_id
        else:
            return
        self.sender.known.append(MessageId(found.ledgerId, found.entryId))

    def _send(self, data: bytes) -> None:
        if self.socket is None:
            return
        try:
            # Bytes that the socket does not accept are dropped, so a frame may be cut.
            self.socket.send(data)
        except BlockingIOError:
            pass
        except OSError:
            self.vanish()

    def vanish(self) -> None:
        """Close, in order or by reset."""
        if self.socket is not None:
            with contextlib.suppress(OSError):
                if self.random.random() < 0.5:
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
                self.socket.close()
            self.socket = None


@dataclass
class Campaign:
    """What the campaign did, and the problems it found."""

    folder: Path
    seed: int
    steps: int
    memory_limit_bytes: int
    #: Problems whose text matches this expression are not counted.
    known: str = ""
    #: Whether stalls are problems.
    stalls_count: bool = False
    #: The BookKeeper that has the ledgers; None: the folder has them.
    store: str | None = None
    problems: list[str] = field(default_factory=list)
    stalls: Counter[str] = field(default_factory=Counter)
    longest_ms: dict[str, int] = field(default_factory=dict)
    #: How often each unexpected error occurred; its first text is a problem.
    uncaught: Counter[str] = field(default_factory=Counter)
    steps_done: int = 0
    memory_max_bytes: int = 0

    def cycle(self, number: int) -> None:
        """One life of a broker."""
        random = Random(f"{self.seed}-{number}")
        found_before = len(self.problems)
        log = self.folder / "broker.log"
        is_secured = number % 3 == 2
        security: dict[str, Any] = {"security": SECURITY} if is_secured else {}
        try:
            broker = MonitoredBroker(
                self.folder / "data", log, store=self.store, **SETTINGS, **security
            )
        except (RuntimeError, OSError) as error:
            self._problem(number, -1, str(error))
            return
        life = Life(broker, random, is_secured=is_secured)
        try:
            for step in range(self.steps):
                what = life.step()
                self.steps_done += 1
                self._check(number, step, what, life)
                if len(self.problems) > found_before:
                    break
            else:
                for problem in life.ghosts():
                    self._problem(number, self.steps, problem)
        finally:
            life.end_peers()
            self._note_stalls(broker, number, self.steps, "the end of all clients")
            self._end(number, broker, random)

    def _check(self, number: int, step: int, what: str, life: Life) -> None:
        broker = life.broker
        try:
            life.answered()
        except (RawClientError, OSError) as error:
            self._problem(number, step, f"after {what}: not answered: {error!r}")
        if broker.process.poll() is not None:
            self._problem(number, step, f"after {what}: the broker ended")
            return
        self._note_uncaught(number, step, what, broker)
        self._note_stalls(broker, number, step, what)
        memory_bytes = broker.memory_bytes()
        self.memory_max_bytes = max(self.memory_max_bytes, memory_bytes)
        if memory_bytes > self.memory_limit_bytes:
            self._problem(number, step, f"after {what}: {memory_bytes >> 20} MiB of memory")

    def _end(self, number: int, broker: MonitoredBroker, random: Random) -> None:
        if broker.process.poll() is not None:
            return
        by = random.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL])
        took_s = broker.end(by)
        if took_s > STOP_S:
            self._problem(number, self.steps, f"{by.name} took {took_s:.1f} s")
        self._note_uncaught(number, self.steps, by.name, broker)

    def _note_uncaught(self, number: int, step: int, what: str, broker: MonitoredBroker) -> None:
        for text in broker.uncaught():
            where, error = _essence(text)
            self.uncaught[f"{error} {where}"] += 1
            if self.uncaught[f"{error} {where}"] == 1:
                self._problem(number, step, f"after {what}: uncaught:\n{text}")

    def _note_stalls(self, broker: MonitoredBroker, number: int, step: int, what: str) -> None:
        for line in broker.stalls():
            if line["held"]:
                name = line["stall"]
                if self.stalls_count:
                    self._problem(number, step, f"after {what}: a stall: {line}")
                self.stalls[name] += 1
                self.longest_ms[name] = max(self.longest_ms.get(name, 0), line["cpu_ms"])

    def _problem(self, number: int, step: int, text: str) -> None:
        if self.known and re.search(self.known, text):
            return
        self.problems.append(f"cycle {number} step {step}: {text}")


class Life:
    """One broker's clients."""

    def __init__(self, broker: MonitoredBroker, random: Random, *, is_secured: bool) -> None:
        self.broker = broker
        self.is_secured = is_secured
        self.random = random
        self.peers: list[Peer] = []
        self._http: list[socket.socket] = []
        self._witness = RawClient.from_url(broker.service_url, timeout_s=ANSWER_S)

    def step(self) -> str:
        """Do one random step, and return its description."""
        for peer in self.peers:
            peer.drain()
        self.peers = [peer for peer in self.peers if peer.socket is not None]
        chance = self.random.random()
        if not self.peers or (len(self.peers) < PEERS and chance < 0.2):
            address = _address(self.broker.service_url)
            self.peers.append(Peer(address, self.random, is_secured=self.is_secured))
            return "a connection"
        peer = self.random.choice(self.peers)
        if chance < 0.28:
            if self.random.random() < 0.5:
                peer.step()
            peer.vanish()
            return "a vanished client"
        if chance < 0.45:
            method, path, body = http_request(self.random)
            self._ask(method, path, body)
            return f"{method} {path}"
        if chance < 0.48:
            self._http_garbage()
            return "HTTP garbage"
        peer.step()
        return "commands"

    def answered(self) -> None:
        """Check that another connection gets an answer."""
        self._witness.ping()
        while self._witness.unsolicited:
            self._witness.unsolicited.popleft()

    def ghosts(self) -> list[str]:
        """Check what disconnected clients still hold, and return the problems."""
        self.end_peers(witness=False)
        self.broker.take_over()  # what was unloaded
        found: list[str] = []
        for topic in TOPICS:
            try:
                self.answered()
            except (RawClientError, OSError) as error:
                return [*found, f"not answered after everybody had gone: {error!r}"]
            found += [
                problem
                for problem in (
                    self._free(f"a producer of {topic}", lambda c, t=topic: _own(c, t)),
                    *(
                        self._free(f"{s} of {topic}", lambda c, t=topic, s=s: _consume(c, t, s))
                        for s in SUBSCRIPTIONS
                    ),
                )
                if problem
            ]
        return found

    def _free(self, what: str, attempt: Any) -> str:
        """Retry until it succeeds; return the problem if it never does."""
        deadline = time.monotonic() + 2 * ANSWER_S
        while True:
            try:
                with RawClient.from_url(self.broker.service_url, timeout_s=ANSWER_S) as client:
                    attempt(client)
                return ""
            except RequestRefusedError as error:
                if error.error in GIVEN_UP:
                    return ""
                refusal = str(error)
            except (RawClientError, OSError) as error:
                return f"{what}: {error!r}"
            if time.monotonic() > deadline:
                return f"{what} is held by a client that is gone: {refusal}"
            time.sleep(0.1)

    def end_peers(self, *, witness: bool = True) -> None:
        """Disconnect all clients."""
        for peer in self.peers:
            peer.vanish()
        for link in self._http:
            link.close()
        if witness:
            self._witness.close()

    def _ask(self, method: str, path: str, body: bytes) -> None:
        """An HTTP request that the broker must answer, with whatever status."""
        with socket.create_connection(_address(self.broker.http_url), ANSWER_S) as link:
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            link.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            # Answers may wait for peers that are slow to give a place up; the witness judges.
            link.settimeout(1.0)
            with contextlib.suppress(OSError):
                while link.recv(1 << 16):
                    pass

    def _http_garbage(self) -> None:
        link = socket.create_connection(_address(self.broker.http_url), ANSWER_S)
        link.settimeout(0.1)
        data = self.random.choice(
            [
                self.random.randbytes(100),
                b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50,
                b"POST /admin/v2/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n",
                TWO_LENGTHS,
            ]
        )
        with contextlib.suppress(OSError):
            link.sendall(data)
        self._http = [*self._http[-20:], link]


#: Answers that do not show a leak: the topic or its parent is of another kind now.
GIVEN_UP = {
    pb.ServerError.TopicNotFound,
    pb.ServerError.NotAllowedError,
    pb.ServerError.IncompatibleSchema,
    pb.ServerError.TopicTerminatedError,
}


def _essence(text: str) -> tuple[str, str]:
    """The last line of code of a traceback, and its error."""
    where = error = ""
    for line in text.splitlines()[2:]:
        if line.startswith("  File"):
            where = line.strip()
        elif line and not line.startswith(" "):
            error = line.partition(":")[0]
            break
    return where, error


def _own(client: RawClient, topic: str) -> None:
    producer = client.create_producer(topic, access_mode=pb.Exclusive, producer_name="owner")
    producer.send(unbatched_message(b"x", publish_time_ms=1))


def _consume(client: RawClient, topic: str, subscription: str) -> None:
    consumer = client.subscribe(topic, subscription)
    client.request(lambda number: commands.unsubscribe(consumer.consumer_id, number))


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rpartition(":")
    return host, int(port)


def main() -> int:
    """Run the campaign; 1 if it found problems."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--first-cycle", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--memory-mib", type=int, default=512)
    parser.add_argument("--minutes", type=float, help="instead of --cycles")
    parser.add_argument("--stalls-count", action="store_true", help="stalls are problems")
    parser.add_argument("--store", help="the brokers keep their ledgers in this BookKeeper")
    parser.add_argument("--known", default="", help="regular expression of problems to ignore")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pulsemark-fuzz-") as folder:
        campaign = Campaign(
            Path(folder), given.seed, given.steps, given.memory_mib << 20, given.known,
            given.stalls_count, given.store,
        )  # fmt: skip
        until_s = time.monotonic() + 60 * (given.minutes or 0)
        number = given.first_cycle
        while (
            time.monotonic() < until_s
            if given.minutes
            else number < given.first_cycle + given.cycles
        ):
            campaign.cycle(number)
            number += 1
            if len(campaign.problems) >= 20:
                break
        for problem in campaign.problems:
            print(problem, file=sys.stderr)
        for name, count in campaign.stalls.most_common():
            print(f"{count:5} stalls, longest {campaign.longest_ms[name]} ms: {name}")
        report = {
            "seed": given.seed,
            "cycles": number - given.first_cycle,
            "steps": campaign.steps_done,
            "problems": len(campaign.problems),
            "stalls": campaign.stalls.total(),
            "longest_stall_ms": max(campaign.longest_ms.values(), default=0),
            "memory_max_mib": campaign.memory_max_bytes >> 20,
        }
        print(json.dumps(report))
    return 1 if campaign.problems else 0


if __name__ == "__main__":
    sys.exit(main())
