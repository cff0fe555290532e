"""The scenarios over REST, by name, and calls written as lines of text."""

from __future__ import annotations

from collections.abc import Callable

from ..peers import Recorder

__all__ = [
    "ADMIN",
    "CLUSTER_WIDE",
    "REST_SCENARIOS",
    "calls",
    "cluster_wide",
    "path_of",
    "scenario",
    "unique",
]

Scenario = Callable[[Recorder, str], None]
REST_SCENARIOS: dict[str, Scenario] = {}
#: Scenarios that change settings of the whole cluster: only for a peer that has no other users.
CLUSTER_WIDE: dict[str, Scenario] = {}
ADMIN = "/admin/v2"


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under its name."""
    REST_SCENARIOS[function.__name__] = function
    return function


def cluster_wide(function: Scenario) -> Scenario:
    """Register a scenario that changes what the whole cluster shares."""
    CLUSTER_WIDE[function.__name__] = function
    return function


def path_of(topic: str) -> str:
    """A topic's path below /admin/v2."""
    return f"{ADMIN}/{topic.replace('://', '/')}"


def unique(topic: str) -> str:
    """A name that no other run used."""
    return topic.rpartition("/")[2]


def calls(broker: Recorder, text: str, **names: str) -> None:
    """Make the calls in a text, one a line: method, path below /admin/v2, body.

    A path that begins with two slashes is one from the root. `<name>` in a path stands for a value
    of `names`.
    """
    for line in filter(None, map(str.strip, text.splitlines())):
        method, path, *rest = line.split(" ", 2)
        for name, value in names.items():
            path = path.replace(f"<{name}>", value)
        where = path[1:] if path.startswith("//") else ADMIN + path
        body = rest[0].encode() if rest else None
        broker.rest(method, where, body, label=line)
