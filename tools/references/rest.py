"""The reference of the HTTP interface (docs/rest.md), made from the table of routes."""

from __future__ import annotations

from pulsemark.broker.http.route import Route
from pulsemark.broker.http.routing import all_routes

__all__ = ["rest_page"]

INTRODUCTION = """\
# REST

The broker answers the routes of Apache Pulsar's admin REST interface and those of this table. This
page is made from the table of routes by `tools/write_references.py`; do not edit it.

- Statuses: 200 with a body, 204 without one for changes, 400 for a body or a URL that cannot be
  read, 401 and 403 without the permission that the last column names
  ([authorization.md](authorization.md)), 404 for a path or a name that does not exist, 405 for a
  method that a path does not have (with `Allow`) and for an operation that its topic does not have,
  406 if the client takes no JSON, 409 if what is to be created exists or is in use, 412 for a value
  or a name that is not valid, 413 for a body over the limit, 415 for a body of another type, 421,
  403 and 415 for requests of foreign web pages, and 503 if the disk fails.
- An error is `{"reason": "..."}`. A body that is not JSON is answered with a line of text that says
  where it is wrong.
- A slash at the end of a path makes no difference. Names are percent-decoded one by one, so
  `%2F` is a part of a name. HEAD is answered as GET, without the body; OPTIONS names the methods.
- `{domain}` is `persistent` or `non-persistent`.

What remains different from Apache Pulsar is in [compatibility.md](compatibility.md).
"""


def rest_page() -> str:
    """The page."""
    parts = [INTRODUCTION]
    for section in sorted({_section(route) for route in all_routes()}):
        rows = [route for route in all_routes() if _section(route) == section]
        rows.sort(key=lambda route: (route.path, route.method))
        parts.append(
            f"\n## {section}\n\n| method | path | what it does | needs |\n|---|---|---|---|\n"
        )
        parts += [f"{_row(route)}\n" for route in rows]
    return "".join(parts)


def _section(route: Route) -> str:
    parts = [part for part in route.path.split("/") if part]
    if parts[:1] == ["admin"]:
        part = parts[2] if parts[1] in ("v2", "v3") else parts[1]
        return part.replace("{domain}", "topics").replace("persistent", "topics")
    return "lookup" if parts[:1] == ["lookup"] else "broker"


def _row(route: Route) -> str:
    purpose = route.purpose.replace("|", "\\|")
    return f"| {route.method} | `{route.path}` | {purpose} | {route.permission} |"
