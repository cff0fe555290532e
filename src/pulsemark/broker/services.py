"""What every connection of a broker shares: the one place its parts are handed on from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .configuration.config import BrokerConfig
from .connection.memory import InputMemory, KeptMemory, OutputMemory
from .connection.receipts import PublishBudget
from .statistics.cache_figures import CacheMeter
from .storage_health import StorageHealth

if TYPE_CHECKING:
    from .cleaning.worker import Cleaning
    from .connection.session import Session
    from .http.connection import HttpConnection
    from .topics.registry import Topics
    from .topics.schemas import Schemas

__all__ = ["Services"]


@dataclass(slots=True)
class Services:
    """The broker as its sessions and HTTP handlers see it."""

    config: BrokerConfig
    topics: Topics
    schemas: Schemas
    budget: PublishBudget
    input: InputMemory
    output: OutputMemory
    kept: KeptMemory
    storage: StorageHealth
    cleaning: Cleaning
    cache: CacheMeter
    #: Runs a blocking function in the executor.
    run_blocking: Callable[..., Awaitable[Any]]
    #: URL of the binary protocol that clients are told.
    service_url: str
    #: "" without HTTP.
    http_url: str
    #: Counts the starts of this data folder: makes generated producer names unique over restarts.
    incarnation: int = 0
    sessions: set[Session] = field(default_factory=set)
    http_connections: set[HttpConnection] = field(default_factory=set)
    #: The metrics page that is being made, for all who ask meanwhile.
    metrics_page: asyncio.Task[bytes] | None = None
    _names_given: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether no client is connected; those of gRPC are not counted."""
        return not self.sessions and not self.http_connections

    def new_producer_name(self) -> str:
        """A producer name that was never given out on this data folder before."""
        name = f"{self.config.cluster}-{self.incarnation}-{self._names_given}"
        self._names_given += 1
        return name
