"""The audit's report as protobuf messages, for server and client."""

from __future__ import annotations

from typing import Any

from ..audit.errors import AuditInputError
from ..audit.report import Report
from ..audit.rows import AuditRow, parse_tags
from ..proto import seek_pb2 as pb
from .errors import InvalidFieldError
from .messages import not_negative

_FACTS = (
    *("bucket_ms", "counted_from_index", "next_index", "log_first_index", "left", "uncounted"),
    *("dropped_rows", "dropped_messages", "kept_from_ms", "recounts"),
)
_NUMBERS = (
    *("tier", "bucket_start_ms", "bucket_end_ms", "is_rest", "count", "doubtful_count"),
    *("control_count", "bytes", "out_of_order"),
)
_OPTIONAL = ("min_index", "max_index", "missing", "missing_before", "missing_after")


def tags_of_request(request: pb.AuditRequest) -> tuple[str, ...]:
    """The full names of the tags to divide by. Raises InvalidFieldError."""
    try:
        return parse_tags(request.by)
    except AuditInputError as error:
        raise InvalidFieldError("by", str(error)) from error


def optional_time(request: pb.AuditRequest, field: str) -> int | None:
    """A time that may be unset. Raises InvalidFieldError if it is negative."""
    return not_negative(getattr(request, field), field) if request.HasField(field) else None


def report_message(report: Report) -> pb.AuditResponse:
    """A report as the answer of a call."""
    return pb.AuditResponse(
        tags=report.tags,
        rows=[_row_message(row) for row in report.rows],
        **{name: getattr(report, name) for name in _FACTS},
    )


def _row_message(row: AuditRow) -> pb.AuditRow:
    fields: dict[str, Any] = {name: getattr(row, name) for name in (*_NUMBERS, *_OPTIONAL)}
    tags = [pb.AuditTag(name=name, value=value) for name, value in row.tags.items()]
    return pb.AuditRow(host=row.host or "", tags=tags, **fields)


def report_of(topic: str, answer: pb.AuditResponse) -> Report:
    """The report of an answer."""
    facts: dict[str, Any] = {name: getattr(answer, name) for name in _FACTS}
    rows = [_row_of(message) for message in answer.rows]
    return Report(topic=topic, tags=tuple(answer.tags), rows=rows, **facts)


def _row_of(message: pb.AuditRow) -> AuditRow:
    given: dict[str, Any] = {name: getattr(message, name) for name in _NUMBERS}
    for name in _OPTIONAL:
        given[name] = getattr(message, name) if message.HasField(name) else None
    tags = {tag.name: tag.value if tag.HasField("value") else None for tag in message.tags}
    return AuditRow(tags=tags, host=message.host or None, **given)
