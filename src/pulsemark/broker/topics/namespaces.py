"""Tenants and namespaces, with their settings.

They live in the store's catalog; a copy in memory answers the questions that come with every
command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...ledger.store import MetadataStore
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import check_namespace
from ..errors import RefusedError
from .catalog_writer import CatalogWriter

__all__ = ["Namespaces", "Settings"]

Settings = dict[str, Any]

DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "public/default"


class Namespaces(Mapping[str, Settings]):
    """The settings of each namespace, by `tenant/namespace`; `tenants` has those of tenants."""

    def __init__(self, catalog: MetadataStore, writer: CatalogWriter) -> None:
        self.tenants: dict[str, Settings] = {}
        self._catalog = catalog
        self._writer = writer
        self._settings: dict[str, Settings] = {}

    def load(self) -> None:
        """Read the catalog; a fresh folder gets public/default. Blocks."""
        catalog = self._catalog
        self.tenants = {key: json.loads(value) for key, value in catalog.items("tenant")}
        self._settings = {key: json.loads(value) for key, value in catalog.items("namespace")}
        if not self.tenants:
            # Together: a tenant alone would look like a folder that somebody has set up.
            catalog.write(
                [("tenant", DEFAULT_TENANT, b"{}"), ("namespace", DEFAULT_NAMESPACE, b"{}")]
            )
            self.tenants[DEFAULT_TENANT] = {}
            self._settings[DEFAULT_NAMESPACE] = {}

    def __getitem__(self, namespace: str) -> Settings:
        return self._settings[namespace]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def snapshot(self) -> tuple[tuple[str, Settings], ...]:
        """All names with their settings, as they are now. From any thread."""
        return tuple(self._settings.items())

    def of(self, tenant: str) -> list[str]:
        """A tenant's namespaces, sorted."""
        return sorted(name for name in self._settings if name.startswith(f"{tenant}/"))

    # -- changing -------------------------------------------------------------------------------

    async def put_tenant(self, tenant: str, settings: Settings) -> None:
        """Make a tenant, or change its settings."""

        def show() -> None:
            self.tenants[tenant] = settings

        await self._writer.put("tenant", tenant, _stored(settings), show)

    async def delete_tenant(self, tenant: str) -> None:
        """Forget a tenant that has no namespaces left."""
        await self._writer.put("tenant", tenant, None, lambda: self.tenants.pop(tenant, None))

    async def put(self, namespace: str, settings: Settings) -> None:
        """Make a namespace, or change its settings."""
        check_namespace(namespace)

        def show() -> None:
            self._settings[namespace] = settings

        await self._writer.put("namespace", namespace, _stored(settings), show)

    async def change(self, namespace: str, change: Callable[[Settings], Settings]) -> None:
        """Store what `change` makes of a namespace's settings.

        Raises `RefusedError` for a namespace that is not there.
        """

        async def turn() -> None:
            if namespace not in self._settings:
                raise RefusedError(
                    ServerError.TopicNotFound, f"Namespace {namespace} does not exist"
                )
            settings = change(self._settings[namespace])
            await self._writer.write(("namespace", namespace, _stored(settings)))
            self._settings[namespace] = settings

        await self._writer.in_turn(turn)

    def withdraw(self, namespace: str) -> Settings | None:
        """Begin to delete a namespace: it is not shown from now on. None: it is not there."""
        return self._settings.pop(namespace, None)

    def restore(self, namespace: str, settings: Settings) -> None:
        """Show a namespace again that was not deleted after all."""
        self._settings.setdefault(namespace, settings)

    async def forget(self, namespace: str, settings: Settings) -> None:
        """End the deletion of a namespace that was withdrawn; if that fails, it is restored."""

        async def turn() -> None:
            try:
                await self._writer.write(("namespace", namespace, None))
            except BaseException:
                self.restore(namespace, settings)
                raise
            self._settings.pop(namespace, None)

        await self._writer.in_turn(turn)


def _stored(settings: Settings) -> bytes:
    return json.dumps(settings, sort_keys=True).encode()
