"""The names of Kafka's topics, and their settings by Kafka's names.

The broker stores the settings with the topic's policies. `broker.topics.entry_formats` derives the
policy `retention` from `retention.ms` and `retention.bytes`, and the rules of the cleaner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..metadata.partition_names import partition_of
from .errors import Code, KafkaError
from .records import MAX_BATCH_BYTES, EntryRules, TombstoneStage

CLEANUP_POLICY = "cleanup.policy"
DELETE_RETENTION_MS = "delete.retention.ms"
DIRTY_RATIO = "min.cleanable.dirty.ratio"
FILE_DELETE_DELAY_MS = "file.delete.delay.ms"
FORMAT_VERSION = "message.format.version"
MAX_COMPACTION_LAG_MS = "max.compaction.lag.ms"
MIN_COMPACTION_LAG_MS = "min.compaction.lag.ms"
MAX_MESSAGE_BYTES = "max.message.bytes"
RETENTION_BYTES = "retention.bytes"
RETENTION_MS = "retention.ms"
TIMESTAMP_TYPE = "message.timestamp.type"
TOMBSTONE_STAGE = "pulsemark.tombstone.stage"
BOOLEAN, DOUBLE, LIST = 1, 6, 7
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its default, its type in DescribeConfigs, and the check of its text."""

    default: str
    #: Kafka's ConfigDef type: 1 BOOLEAN, 2 STRING, 3 INT, 5 LONG, 6 DOUBLE, 7 LIST.
    kind: int
    #: Raises ValueError.
    check: Callable[[str], object]
    about: str

    def parsed(self, text: str) -> str:
        """The value as Kafka shows it. Raises ValueError if the setting cannot have it."""
        shown = text.strip()
        if self.kind == BOOLEAN:
            shown = shown.lower()
        elif self.kind == LIST:
            shown = ",".join(name.strip() for name in shown.split(","))
        self.check(shown)
        return str(float(shown)) if self.kind == DOUBLE else shown


def _number(lowest: int, highest: int) -> Callable[[str], None]:
    def check(text: str) -> None:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or not lowest <= int(text) <= highest:
            raise ValueError(f"must be a whole number from {lowest} to {highest}")

    return check


