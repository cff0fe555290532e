"""Which HTTP requests are heard at all: those that no foreign web page can have sent.

The HTTP port has no authentication, and a browser on the same machine or network reaches it. Three
checks keep the pages that it shows from using it; what curl, `pulsar-admin`, Prometheus and health
checks send passes all of them.

1. The host in the request must be one of this broker's, or a page could point a name of its own at
   the broker's address (DNS rebinding). Allowed are IP addresses, `localhost` and names below it,
   the advertised address, the address it listens on, the machine's name, names without a dot (no
   public name is one), and `http_allowed_hosts`. A request of HTTP/1.0 without a host passes: no
   browser sends one.
2. A request that may change something must not come from another origin (CSRF): `Sec-Fetch-Site`
   must be `same-origin` or `none`, and the host in `Origin`, or without one in `Referer`, must be
   the host that is asked. Clients that are no browsers send none of these.
3. What an HTML form can send (its three content types) is not taken from a browser.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from functools import cache
from urllib.parse import urlsplit

from ..configuration.config import BrokerConfig
from .messages import HttpError

__all__ = ["check_origin"]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
FORM_TYPES = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})

Headers = Sequence[tuple[bytes, bytes]]


def check_origin(method: str, headers: Headers, config: BrokerConfig) -> None:
    """Raises `HttpError`: 421 for a host that is not ours, 403 and 415 for a foreign page's."""
    values = {bytes(name): value.decode("latin-1").strip() for name, value in headers}
    host = values.get(b"host")
    if host is not None and not _is_ours(_name_in(host), config):
        raise HttpError(
            421,
            f"this broker is not {host[:80]!r}; names that it answers to beside its addresses "
            "stand in pulsemarkHttpAllowedHosts",
        )
    if method in SAFE_METHODS:
        return
    site = values.get(b"sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise HttpError(403, f"a request from another site ({site[:40]}) may not change anything")
    page = values.get(b"origin", values.get(b"referer"))
    if page is not None and (host is None or urlsplit_host(page) != host.lower()):
        raise HttpError(403, f"a page of {page[:80]!r} may not change anything here")
    if page is not None or site is not None or values.get(b"user-agent", "").startswith("Mozilla/"):
        kind = values.get(b"content-type", "").partition(";")[0].strip().lower()
        if kind in FORM_TYPES:
            raise HttpError(415, f"{kind} is not taken from a browser: send application/json")


def urlsplit_host(url: str) -> str:
    """Host and port of an origin or a page's address, as a Host header has them; "" for none."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""


def _name_in(host: str) -> str:
    """The name or address in a Host header, without its port."""
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
