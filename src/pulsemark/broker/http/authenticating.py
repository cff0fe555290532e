"""Who sends an HTTP request.

Every path needs credentials, except `/metrics` (unless `authenticateMetricsEndpoint`) and
`/status.html`, as in Pulsar, and the page at `/`, which has no data. A request that is refused gets
a 401 with the body of Pulsar's server. A proxy names the original role in `X-Original-Principal`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from urllib.parse import unquote

from ..security.authentication import (
    Authenticated,
    AuthenticationFailed,
    PeerCertificate,
)
from ..security.identity import UNAUTHENTICATED, InvalidRoles, Principal, check_roles
from ..services import Services
from .messages import JSON_TYPE, Response

__all__ = ["UnauthenticatedError", "principal_of", "unauthorized"]

ORIGINAL_HEADER = "x-original-principal"
OPEN_PATHS = ("status.html",)
METRICS = "metrics"
MESSAGE = "Authentication required"
HTML_TYPE = "text/html;charset=iso-8859-1"


class UnauthenticatedError(Exception):
    """A request has no credentials, or wrong ones. The text says why, for the broker's log."""


async def principal_of(
    services: Services,
    path: str,
    headers: Mapping[str, str],
    peer_certificate: PeerCertificate | None,
) -> Principal:
    """Who sends a request. Header names are in lower case. Raises UnauthenticatedError."""
    authenticator = services.authenticator
    if authenticator is None or _is_open(services, path):
        return UNAUTHENTICATED

    def check() -> Authenticated:
        return authenticator.authenticate_http(headers, peer_certificate)

    original_role = headers.get(ORIGINAL_HEADER) or None
    try:
        if authenticator.is_slow and "authorization" in headers:
            own = await authenticator.in_thread(check)
        else:
            own = check()
        check_roles(services.config.security, own.role, original_role)
    except (AuthenticationFailed, InvalidRoles) as refusal:
        raise UnauthenticatedError(str(refusal)) from refusal
    return Principal(own.role, original_role)


def _is_open(services: Services, path: str) -> bool:
    only_path = path.partition("?")[0]
    if only_path == "/":
        return True
    first = unquote(only_path.strip("/"))
    if first == METRICS:
        return not services.config.security.authenticate_metrics_endpoint
    return first in OPEN_PATHS


def unauthorized(path: str, headers: Mapping[str, str]) -> Response:
    """The 401 of Pulsar's server: JSON if the client asks for it, else a page."""
    path = path.partition("?")[0]
    if "json" in headers.get("accept", ""):
        fields = {"message": MESSAGE, "url": path, "status": "401"}
        return Response(401, json.dumps(fields).encode(), JSON_TYPE)
    page = f"""<html>
<head>
<meta http-equiv="Content-Type" content="text/html;charset=ISO-8859-1"/>
<title>Error 401 {MESSAGE}</title>
</head>
<body><h2>HTTP ERROR 401 {MESSAGE}</h2>
<table>
<tr><th>URI:</th><td>{html.escape(path)}</td></tr>
<tr><th>STATUS:</th><td>401</td></tr>
<tr><th>MESSAGE:</th><td>{MESSAGE}</td></tr>
</table>

</body>
</html>
"""
    return Response(401, page.encode("latin-1", "replace"), HTML_TYPE)
