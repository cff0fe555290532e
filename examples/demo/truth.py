"""What the demo knows without asking the broker: what was sent, when, and what was acknowledged.

Rounds of publishing are separated by moments of silence: a moment is a millisecond in which
nothing was on its way, so that every message is known to be before or after it. That is the truth
a search by time is measured against.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, field

Key = tuple[int, str, int]
"""A message's identity: round, sender, number within the two."""


def now_ms() -> int:
    """This machine's clock, in unix milliseconds."""
    return time.time_ns() // 1_000_000


def make_payload(key: Key, size_bytes: int) -> bytes:
    """The one payload that belongs to a key: it begins with the key, the rest is noise."""
    text = f"{key[0]}/{key[1]}/{key[2]}/".encode()
    noise = hashlib.blake2b(text, digest_size=32).digest()
    return (text + noise * (size_bytes // len(noise) + 1))[: max(size_bytes, len(text))]


def key_of(payload: bytes) -> Key:
    """The key that a payload begins with; ValueError where there is none."""
    round_text, sender, number, _ = payload.split(b"/", 3)
    return int(round_text), sender.decode(), int(number)


@dataclass(slots=True)
class Truth:
    """The record. `moments[k]` is the silence before round k; the last one follows the last."""

    sent: dict[Key, bytes] = field(default_factory=dict)
    acknowledged: set[Key] = field(default_factory=set)
    #: Client time where it is not the client's own doing: messages of senders with wrong clocks.
    publish_times_ms: dict[Key, int] = field(default_factory=dict)
    moments: list[int] = field(default_factory=list)
    #: Keys that were under way when the broker was killed: they may be stored twice.
    under_way_at_kill: set[Key] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, key: Key, payload: bytes) -> None:
        """A message is about to be handed to a client."""
        with self.lock:
            self.sent[key] = payload

    def acknowledge(self, key: Key) -> None:
        """The broker has said that the message is durable."""
        with self.lock:
            self.acknowledged.add(key)

    def counts(self) -> tuple[int, int]:
        """How many messages were sent, and how many are acknowledged."""
        with self.lock:
            return len(self.sent), len(self.acknowledged)

    def unacknowledged(self) -> set[Key]:
        """What was handed to a client and not acknowledged yet."""
        with self.lock:
            return self.sent.keys() - self.acknowledged

    def add_moment(self, silence_ms: int = 25) -> int:
        """Wait, take the present as a moment, wait again: nothing is sent meanwhile."""
        time.sleep(silence_ms / 1_000)
        moment = now_ms() + 1
        self.moments.append(moment)
        time.sleep(silence_ms / 1_000)
        return moment
