"""This broker's own policies: `brokerEntryMetadata`, `leaderEpochs`, `mirrorSources`.

- `mirrorSources`: from which clusters a topic accepts mirrors. A list of cluster names; "*" allows
  every cluster, and an empty list none. A change holds for the next entry that a mirror sends.
- `leaderEpochs`: true or false (`topics.topic_marks`).
- `brokerEntryMetadata`: the stampers of a topic, and the stamps that consumers get. Its value is
  `{"stampers": [...]}`, with names as `StamperChain.from_names` takes them. An empty list switches
  stamps off; every entry takes its indexes all the same, so that later stamps have no gap. It may
  also have `"delivered": [...]`: consumers that ask for entry metadata (PIP-90) get these fields in
  addition to time and index. A field is a registered name such as `application_tags`, or the number
  of a third party's field in digits.
"""

from __future__ import annotations

import re
from dataclasses import field
from functools import lru_cache
from typing import Any

from ...metadata import BrokerEntryMetadata, StampContext, StamperChain, StampError, field_number_of
from ...metadata.source_stamp import CLUSTER_SIZE_MAX_BYTES
from ...records import record
from .policy import Place, Policy, PolicyValueError

MIRROR_SOURCES = "mirrorSources"
MAX_SOURCES = 100


def _read_sources(name: str, value: Any) -> list[str]:
    """The policy's value, sorted and without doubles. Raises `PolicyValueError`."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise PolicyValueError(name, value, "must be a list of cluster names")
    if len(value) > MAX_SOURCES:
        raise PolicyValueError(name, value, f"{len(value)} clusters; at most {MAX_SOURCES}")
    for each in value:
        if not 0 < len(each.encode(errors="replace")) <= CLUSTER_SIZE_MAX_BYTES:
            reason = f"{each[:40]!r} must have 1 to {CLUSTER_SIZE_MAX_BYTES} bytes"
            raise PolicyValueError(name, value, reason)
    return sorted(set(value))


MIRRORS = Policy(
    name=MIRROR_SOURCES,
    right="MIRROR_SOURCES",
    key=MIRROR_SOURCES,
    what="the clusters from which mirrors may publish",
    reader=_read_sources,
    default=lambda config: list(config.mirror_sources),
    namespace=Place(MIRROR_SOURCES, empty="null"),
    topic=Place(MIRROR_SOURCES, empty="null"),
    is_ours=True,
)


# -- leaderEpochs ----------------------------------------------------------------------------------

LEADER_EPOCHS = "leaderEpochs"


def _read_leader_epochs(name: str, value: Any) -> bool:
    """The policy from its JSON value. Raises `PolicyValueError`."""
    if not isinstance(value, bool):
        raise PolicyValueError(name, value, f"must be true or false, not {ascii(value)[:80]}")
    return value


EPOCHS = Policy(
    name=LEADER_EPOCHS,
    right="LEADER_EPOCHS",
    key=LEADER_EPOCHS,
    what="whether a leader epoch begins when a broker takes a topic over",
    reader=_read_leader_epochs,
    default=lambda config: config.leader_epochs_enabled,
    default_of_kafkas=True,
    namespace=Place(LEADER_EPOCHS, empty="null"),
    topic=Place(LEADER_EPOCHS, empty="null"),
    is_ours=True,
)


# -- brokerEntryMetadata ---------------------------------------------------------------------------

POLICY_NAME = "brokerEntryMetadata"
MAX_STAMPERS = 32
MAX_DELIVERED = 64
#: The default policy, shared by all topics that have it.
_NO_FIELDS: frozenset[int] = frozenset()
MAX_NAME_LENGTH = 4_096
#: Control characters and lone surrogates.
_NOT_TEXT = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]"


class InvalidPolicyError(PolicyValueError):
    """A value that the policy cannot have; `reason` names the stamper if one is the cause."""


@lru_cache(maxsize=256)
def _chain(names: tuple[str, ...]) -> StamperChain:
    """The chain with these stampers. Blocks if it imports a plugin. Raises `StampError`."""
    return StamperChain.from_names(names)


@record(frozen=True)
class StampPolicy:
    """A value of the policy."""

    stampers: tuple[str, ...]
    chain: StamperChain = field(compare=False)
    #: Fields that clients get in addition to time and index, by name or number.
    delivered: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> StampPolicy:
        """Make the policy from its JSON value. Blocks. Raises `InvalidPolicyError`."""
        names, delivered = _names(value), _delivered(value)
        try:
            return cls(names, _chain(names), delivered)
        except StampError as error:
            raise InvalidPolicyError(POLICY_NAME, value, str(error)) from error

    @classmethod
    def stored(cls, value: Any) -> StampPolicy:
        """Make a policy from a stored value. If it is not valid any more, it refuses to stamp."""
        try:
            return cls.from_json(value)
        except InvalidPolicyError as error:
            return cls(("unavailable",), StamperChain([_Unavailable(error.reason)]))

    @property
    def delivered_fields(self) -> frozenset[int]:
        """The numbers of the fields that clients get in addition to time and index."""
        numbers = (field_number_of(name) for name in self.delivered)
        return frozenset(number for number in numbers if number is not None) or _NO_FIELDS

    def to_json(self) -> dict[str, list[str]]:
        """The value as the admin interface shows it."""
        shown = {"stampers": list(self.stampers)}
        if self.delivered:
            shown["delivered"] = list(self.delivered)
        return shown


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, dict) or set(value) - {"delivered"} != {"stampers"}:
        reason = 'must be an object {"stampers": [names]}, and may have "delivered": [fields]'
        raise InvalidPolicyError(POLICY_NAME, value, reason)
    names = value["stampers"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidPolicyError(POLICY_NAME, value, "stampers must be a list of names")
    if (count := len(names)) > MAX_STAMPERS:
        reason = f"it has {count} stampers; at most {MAX_STAMPERS} are allowed"
        raise InvalidPolicyError(POLICY_NAME, value, reason)
    for name in names:
        if len(name) > MAX_NAME_LENGTH:
            reason = f"the stamper name {name[:40]!r}... has more than {MAX_NAME_LENGTH} characters"
            raise InvalidPolicyError(POLICY_NAME, value, reason)
        if re.search(_NOT_TEXT, name):
            reason = f"the stamper name {ascii(name)[:80]} holds a control character or is not text"
            raise InvalidPolicyError(POLICY_NAME, value, reason)
    return tuple(names)


def _delivered(value: dict[str, Any]) -> tuple[str, ...]:
    fields = value.get("delivered", [])
    if not isinstance(fields, list) or not all(isinstance(name, str) for name in fields):
        raise InvalidPolicyError(POLICY_NAME, value, "delivered must be a list of fields")
    if (count := len(fields)) > MAX_DELIVERED:
        reason = f"it has {count} delivered fields; at most {MAX_DELIVERED} are allowed"
        raise InvalidPolicyError(POLICY_NAME, value, reason)
    for name in fields:
        if field_number_of(name) is None:
            raise InvalidPolicyError(
                POLICY_NAME, value, f"delivered has an unknown field {name[:40]!r}"
            )
    return tuple(fields)


class LostStamperError(
    StampError,
    text="a stamper of the topic's policy cannot be loaded: {reason}; install it or change the "
    "policy",
):
    """A stamper of a stored policy is not installed any more."""

    reason: str


@record(frozen=True)
class _Unavailable:
    """Replaces stampers that cannot be loaded. Refuses to stamp producers' entries.

    The broker's control entries are stored without stamps then, since they must not fail.
    """

    reason: str
    name = "unavailable"

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        raise LostStamperError(self.reason)


STAMPS = Policy(
    name=POLICY_NAME,
    right="ENTRY_METADATA",
    key=POLICY_NAME,
    what="the stampers of the entries, and the stamps that consumers get",
    reader=lambda _, value: StampPolicy.from_json(value).to_json(),
    default=lambda config: {"stampers": list(config.stampers)},
    namespace=Place(POLICY_NAME, empty="null"),
    topic=Place(POLICY_NAME, empty="null"),
    is_ours=True,
    read_blocks=True,
)
