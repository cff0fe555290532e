"""A route: one method of one path, with everything that is known of it.

Each module of the interface has its `routes`. A handler stands below the routes that lead to it:

    @routes.get(f"{TOPIC}/stats", needs.topic("GET_STATS"))
    async def stats(request: Request, path: TopicPath) -> Json:
        ...
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from ...records import record
from ..security.needs import Need, Scope
from .messages import Json, Request, Response

#: The beginning of most routes' paths.
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
BUNDLE = f"{NAMESPACE}/{{bundle}}"
TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"

DOMAINS = ("persistent", "non-persistent")
DOMAIN = "{domain}"


class TopicPath(NamedTuple):
    """The topic that a path names, as it stands there: nothing is checked yet."""

    domain: str
    tenant: str
    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.domain}://{self.full_namespace}/{self.topic}"

    @property
    def full_namespace(self) -> str:
        """The namespace with its tenant, as `tenant/namespace`."""
        return f"{self.tenant}/{self.namespace}"


#: It answers with what `Response.of` takes.
Handler = Callable[..., Awaitable[Any]]


#: The names that a path must have, so that what a permission is about is known.
NAMES = {
    Scope.TENANT: {"tenant"},
    Scope.TENANT_ADMIN: {"tenant"},
    Scope.NAMESPACE: {"tenant", "namespace"},
    Scope.NAMESPACE_POLICY: {"tenant", "namespace"},
    Scope.TOPIC: {"tenant", "namespace", "topic"},
    Scope.TOPIC_POLICY: {"tenant", "namespace", "topic"},
}


@record(frozen=True)
class Route:
    """Method, path template, permission and handler.

    The handler gets the request and the values of the template's names, in order. First comes what
    they name together: a topic as one `TopicPath`, whose domain is the path's or that of a stored
    topic, or a namespace as `tenant/namespace`.
    """

    method: str
    path: str
    #: The permission that it needs, checked before the handler runs.
    permission: Need
    handler: Handler
    #: The template's segments.
    parts: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(part for part in self.path.split("/") if part))
        wanted = set(NAMES.get(self.permission.scope, ()))
        if "/subscription/{" in self.path and self.permission.scope is Scope.TOPIC:
            wanted.add("subscription")
        if not wanted <= set(self.names):
            raise LookupError(f"{self.path} must have the names {sorted(wanted)}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the template, in the order of the values that `match` returns."""
        return tuple(part[1:-1] for part in self.parts if part.startswith("{"))

    @property
    def rank(self) -> tuple[tuple[bool, ...], bool]:
        """Routes of one size in this order: a literal segment goes before a name.

        Of equal ones that for one kind of topics goes before that for both.
        """
        named = tuple(part.startswith("{") and part != DOMAIN for part in self.parts)
        return named, DOMAIN in self.parts

    @property
    def shape(self) -> tuple[str, ...]:
        """The template without its names: routes of one shape are one path with several methods."""
        plain = ("{}" if part in DOMAINS else part for part in self.parts)
        return tuple("{}" if part.startswith("{") else part for part in plain)

    def target(self, named: Mapping[str, str]) -> str:
        """A path of this route, with values of the template's names."""
        parts = (
            quote(named[part[1:-1]], safe="") if part.startswith("{") else part
            for part in self.parts
        )
        return f"/{'/'.join(parts)}"

    async def run(self, request: Request, values: tuple[str, ...]) -> Json | Response | None:
        """Call the handler with the values that `match` has returned, and return its answer."""
        named = dict(zip(self.names, values, strict=True))
        if "topic" in named:
            literal = next((part for part in self.parts if part in DOMAINS), "persistent")
            place = (named.pop(name, literal) for name in TopicPath._fields)
            return await self.handler(request, TopicPath(*place), *named.values())
        if "namespace" in named:
            namespace = f"{named.pop('tenant')}/{named.pop('namespace')}"
            return await self.handler(request, namespace, *named.values())
        return await self.handler(request, *values)

    @property
    def purpose(self) -> str:
        """The route's purpose: the first sentence of its handler's docstring."""
        handler = self.handler.func if isinstance(self.handler, partial) else self.handler
        return " ".join((handler.__doc__ or "").partition("\n\n")[0].split())

    def match(self, segments: tuple[str, ...]) -> tuple[str, ...] | None:
        """The values of the template's names; None if the path does not match.

        An empty segment has no value, as in Pulsar: `clearBacklog//` names no subscription.
        """
        if len(segments) != len(self.parts):
            return None
        values = []
        for part, segment in zip(self.parts, segments, strict=True):
            if part == DOMAIN and segment not in DOMAINS:
                return None
            if part.startswith("{") and segment:
                values.append(segment)
            elif part != segment:
                return None
        return tuple(values)


H = TypeVar("H", bound=Handler)


class Routes(list[Route]):
    """The routes of one module. Their arguments are those of `Route`."""

    def get(self, path: str, permission: Need) -> Callable[[H], H]:
        """The decorated handler answers GET."""
        return self._to("GET", path, permission)

    def post(self, path: str, permission: Need) -> Callable[[H], H]:
        """The decorated handler answers POST."""
        return self._to("POST", path, permission)

    def put(self, path: str, permission: Need) -> Callable[[H], H]:
        """The decorated handler answers PUT."""
        return self._to("PUT", path, permission)

    def delete(self, path: str, permission: Need) -> Callable[[H], H]:
        """The decorated handler answers DELETE."""
        return self._to("DELETE", path, permission)

    def _to(self, method: str, path: str, permission: Need) -> Callable[[H], H]:
        def add(handler: H) -> H:
            self.append(Route(method, path, permission, handler))
            return handler

        return add
