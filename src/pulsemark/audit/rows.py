"""A row of the audit: what one tier counted in one bucket, for one combination of tag values.

The names are those of the Spark audit's columns (`pipeline.audit`); times are milliseconds here.

Tags are named as by `metadata.tags_of`: a system tag by its field's name, an application tag by its
own, a third party's by its full name or number. `producer` and `broker` are short for
`producer_name` and `broker_name`. A tag that an entry does not have is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from ..records import FactsError, record

MAX_TAGS = 8
MAX_TAG_NAME_BYTES = 128
MAX_VALUE_BYTES = 256
"""Longer tag values are counted in the rest row of their bucket."""
MAX_NAME_BYTES = 256
"""Of tiers, sources, hosts, datacenters and applications."""
MAX_TIME_MS = 253_402_300_800_000
"""The end of the year 9999, where Spark's timestamps end: a stamp at or after it is not a time."""
MAX_MESSAGES_PER_ENTRY = 1 << 18
"""Messages of entries that state more than this are counted as doubtful too."""
BROKER_TIER = "broker"
ALL_TIERS = "all"
"""What a request for the rows of every tier says instead of a tier."""

_ALIASES = {"producer": "producer_name", "broker": "broker_name"}
_UNITS_MS = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
MAX_BUCKET_MS = 366 * _UNITS_MS["day"]


class AuditInputError(FactsError, ValueError):
    """The audit cannot use `value` of `field` (argument, setting, posted row): `reason`."""

    field: str
    value: object
    reason: str

    def __str__(self) -> str:
        return f"{self.field} {str(self.value)[:80]!r} {self.reason}"


class AuditPostError(FactsError, text="{url}: {reason}"):
    """The broker at `url` refused posted rows: `reason`. The next post repeats them."""

    url: str
    reason: str


