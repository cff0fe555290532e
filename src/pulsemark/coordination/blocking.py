"""`Coordination` for plain threads: each call runs on the loop that the session belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from .protocol import ANY_VERSION, Coordination, Operation, Stat, Versioned

T = TypeVar("T")


class BlockingCoordination:
    """The same requests with the same errors. Must not be called on the session's own loop."""

    def __init__(self, session: Coordination, loop: asyncio.AbstractEventLoop) -> None:
        self.session = session
        self._loop = loop

    def get(self, path: str) -> Versioned:
        """As `Coordination.get`."""
        return self._run(self.session.get(path))

    def exists(self, path: str) -> Stat | None:
        """As `Coordination.exists`."""
        return self._run(self.session.exists(path))

    def children(self, path: str) -> list[str]:
        """As `Coordination.children`."""
        return self._run(self.session.children(path))

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        """As `Coordination.create`."""
        return self._run(
            self.session.create(
                path, data, ephemeral=ephemeral, sequence=sequence, make_parents=make_parents
            )
        )

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """As `Coordination.set`."""
        return self._run(self.session.set(path, data, version))

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """As `Coordination.delete`."""
        self._run(self.session.delete(path, version))

    def transaction(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """As `Coordination.transaction`."""
        return self._run(self.session.transaction(operations))

    def _run(self, request: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(request, self._loop).result()
