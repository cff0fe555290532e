"""A member of a consumer group, and what is answered to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..deadlines import Deadline
from ..errors import Code

__all__ = ["JoinResult", "Joining", "Member", "SyncResult"]

Protocols = tuple[tuple[str, bytes], ...]
"""What a member can take part in: names with the member's metadata, the preferred one first."""

OVERHEAD_BYTES = 1_000
"""What a member takes beside its own bytes."""


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a JoinGroup."""

    member_id: str = ""
    code: Code = Code.NONE
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    #: For the leader: member id, instance id and metadata of each member.
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The answer to a SyncGroup."""

    assignment: bytes = b""
    code: Code = Code.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """A JoinGroup: what a member says about itself."""

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    #: A new member first gets its id and joins with it (KIP-394).
    needs_id: bool
    reply: Callable[[JoinResult], None] = field(compare=False)

    @property
    def size_bytes(self) -> int:
        """What the member takes in memory, roughly."""
        metadata = sum(len(name) + len(data) for name, data in self.protocols)
        return OVERHEAD_BYTES + metadata + len(self.client_id) + len(self.member_id)


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group."""

    member_id: str
    joining: Joining
    assignment: bytes = b""
    #: It has not been in a generation yet.
    is_new: bool = True
    #: Set while its JoinGroup waits for the others.
    join_reply: Callable[[JoinResult], None] | None = None
    #: Set while its SyncGroup waits for the leader's.
    sync_reply: Callable[[SyncResult], None] | None = None
    session: Deadline | None = None

    @property
    def instance_id(self) -> str | None:
        """Its name as a static member (KIP-345); None for others."""
        return self.joining.instance_id

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        return self.joining.size_bytes + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an answer of ours, and so cannot send heartbeats."""
        return self.join_reply is not None or self.sync_reply is not None

    def metadata_of(self, protocol: str | None) -> bytes:
        """Its metadata for a protocol; b"" if it does not have that."""
        return next((data for name, data in self.joining.protocols if name == protocol), b"")

    def vote(self, candidates: frozenset[str]) -> str:
        """The candidate that it prefers."""
        return next(name for name, _ in self.joining.protocols if name in candidates)

    def answer_join(self, result: JoinResult) -> None:
        """Answer its JoinGroup, if one waits."""
        reply, self.join_reply = self.join_reply, None
        if reply is not None:
            reply(result)

    def answer_sync(self, result: SyncResult) -> None:
        """Answer its SyncGroup, if one waits."""
        reply, self.sync_reply = self.sync_reply, None
        if reply is not None:
            reply(result)
