"""A small client of the admin REST API, of pulsemark's brokers and Apache Pulsar's.

    admin = AdminClient("http://127.0.0.1:8080")
    admin.create_topic("orders", partitions=4)
    admin.stats("orders-partition-0")["subscriptions"]["billing"]["msgBacklog"]

Topics may be named as in Pulsar's clients: `orders` is persistent://public/default/orders. Answers
are what JSON gives: dicts, lists, numbers, texts. `request` makes any other call of docs/rest.md.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import (
    BaseHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    ProxyHandler,
    Request,
    build_opener,
)

from ..wire import TopicName
from .errors import AdminError, ServiceUrlError, UnreachableError

TIMEOUT_S = 30.0


class AdminClient:
    """Calls one broker's HTTP port. It keeps no connection, and may be used from any thread.

    `token` is sent with each call (`Authorization: Bearer`). Raises ServiceUrlError for another
    `url` than a broker's. All methods raise AdminError for an answer that says no, with its status
    and reason, and UnreachableError if nothing answers as a broker does.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.url = _checked(url)
        self._token = token
        self._ssl_context = ssl_context
        self._timeout_s = timeout_s

    # -- topics ---------------------------------------------------------------------------------

    def topics(self, namespace: str = "public/default") -> list[str]:
        """The full names of a namespace's topics, without partitioned topics."""
        return list(self.request("GET", f"persistent/{namespace_path(namespace)}"))

    def partitioned_topics(self, namespace: str = "public/default") -> list[str]:
        """The full names of a namespace's partitioned topics."""
        return list(self.request("GET", f"persistent/{namespace_path(namespace)}/partitioned"))

    def create_topic(self, topic: str, *, partitions: int = 0) -> None:
        """Create a topic; with `partitions` a partitioned one."""
        if partitions:
            self.request("PUT", f"{topic_path(topic)}/partitions", partitions)
        else:
            self.request("PUT", topic_path(topic))

    def delete_topic(self, topic: str, *, force: bool = False, partitioned: bool = False) -> None:
        """Delete a topic. `force` ends its producers and subscriptions."""
        kind = "/partitions" if partitioned else ""
        self.request("DELETE", f"{topic_path(topic)}{kind}", force="true" if force else "false")

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0: it is not partitioned."""
        return int(self.request("GET", f"{topic_path(topic)}/partitions")["partitions"])

    def stats(self, topic: str) -> dict[str, Any]:
        """A topic's statistics, with Pulsar's names. Of a partitioned topic the sums."""
        kind = "partitioned-stats" if self.partitions(topic) else "stats"
        return dict(self.request("GET", f"{topic_path(topic)}/{kind}"))

    def internal_stats(self, topic: str, *, own_figures: bool = False) -> dict[str, Any]:
        """A topic's ledgers and cursors; with those figures, too, that only pulsemark has."""
        query = {"ownFigures": "true"} if own_figures else {}
        return dict(self.request("GET", f"{topic_path(topic)}/internalStats", **query))

    # -- subscriptions --------------------------------------------------------------------------

    def subscriptions(self, topic: str) -> list[str]:
        """The names of a topic's subscriptions."""
        return list(self.request("GET", f"{topic_path(topic)}/subscriptions"))

    def backlog(self, topic: str, subscription: str) -> int:
        """How many messages a subscription has not acknowledged."""
        subscriptions = self.stats(topic)["subscriptions"]
        if subscription not in subscriptions:
            raise AdminError(self.url, 404, f"Subscription {subscription} not found for {topic}")
        return int(subscriptions[subscription]["msgBacklog"])

    def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        at: str = "latest",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a subscription at the "earliest" message, or after the "latest".

        Its `properties` may have a filter: `{"pulsemark.filter": "region=eu,us"}`.

        Raises ValueError for another place, AdminError, UnreachableError.
        """
        ends = {"earliest": -1, "latest": 2**63 - 1}
        if at not in ends:
            raise ValueError(f"at={at!r}: must be 'earliest' or 'latest'")
        body: dict[str, Any] = {"ledgerId": ends[at], "entryId": ends[at]}
        if properties:
            body["properties"] = dict(properties)
        self.request("PUT", f"{topic_path(topic)}/subscription/{_quoted(subscription)}", body)

    def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription. `force` ends its consumers."""
        path = f"{topic_path(topic)}/subscription/{_quoted(subscription)}"
        self.request("DELETE", path, force="true" if force else "false")

    def reset_cursor(self, topic: str, subscription: str, time_ms: int) -> None:
        """Set a subscription to the first message at or after a time."""
        path = f"{topic_path(topic)}/subscription/{_quoted(subscription)}/resetcursor/{time_ms}"
        self.request("POST", path)

    def skip_all(self, topic: str, subscription: str) -> None:
        """Acknowledge everything that a subscription has not acknowledged."""
        self.request("POST", f"{topic_path(topic)}/subscription/{_quoted(subscription)}/skip_all")

    # -- namespaces and tenants -----------------------------------------------------------------

    def tenants(self) -> list[str]:
        """The names of all tenants."""
        return list(self.request("GET", "tenants"))

    def create_tenant(self, tenant: str) -> None:
        """Create a tenant that may use every cluster of the broker."""
        clusters = self.request("GET", "clusters")
        self.request("PUT", f"tenants/{_quoted(tenant)}", {"allowedClusters": clusters})

    def delete_tenant(self, tenant: str, *, force: bool = False) -> None:
        """Delete a tenant."""
        path = f"tenants/{_quoted(tenant)}"
        self.request("DELETE", path, force="true" if force else "false")

    def namespaces(self, tenant: str = "public") -> list[str]:
        """The names of a tenant's namespaces, with the tenant."""
        return list(self.request("GET", f"namespaces/{_quoted(tenant)}"))

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace, named as `tenant/namespace`."""
        self.request("PUT", f"namespaces/{namespace_path(namespace)}")

    def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """Delete a namespace. `force` deletes its topics, where the broker allows that."""
        path = f"namespaces/{namespace_path(namespace)}"
        self.request("DELETE", path, force="true" if force else "false")

    # -- schemas --------------------------------------------------------------------------------

    def schema(self, topic: str) -> dict[str, Any]:
        """The newest version of a topic's schema."""
        name = TopicName.parse(topic)
        path = "/".join(map(_quoted, (name.tenant, name.namespace_local, name.local)))
        return dict(self.request("GET", f"schemas/{path}/schema"))

    # -- any call -------------------------------------------------------------------------------

    def request(self, method: str, path: str, value: object = None, **query: str) -> Any:
        """The JSON answer to a call with the body `value`; None for an empty answer.

        `path` is one after `/admin/v2/`, or from the root if it begins with a slash.
        """
        rooted = path if path.startswith("/") else f"/admin/v2/{path}"
        asked = f"?{urlencode(query)}" if query else ""
        text = self._answer(method, f"{self.url}{rooted}{asked}", value)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise UnreachableError(
                self.url, f"it does not answer like a broker: {error}"
            ) from error

    def _answer(self, method: str, url: str, value: object) -> bytes:
        body = None if value is None else json.dumps(value).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(url, body, headers, method=method)  # noqa: S310 - checked
        # The environment's proxy is for other hosts; the broker is called directly.
        handlers: list[BaseHandler] = [ProxyHandler({}), _Redirects()]
        if url.startswith("https:"):
            handlers.append(HTTPSHandler(context=self._ssl_context))
        if self._token is not None:
            # Not sent on to where a redirect leads.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with build_opener(*handlers).open(request, timeout=self._timeout_s) as answer:
                text: bytes = answer.read()
                return text
        except HTTPError as error:
            with error:
                raise AdminError(url, error.code, _reason(error.read())) from error
        except (TimeoutError, URLError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, TimeoutError):
                reason = f"no answer within {self._timeout_s:g} s"
            raise UnreachableError(self.url, str(reason)) from error
        except (HTTPException, OSError, ValueError) as error:
            raise UnreachableError(
                self.url, f"it does not answer like a broker: {error}"
            ) from error


class _Redirects(HTTPRedirectHandler):
    """A cluster's broker redirects to the topic's owner, also what changes something."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Repeat the call, with its HTTP method and body, at the other address."""
        if code not in (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT):
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        return Request(newurl, req.data, req.headers, method=req.get_method())  # noqa: S310 - http


def _checked(url: str) -> str:
    """The URL without a slash at its end."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and parts.hostname
        _ = parts.port
    except ValueError as error:
        raise ServiceUrlError(url, str(error)) from error
    if not fits or parts.query or parts.fragment:
        raise ServiceUrlError(url, "it is not of the form http://HOST:PORT")
    return url.rstrip("/")


def topic_path(text: str) -> str:
    """A topic in paths of the admin interface."""
    name = TopicName.parse(text)
    return "/".join(map(_quoted, (name.domain, name.tenant, name.namespace_local, name.local)))


def namespace_path(namespace: str) -> str:
    """A namespace in paths of the admin interface."""
    return "/".join(map(_quoted, namespace.split("/")))


def _quoted(part: str) -> str:
    return quote(part, safe="")


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace")
