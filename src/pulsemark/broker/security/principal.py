"""Who sends a command or a request."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["UNAUTHENTICATED", "Principal"]


@dataclass(frozen=True, slots=True)
class Principal:
    """The roles that a client was authenticated for.

    `role` is the client's own; None without authentication. `original_role` is set if the client
    is a proxy (`proxyRoles`): the role for which the proxy asks.
    """

    role: str | None = None
    original_role: str | None = None


#: A client of a broker without authentication, and every client before it is authenticated.
UNAUTHENTICATED = Principal()
