"""Every path of a tenant's, a namespace's and a topic's, with each method and each kind of body.

The paths are those of docs/rest.md. Nothing outside of a tenant of the scenario's own is changed:
paths without a tenant are only read. Each path has a scenario of its own, with new names.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..peers import Recorder
from .registry import ADMIN, REST_SCENARIOS, Scenario, unique

METHODS = ("GET", "PUT", "POST", "DELETE", "PATCH")
BODIES: dict[str, bytes | None] = {
    "nothing": None,
    "bad JSON": b"{",
    "unknown field": b'{"zzz":1}',
    "list": b"[]",
    "text": b'"x"',
    "number": b"7",
    "negative": b"-1",
    "null": b"null",
}
#: What this broker alone serves, or what changes more than the scenario's own tenant.
LEFT_OUT = re.compile(
    r"/pulsemark/|getMessageIdByIndex"
    r"|/migration|entryByTime|byTime|byIndex|[sS]tamp|/mirror|/audit|entryFormat|[eE]pochs"
    r"|/entries|/timeline|brokerEntryMetadata"
)
_ROW = re.compile(r"^\| [A-Z]+ \| `(/[^`]*)` \|", re.MULTILINE)
_REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "rest.md"


def templates() -> list[str]:
    """The paths with a tenant, each once."""
    found = _ROW.findall(_REFERENCE.read_text())
    return sorted({path for path in found if "{tenant}" in path and not LEFT_OUT.search(path)})


def filled(template: str, names: dict[str, str]) -> str:
    """A path with names in the place of its parameters."""
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], "7"), template)


def group_of(template: str) -> str:
    """A name for the paths that are alike but for their last part."""
    parts = [part for part in template.removeprefix(ADMIN).split("/") if part]
    return "_".join(re.sub(r"\W", "", part) for part in parts)


def sweep(template: str) -> Scenario:
    """A scenario with all methods and bodies on a path."""

    def run(broker: Recorder, topic: str) -> None:
        tenant = f"m{unique(topic).rpartition('-')[2]}{abs(hash(template)) % 10**6}"
        prepare(broker, tenant)
        for place, names in places(tenant).items():
            path = filled(template, names)
            for method in METHODS:
                with_bodies = place == "there" and method in ("PUT", "POST", "DELETE")
                bodies = BODIES if with_bodies else {"nothing": None}
                for kind, body in bodies.items():
                    broker.rest(method, path, body, label=f"{method} {place} {kind}")
        broker.rest("DELETE", f"{ADMIN}/namespaces/{tenant}/n?force=true", quiet=True)

    return run


def prepare(broker: Recorder, tenant: str) -> None:
    """A tenant with a namespace, a topic with a subscription, and a partitioned topic."""
    body = {"adminRoles": [], "allowedClusters": ["standalone"]}
    broker.rest("PUT", f"{ADMIN}/tenants/{tenant}", body, quiet=True)
    broker.rest("PUT", f"{ADMIN}/namespaces/{tenant}/n", quiet=True)
    broker.rest("PUT", f"{ADMIN}/persistent/{tenant}/n/t", quiet=True)
    broker.rest("PUT", f"{ADMIN}/persistent/{tenant}/n/t/subscription/s", quiet=True)
    broker.rest("PUT", f"{ADMIN}/persistent/{tenant}/n/p/partitions", 2, quiet=True)


def places(tenant: str) -> dict[str, dict[str, str]]:
    """What the paths' parameters stand for in turn."""
    there = {
        "domain": "persistent",
        "tenant": tenant,
        "namespace": "n",
        "topic": "t",
        "subscription": "s",
        "bundle": "0x00000000_0x40000000",
    }
    return {
        "partitioned": {**there, "topic": "p"},
        "absent topic": {**there, "topic": "absent", "subscription": "absent"},
        "absent namespace": {**there, "namespace": "absent"},
        "absent tenant": {**there, "tenant": "absent"},
        "in memory": {**there, "domain": "non-persistent"},
        "there": there,
    }


for _template in templates():
    REST_SCENARIOS[f"matrix_{group_of(_template)}"] = sweep(_template)
