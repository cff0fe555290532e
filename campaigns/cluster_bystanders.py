"""What goes on beside the attacks of `cluster_attacks`: topics come and go, and clients vanish."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

import pulsar
from failover_campaign import BrokerProcess
from fuzz_broker import Peer

BACK_LIMIT_S = 10.0
"""So long may a topic take to take a message."""
NAMESPACE = "public/default"
CHURNED = 24


class Churn:
    """Creates and deletes topics over REST, and keeps what was confirmed."""

    def __init__(self, brokers: list[BrokerProcess], seed: int) -> None:
        self.is_there: dict[str, bool | None] = {}
        """By topic, what was confirmed last; None: the last answer is not known."""
        self.answers: dict[str, int] = {}
        self._brokers = brokers
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(2)]
        for thread in self._threads:
            thread.start()

    def _run(self, part: int) -> None:
        names = [f"churn-{part}-{number}" for number in range(CHURNED // 2)]
        while not self._stop.wait(0.02):
            name = self._random.choice(names)
            wanted = not self.is_there.get(name)
            self.is_there[name] = self._ask(name, wanted=wanted)

    def _ask(self, name: str, *, wanted: bool) -> bool | None:
        method, query = ("PUT", "") if wanted else ("DELETE", "?force=true")
        broker = self._random.choice(self._brokers)
        try:
            rest(broker, method, f"/admin/v2/persistent/{NAMESPACE}/{name}{query}")
            status = 204
        except urllib.error.HTTPError as error:
            status = error.code
        except OSError:
            status = 0
        key = f"{method} {status}"
        self.answers[key] = self.answers.get(key, 0) + 1
        confirmed = {("PUT", 204): True, ("PUT", 409): True, ("DELETE", 204): False,
                     ("DELETE", 404): False}  # fmt: skip
        return confirmed.get((method, status))

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def problems(self, client: pulsar.Client) -> list[str]:
        """What is not as it was confirmed, and topics that take no message."""
        found = []
        listed = set(rest(self._brokers[0], "GET", f"/admin/v2/persistent/{NAMESPACE}"))
        for name, is_there in self.is_there.items():
            topic = f"persistent://{NAMESPACE}/{name}"
            if is_there is not None and (topic in listed) != is_there:
                found.append(f"{topic} is {'not ' if is_there else ''}there")
            began_s = time.monotonic()
            try:
                producer = client.create_producer(topic, send_timeout_millis=10_000)
                producer.send(b"x")
                producer.close()
            except Exception as error:  # noqa: BLE001 - the client's errors have no common base
                found.append(f"{topic} takes no message: {error}")
            if time.monotonic() - began_s > BACK_LIMIT_S:
                found.append(f"{topic} took {time.monotonic() - began_s:.1f} s to take a message")
        return found


class Vanishing:
    """Raw clients that send random commands and go away in the middle."""

    def __init__(self, brokers: list[BrokerProcess], seed: int) -> None:
        self.count = 0
        self._brokers = brokers
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            broker = self._random.choice(self._brokers)
            with suppress(OSError):
                peer = Peer(("127.0.0.1", broker.port), self._random, is_secured=False)
                for _ in range(self._random.randrange(4)):
                    peer.step()
                peer.vanish()
                self.count += 1

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()


def rest(broker: BrokerProcess, method: str, path: str) -> Any:
    """A REST call to a broker; redirects are followed with every method."""
    url, tries = f"http://127.0.0.1:{broker.http_port}{path}", 5
    while True:
        request = urllib.request.Request(url, method=method)
        try:
            with OPENER.open(request, timeout=40) as answer:
                text = answer.read()
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            tries -= 1
            if error.code != 307 or not tries:
                raise
            url = error.headers["location"]


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are errors, which `rest` follows with the same method."""

    def http_error_307(self, *_: Any) -> None:
        """Not followed here."""


OPENER = urllib.request.build_opener(NoRedirects)
