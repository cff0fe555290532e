"""A plugin of pytest for the clients' suites: stand-ins, skipped tests, and a report.

It runs inside the client's own test session, before its conftest.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from client_suites.reasons import REASONS

SUITE = os.environ["PULSEMARK_SUITE"]
REPORT = Path(os.environ["PULSEMARK_SUITE_REPORT"])

#: Modules that the suite imports, and that no test of the broker uses.
NEEDED_ELSEWHERE = {
    "confluent-kafka": {
        "trivup": ["trivup", "trivup.clusters", "trivup.clusters.KafkaCluster"],
        "authlib": [
            "confluent_kafka.schema_registry",
            "confluent_kafka.schema_registry._async",
            "confluent_kafka.schema_registry._async.schema_registry_client",
            "confluent_kafka.schema_registry.schema_registry_client",
        ],
        "urllib3": ["confluent_kafka.avro", "confluent_kafka.avro.serializer"],
    },
}


class StandIn(ModuleType):
    """A module that has a class of every name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for package, modules in NEEDED_ELSEWHERE.get(SUITE, {}).items():
    if importlib.util.find_spec(package) is None:
        for module in modules:
            sys.modules.setdefault(module, StandIn(module))

if SUITE == "aiokafka":
    from client_suites import docker_stand_in

    sys.modules["docker"] = docker_stand_in


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot pass, with the reason."""
    for name, module in tuple(sys.modules.items()):
        if SUITE == "aiokafka" and name.endswith("tests._testutil"):
            # There is no Kerberos; all tests that use it are skipped.
            module.KerberosUtils.create_keytab = lambda *_: None
    for item in items:
        for pattern, reason in REASONS.get(SUITE, {}).items():
            if re.search(pattern, item.nodeid):
                item.add_marker(pytest.mark.skip(reason=reason))
                break


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down the outcome of each test."""
    if report.when != "call" and report.outcome == "passed":
        return
    why = ""
    if report.outcome == "skipped":
        is_place = isinstance(report.longrepr, tuple)
        why = str(report.longrepr[2] if is_place else getattr(report, "wasxfail", ""))  # type: ignore[index]
    elif report.outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(crash.message if crash is not None else report.longrepr).splitlines()[0]
    line = json.dumps([report.nodeid, report.outcome, why.removeprefix("Skipped: ")])
    with REPORT.open("a") as file:
        file.write(f"{line}\n")
