"""docs/rest.md: every route, with its purpose."""

from __future__ import annotations

from pathlib import Path

from pulsemark.broker.http.reference import reference
from pulsemark.broker.http.routing import ROUTES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "rest.md"


def test_the_page_is_made_from_the_table_of_routes() -> None:
    """Every route is on the page as it is; after a change run tools/write_rest_reference.py."""
    assert PAGE.read_text() == reference(), "run tools/write_rest_reference.py"


def test_every_route_says_what_it_does() -> None:
    """The purpose is a sentence of the handler's docstring."""
    assert [route.path for route in ROUTES if not route.purpose.endswith((".", '"'))] == []


def test_no_two_routes_are_the_same() -> None:
    """A second route with the same method and shape would never be reached."""
    shapes = [
        (route.method, *("{}" if part.startswith("{") else part for part in route.parts))
        for route in ROUTES
        if "{domain}" not in route.path
    ]
    assert sorted({shape for shape in shapes if shapes.count(shape) > 1}) == []