def _one_of(*values: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in values:
            raise ValueError(f"must be one of {', '.join(values)}")

    return check


_MILLIS = _number(0, LONG_MAX)


def _cleanup(text: str) -> None:
    if text and not all(name in ("delete", "compact") for name in text.split(",")):
        raise ValueError("must be delete, compact, both or empty")


def magic_of_version(text: str) -> int:
    """The entry format of a message.format.version. Raises ValueError."""
    parts = text.split("-", maxsplit=1)[0].split(".")
    if not all(part.isascii() and part.isdigit() for part in parts) or len(parts) < 2:
        raise ValueError("must be a version such as 0.9.0, 0.10.0 or 2.8")
    version = tuple(map(int, parts[:2]))
    if not (0, 8) <= version < (5, 0):
        raise ValueError("must be a version from 0.8.0 to 4")
    return 0 if version < (0, 10) else 1 if version < (0, 11) else 2


def _share(text: str) -> None:
    if not 0 <= float(text) <= 1:
        raise ValueError("must be a number from 0 to 1")


SETTINGS: dict[str, Setting] = {
    CLEANUP_POLICY: Setting(
        "delete", 7, _cleanup, "delete: retention; compact: by key; empty: neither"
    ),
    DELETE_RETENTION_MS: Setting(
        "86400000", 5, _MILLIS, "how long a tombstone is shown after the first cleaning (KIP-534)"
    ),
    DIRTY_RATIO: Setting("0.5", 6, _share, "the share of new bytes from which on it is cleaned"),
    FILE_DELETE_DELAY_MS: Setting(
        "60000", 5, _MILLIS, "cleaned entries that are younger stay on the disk"
    ),
    FORMAT_VERSION: Setting(
        "3.0", 2, magic_of_version, "the entry format: magic 0, 1 or 2 (KIP-31)"
    ),
    MAX_COMPACTION_LAG_MS: Setting(
        str(LONG_MAX), 5, _number(1, LONG_MAX), "an older record is cleaned, whatever the share"
    ),
    MIN_COMPACTION_LAG_MS: Setting("0", 5, _MILLIS, "a younger record is not cleaned yet"),
    MAX_MESSAGE_BYTES: Setting(
        str(MAX_BATCH_BYTES), 3, _number(0, INT_MAX), "the largest batch that is taken"
    ),
    RETENTION_BYTES: Setting(
        "-1", 5, _number(-LONG_MAX, LONG_MAX), "bytes kept of a partition; -1: all"
    ),
    RETENTION_MS: Setting("-1", 5, _number(-1, LONG_MAX), "how long entries are kept; -1: ever"),
    TIMESTAMP_TYPE: Setting(
        "CreateTime",
        2,
        _one_of("CreateTime", "LogAppendTime"),
        "whose time consumers see: the producer's or the broker's (KIP-32)",
    ),
    TOMBSTONE_STAGE: Setting(
        "1", 3, _one_of("1", "2"), "1: null or the flag deletes a key; 2: only the flag (KIP-87)"
    ),
}


def _kept() -> dict[str, Setting]:
    """Settings of segments, replicas and cleaner: checked, kept and shown, without effect."""
    millis, switch = _MILLIS, _one_of("true", "false")
    rows: dict[str, tuple[str, int, Callable[[str], object]]] = {
        "compression.type": (
            "producer", 2, _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
        ),
        "compression.gzip.level": ("-1", 3, _one_of("-1", *map(str, range(1, 10)))),
        "compression.lz4.level": ("9", 3, _number(1, 17)),
        "compression.zstd.level": ("3", 3, _number(-131072, 22)),
        "flush.messages": (str(LONG_MAX), 5, _number(1, LONG_MAX)),
        "flush.ms": (str(LONG_MAX), 5, millis),
        "follower.replication.throttled.replicas": ("", 7, str),
        "index.interval.bytes": ("4096", 3, _number(0, INT_MAX)),
        "leader.replication.throttled.replicas": ("", 7, str),
        "local.retention.bytes": ("-2", 5, _number(-2, LONG_MAX)),
        "local.retention.ms": ("-2", 5, _number(-2, LONG_MAX)),
        "message.downconversion.enable": ("true", 1, switch),
        "message.timestamp.after.max.ms": (str(LONG_MAX), 5, millis),
        "message.timestamp.before.max.ms": (str(LONG_MAX), 5, millis),
        "message.timestamp.difference.max.ms": (str(LONG_MAX), 5, millis),
        "min.insync.replicas": ("1", 3, _number(1, INT_MAX)),
        "preallocate": ("false", 1, switch),
        "remote.log.copy.disable": ("false", 1, _one_of("false")),
        "remote.log.delete.on.disable": ("false", 1, _one_of("false")),
        "remote.storage.enable": ("false", 1, _one_of("false")),
        "segment.bytes": ("1073741824", 3, _number(14, INT_MAX)),
        "segment.index.bytes": ("10485760", 3, _number(4, INT_MAX)),
        "segment.jitter.ms": ("0", 5, millis),
        "segment.ms": ("604800000", 5, _number(1, LONG_MAX)),
        "unclean.leader.election.enable": ("false", 1, switch),
    }  # fmt: skip
    return {name: Setting(*row, "Kafka's; has no effect here") for name, row in rows.items()}


SETTINGS |= _kept()


def check_settings(settings: Mapping[str, str | None]) -> dict[str, str]:
    """The settings that are not null. Raises KafkaError (INVALID_CONFIG) with name and value."""
    checked = {}
    for name, value in settings.items():
        known = SETTINGS.get(name)
        if known is None:
            raise KafkaError(Code.INVALID_CONFIG, f"there is no topic setting {name[:100]!r} here")
        if value is None:
            continue
        try:
            checked[name] = known.parsed(value)
        except ValueError as error:
            raise KafkaError(Code.INVALID_CONFIG, f"{name}={value[:100]!r}: {error}") from error
    return checked


def value_of(settings: Mapping[str, str], name: str) -> str:
    """A setting's value, or its default."""
    return settings.get(name, SETTINGS[name].default)


def rules_of(settings: Mapping[str, str]) -> EntryRules:
    """The rules for produced record sets that follow from the settings."""
    return EntryRules(
        magic=magic_of_version(value_of(settings, FORMAT_VERSION)),
        compacted="compact" in value_of(settings, CLEANUP_POLICY),
        tombstone_stage=TombstoneStage(int(value_of(settings, TOMBSTONE_STAGE))),
        log_append_time=value_of(settings, TIMESTAMP_TYPE) == "LogAppendTime",
        max_batch_bytes=int(value_of(settings, MAX_MESSAGE_BYTES)),
    )


_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_name(name: str | None) -> bool:
    """Whether this is a valid topic name for Kafka, and not a partition's."""
    return (
        name is not None
        and _NAME.fullmatch(name) is not None
        and name not in (".", "..")
        and partition_of(name)[1] < 0
    )
