"""The audit of a topic: what the broker counted, and what other tiers post.

    GET  /admin/v2/persistent/T/N/TOPIC/audit    the rows; query: by, tier, startingTime, endingTime
    POST /admin/v2/persistent/T/N/TOPIC/audit    a consumer's rows: {"source": ..., "rows": [...]}

Pulsar has no such routes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ...audit.report import Post, Report, of_tier
from ...audit.rows import (
    ALL_TIERS,
    BROKER_TIER,
    MAX_TIME_MS,
    AuditInputError,
    AuditRow,
    check_name,
    parse_tags,
)
from ..security import needs
from .messages import HttpError, Request, Response
from .names import open_one_log
from .route import TOPIC, Routes, TopicPath

routes = Routes()


@routes.get(f"{TOPIC}/audit", needs.topic("GET_STATS"))
async def get_audit(request: Request, path: TopicPath) -> Response:
    """The rows of the broker, of another tier, or of all tiers."""
    opened = await open_one_log(request, path, what="The audit")
    auditor, query = request.services.auditor, request.query
    try:
        by = None if "by" not in query else parse_tags(query["by"])
        tier = check_name("tier", query.get("tier", BROKER_TIER))
        from_ms, to_ms = _time(query, "startingTime"), _time(query, "endingTime")
        made = await auditor.report(opened, by, starting_time_ms=from_ms, ending_time_ms=to_ms)
    except AuditInputError as error:
        raise HttpError(400, str(error)) from error
    rows = list(made.rows)
    if tier != BROKER_TIER:
        posted = [
            row
            for row in await auditor.received(opened)
            if (from_ms is None or row.bucket_end_ms > from_ms)
            and (to_ms is None or row.bucket_start_ms < to_ms)
        ]
        rows = [*rows, *posted] if tier == ALL_TIERS else list(of_tier(posted, tier))
    return await Response.of_long_json(_shown(made, rows), request.services.topics.turns)


def _shown(made: Report, rows: list[AuditRow]) -> Generator[None, None, Any]:
    shown = []
    for row in rows:
        shown.append(row.to_json())
        yield
    return {**made.facts(), "rows": shown}


@routes.post(f"{TOPIC}/audit", needs.topic("CONSUME"))
async def post_audit(request: Request, path: TopicPath) -> Response:
    """Take the rows of another tier. They are on disk when this is answered."""
    opened = await open_one_log(request, path, what="The audit")
    try:
        await request.services.auditor.post(opened, Post.from_json(request.json()))
    except AuditInputError as error:
        raise HttpError(400, str(error)) from error
    return Response()


def _time(query: dict[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text[:16]) <= MAX_TIME_MS):
        raise AuditInputError(name, text, "is not a time in milliseconds since 1970")
    return int(text[:16])
