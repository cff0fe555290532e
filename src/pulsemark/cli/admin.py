"""Calls to a running broker's HTTP port, for commands that ask it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from ..wire import TopicName, check_namespace
from .access import Access, access_of, add_access
from .errors import CliError

if TYPE_CHECKING:
    from ..client.admin import AdminClient

DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"
NO_ACCESS = Access()
READ_TIMEOUT_S = 10.0
CHANGE_TIMEOUT_S = 30.0
#: A day. A socket takes no timeout of any length.
MAX_TIMEOUT_S = 86_400.0
#: Actions of commands that change nothing.
READS = (None, "get", "list", "show")


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
    """`--admin-url`, `--request-timeout`, and the options of access."""
    add_admin_url(parser)
    add_request_timeout(parser)
    add_access(parser)


def add_request_timeout(parser: argparse.ArgumentParser) -> None:
    """`--request-timeout`: how long a broker may be silent."""
    parser.add_argument(
        "--request-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="how long the broker may take to answer"
        f" (default: {READ_TIMEOUT_S:g}, and {CHANGE_TIMEOUT_S:g} for changes)",
    )


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


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


def admin_client(args: argparse.Namespace) -> AdminClient:
    """A client of the broker at `--admin-url`. Raises CliError, OSError."""
    from ..client.admin import AdminClient

    access, url = access_of(args), admin_url(args.admin_url)
    context = access.context() if url.startswith("https:") else None
    timeout_s = getattr(args, "request_timeout", None) or _timeout_s(
        is_read=getattr(args, "action", None) in READS
    )
    return AdminClient(url, token=access.token, ssl_context=context, timeout_s=timeout_s)


def _timeout_s(*, is_read: bool) -> float:
    return READ_TIMEOUT_S if is_read else CHANGE_TIMEOUT_S


def ask(
    method: str,
    url: str,
    value: object = None,
    access: Access = NO_ACCESS,
    timeout_s: float | None = None,
) -> Any:
    """The JSON answer; None for an empty answer. Raises CliError with the broker's error text."""
    from ..client.admin import AdminClient
    from ..client.errors import AdminError, UnreachableError

    parts = urlsplit(url)
    context = access.context() if parts.scheme == "https" else None
    client = AdminClient(
        f"{parts.scheme}://{parts.netloc}",
        token=access.token,
        ssl_context=context,
        timeout_s=timeout_s or _timeout_s(is_read=method == "GET"),
    )
    try:
        return client.request(method, url[len(client.url) :], value)
    except (AdminError, UnreachableError) as error:
        raise CliError(str(error)) from error
