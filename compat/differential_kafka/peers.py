"""One of the compared brokers: requests to it, and its recorded answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest

from pulsemark.testing.raw_kafka import RawKafka

from .normalize import Normalizer

TIMEOUT_S = 4.0

Served = dict[int, tuple[int, int]]
"""Lowest and highest version of each request, by key."""


def served_by(address: str) -> Served:
    """What a broker says that it serves."""
    with RawKafka.from_url(address, timeout_s=TIMEOUT_S) as client:
        answer = client.call(ApiVersionsRequest, 0)
    return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}


@dataclass
class Peer:
    """A broker and its answers in the current scenario."""

    name: str
    address: str
    run: str
    #: What both compared brokers serve.
    served: Served
    #: Whether both store record sets in the formats before magic 2.
    converts: bool
    steps: list[tuple[str, Any]] = field(default_factory=list)

    def begin(self) -> None:
        """Begin a scenario: forget the previous one."""
        self.steps = []
        self._normalizer = Normalizer(self.run)
        self._connections: list[RawKafka] = []
        self._main: RawKafka | None = None

    def end(self) -> None:
        """End a scenario: close its connections."""
        for connection in self._connections:
            connection.close()

    def topic(self, name: str) -> str:
        """A name that no other run has used."""
        return f"{name}-{self.run}"

    def connect(self) -> RawKafka:
        """A new connection."""
        connection = RawKafka.from_url(self.address, timeout_s=TIMEOUT_S)
        self._connections.append(connection)
        return connection

    @property
    def main(self) -> RawKafka:
        """The connection that requests use without one of their own."""
        if self._main is None:
            self._main = self.connect()
        return self._main

    def versions(self, request: Any) -> range:
        """The versions that both brokers serve."""
        lowest, highest = self.served.get(request.API_KEY, (0, -1))
        return range(lowest, highest + 1)

    def ask(
        self, label: str, request: Any, version: int, on: RawKafka | None = None, **fields: Any
    ) -> Any:
        """Send a request and record its answer; None if not both brokers serve the version."""
        if version not in self.versions(request):
            return None
        return self._recorded(
            f"{label} (v{version})", lambda: (on or self.main).call(request, version, **fields)
        )

    def quietly(self, request: Any, version: int, **fields: Any) -> Any:
        """A request that only prepares something; its answer is not recorded."""
        versions = self.versions(request)
        return self.main.call(request, min(max(version, versions[0]), versions[-1]), **fields)

    def raw(self, label: str, data: bytes) -> None:
        """Send bytes on a new connection; record the answer as hex, or that it was closed."""
        connection = self.connect()
        found: list[str] = []
        try:
            connection.send_bytes(data)
            found.append(connection.receive_frame().hex())
        except TimeoutError:
            found.append("<nothing>")
        except OSError:
            found.append("<closed>")
        self.record(label, found)

    def record(self, label: str, answer: Any) -> None:
        """Record an answer under a label."""
        self.steps.append((label, self._normalizer.answer(answer)))

    def _recorded(self, label: str, call: Callable[[], Any]) -> Any:
        try:
            answer = call()
        except TimeoutError:
            self.record(label, "<nothing>")
            self._main = None
        except OSError:
            self.record(label, "<closed>")
            self._main = None
        else:
            self.record(label, answer.to_dict())
            return answer
        return None

    def forget(self) -> None:
        """The main connection has ended; the next request opens another one."""
        self._main = None

    def eventually(self, made: Callable[[], bool], what: str) -> None:
        """Wait until something holds: Kafka's brokers do some things after they have answered."""
        for _ in range(200):
            if made():
                return
            time.sleep(0.05)
        raise LookupError(f"{self.name}: {what} did not happen")
