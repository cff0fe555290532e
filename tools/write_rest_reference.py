"""Write docs/rest.md, the reference of the HTTP interface, from the table of routes.

    python tools/write_rest_reference.py

A test compares the file with the table, so run this after a change of a route.
"""

from __future__ import annotations

from pathlib import Path

from pulsemark.broker.http.reference import reference

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rest.md"

if __name__ == "__main__":
    PAGE.write_text(reference())
