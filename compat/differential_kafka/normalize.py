"""Makes the answers of two Kafka brokers comparable: names of the run, ids, addresses and texts.

Ids of members, producers and fetch sessions become ``member#N``, ``producer#N`` and ``session#N``,
numbered in the order of their appearance in a scenario. A text for people becomes ``<text>``:
whether there is one is compared.
"""

from __future__ import annotations

import re
from typing import Any

#: Fields that say where a broker is and how busy it is.
LEFT_OUT = {
    "throttle_time_ms",
    "cluster_id",
    "host",
    "port",
    "rack",
    "documentation",
    "log_dir",
    "partition_size",
    "total_bytes",
    "usable_bytes",
    "transaction_start_time_ms",
}
TEXTS = {"error_message", "batch_index_error_message"}
_MEMBERS = {"member_id", "leader"}
#: Ids that brokers give: UUIDs, also in base64.
_MEMBER_ID = re.compile(r"-|^[\w-]{22}$")
#: Of groups of the consumer protocol: their first epoch is 1 or 2.
_EPOCHS = {"member_epoch", "group_epoch", "assignment_epoch"}
_PRODUCERS = {"producer_id"}
_SESSIONS = {"session_id"}


class Normalizer:
    """Normalizes what one broker answers in one scenario."""

    def __init__(self, run: str) -> None:
        self._run = re.compile(rf"-?{re.escape(run)}")
        self._members: dict[str, int] = {}
        self._producers: dict[int, int] = {}
        self._sessions: dict[int, int] = {}
        self._topics: dict[str, int] = {}
        self._first_epoch = 0

    def answer(self, value: Any, field: str = "") -> Any:
        """An answer, as nested dicts and lists without what differs from run to run."""
        if isinstance(value, dict):
            return {
                name: self.answer(item, name)
                for name, item in value.items()
                if name not in LEFT_OUT
            }
        if isinstance(value, list | tuple):
            return _sorted([self.answer(item, field) for item in value])
        if field in TEXTS:
            return "<text>" if value else None
        if field in _MEMBERS and isinstance(value, str) and _MEMBER_ID.search(value):
            return f"member#{self._members.setdefault(value, len(self._members))}"
        if field in _PRODUCERS and isinstance(value, int) and value >= 0:
            return f"producer#{self._producers.setdefault(value, len(self._producers))}"
        if field in _SESSIONS and isinstance(value, int) and value > 0:
            return f"session#{self._sessions.setdefault(value, len(self._sessions))}"
        if field == "topic_id":
            return f"topic#{self._topics.setdefault(str(value), len(self._topics))}"
        if field in _EPOCHS and value > 0:
            self._first_epoch = self._first_epoch or value
            return f"epoch#{value - self._first_epoch}"
        if isinstance(value, str):
            return self._run.sub("", value)
        return value


def _sorted(items: list[Any]) -> list[Any]:
    """Lists of named things have no order that a client may rely on."""
    for key in ("name", "topic", "partition_index", "resource_name", "group_id", "member_id"):
        if items and all(isinstance(item, dict) and key in item for item in items):
            return sorted(items, key=lambda item: (str(type(item[key])), item[key]))
    return items
