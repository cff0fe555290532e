"""pulsemark: Pulsar's protocol over a ledger that stamps every entry with broker time and index.

This is the face of the package: the names a program starts from, handed on from the rooms they
live in. Nothing is imported before it is asked for, so that a tool which only reads a folder does
not pay for the broker, nor a broker for gRPC. The rooms have more to offer than stands here:
`broker`, `finder`, `ledger`, `metadata`, `pipeline`, `testing`, `wire`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker import (
        Broker as Broker,
    )
    from .broker import (
        BrokerConfig as BrokerConfig,
    )
    from .broker import (
        BrokerThread as BrokerThread,
    )
    from .finder import (
        Finder as Finder,
    )
    from .finder import (
        Found as Found,
    )
    from .finder import (
        IndexPlace as IndexPlace,
    )
    from .finder import (
        IndexRange as IndexRange,
    )
    from .finder import (
        Road as Road,
    )
    from .finder import (
        SeekClient as SeekClient,
    )
    from .ledger import (
        EARLIEST as EARLIEST,
    )
    from .ledger import (
        LATEST as LATEST,
    )
    from .ledger import (
        Entry as Entry,
    )
    from .ledger import (
        EntryKind as EntryKind,
    )
    from .ledger import (
        FolderReader as FolderReader,
    )
    from .ledger import (
        LocalStore as LocalStore,
    )
    from .ledger import (
        Position as Position,
    )
    from .ledger import (
        StoreOptions as StoreOptions,
    )
    from .metadata import (
        BrokerEntryMetadata as BrokerEntryMetadata,
    )
    from .metadata import (
        pack as pack,
    )
    from .metadata import (
        peek as peek,
    )
    from .metadata import (
        split as split,
    )
    from .metadata import (
        strip as strip,
    )

    __version__: str

# Room -> the names of it that are handed on.
_ROOMS = {
    "broker": ("Broker", "BrokerConfig", "BrokerThread"),
    "finder": ("Finder", "Found", "IndexPlace", "IndexRange", "Road", "SeekClient"),
    "ledger": (
        "EARLIEST",
        "LATEST",
        "Entry",
        "EntryKind",
        "FolderReader",
        "LocalStore",
        "Position",
        "StoreOptions",
    ),
    "metadata": ("BrokerEntryMetadata", "pack", "peek", "split", "strip"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "EARLIEST",
    "LATEST",
    "Broker",
    "BrokerConfig",
    "BrokerEntryMetadata",
    "BrokerThread",
    "Entry",
    "EntryKind",
    "Finder",
    "FolderReader",
    "Found",
    "IndexPlace",
    "IndexRange",
    "LocalStore",
    "Position",
    "Road",
    "SeekClient",
    "StoreOptions",
    "__version__",
    "pack",
    "peek",
    "split",
    "strip",
]


def __getattr__(name: str) -> Any:
    """Import a name of the face when it is first used (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("pulsemark")
    elif name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names handed on, whether they were used already or not."""
    return sorted({*globals(), *__all__})