@record(frozen=True, kw_only=True)
class AuditRow:
    """Counts of one tier in messages, unless the name says otherwise."""

    tier: str
    bucket_start_ms: int
    bucket_end_ms: int
    #: Value by name, of the tags that were asked for; None: the entries do not have the tag.
    tags: Mapping[str, str | None]
    #: The row counts what exceeded the limit of tag values; then all of `tags` are None.
    is_rest: bool = False
    host: str | None = None
    datacenter: str | None = None
    application: str | None = None
    #: Messages of producers, without control entries.
    count: int
    #: The part of `count` in entries that state very many messages.
    doubtful_count: int = 0
    control_count: int = 0
    bytes: int = 0
    min_index: int | None = None
    max_index: int | None = None
    #: Gaps in the indexes: inside the bucket, before it, after the last one. None in rows by tags,
    #: because a gap has no tags.
    missing: int | None = None
    missing_before: int | None = None
    missing_after: int | None = None
    #: Stored (received) after an entry of a later bucket.
    out_of_order: int = 0
    #: Received more than once; a part of `count`. 0 at the broker.
    doubled: int = 0
    #: Received long after the broker took them. 0 at the broker.
    late: int = 0

    def to_json(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return {**asdict(self), "tags": dict(self.tags)}


_COUNTS = (
    *("count", "doubtful_count", "control_count", "bytes", "out_of_order", "doubled", "late"),
)
_INDEXES = ("min_index", "max_index")
_LABELS = ("host", "datacenter", "application")
_NAMES = tuple(field.name for field in fields(AuditRow))


def row_from_json(value: Any) -> AuditRow:
    """A row that a client sent. Raises AuditInputError, which names the field."""
    if not isinstance(value, dict):
        raise AuditInputError("row", value, "is not an object")
    for name in value:
        if name not in _NAMES:
            raise AuditInputError("row", name, "is not a field of a row")
    start_ms = _number(value, "bucket_start_ms", MAX_TIME_MS)
    end_ms = _number(value, "bucket_end_ms", MAX_TIME_MS + MAX_BUCKET_MS)
    if not 0 < end_ms - start_ms <= MAX_BUCKET_MS or start_ms % (end_ms - start_ms):
        raise AuditInputError("bucket_start_ms", start_ms, "does not begin a bucket of its width")
    given: dict[str, Any] = {name: _label(value, name) for name in _LABELS}
    for name in _COUNTS:
        given[name] = _number(value, name, (1 << 63) - 1, default=None if name == "count" else 0)
    for name in _INDEXES:
        none = value.get(name) is None
        given[name] = None if none else _number(value, name, (1 << 63) - 1)
    if given["doubled"] > given["count"]:
        raise AuditInputError("doubled", given["doubled"], "is more than count")
    return AuditRow(
        tier=check_name("tier", value.get("tier")),
        bucket_start_ms=start_ms,
        bucket_end_ms=end_ms,
        tags=_tags(value.get("tags", {})),
        is_rest=value.get("is_rest") is True,
        **given,
    )


def _number(value: dict[str, Any], name: str, highest: int, *, default: int | None = None) -> int:
    number = value.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= highest:
        raise AuditInputError(name, number, f"is not a whole number from 0 to {highest}")
    return number


def _label(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    return None if text is None else check_name(name, text)


def check_name(field: str, text: object) -> str:
    """A name of a tier, a source or a label. Raises AuditInputError."""
    if not isinstance(text, str) or not text or not text.isprintable():
        raise AuditInputError(field, text, "is not a name of printable characters")
    if len(text.encode(errors="replace")) > MAX_NAME_BYTES:
        raise AuditInputError(field, text, f"is longer than {MAX_NAME_BYTES} bytes")
    return text


def check_other_tier(tier: object) -> None:
    """The name of a tier that is not the broker. Raises AuditInputError."""
    name = check_name("tier", tier)
    if name == BROKER_TIER:
        raise AuditInputError("tier", tier, "is counted by the broker itself")
    if name == ALL_TIERS:
        raise AuditInputError("tier", tier, "means every tier")


def _tags(value: Any) -> dict[str, str | None]:
    if not isinstance(value, dict):
        raise AuditInputError("tags", value, "is not an object")
    for name, text in value.items():
        if not (text is None or (isinstance(text, str) and is_short(text))):
            raise AuditInputError(
                f"tags.{name[:80]}", text, f"is not a text of at most {MAX_VALUE_BYTES} bytes"
            )
    names = parse_tags(value)
    return {names[place]: text for place, text in enumerate(value.values())}


def is_short(text: str) -> bool:
    """Whether a tag's value is short enough for a row of its own; a lone surrogate has no size."""
    try:
        return len(text) <= MAX_VALUE_BYTES and len(text.encode()) <= MAX_VALUE_BYTES
    except UnicodeEncodeError:
        return False


def parse_tags(names: str | Iterable[str]) -> tuple[str, ...]:
    """The tags to count by, from their names or from a text with commas.

    Raises AuditInputError for a name that is empty or too long, a name given twice, and too many.
    """
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if isinstance(names, str) and not names.strip():
        return ()
    full: list[str] = []
    for name in listed:
        if not name or not name.isprintable() or "," in name:
            raise AuditInputError("tag", name, "is not the name of a tag")
        if len(name.encode(errors="replace")) > MAX_TAG_NAME_BYTES:
            raise AuditInputError("tag", name, f"is longer than {MAX_TAG_NAME_BYTES} bytes")
        full.append(_ALIASES.get(name, name))
        if full.count(full[-1]) > 1:
            raise AuditInputError("tag", name, "is given twice")
    if len(full) > MAX_TAGS:
        raise AuditInputError("tags", ",".join(full), f"are more than {MAX_TAGS}")
    return tuple(full)


def parse_bucket_ms(text: str) -> int:
    """The milliseconds of a width like ``1 minute`` or ``30 seconds``.

    Raises AuditInputError: the text is not such a width, or the width is longer than 366 days.
    """
    found = re.fullmatch(r"\s*([0-9]{1,12})\s*([a-z]+?)s?\s*", text.lower())
    if found is None or found[2] not in _UNITS_MS:
        raise AuditInputError(
            "bucket", text, f"is not a number and a unit of {', '.join(_UNITS_MS)}"
        )
    width_ms = int(found[1]) * _UNITS_MS[found[2]]
    if not 0 < width_ms <= MAX_BUCKET_MS:
        raise AuditInputError("bucket", text, "is not between 1 millisecond and 366 days")
    return width_ms
