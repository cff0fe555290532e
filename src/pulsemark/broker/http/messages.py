"""The requests, responses and errors of HTTP handlers.

Each error is a JSON object with its reason, as those of Pulsar's handlers, also if no handler takes
the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import field
from http import HTTPStatus
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, unquote

from ...records import record
from ..security.authentication import UNAUTHENTICATED, Principal

if TYPE_CHECKING:
    from ..connection.services import Services
    from ..cooperative import Turns
    from ..metrics.stats import Pieces
    from ..topics.registry import Topics


#: A value that is written as JSON.
Json: TypeAlias = Any

BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
#: Members of a JSON object or list that are written in one piece.
SMALL_MEMBERS = 50
#: Texts of a long JSON body that are joined in one piece.
JOINED_PARTS = 1_000
#: Without spaces, as Pulsar writes JSON.
SEPARATORS = (",", ":")
JSON_TYPE = "application/json"
#: The parts of the administration whose paths name topics.
FORM_NAMES = ("persistent", "non-persistent", "schemas")
PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
MAX_PHRASE_CHARACTERS = 1024
UNPRINTABLE = re.compile(rb"[\x00-\x1f\x7f]")
TEXT_TYPE = "text/plain; charset=utf-8"


class HttpError(Exception):
    """A request is answered with an error: `status` and a `reason` as text."""

    def __init__(self, status: int, reason: str, *, text_type: str = "") -> None:
        """`text_type`: the body is the reason alone, of this type, for what Pulsar cannot read."""
        super().__init__(f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.text_type = text_type

    @property
    def response(self) -> Response:
        """The answer to the request."""
        if self.text_type:
            return Response(self.status, self.reason.encode(), self.text_type)
        return Response.of_error(self.status, self.reason)


class UnservedError(HttpError):
    """No handler takes the request. `allowed` are the methods of its path."""

    def __init__(self, status: int, allowed: frozenset[str] = frozenset()) -> None:
        super().__init__(status, HTTPStatus(status).phrase)
        self.allowed = allowed


@record
class Request:
    """One request. `segments` are the parts of the path, each percent-decoded on its own."""

    method: str
    target: str
    body: bytes
    services: Services
    #: The headers, with names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    principal: Principal = UNAUTHENTICATED
    is_tls: bool = False
    segments: tuple[str, ...] = field(init=False)
    query: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        path, _, query = self.target.partition("?")
        if BAD_PERCENT.search(path):
            raise HttpError(400, "the URL is not valid: after % come two hexadecimal digits")
        try:
            # A segment's parameters follow a semicolon (RFC 3986), as in Pulsar.
            plain = [part.partition(";")[0] for part in _parts(path)]
            self.segments = tuple(
                unquote(part.replace("+", " ") if _is_form(plain, at) else part, errors="strict")
                for at, part in enumerate(plain)
            )
            pairs = parse_qs(query, keep_blank_values=True, errors="strict", max_num_fields=100)
        except (UnicodeDecodeError, ValueError) as error:
            raise HttpError(400, f"the URL is not valid: {error}") from error
        self.query = {name: values[-1] for name, values in pairs.items()}

    @property
    def topics(self) -> Topics:
        """The broker's topics."""
        return self.services.topics

    def flag(self, name: str, default: str = "false") -> bool:
        """A boolean query parameter."""
        return self.query.get(name, default).lower() == "true"

    def json(self) -> Any:
        """The body as JSON, whatever its type; None if it is empty. Raises `HttpError` 400."""
        if not self.body.strip():
            return None
        try:
            return json.loads(self.body, parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            reason = f"the body is not JSON: {error}"
            raise HttpError(400, reason, text_type="text/plain") from error

    def required_json(self) -> Any:
        """The same, of a body that must not be empty."""
        if not self.body.strip():
            raise HttpError(400, "The request entity cannot be empty.", text_type=JSON_TYPE)
        return self.json()

    def json_object(self) -> dict[str, Any] | None:
        """The same, of a body that must be an object."""
        found = self.json()
        if found is not None and not isinstance(found, dict):
            raise HttpError(400, "the body must be a JSON object", text_type="text/plain")
        return found


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number


def _parts(path: str) -> list[str]:
    """The segments of a path; a slash at its end makes no segment more."""
    parts = path.removeprefix("/").removesuffix("/").split("/")
    return [] if parts == [""] else parts


def _is_form(parts: list[str], at: int) -> bool:
    """Whether a segment is a topic or subscription: + is a space there, as pulsar-admin encodes."""
    if parts[0] == "lookup":
        return at == 6
    of_topics = parts[0] == "admin" and len(parts) > 2 and parts[2] in FORM_NAMES
    return of_topics and (at == 5 or (at == 7 and parts[6] == "subscription"))


def _json_pieces(value: Any, body: list[bytes]) -> Iterator[None]:
    """Make a value and write it. A part of the body is done when it has many pieces of text."""
    if isinstance(value, Generator):
        value = yield from value
    parts: list[str] = []
    for _ in _write_json(value, parts):
        if len(parts) >= JOINED_PARTS:
            body.append("".join(parts).encode())
            parts.clear()
        yield
    body.append("".join(parts).encode())


def _write_json(value: Any, parts: list[str]) -> Iterator[None]:
    """Write the value as `json.dumps` does, in pieces; a small value is one piece."""
    if isinstance(value, dict) and not _is_small(value.values()):
        separator = "{"
        for name, member in value.items():
            parts.append(f"{separator}{json.dumps(name)}:")
            yield from _write_json(member, parts)
            separator = ","
        parts.append("}")
    elif isinstance(value, list) and not _is_small(value):
        separator = "["
        for member in value:
            parts.append(separator)
            yield from _write_json(member, parts)
            separator = ","
        parts.append("]")
    else:
        parts.append(json.dumps(value, separators=SEPARATORS))
        yield


def _is_small(members: Collection[Any]) -> bool:
    few = len(members) <= SMALL_MEMBERS
    return few and not any(isinstance(member, (dict, list)) for member in members)


@record
class Response:
    """One response."""

    status: int = 204
    body: bytes = b""
    content_type: str = TEXT_TYPE
    #: Further headers: names and values.
    headers: tuple[tuple[str, str], ...] = ()
    #: The reason phrase of the status line, if it is not the usual one.
    phrase: str = ""
    #: The rest of a long body. Joining megabytes would hold up the event loop.
    more: Sequence[bytes] = ()

    @property
    def size_bytes(self) -> int:
        """The length of the whole body."""
        return len(self.body) + sum(map(len, self.more))

    @classmethod
    def of_json(cls, value: Any, status: int = 200) -> Response:
        """A JSON body."""
        text = json.dumps(value, separators=SEPARATORS)
        return cls(status, text.encode(), JSON_TYPE)

    @classmethod
    async def of(cls, answer: Json | Response | None, turns: Turns) -> Response:
        """A handler's answer: nothing (204), a response as it is, or JSON.

        A list may be long, as may be what a generator makes in pieces.
        """
        if answer is None:
            return cls()
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, list | Generator):
            return await cls.of_long_json(answer, turns)
        return cls.of_json(answer)

    @classmethod
    async def of_long_json(cls, value: Pieces | Any, turns: Turns) -> Response:
        """A JSON body that may be long, made in time slices. A few are made at a time.

        `value` may be a generator, which makes the value in pieces and returns it.
        """
        body: list[bytes] = []
        await turns.answer(_json_pieces(value, body))
        return cls(200, content_type=JSON_TYPE, more=body)

    @classmethod
    def of_word(cls, text: str) -> Response:
        """A text that Pulsar labels as JSON, though it is written without quotes."""
        return cls(200, text.encode(), JSON_TYPE)

    @classmethod
    def of_error(cls, status: int, reason: str) -> Response:
        """An error in Pulsar's format: {"reason": ...}. The status line has the reason, too."""
        response = cls.of_json({"reason": reason}, status)
        response.phrase = reason
        return response

    @property
    def status_phrase(self) -> bytes:
        """The text of the status line; what it may not have becomes a question mark."""
        if not self.phrase:
            return PHRASES.get(self.status, b"")
        text = self.phrase[:MAX_PHRASE_CHARACTERS].encode("latin-1", "replace")
        return UNPRINTABLE.sub(b"?", text)


#: The order in which Pulsar names methods in Allow.
METHODS = ("HEAD", "DELETE", "POST", "GET", "OPTIONS", "PUT")
#: The parts of /admin/v2 where a body must have the content type application/json.
JSON_CLASSES = frozenset({"tenants", "namespaces", "resourcegroups", "resource-quotas", "schemas"})


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
    parts = (part.partition(";")[0].strip().lower() for part in accept.split(","))
    kinds = [part for part in parts if part]
    return not kinds or any(kind in ("*/*", "application/*", "application/json") for kind in kinds)


def has_json_body(content_type: str) -> bool:
    """Whether a body of this content type is taken as JSON.

    So are those without a type, or with that which curl and Python send if the user chose none.
    """
    kind = content_type.partition(";")[0].strip().lower()
    return kind in ("", "application/json", "application/x-www-form-urlencoded")


def accepts_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding names gzip, without the quality 0 that excludes it (RFC 9110)."""
    for one in accepted.lower().split(","):
        coding, _, quality = one.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return quality.rstrip("0") not in ("0.", "0", "") if quality else True
    return False
