"""The brokers of a cluster, as Kafka's clients see them, and a broker that is alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["NO_NODE", "Alone", "ClusterPort", "Node", "reachable"]

NO_NODE = -1
"""No broker leads the partition, or coordinates the groups, at present."""
ALONE = 1
"""The number of a broker that has no others."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker: its number, and where clients reach it. None: the port they are connected to."""

    node_id: int
    host: str
    port: int | None
    tls_port: int | None

    def port_for(self, own_port: int, *, is_tls: bool) -> int:
        """The port of this broker for a client of that kind; -1: it has none."""
        if self.port is None and self.tls_port is None:
            return own_port
        port = self.tls_port if is_tls else self.port
        return -1 if port is None else port


def reachable(
    nodes: Mapping[int, Node], own_port: int, security_protocol: str
) -> list[tuple[Node, int]]:
    """The brokers that a client can use, each with its port: with TLS if the client's own is so.

    Args:
        nodes: the brokers that live, by number.
        own_port: the port that the client is connected to.
        security_protocol: Kafka's name of how it is connected.
    """
    is_tls = "SSL" in security_protocol
    found = [(node, node.port_for(own_port, is_tls=is_tls)) for node in nodes.values()]
    return [(node, port) for node, port in found if port >= 0]


class ClusterPort(Protocol):
    """The brokers that share the topics. Each partition has one that leads it.

    One broker coordinates all groups: the owner of the log of their offsets. None of the calls
    raises: what cannot be found out is `NO_NODE`.
    """

    @property
    def node_id(self) -> int:
        """This broker's number."""

    async def nodes(self) -> Mapping[int, Node]:
        """The brokers that live, by number."""

    async def leaders(self, topic: str, count: int) -> list[int]:
        """The number of each partition's leader."""

    async def coordinator(self) -> int:
        """The number of the broker that coordinates groups, and where topics are deleted."""

    def coordinates(self) -> bool:
        """Whether that is this broker."""

    def offer(self) -> None:
        """Begin to coordinate groups if no broker does."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of what this broker leads or coordinates."""


class Alone:
    """`ClusterPort` of a broker that leads and coordinates everything."""

    node_id = ALONE

    def __init__(self, host: str) -> None:
        self._nodes = {ALONE: Node(ALONE, host, None, None)}

    async def nodes(self) -> Mapping[int, Node]:
        """This broker."""
        return self._nodes

    async def leaders(self, topic: str, count: int) -> list[int]:
        """This broker leads all."""
        return [ALONE] * count

    async def coordinator(self) -> int:
        """This broker."""
        return ALONE

    def coordinates(self) -> bool:
        """It does."""
        return True

    def offer(self) -> None:
        """It does already."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Nothing ever changes."""
