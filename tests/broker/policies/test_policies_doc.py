"""docs/policies.md has a row for each policy, made from its description."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from pulsemark.broker import BrokerConfig
from pulsemark.broker.configuration.config import PolicyDefaults
from pulsemark.broker.configuration.settings import pulsar_settings
from pulsemark.broker.policies.policy import Place, Policy
from pulsemark.broker.policies.pulsar_policies import BACKLOG_QUOTAS, POLICIES, PROPERTIES
from pulsemark.cli.policies import POLICIES as OF_COMMAND

TEXT = (Path(__file__).parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")
HEAD = "| policy | namespace | topic | decides | in Pulsar's namespace policies |"


def shown(place: Place | None, policy: Policy) -> str:
    """A cell with a level's path, and the method that sets it."""
    if policy in (BACKLOG_QUOTAS, PROPERTIES):
        return "POST `backlogQuota`" if policy is BACKLOG_QUOTAS else "PUT `properties`"
    return "-" if place is None else f"{place.method} `{place.path}`"


def row(policy: Policy) -> str:
    """A policy's row."""
    what = policy.what
    levels = f"{shown(policy.namespace, policy)} | {shown(policy.topic, policy)}"
    return f"| `{policy.name}` | {levels} | {what.replace('|', '/')} | `{policy.key}` |"


def table() -> str:
    """The whole table."""
    return "\n".join([HEAD, "|---" * 5 + "|", *map(row, POLICIES)])


def test_the_table_is_that_of_the_descriptions() -> None:
    """Print `table()` to make it again."""
    assert table() in TEXT


def test_the_command_knows_every_policy() -> None:
    """`pulsemark policies` has them all."""
    assert {policy.name for policy in POLICIES} <= set(OF_COMMAND)


def test_names_are_unique_and_defaults_are_valid() -> None:
    """Each policy has a name and a key of its own; the broker's value can be read."""
    assert len({policy.name for policy in POLICIES}) == len(POLICIES)
    assert len({policy.key for policy in POLICIES}) == len(POLICIES)
    config = BrokerConfig()
    for policy in POLICIES:
        default = policy.default(config)
        if default is not None:
            assert policy.read(default) == default, policy.name


def test_each_setting_has_a_name_of_pulsars() -> None:
    """Every field of the broker's level can be set in broker.conf by Pulsar's name."""
    named = {setting.name for setting in pulsar_settings().values()}
    assert {spec.name for spec in fields(PolicyDefaults)} <= named
