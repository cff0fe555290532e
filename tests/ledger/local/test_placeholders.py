"""How values are bound to the catalog's statements."""

from __future__ import annotations

import re
from pathlib import Path

from pulsemark.ledger.local import catalog

NUMBERED = re.compile(r"\?\d")


def test_placeholders_have_no_numbers():
    """Some Pythons 3.12 warn of `?1` with a sequence, and a test run with -W error then fails."""
    folder = Path(catalog.__file__).parent
    sources = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert "catalog.py" in sources
    for name, text in sources.items():
        statements = "\n".join(
            line for line in text.splitlines() if not line.strip().startswith("#")
        )
        assert not NUMBERED.search(statements), name
