"""Which authentication and authorisation providers other packages have installed, by entry point.

A package installs them as entry points of the groups `AUTHENTICATION` and `AUTHORIZATION`. They are
imported only by a broker whose configuration names them (`broker/security/plugins.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

__all__ = ["AUTHENTICATION", "AUTHORIZATION", "installed"]

AUTHENTICATION = "pulsemark.authentication"
AUTHORIZATION = "pulsemark.authorization"


def installed(group: str) -> EntryPoints:
    """The entry points of a group. Nothing is imported."""
    from importlib.metadata import entry_points

    return entry_points(group=group)
