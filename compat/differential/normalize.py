"""Makes the answers of two brokers comparable: replaces ids, generated names, addresses and times.

A ledger id becomes ``ledger#N``, numbered in the order of appearance in a scenario. A generated
producer name becomes ``<generated>``, an address with a port becomes ``<address>``. A field that
one broker leaves out and the other sets to its default value is a difference.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.unknown_fields import UnknownFieldSet

SIGNED_64 = 1 << 63
MODULUS_64 = 1 << 64
_EARLIEST_MS = 1_500_000_000_000
_LATEST_MS = 9_000_000_000_000
_ADDRESS = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
#: What shows only how a broker is made: stack traces, and what Jetty says in its error pages.
_INNER = re.compile(
    r"\n\nStacktrace:.*|<tr><th>SERVLET:.*?</tr>\n|<hr/><a .*?</a><hr/>\n|SERVLET: \S+\n",
    re.DOTALL,
)
_GENERATED = re.compile(r"^[\w.]+-\d+-\d+$")
_LEDGER_FIELDS = {"ledgerId", "ledger_id"}
#: Counts that depend on how the peer's threads run, and sizes of what has ledger ids in it.
_UNSTABLE = {"blockedAttempts", "nonContiguousDeletedMessagesRangesSerializedSize"}
_POSITIONS = re.compile(r"(?<=[(.])(\d+)(?=:-?\d)")
_TIMES = {"connectedSince"}
#: How Pulsar and this broker write a connection in texts.
_CONNECTION = re.compile(r"address=(\[.*\]|/?<address>)")
_NUMBERS_OF_THE_RUN = {"request_id"}


class Normalizer:
    """Normalizes what one broker answers in one scenario."""

    def __init__(self) -> None:
        self._ledgers: dict[int, int] = {}

    def ledger(self, value: int) -> str | int:
        """A ledger id as the number in the order of appearance; special values stay."""
        signed = value - MODULUS_64 if value >= SIGNED_64 else value
        if signed < 0 or signed >= SIGNED_64 - 1:
            return signed
        return f"ledger#{self._ledgers.setdefault(signed, len(self._ledgers))}"

    def command(self, message: ProtobufMessage) -> dict[str, Any]:
        """A command's set fields by name, nested ones too."""
        found: dict[str, Any] = {}
        for field, value in message.ListFields():
            if field.name in _NUMBERS_OF_THE_RUN and value < MODULUS_64 - 1:
                continue
            if field.name == "highest_sequence_id" and value == 0:
                # Pulsar answers 0 or -1 for a SEND without one, as its recycled objects happen.
                found[field.name] = -1
                continue
            if field.is_repeated:
                found[field.name] = [self._value(field.name, item) for item in value]
            else:
                found[field.name] = self._value(field.name, value)
        more = UnknownFieldSet(message)
        unknown = sorted({more[at].field_number for at in range(len(more))})
        return {**found, "unknown fields": unknown} if unknown else found

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, ProtobufMessage):
            return self.command(value)
        if name in _LEDGER_FIELDS:
            return self.ledger(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= SIGNED_64:
            return value - MODULUS_64
        if name == "producer_name" and _GENERATED.match(str(value)):
            return "<generated>"
        if name in _TIMES and value:
            return "<time>"
        if isinstance(value, float):
            return "<float>"
        if name in {"message", "error_message"}:
            return _CONNECTION.sub("address=<address>", self.text(str(value)))
        return self.text(value) if isinstance(value, str) else value

    def text(self, value: str) -> str:
        """A text without the parts that differ from run to run."""
        return _ADDRESS.sub("<address>", _INNER.sub("", value))

    def json(self, value: Any, key: str = "") -> Any:
        """A JSON answer; times, ledger ids and addresses are replaced."""
        if isinstance(value, dict):
            return {self.text(name): self.json(item, name) for name, item in sorted(value.items())}
        if isinstance(value, list):
            return [self.json(item, key) for item in value]
        if isinstance(value, bool) or value is None:
            return value
        if key in _LEDGER_FIELDS and isinstance(value, int):
            return self.ledger(value)
        if key in _UNSTABLE:
            return "<count>"
        if key == "individuallyDeletedMessages":
            return _POSITIONS.sub(lambda found: str(self.ledger(int(found[1]))), str(value))
        if isinstance(value, int | float) and _EARLIEST_MS < value < _LATEST_MS:
            return "<ms>"
        if isinstance(value, float):
            return "<float>"
        if isinstance(value, str):
            if re.fullmatch(r"-?\d+:-?\d+(:-?\d+)*", value):
                ledger, _, rest = value.partition(":")
                return f"{self.ledger(int(ledger))}:{rest}"
            if re.match(r"^\d{4}-\d\d-\d\dT", value):
                return "<time>"
            if _GENERATED.match(value) and key in {"producerName", "name"}:
                return "<generated>"
            return self.text(value)
        return value


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Every place where two normalized answers differ, as readable lines."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for key in sorted(ours.keys() | theirs.keys()):
            where = f"{path}.{key}" if path else str(key)
            if key not in ours:
                found.append(f"{where}: absent, theirs {_short(theirs[key])}")
            elif key not in theirs:
                found.append(f"{where}: {_short(ours[key])}, absent in theirs")
            else:
                found += differences(ours[key], theirs[key], where)
        return found
    if isinstance(ours, list) and isinstance(theirs, list):
        found = []
        if len(ours) != len(theirs):
            found.append(
                f"{path}: {len(ours)} items, theirs {len(theirs)}:"
                f" {_short(ours)} / {_short(theirs)}"
            )
            return found
        for number, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            found += differences(left, right, f"{path}[{number}]")
        return found
    return [] if ours == theirs else [f"{path}: {_short(ours)}, theirs {_short(theirs)}"]


def _short(value: Any, limit: int = 220) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
