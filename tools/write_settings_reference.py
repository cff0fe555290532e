"""Write the tables of docs/configuration.md from the fields of the configuration.

    python tools/write_settings_reference.py

A test compares the page with the fields, so run this after a change of a setting.
"""

from __future__ import annotations

from pathlib import Path

from pulsemark.broker.configuration.reference import settings_table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
MARK = "<!-- The rest is made by tools/write_settings_reference.py. -->\n"

if __name__ == "__main__":
    kept = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(f"{kept}{MARK}\n{settings_table()}", encoding="utf-8")
