"""docs/limits.md lists every limit with its name and default."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pulsemark.broker import BrokerConfig
from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.configuration.settings import pulsar_settings, runtime_settings

TABLE = (Path(__file__).parents[3] / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", TABLE, re.MULTILINE))
PULSARS = {setting.name: key for key, setting in pulsar_settings().items()}


@pytest.mark.parametrize(
    "field",
    [
        spec.name
        for owner in (BrokerConfig, SecurityConfig)
        for spec in fields(owner)
        if spec.name.startswith("max_")
    ],
)
def test_every_limit_is_in_the_table(field):
    """Each `max_` setting has a row."""
    ours = "pulsemark" + "".join(part.capitalize() for part in field.split("_"))
    assert PULSARS.get(field, ours) in ROWS


@pytest.mark.parametrize(("key", "default"), ROWS.items())
def test_defaults_are_those_of_the_code(key, default):
    """A row's default is the value of a broker without settings."""
    assert runtime_settings(BrokerConfig())[key] == default
