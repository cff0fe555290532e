"""docs/configuration.md has every setting, as the code has it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pulsemark.broker.configuration.fields import setting_fields
from pulsemark.broker.configuration.reference import meanings, settings_table
from pulsemark.broker.configuration.reloading import RELOADABLE
from pulsemark.broker.configuration.sources import toml_value

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "configuration.md").read_text()


def test_the_page_has_the_tables_of_the_code():
    """`python tools/write_settings_reference.py` was run after the last change of a setting."""
    assert PAGE.endswith(settings_table())


def test_every_setting_is_explained():
    """Each field has a text above or below it."""
    explained = meanings()
    assert [name for name in setting_fields() if not explained[name]] == []


def test_reloadable_settings_exist():
    """The list names settings only."""
    assert setting_fields().keys() >= RELOADABLE


def test_the_example_is_valid():
    """The TOML on the page is taken as it is."""
    text = PAGE.partition("```toml\n")[2].partition("```")[0]
    assert all(toml_value(name, value) is not None for name, value in tomllib.loads(text).items())
