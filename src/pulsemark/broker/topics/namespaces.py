"""Tenants and namespaces with their settings: a copy in memory of the catalog's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ...ledger import CatalogError
from ...ledger.store import NAMESPACE_KIND, TENANT_KIND, MetadataStore
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import check_namespace_or_older, is_older_namespace
from ..errors import RefusedError
from .catalog_writer import CatalogWriter

Settings = dict[str, Any]

DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "public/default"
#: The namespace of Pulsar's system topics. It stays empty here.
SYSTEM_TENANT = "pulsar"
SYSTEM_NAMESPACE = "pulsar/system"


class Namespaces(Mapping[str, Settings]):
    """The settings of namespaces, by `tenant/namespace`; `tenants` has those of tenants."""

    def __init__(self, catalog: MetadataStore, writer: CatalogWriter) -> None:
        self.tenants: dict[str, Settings] = {}
        self._catalog = catalog
        self._writer = writer
        self._settings: dict[str, Settings] = {}
        #: Called after each change, with the namespace; None: a tenant changed.
        self.on_change: list[Callable[[str | None], None]] = []

    def load(self) -> None:
        """Read the catalog; a new folder gets public/default and pulsar/system. Blocks."""
        self._read()
        if not self.tenants:
            # In one transaction: a tenant alone would look like a folder that a user set up.
            tenants = [(TENANT_KIND, one, b"{}") for one in (DEFAULT_TENANT, SYSTEM_TENANT)]
            inside = [(NAMESPACE_KIND, one, b"{}") for one in (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE)]
            try:
                self._catalog.write([*tenants, *inside])
            except CatalogError:
                # Another broker of a cluster may start at the same time, and have written it.
                if not self._catalog.items(TENANT_KIND):
                    raise
            self._read()

    def _read(self) -> None:
        catalog = self._catalog
        self.tenants = {key: json.loads(value) for key, value in catalog.items(TENANT_KIND)}
        self._settings = {key: json.loads(value) for key, value in catalog.items(NAMESPACE_KIND)}

    def __getitem__(self, namespace: str) -> Settings:
        return self._settings[namespace]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def snapshot(self) -> tuple[tuple[str, Settings], ...]:
        """All names with their settings, as they are now. From any thread."""
        return tuple(self._settings.items())

    def may_have_topics(self, namespace: str) -> bool:
        """Whether topics may be in a namespace: it exists, or its name has a cluster.

        As in Pulsar 4: it does not look for namespaces of Pulsar 1 before it makes topics in them.
        """
        return namespace in self._settings or is_older_namespace(namespace)

    def of(self, tenant: str) -> list[str]:
        """A tenant's namespaces, sorted."""
        return sorted(name for name in self._settings if name.startswith(f"{tenant}/"))

    # -- changing -------------------------------------------------------------------------------

    async def put_tenant(self, tenant: str, settings: Settings) -> None:
        """Create a tenant, or change its settings."""
        await self._put(TENANT_KIND, tenant, _stored(settings))

    async def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant that has no namespaces."""
        await self._put(TENANT_KIND, tenant, None)

    async def put(self, namespace: str, settings: Settings) -> None:
        """Create a namespace, or change its settings."""
        check_namespace_or_older(namespace)
        await self._put(NAMESPACE_KIND, namespace, _stored(settings))

    async def _put(self, kind: str, key: str, value: bytes | None) -> None:
        await self._writer.put(kind, key, value, partial(self.take, kind, key, value))

    async def change(self, namespace: str, change: Callable[[Settings], Settings]) -> None:
        """Change a namespace's settings with `change`, durably.

        `change` is called again if another broker has changed them meanwhile. Raises `RefusedError`
        if the namespace does not exist.
        """

        async def turn() -> None:
            if namespace not in self._settings:
                text = f"Namespace {namespace} does not exist"
                raise RefusedError(ServerError.TopicNotFound, text)
            settings = change(self._settings[namespace])
            await self._writer.write((NAMESPACE_KIND, namespace, _stored(settings)))
            self._settings[namespace] = settings
            self._notify(namespace)

        await self._writer.revising(turn)

    def take(self, kind: str, key: str, value: bytes | None) -> None:
        """Take over the value stored under (kind, key); None: it was removed."""
        shown = self.tenants if kind == TENANT_KIND else self._settings
        if value is None:
            shown.pop(key, None)
        else:
            shown[key] = json.loads(value)
        self._notify(None if kind == TENANT_KIND else key)

    def _notify(self, namespace: str | None) -> None:
        for call in self.on_change:
            call(namespace)

    def withdraw(self, namespace: str) -> Settings | None:
        """Hide a namespace that is being deleted, and return its settings; None: it is missing."""
        settings = self._settings.pop(namespace, None)
        self._notify(namespace)
        return settings

    def restore(self, namespace: str, settings: Settings) -> None:
        """Make a withdrawn namespace visible again, after its deletion failed."""
        self._settings.setdefault(namespace, settings)

    async def forget(self, namespace: str, settings: Settings) -> None:
        """Finish the deletion of a withdrawn namespace; if that fails, it is restored."""

        async def turn() -> None:
            try:
                await self._writer.write((NAMESPACE_KIND, namespace, None))
            except BaseException:
                self.restore(namespace, settings)
                raise
            self._settings.pop(namespace, None)

        await self._writer.in_turn(turn)


def _stored(settings: Settings) -> bytes:
    return json.dumps(settings, sort_keys=True).encode()
