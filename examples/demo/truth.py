"""The demo's own record: which messages were sent, when, and which were acknowledged.

Between two rounds there is a pause, and in it a moment: a millisecond in which no message was in
flight. So every message is surely before or after it. Searches by time are compared with this
record.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, field

Key = tuple[int, str, int]
"""A message's key: round, sender, and number within both."""


def now_ms() -> int:
    """This machine's clock, in unix milliseconds."""
    return time.time_ns() // 1_000_000


def make_payload(key: Key, size_bytes: int) -> bytes:
    """The payload of a key: it begins with the key, followed by random bytes."""
    text = f"{key[0]}/{key[1]}/{key[2]}/".encode()
    noise = hashlib.blake2b(text, digest_size=32).digest()
    return (text + noise * (size_bytes // len(noise) + 1))[: max(size_bytes, len(text))]


def key_of(payload: bytes) -> Key:
    """The key at the beginning of a payload. Raises ValueError if there is none."""
    round_text, sender, number, _ = payload.split(b"/", 3)
    return int(round_text), sender.decode(), int(number)


@dataclass(slots=True)
class Truth:
    """The record. `moments[k]` is before round k; the last moment is after the last round."""

    sent: dict[Key, bytes] = field(default_factory=dict)
    acknowledged: set[Key] = field(default_factory=set)
    #: The client times of messages from senders with wrong clocks.
    publish_times_ms: dict[Key, int] = field(default_factory=dict)
    moments: list[int] = field(default_factory=list)
    #: Keys in flight when the broker was killed: they may be stored twice.
    under_way_at_kill: set[Key] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, key: Key, payload: bytes) -> None:
        """A message will now be given to a client."""
        with self.lock:
            self.sent[key] = payload

    def acknowledge(self, key: Key) -> None:
        """The broker has acknowledged the message."""
        with self.lock:
            self.acknowledged.add(key)

    def counts(self) -> tuple[int, int]:
        """How many messages were sent, and how many are acknowledged."""
        with self.lock:
            return len(self.sent), len(self.acknowledged)

    def unacknowledged(self) -> set[Key]:
        """The messages that were given to a client and are not acknowledged yet."""
        with self.lock:
            return self.sent.keys() - self.acknowledged

    def add_moment(self, silence_ms: int = 25) -> int:
        """Wait, note the present time as a moment, and wait again; nothing is sent meanwhile."""
        time.sleep(silence_ms / 1_000)
        moment = now_ms() + 1
        self.moments.append(moment)
        time.sleep(silence_ms / 1_000)
        return moment
