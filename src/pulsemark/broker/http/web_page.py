"""The broker's page for people, at `/`: one HTML file without data.

Its script asks the REST interface for everything it shows, with the credentials that the person
types, so the page itself needs none. The Content-Security-Policy allows exactly its own script and
style, by their hashes, and connections to this broker only.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from ..security import needs
from .messages import Request, Response
from .route import Route

__all__ = ["ROUTES"]

PAGE_TYPE = "text/html; charset=utf-8"


async def page(request: Request) -> Response:
    """The broker's page: topics, one topic's timeline, entries by time and by index."""
    return _response()


@cache
def _response() -> Response:
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash_of(text, 'script')}; "
        f"style-src {_hash_of(text, 'style')}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
    )
    return Response(200, text.encode(), PAGE_TYPE, headers)


def _hash_of(text: str, element: str) -> str:
    found = re.search(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    assert found is not None, f"page.html has no <{element}>"
    digest = hashlib.sha256(found[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


ROUTES = (Route("GET", "/", needs.OPEN, None, page),)
