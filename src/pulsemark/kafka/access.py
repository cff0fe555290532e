"""What a Kafka client may do: one object for each connection, which remembers decisions.

Kafka's operations become the broker's permissions:

==========  ===================================================================================
operation   allowed to
==========  ===================================================================================
WRITE       roles that may produce to the topic
READ        roles that may consume from it
DESCRIBE    both
ADMINISTER  administrators of the namespace's tenant: create, delete, alter, settings
==========  ===================================================================================

A group is a subscription of the namespace: a role that may consume from one of its topics at least
may use it, unless the subscription's roles exclude it. The broker decides (`AccessPort`). A
decision is remembered until permissions change, so a request costs one look at a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from .errors import Code, KafkaError
from .ports import AccessPort

#: Decisions that a connection remembers, and the longest name of which it does.
MAX_REMEMBERED = 1_000
MAX_NAME_LENGTH = 255


class Operation(Enum):
    """What a client does with a topic."""

    READ = "read"
    WRITE = "write"
    DESCRIBE = "describe"
    ADMINISTER = "administer"


class Access:
    """What the client of one connection may do."""

    def __init__(self, port: AccessPort, principal: Any) -> None:
        self._port = port
        self._is_on = port.is_on
        self._principal = principal
        self._generation = port.generation
        self._known: dict[tuple[Any, str], bool] = {}

    def may(self, operation: Operation, topic: str) -> bool:
        """Whether the client may do this with a topic, which need not exist."""
        if not self._is_on:
            return True
        return self._remembered(
            (operation, topic), lambda: self._port.topic(self._principal, operation.value, topic)
        )

    def may_use_group(self, group: str) -> bool:
        """Whether the client may use a group, or see it."""
        if not self._is_on:
            return True
        return self._remembered((None, group), lambda: self._port.group(self._principal, group))

    def _remembered(self, key: tuple[Any, str], decide: Callable[[], bool]) -> bool:
        generation = self._port.generation
        if generation != self._generation or len(self._known) >= MAX_REMEMBERED:
            self._generation = generation
            self._known.clear()
        known = self._known.get(key)
        if known is None:
            known = decide()
            if len(key[1]) <= MAX_NAME_LENGTH:
                self._known[key] = known
        return known

    @property
    def remembered(self) -> int:
        """How many decisions it remembers."""
        return len(self._known)

    # -- refusing -------------------------------------------------------------------------------

    def check(self, operation: Operation, topic: str | None) -> None:
        """Raise KafkaError (29) if the client may not do this with a topic."""
        if not self.may(operation, topic or ""):
            raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")

    def group_code(self, group: str) -> Code:
        """30 if the client may not use a group."""
        return Code.NONE if self.may_use_group(group) else Code.GROUP_AUTHORIZATION_FAILED

    def check_broker(self) -> None:
        """Raise KafkaError (31) if the client may not see the broker's settings."""
        if self._is_on and not self._port.broker(self._principal):
            raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

    def check_writes_somewhere(self) -> None:
        """Raise KafkaError (31) if the client may write to no topic at all."""
        if self._is_on and not self._port.writes_somewhere(self._principal):
            raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

    def check_transactional_id(self) -> None:
        """Raise KafkaError (53) if the client may have no transaction: it may write nowhere."""
        if self._is_on and not self._port.writes_somewhere(self._principal):
            raise KafkaError(
                Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "Transactional id authorization failed.",
            )
