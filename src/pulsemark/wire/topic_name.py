"""Names of topics.

    persistent://tenant/namespace/local         the full form; non-persistent:// likewise
    tenant/namespace/local, local               short forms: persistent, tenant "public",
                                                namespace "default"
    persistent://tenant/cluster/namespace/local the form of Pulsar 1; its namespace is
                                                cluster/namespace

A partition of a partitioned topic is a topic of its own named `<topic>-partition-<n>` (see
`metadata.partition_names`).

Rules: tenant and namespace consist of ASCII letters, digits and `-=:._` (Pulsar's rule for
entities). The local part may be any text of at most 255 bytes of UTF-8, without `/` and without
control characters. No part may be empty, "." or "..". In a name of Pulsar 1 the cluster is only a
part of the namespace's name, as in Pulsar 4, and the local part may have slashes. So
`persistent://public/default/a/b` is the topic `b` in the namespace `public/default/a`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..metadata.partition_names import partition_name, partition_of
from .errors import InvalidTopicNameError

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"

#: Of a topic's local name without "-partition-N": so every topic may have partitions.
PART_SIZE_MAX_BYTES = 255

_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class TopicName:
    """A valid topic name, in parts. `str()` gives the full form."""

    domain: str
    tenant: str
    #: In a name of Pulsar 1 `cluster/namespace`.
    namespace_local: str
    local: str

    @classmethod
    def parse(cls, name: str) -> TopicName:
        """The topic of a full or short name. Raises InvalidTopicNameError."""
        domain, separator, rest = name.partition("://")
        if separator:
            if domain not in {PERSISTENT, NON_PERSISTENT}:
                raise InvalidTopicNameError(name, f"unknown domain {domain[:40]!r}")
            parts = rest.split("/", 3)
            if len(parts) not in {3, 4}:
                raise InvalidTopicNameError(name, "not of the form domain://tenant/namespace/topic")
        else:
            domain = PERSISTENT
            parts = name.split("/")
            if len(parts) == 1:
                parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, *parts]
            elif len(parts) != 3:
                raise InvalidTopicNameError(name, "not of the form topic or tenant/namespace/topic")
        tenant, *cluster, namespace, local = parts
        for what, part in zip(("tenant", "cluster"), (tenant, *cluster), strict=False):
            _check_entity(name, what, part)
        _check_entity(name, "namespace", namespace)
        _check_part(name, "topic", local)
        for part in local.split("/"):
            _check_no_dots(name, "topic", part)
        return cls(domain, tenant, "/".join((*cluster, namespace)), local)

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace_local}/{self.local}"

    @property
    def namespace(self) -> str:
        """The namespace with its tenant: `tenant/namespace`."""
        return f"{self.tenant}/{self.namespace_local}"

    @property
    def is_persistent(self) -> bool:
        """Whether the topic's messages are stored."""
        return self.domain == PERSISTENT

    @property
    def partition_index(self) -> int:
        """The number of the partition in this name; -1 if it is not a partition's name."""
        return partition_of(self.local)[1]

    @property
    def partitioned(self) -> TopicName:
        """The partitioned topic of this partition; the topic itself if it is not a partition."""
        local, index = partition_of(self.local)
        return self if index < 0 else self._beside(local)

    def partition(self, index: int) -> TopicName:
        """The topic that is partition `index` (from 0 on) of this one.

        Raises ValueError if this is a partition itself or `index` is negative.
        """
        if index < 0 or self.partition_index >= 0:
            raise ValueError(f"{self} has no partition {index}")
        return self._beside(partition_name(self.local, index))

    def _beside(self, local: str) -> TopicName:
        return TopicName(self.domain, self.tenant, self.namespace_local, local)


def check_namespace(name: str) -> tuple[str, str]:
    """Split `tenant/namespace` into both. Raises InvalidTopicNameError if it is malformed."""
    parts = name.split("/")
    if len(parts) != 2:
        raise InvalidTopicNameError(name, "a namespace's name has the form tenant/namespace")
    _check_entity(name, "tenant", parts[0])
    _check_entity(name, "namespace", parts[1])
    return parts[0], parts[1]


def check_namespace_or_older(name: str) -> None:
    """As `check_namespace`, with `tenant/cluster/namespace`. Raises InvalidTopicNameError."""
    parts = name.split("/")
    if len(parts) != 3:
        check_namespace(name)
        return
    for what, part in zip(("tenant", "cluster", "namespace"), parts, strict=True):
        _check_entity(name, what, part)


def is_entity_name(name: str) -> bool:
    """Whether a tenant, cluster or namespace can be called so: Pulsar's rule for entities."""
    return _ENTITY.fullmatch(name) is not None


def is_older_namespace(name: str) -> bool:
    """Whether a namespace's name has a cluster, as in Pulsar 1: `tenant/cluster/namespace`."""
    return name.count("/") == 2


def _check_entity(name: str, what: str, part: str) -> None:
    _check_part(name, what, part)
    if not is_entity_name(part):
        raise InvalidTopicNameError(name, f"the {what} may hold letters, digits and -=:._ only")


def _check_no_dots(name: str, what: str, part: str) -> None:
    if part in {".", ".."}:
        raise InvalidTopicNameError(name, f"the {what} may not be {part!r}")


def _check_part(name: str, what: str, part: str) -> None:
    if not part or part.isspace():
        raise InvalidTopicNameError(name, f"the {what} is empty")
    _check_no_dots(name, what, part)
    if _CONTROL.search(part):
        raise InvalidTopicNameError(name, f"the {what} holds a control character")
    try:
        size = len((partition_of(part)[0] if what == "topic" else part).encode())
    except UnicodeEncodeError:
        raise InvalidTopicNameError(name, f"the {what} is not encodable as UTF-8") from None
    if size > PART_SIZE_MAX_BYTES:
        reason = f"the {what} has {size} bytes, at most {PART_SIZE_MAX_BYTES} are allowed"
        raise InvalidTopicNameError(name, reason)
