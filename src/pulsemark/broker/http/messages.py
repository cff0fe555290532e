"""A request as a handler gets it, a response as it gives it, and the error that ends one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

if TYPE_CHECKING:
    from ..services import Services

__all__ = ["HttpError", "Request", "Response"]

JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"


class HttpError(Exception):
    """A request is answered with an error: `status` and a `reason` for people."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.reason = reason


@dataclass(slots=True)
class Request:
    """One request. `segments` are the path's parts, each percent-decoded by itself."""

    method: str
    target: str
    body: bytes
    services: Services
    segments: tuple[str, ...] = field(init=False)
    query: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        path, _, query = self.target.partition("?")
        try:
            parts = path.strip("/").split("/") if path.strip("/") else []
            self.segments = tuple(unquote(part, errors="strict") for part in parts)
            pairs = parse_qs(query, keep_blank_values=True, errors="strict", max_num_fields=100)
        except (UnicodeDecodeError, ValueError) as error:
            raise HttpError(400, f"the URL is not valid: {error}") from error
        self.query = {name: values[-1] for name, values in pairs.items()}

    def flag(self, name: str) -> bool:
        """A true-or-false query parameter; absent is false."""
        return self.query.get(name, "").lower() == "true"

    def json(self) -> Any:
        """The body as JSON, whatever its content type says; None when it is empty."""
        if not self.body.strip():
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"the body is not JSON: {error}") from error


@dataclass(slots=True)
class Response:
    """One response."""

    status: int = 204
    body: bytes = b""
    content_type: str = TEXT_TYPE

    @classmethod
    def of_json(cls, value: Any, status: int = 200) -> Response:
        """A JSON body."""
        return cls(status, json.dumps(value).encode(), JSON_TYPE)

    @classmethod
    def of_text(cls, text: str, status: int = 200) -> Response:
        """A plain text body."""
        return cls(status, text.encode(), TEXT_TYPE)

    @classmethod
    def of_error(cls, status: int, reason: str) -> Response:
        """An error as Pulsar writes it: {"reason": ...}."""
        return cls.of_json({"reason": reason}, status)
