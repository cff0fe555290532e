"""docs/kafka-requests.md: the requests of Kafka's protocol that are served, from their table."""

from __future__ import annotations

from pulsemark.kafka.protocol import APIS

__all__ = ["requests_page"]

INTRODUCTION = """\
# Kafka requests

The requests that the endpoint for Kafka's clients serves, made from its table by
`tools/write_references.py`; do not edit it. What each of them does, and what is not served, is in
[kafka.md](kafka.md). After a request of another version the
connection is closed, as Kafka does; ApiVersions is answered with 35 (UNSUPPORTED_VERSION) and with
what is served.

| key | request | versions | largest request |
|---|---|---|---|
"""


def requests_page() -> str:
    """The page."""
    rows = []
    for api in APIS.values():
        limit = "as a record set may be" if api.limit_bytes is None else f"{api.limit_bytes:,} B"
        rows.append(f"| {api.key} | {api.name} | {api.lowest} to {api.highest} | {limit} |\n")
    return INTRODUCTION + "".join(rows)
