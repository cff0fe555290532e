"""One of the compared brokers: raw connections and REST calls, with recorded answers."""

from __future__ import annotations

import json
import select
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

from pulsemark.metadata import MessageFormatError, read_message_metadata, split
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import Command, Connection, Message, ProtocolError, Role, Send, commands

from .normalize import Normalizer

QUIET_S = 0.5
"""A broker that sends nothing for this time has sent everything that it sends by itself."""
FLOW_S = 2.0
"""After new permits a broker that has sent nothing yet is waited for so long: it may be reading."""
ANSWER_S = 6.0
"""How long an answer to a request may take. Some commands are never answered."""
_LIMIT_S = 15.0
FREE = ({"MESSAGE", "SEND_RECEIPT"}, {"CLOSE_CONSUMER"})
"""Answers whose order among each other is free: of threads, and of a hash map's subscriptions."""


class RawConnection:
    """A socket to a broker; its events are recorded in the order of arrival."""

    def __init__(self, broker: Recorder, *, handshake: bool = True) -> None:
        parts = urlsplit(broker.service_url)
        self._broker = broker
        self._socket = socket.create_connection((parts.hostname, parts.port), _LIMIT_S)
        # Unlike select it takes any file descriptor: a long run has more than 1,024.
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._connection = Connection(Role.CLIENT)
        self._requests = 0
        self.closed = False
        self.answers_pings = True
        self._expected: set[tuple[str, int]] = set()
        self._gave_permits = False
        self._sent = Connection(Role.SERVER)
        if handshake:
            self.write(commands.connect("comparison", feature_flags=broker.flags))
            self._read(0.0, record=False)

    def next_request(self) -> int:
        """A request id never used on this connection."""
        self._requests += 1
        return self._requests

    def write(self, *frames: bytes) -> None:
        """Send bytes; does nothing if the broker has closed the connection."""
        data = b"".join(frames)
        self._expect(data)
        try:
            self._socket.sendall(data)
        except OSError:
            self.closed = True

    def _expect(self, data: bytes) -> None:
        """Note the answers that these commands get, so that reading waits for them."""
        try:
            self._sent.receive_data(data)
            for event in self._sent.events():
                if isinstance(event, Send):
                    self._expected.add(("receipt", event.command.sequence_id))
                elif isinstance(event, Command):
                    self._gave_permits |= event.type == pb.BaseCommand.FLOW
                    if event.type == pb.BaseCommand.CONNECT:
                        self._expected.add(("connected", 0))
                    names = event.body.DESCRIPTOR.fields_by_name
                    if "request_id" in names and event.body.HasField("request_id"):
                        self._expected.add(("request", event.body.request_id))
        except ProtocolError:
            # A scenario sends rubbish on purpose: there is nothing to wait for.
            self._sent = Connection(Role.SERVER)

    def say(self, label: str, *frames: bytes, quiet_s: float = QUIET_S) -> list[Any]:
        """Send, record the answers until the broker is quiet, and return them."""
        self.write(*frames)
        answers = self._read(quiet_s)
        self._broker.record(label, answers)
        return answers

    def prepare(self, *frames: bytes, messages: int = 0) -> None:
        """Send, and wait for the answers, and for so many messages, without recording them."""
        wanted = sum(kind == "MESSAGE" for kind, _ in self._broker.bodies) + messages
        self.write(*frames)
        self._read(0.1, record=False)
        give_up_s = time.monotonic() + ANSWER_S
        while time.monotonic() < give_up_s:
            if sum(kind == "MESSAGE" for kind, _ in self._broker.bodies) >= wanted:
                return
            self._read(0.1, record=False)

    def listen(self, label: str, quiet_s: float = QUIET_S) -> list[Any]:
        """Record the events that arrive, without sending."""
        return self.say(label, quiet_s=quiet_s)

    def close(self) -> None:
        """Close the socket without sending anything."""
        self._socket.close()
        self.closed = True

    def _read(self, quiet_s: float, *, record: bool = True) -> list[Any]:
        found: list[Any] = []
        last_s = started_s = time.monotonic()
        first_s = max(quiet_s, FLOW_S if self._gave_permits else 0.0)
        while not self.closed:
            now_s = time.monotonic()
            if self._expected and now_s - started_s < ANSWER_S:
                last_s = now_s
            elif now_s - last_s >= (quiet_s if found else first_s):
                break
            if not self._poll.poll(50):
                continue
            try:
                data = self._socket.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                self.closed = True
                found.append("closed")
                break
            last_s = time.monotonic()
            self._connection.receive_data(data)
            try:
                for event in self._connection.events():
                    self._take(event, found)
            except ProtocolError as violation:
                found.append(f"violation: {violation}")
                break
        self._expected.clear()
        self._gave_permits = False
        return _by_consumer(found) if record else []

    def _answered(self, name: str, body: Any) -> None:
        names = body.DESCRIPTOR.fields_by_name
        if name == "CONNECTED":
            self._expected.discard(("connected", 0))
        elif name in {"SEND_RECEIPT", "SEND_ERROR"}:
            self._expected.discard(("receipt", body.sequence_id))
        elif "request_id" in names and body.HasField("request_id"):
            self._expected.discard(("request", body.request_id))

    def _take(self, event: Any, found: list[Any]) -> None:
        normalizer = self._broker.normalizer
        if isinstance(event, Command):
            name = pb.BaseCommand.Type.Name(event.type)
            if name == "PING":
                if self.answers_pings:
                    self.write(commands.PONG)
                return
            self._answered(name, event.body)
            found.append({name: normalizer.command(event.body)})
            self._broker.bodies.append((name, event.body))
        elif isinstance(event, Message):
            body = bytes(event.headers_and_payload)
            found.append({"MESSAGE": normalizer.command(event.command), **described(body)})
            self._broker.bodies.append(("MESSAGE", event.command))
        else:
            found.append(repr(event))


