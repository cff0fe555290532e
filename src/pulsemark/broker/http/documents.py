"""Documents of the administration that the broker keeps and gives back: clusters, quotas, racks.

They are JSON in the catalog, by kind and key. Nothing on a hot path reads them, so there is no copy
in memory: each request reads the catalog.
"""

from __future__ import annotations

import json
from typing import Any

from .messages import HttpError, Request

__all__ = ["MAX_DOCUMENTS", "delete", "documents", "get", "put"]

#: Documents of one kind: a client must not fill the catalog.
MAX_DOCUMENTS = 10_000


async def documents(request: Request, kind: str) -> dict[str, Any]:
    """All documents of a kind, by key."""
    catalog = request.services.topics.catalog
    rows = await request.services.run_blocking(catalog.items, kind)
    return {key: json.loads(value) for key, value in sorted(rows)}


async def get(request: Request, kind: str, key: str) -> Any:
    """One document; None if there is none."""
    catalog = request.services.topics.catalog
    stored = await request.services.run_blocking(catalog.get, kind, key)
    return None if stored is None else json.loads(stored)


async def put(request: Request, kind: str, key: str, value: Any) -> None:
    """Store a document. Raises `HttpError` 412 if there are too many of its kind."""
    writer = request.services.topics.catalog_writer
    if await get(request, kind, key) is None:
        stored = await documents(request, kind)
        if len(stored) >= MAX_DOCUMENTS:
            raise HttpError(412, f"there are {MAX_DOCUMENTS} of kind {kind} already, the limit")
    await writer.put(kind, key, json.dumps(value).encode())


async def delete(request: Request, kind: str, key: str) -> bool:
    """Remove a document; whether there was one."""
    found = await get(request, kind, key) is not None
    if found:
        await request.services.topics.catalog_writer.put(kind, key, None)
    return found
