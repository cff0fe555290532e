"""Calls to a running broker's HTTP port, for commands that ask it."""

from __future__ import annotations

import argparse
import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import BaseHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from ..wire import TopicName, check_namespace
from .access import Access, add_access
from .errors import CliError

DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 30
NO_ACCESS = Access()


def add_admin_url(
    parser: argparse._ActionsContainer, default: str | None = DEFAULT_ADMIN_URL
) -> None:
    """`--admin-url`."""
    parser.add_argument(
        "--admin-url",
        default=default,
        metavar="URL",
        help=f"the broker's HTTP address (default: {DEFAULT_ADMIN_URL})",
    )


def add_broker(parser: argparse.ArgumentParser) -> None:
    """`--admin-url`, and the options of access."""
    add_admin_url(parser)
    add_access(parser)


def target_path(text: str) -> tuple[str, str]:
    """The target's full name, and its path in the admin interface."""
    if "://" not in text and text.count("/") == 1:
        tenant, namespace = check_namespace(text)
        return text, f"/admin/v2/namespaces/{_quoted(tenant, namespace)}"
    topic = TopicName.parse(text)
    parts = (topic.domain, topic.tenant, topic.namespace_local, topic.local)
    return str(topic), f"/admin/v2/{_quoted(*parts)}"


def _quoted(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def admin_url(text: str) -> str:
    """The address of `--admin-url`, without a slash at its end. Raises CliError."""
    try:
        url = urlsplit(text)
        fits = url.scheme in ("http", "https") and url.hostname and not (url.query or url.fragment)
        _ = url.port
    except ValueError as error:
        raise CliError(f"--admin-url {text!r}: {error}") from error
    if not fits:
        raise CliError(f"--admin-url {text!r} is not of the form {DEFAULT_ADMIN_URL}")
    return text.rstrip("/")


def ask(method: str, url: str, value: object = None, access: Access = NO_ACCESS) -> Any:
    """The JSON answer; None for an empty answer. Raises CliError with the broker's error text."""
    body = None if value is None else json.dumps(value).encode()
    request = Request(url, body, {"Content-Type": "application/json"}, method=method)  # noqa: S310 - checked
    # The environment's proxy is for other hosts; the broker is called directly.
    handlers: list[BaseHandler] = [ProxyHandler({})]
    if url.startswith("https:"):
        handlers.append(HTTPSHandler(context=access.context()))
    opener = build_opener(*handlers)
    if access.token is not None:
        # Not sent on to where a redirect leads.
        request.add_unredirected_header("Authorization", f"Bearer {access.token}")
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else None
    except HTTPError as error:
        with error:
            raise CliError(f"{url}: {error.code} {_reason(error.read())}") from error
    except URLError as error:
        raise CliError(f"no broker answers at {url}: {error.reason}") from error
    except (HTTPException, OSError, ValueError) as error:
        raise CliError(f"{url} does not answer like a broker: {error}") from error


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace")