def _by_consumer(found: list[Any]) -> list[Any]:
    """Answers with adjacent free ones in one order: receipts first, the others by consumer."""
    ordered: list[Any] = []
    for kinds, group in groupby(found, key=_free_kinds):
        answers = list(group)
        if kinds is not None:
            answers.sort(key=_consumer_of)
        ordered += answers
    return ordered


def _free_kinds(answer: Any) -> int | None:
    return next((at for at, kinds in enumerate(FREE) if not kinds.isdisjoint(answer)), None)


def _consumer_of(answer: Any) -> int:
    body = answer.get("MESSAGE") or answer.get("CLOSE_CONSUMER") or {}
    return int(body.get("consumer_id", -1))


def described(body: bytes) -> dict[str, Any]:
    """What a client sees of a MESSAGE's entry: its size, its index, and its sequence id."""
    prefix, rest = split(body)
    found: dict[str, Any] = {"size": len(body)}
    if prefix is not None:
        found["index"] = prefix.index if prefix.HasField("index") else "absent"
        found["has time"] = prefix.HasField("broker_timestamp")
    try:
        found["sequence id"] = read_message_metadata(rest).sequence_id
    except MessageFormatError as error:
        found["header"] = repr(error)
    return found


@dataclass
class Recorder:
    """A broker and its answers in the current scenario."""

    name: str
    service_url: str
    admin_url: str
    flags: pb.FeatureFlags | None = None
    normalizer: Normalizer = field(default_factory=Normalizer)
    steps: list[tuple[str, Any]] = field(default_factory=list)
    bodies: list[tuple[str, Any]] = field(default_factory=list)
    _open: list[RawConnection] = field(default_factory=list)

    def begin(self) -> None:
        """Begin a scenario: forget the previous one."""
        self.normalizer = Normalizer()
        self.steps, self.bodies = [], []

    def end(self) -> None:
        """End a scenario: close its open connections."""
        for connection in self._open:
            connection.close()
        self._open.clear()

    def connect(self, *, handshake: bool = True) -> RawConnection:
        """A new connection."""
        connection = RawConnection(self, handshake=handshake)
        self._open.append(connection)
        return connection

    def record(self, label: str, answer: Any) -> None:
        """Record an answer under a label."""
        self.steps.append((label, answer))

    def last(self, name: str) -> Any:
        """The latest received command of a type, as protobuf; None if there was none."""
        return next((body for kind, body in reversed(self.bodies) if kind == name), None)

    def rest(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        label: str | None = None,
        quiet: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Call a REST route below the admin URL, and record status, content type and body."""
        data = (
            None
            if body is None
            else (body if isinstance(body, bytes) else json.dumps(body).encode())
        )
        url = f"{self.admin_url}{path}"
        request = urllib.request.Request(url, data=data, method=method, headers=dict(headers or {}))
        if data is not None:
            request.add_header("Content-Type", content_type)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                status, kind, raw = (
                    response.status,
                    response.headers.get("Content-Type"),
                    response.read(),
                )
        except urllib.error.HTTPError as error:
            status, kind, raw = error.code, error.headers.get("Content-Type"), error.read()
        except OSError as error:
            status, kind, raw = 0, None, str(error).encode()
        answer = self._parse(raw)
        if not quiet:
            self.record(
                label or f"{method} {path}",
                {"status": status, "type": kind, "body": self.normalizer.json(answer)},
            )
        return status, answer

    @staticmethod
    def _parse(raw: bytes) -> Any:
        try:
            return json.loads(raw)
        except ValueError:
            return raw.decode(errors="replace")
