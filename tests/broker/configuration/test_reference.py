"""docs/settings.md has every setting, as the code has it; docs/configuration.md explains them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pulsemark.broker.configuration.dynamic_settings import RELOADABLE
from pulsemark.broker.configuration.reference import meanings, setting_fields, settings_table
from pulsemark.broker.configuration.sources import toml_value

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_has_the_tables_of_the_code():
    """`python tools/write_references.py` was run after the last change of a setting."""
    page = (DOCS / "settings.md").read_text()
    assert page.endswith(settings_table().replace("### ", "## "))


def test_every_setting_is_explained():
    """Each field has a text above or below it."""
    explained = meanings()
    assert [name for name in setting_fields() if not explained[name]] == []


def test_reloadable_settings_exist():
    """The list names settings only."""
    assert setting_fields().keys() >= RELOADABLE


def test_the_example_is_valid():
    """The TOML on the page is taken as it is."""
    page = (DOCS / "configuration.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]
    assert all(toml_value(name, value) is not None for name, value in tomllib.loads(text).items())
