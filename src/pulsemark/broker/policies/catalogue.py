"""All policies, in the order in which a new namespace's values are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..cleaning.policies import CLEANING
from ..topics.leader_epochs import EPOCHS
from ..topics.mirror_policies import MIRRORS
from ..topics.stamp_policies import STAMPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .policy import Policy

__all__ = ["POLICIES", "read_settings"]

POLICIES: tuple[Policy, ...] = (STAMPS, MIRRORS, EPOCHS, *CLEANING)


def of_settings(settings: Mapping[str, Any]) -> Iterator[Policy]:
    """The policies that a namespace's settings have."""
    return (policy for policy in POLICIES if policy.key in settings)


def read_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A new namespace's settings, with its policies as they are stored. May block.

    Raises `PolicyValueError`.
    """
    checked = dict(settings)
    for policy in of_settings(settings):
        if settings[policy.key] is None:
            del checked[policy.key]
        else:
            checked[policy.key] = policy.read(settings[policy.key])
    return checked
