"""Counts the state that clients make the broker keep, per connection and over all connections.

Kept are names, properties and key ranges of producers and consumers, and requests in progress.
Above a limit the broker refuses the request. `connection_memory` counts what connections hold
beside it; unacknowledged messages are counted elsewhere. docs/limits.md lists every limit.
"""

from __future__ import annotations

from collections import deque

from ..proto.pulsar_api_pb2 import ServerError
from .errors import RefusedError


class Reservation:
    """Reserved kept memory. It is returned when this object is freed.

    The object that takes the memory (a producer, a consumer, a running request) holds the
    reservation. So the memory counts exactly as long as that object lives, however it ends.
    """

    __slots__ = ("_account", "size_bytes")

    def __init__(self, account: Account, size_bytes: int) -> None:
        self._account = account
        self.size_bytes = size_bytes

    def __del__(self) -> None:
        # The collector may run in any thread. So the sums are changed later, by `settle`.
        self._account.kept.returned.append((self._account, self.size_bytes))


class Account:
    """One connection's kept state."""

    __slots__ = ("kept", "reserved_bytes")

    def __init__(self, kept: KeptMemory) -> None:
        self.kept = kept
        self.reserved_bytes = 0

    @property
    def total_bytes(self) -> int:
        """Bytes reserved by this connection."""
        self.kept.settle()
        return self.reserved_bytes

    def reserve(self, what: str, size_bytes: int) -> Reservation:
        """Reserve `size_bytes` for `what`.

        Raises `RefusedError`: NotAllowedError above the connection's limit; ServiceNotReady above
        the limit of all connections, after which clients try again.
        """
        kept = self.kept
        kept.settle()
        if self.reserved_bytes + size_bytes > kept.limit_per_connection_bytes:
            code, whose = ServerError.NotAllowedError, "others on this connection"
            limit_bytes, total_bytes = kept.limit_per_connection_bytes, self.reserved_bytes
        elif kept.reserved_bytes + size_bytes > kept.limit_bytes:
            code, whose = ServerError.ServiceNotReady, "all connections"
            limit_bytes, total_bytes = kept.limit_bytes, kept.reserved_bytes
        else:
            self.reserved_bytes += size_bytes
            kept.reserved_bytes += size_bytes
            return Reservation(self, size_bytes)
        need = f"it needs {size_bytes} bytes, {whose} already use {total_bytes}"
        advice = f"the limit is {limit_bytes}; close producers or consumers"
        raise RefusedError(code, f"no memory for the {what}: {need}, and {advice}")


class KeptMemory:
    """Kept state over all connections."""

    __slots__ = ("limit_bytes", "limit_per_connection_bytes", "reserved_bytes", "returned")

    def __init__(self, limit_bytes: int, limit_per_connection_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.limit_per_connection_bytes = limit_per_connection_bytes
        self.reserved_bytes = 0
        #: Reservations that ended and are not subtracted from the sums yet.
        self.returned: deque[tuple[Account, int]] = deque()

    @property
    def total_bytes(self) -> int:
        """Bytes reserved by all connections."""
        self.settle()
        return self.reserved_bytes

    def settle(self) -> None:
        """Subtract the ended reservations from the sums."""
        while self.returned:
            account, size_bytes = self.returned.popleft()
            account.reserved_bytes -= size_bytes
            self.reserved_bytes -= size_bytes
