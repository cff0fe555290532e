"""Authenticates HTTP requests, and refuses those of foreign web pages.

Every path needs credentials, except `/metrics` (unless `authenticateMetricsEndpoint`) and
`/status.html`, as in Pulsar, the page at `/`, which has no data, and the brokers' calls to each
other, which they sign (`ownership.InnerCalls`). A refused request gets a 401. A proxy names the
original role in `X-Original-Principal`.

Without authentication, a browser on the same machine or network can use the HTTP port. With it, a
browser may add a password or a client certificate by itself. Three checks prevent that a web page
in that browser uses the port. Requests of curl, `pulsar-admin`, Prometheus and health checks pass
all of them.

1. The request's Host must be a name of this broker. Otherwise a page could let its own name point
   at the broker's address (DNS rebinding). Allowed are IP addresses, `localhost` and its
   subdomains, the advertised address, the address on which the broker listens, the machine's name,
   names without a dot (public names have one), and `http_allowed_hosts`. An HTTP/1.0 request
   without Host is allowed: no browser sends one. This check is left out if all
   clients must authenticate: such a page has no credentials for the broker.
2. A request that may change something must not come from another origin (CSRF). `Sec-Fetch-Site`
   must be `same-origin` or `none`. The host in `Origin`, or in `Referer` if there is no `Origin`,
   must be the request's Host. Clients other than browsers do not send these headers.
3. A browser must not send the content types of HTML forms (there are three).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from functools import cache
from urllib.parse import unquote, urlsplit

from ..configuration.config import BrokerConfig
from ..connection.services import Services
from ..ownership import INNER_PATH, SIGNATURE_HEADER
from ..security.authentication import (
    UNAUTHENTICATED,
    AuthenticationFailed,
    InvalidRoles,
    PeerCertificate,
    Principal,
    identify_request,
)
from .messages import HttpError

OPEN_PATHS = ("status.html",)
METRICS = "metrics"


class UnauthenticatedError(Exception):
    """A request has no credentials, or wrong ones. The text says why, for the broker's log."""


async def principal_of(
    services: Services,
    path: str,
    headers: Mapping[str, str],
    peer_certificate: PeerCertificate | None,
) -> Principal:
    """The principal of a request. Header names are in lower case. Raises UnauthenticatedError."""
    authenticator = services.authenticator
    is_signed = path.startswith(INNER_PATH) and SIGNATURE_HEADER in headers
    if authenticator is None or is_signed or _is_open(services, path):
        return UNAUTHENTICATED
    security = services.config.security
    try:
        return (await identify_request(authenticator, security, headers, peer_certificate))[0]
    except (AuthenticationFailed, InvalidRoles) as refusal:
        raise UnauthenticatedError(str(refusal)) from refusal


def _is_open(services: Services, path: str) -> bool:
    only_path = path.partition("?")[0]
    if only_path == "/":
        return True
    first = unquote(only_path.strip("/"))
    if first == METRICS:
        return not services.config.security.authenticate_metrics_endpoint
    return first in OPEN_PATHS


SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
FORM_TYPES = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})


def check_origin(
    method: str, headers: Mapping[str, str], config: BrokerConfig, *, any_host: bool = False
) -> None:
    """Raise `HttpError`: 421 for a foreign host, 403 or 415 for a request of a foreign page.

    Header names are in lower case. `any_host` leaves out the first check.
    """
    host = headers.get("host")
    if host is not None and not any_host and not _is_ours(_name_in(host), config):
        text = f"{host[:80]!r} is not a name of this broker; to allow it, add it to "
        raise HttpError(421, f"{text}pulsemarkHttpAllowedHosts")
    if method in SAFE_METHODS:
        return
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise HttpError(403, f"a request from another site ({site[:40]}) may not change anything")
    page = headers.get("origin", headers.get("referer"))
    if page is not None and (host is None or urlsplit_host(page) != host.lower()):
        raise HttpError(403, f"a page of {page[:80]!r} may not change anything on this broker")
    if page is not None or site is not None or headers.get("user-agent", "").startswith("Mozilla/"):
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in FORM_TYPES:
            raise HttpError(415, f"a browser may not send {kind}: send application/json")


def urlsplit_host(url: str) -> str:
    """Host and port of an origin or URL, in the format of a Host header, or ""."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""


def _name_in(host: str) -> str:
    """The name or address in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name, separator, port = host.rpartition(":")
    return (name if separator and port.isdigit() else host).lower().rstrip(".")


def _is_ours(name: str, config: BrokerConfig) -> bool:
    if "*" in config.http_allowed_hosts or name in _names_of(config):
        return True
    if _is_address(name):
        return True
    return bool(name) and ("." not in name or name.endswith(".localhost"))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _names_of(config: BrokerConfig) -> frozenset[str]:
    names = (*config.http_allowed_hosts, config.advertised_address or "", config.host)
    return frozenset(name.lower().rstrip(".") for name in names if name) | _machine_names()


@cache
def _machine_names() -> frozenset[str]:
    return frozenset({socket.gethostname().lower().rstrip(".")})
