"""Answers to requests that no handler takes, in the formats of Pulsar's web server.

Pulsar answers them with a page that says which path was asked for. The format depends on the
request's Accept: HTML, JSON or text. Only GET, POST and HEAD get a page; other methods get an
empty body.
"""

from __future__ import annotations

import json
from html import escape
from http import HTTPStatus

from .messages import Response

__all__ = [
    "HTML_TYPE",
    "JSON_CLASSES",
    "accepts_json",
    "allow_header",
    "error_page",
    "has_json_body",
    "html_page",
    "options",
]

WITH_PAGE = frozenset({"GET", "POST", "HEAD"})
#: The order in which Pulsar names methods in Allow.
METHODS = ("HEAD", "DELETE", "POST", "GET", "OPTIONS", "PUT")
#: The parts of /admin/v2 where a body must have the content type application/json.
JSON_CLASSES = frozenset({"tenants", "namespaces", "resourcegroups", "resource-quotas", "schemas"})

HTML = """<html>
<head>
<meta http-equiv="Content-Type" content="text/html;charset=ISO-8859-1"/>
<title>Error {status} {message}</title>
</head>
<body><h2>HTTP ERROR {status} {message}</h2>
<table>
<tr><th>URI:</th><td>{path}</td></tr>
<tr><th>STATUS:</th><td>{status}</td></tr>
<tr><th>MESSAGE:</th><td>{message}</td></tr>
</table>

</body>
</html>
"""
#: A page of an error is not kept.
NOT_KEPT = (("cache-control", "must-revalidate,no-cache,no-store"),)
TEXT = "HTTP ERROR {status} {message}\nURI: {path}\nSTATUS: {status}\nMESSAGE: {message}\n"


def html_page(status: int, escaped_message: str, path: str) -> str:
    """The page of an error."""
    return HTML.format(status=status, message=escaped_message, path=escape(path))


def error_page(method: str, path: str, accept: str, status: int, reason: str = "") -> Response:
    """The answer with a status that no handler gave; `path` is the request's, still encoded."""
    if method not in WITH_PAGE:
        return Response(status)
    message = reason or HTTPStatus(status).phrase
    for kind in _media_types(accept) or ["*/*"]:
        if kind in ("*/*", "text/*", "text/html"):
            text = html_page(status, escape(message), path)
            return Response(status, text.encode("latin-1", "replace"), HTML_TYPE, NOT_KEPT)
        if kind == "text/plain":
            text = TEXT.format(status=status, message=message, path=path)
            return Response(status, text.encode("latin-1", "replace"), PLAIN_TYPE, NOT_KEPT)
        if kind in ("application/json", "text/json"):
            fields = {"message": message, "url": path, "status": str(status)}
            lines = ",\n".join(f"{json.dumps(key)}:{json.dumps(fields[key])}" for key in fields)
            return Response(status, f"{{\n{lines}\n}}".encode(), kind, NOT_KEPT)
    return Response(status)


HTML_TYPE = "text/html;charset=iso-8859-1"
PLAIN_TYPE = "text/plain;charset=iso-8859-1"


def options(allowed: frozenset[str]) -> Response:
    """The answer to OPTIONS: the methods of a path, in Allow and in the body."""
    named = [name for name in METHODS if name in allowed or name == "OPTIONS"]
    if "GET" in allowed:
        named.insert(0, "HEAD")
    body = ", ".join(named).encode()
    return Response(200, body, "text/plain", (("allow", ",".join(named)),))


def allow_header(allowed: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """The header that an answer 405 must have."""
    named = [name for name in METHODS if name in allowed or name == "OPTIONS"]
    return (("allow", ",".join(named)),)


def accepts_json(accept: str) -> bool:
    """Whether a client that sends this Accept takes JSON."""
    kinds = _media_types(accept)
    return not kinds or any(kind in ("*/*", "application/*", "application/json") for kind in kinds)


def has_json_body(content_type: str) -> bool:
    """Whether a body of this content type is taken as JSON.

    So are bodies without a type, and those with the type that curl and Python's urllib send if
    the user chose none. Pulsar refuses the latter.
    """
    kind = content_type.partition(";")[0].strip().lower()
    return kind in ("", "application/json", "application/x-www-form-urlencoded")


def _media_types(accept: str) -> list[str]:
    parts = (part.partition(";")[0].strip().lower() for part in accept.split(","))
    return [part for part in parts if part]
