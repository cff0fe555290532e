"""Control entries: a log's entries that no producer sent and no consumer gets.

The proposal for enriched message metadata (KAFKA-1639) calls them control messages: "real data but
used by the broker / consumer". A control entry has no payload. All of it is in the prefix:

- `control_type` says what it is: the start, commit or abort of a transaction, a checkpoint, a
  change of leader, or a user's own type.
- `control_name` says which one: the transaction's id, the checkpoint's mark, the leader, the user's
  type. Only a change of leader may have none.
- `application_tags` hold whatever else its writer wants to say.

All of these are bounded and checked before anything is stored. The broker does not interpret them:
whether a commit follows a start is up to the coordinator that writes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ..proto.broker_entry_pb2 import (
    CONTROL,
    CONTROL_CHECKPOINT,
    CONTROL_LEADER_CHANGE,
    CONTROL_REPLICATED_SUBSCRIPTION,
    CONTROL_TXN_ABORT,
    CONTROL_TXN_COMMIT,
    CONTROL_TXN_START,
    CONTROL_UNSPECIFIED,
    CONTROL_USER,
    BrokerEntryMetadata,
    ControlType,
)
from ..records import record
from .crc import Buffer
from .errors import ControlError
from .prefix import add_application_tags, application_tags, peek

#: The types by the names that commands and tables use.
CONTROL_TYPES: Mapping[str, ControlType] = {
    "txn-start": CONTROL_TXN_START,
    "txn-commit": CONTROL_TXN_COMMIT,
    "txn-abort": CONTROL_TXN_ABORT,
    "checkpoint": CONTROL_CHECKPOINT,
    "leader-change": CONTROL_LEADER_CHANGE,
    "user": CONTROL_USER,
    "replicated-subscription": CONTROL_REPLICATED_SUBSCRIPTION,
}
_NAMES = {number: name for name, number in CONTROL_TYPES.items()}

MAX_CONTROL_NAME_BYTES = 255
MAX_CONTROL_TAGS = 64
MAX_CONTROL_TAG_BYTES = 16 * 1024
"""Names and values of all tags of one control entry together."""


@record(frozen=True)
class Control:
    """The content of a control entry."""

    control_type: ControlType
    name: str = ""
    tags: Mapping[str, bytes] = field(default_factory=dict)
    leader_epoch: int = 0

    @property
    def type_name(self) -> str:
        """The type's name in commands; "unspecified" for a type unknown to this version."""
        return _NAMES.get(self.control_type, "unspecified")


def control_metadata(
    control_type: ControlType,
    name: str = "",
    tags: Mapping[str, bytes] | None = None,
    *,
    leader_epoch: int = 0,
) -> BrokerEntryMetadata:
    """The prefix fields of a control entry. Raises `ControlError`."""
    if control_type not in _NAMES:
        known = ", ".join(CONTROL_TYPES)
        raise ControlError("control_type", control_type, f"must be one of {known}")
    if name or control_type != CONTROL_LEADER_CHANGE:
        _check_text("control_name", name)
    metadata = BrokerEntryMetadata(entry_kind=CONTROL, control_type=control_type)
    if name:
        metadata.control_name = name
    if leader_epoch:
        metadata.leader_epoch = leader_epoch
    if tags:
        _check_tags(tags)
        add_application_tags(metadata, tags)
    return metadata


def control_of(prefix: Buffer) -> Control | None:
    """The content of a control entry's prefix; None for another entry. Raises PrefixError."""
    metadata = peek(prefix)
    if metadata is None or metadata.entry_kind != CONTROL:
        return None
    name: object = metadata.control_name  # bytes, if they are not UTF-8
    return Control(
        metadata.control_type if metadata.HasField("control_type") else CONTROL_UNSPECIFIED,
        name if isinstance(name, str) else "",
        application_tags(metadata),
        metadata.leader_epoch,
    )


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise ControlError(what, text, "must be text")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise ControlError(what, text, "is not valid Unicode") from None
    if not 1 <= size_bytes <= MAX_CONTROL_NAME_BYTES:
        reason = f"must have 1 to {MAX_CONTROL_NAME_BYTES} bytes, has {size_bytes}"
        raise ControlError(what, text, reason)
    if not text.isprintable():
        raise ControlError(what, text, "must have printable characters only")


def _check_tags(tags: Mapping[str, bytes]) -> None:
    if len(tags) > MAX_CONTROL_TAGS:
        raise ControlError("tags", len(tags), f"there may be at most {MAX_CONTROL_TAGS} tags")
    size_bytes = 0
    for name, value in tags.items():
        _check_text("tag", name)
        if name in BrokerEntryMetadata.DESCRIPTOR.fields_by_name or name.isdigit():
            # Readers show tags beside the prefix's own fields, by name or number.
            raise ControlError("tag", name, "is the name or number of a field of the prefix")
        if not isinstance(value, bytes):
            raise ControlError(f"tag {name}", value, "must be bytes")
        size_bytes += len(name.encode()) + len(value)
    if size_bytes > MAX_CONTROL_TAG_BYTES:
        reason = f"names and values may have at most {MAX_CONTROL_TAG_BYTES} bytes together"
        raise ControlError("tags", f"{size_bytes} bytes", reason)
