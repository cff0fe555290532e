"""pulsemark: Pulsar's protocol over a ledger that stamps every entry with broker time and index.

This module re-exports the names that most programs start with. Each name is imported from its
package when it is first used. So a tool that only reads a folder does not load the broker, and a
broker without a finder does not load gRPC. The packages themselves export more: `broker`,
`finder`, `ledger`, `metadata`, `pipeline`, `testing`, `wire`.
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
        AsyncSeekClient as AsyncSeekClient,
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
        SearchMethod as SearchMethod,
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
        Message as Message,
    )
    from .metadata import (
        messages_of as messages_of,
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

# Package -> the names that are re-exported from it.
_EXPORTS = {
    "broker": ("Broker", "BrokerConfig", "BrokerThread"),
    "finder": (
        "AsyncSeekClient",
        "Finder",
        "Found",
        "IndexPlace",
        "IndexRange",
        "SearchMethod",
        "SeekClient",
    ),
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
    "metadata": (
        "BrokerEntryMetadata",
        "Message",
        "messages_of",
        "pack",
        "peek",
        "split",
        "strip",
    ),
}
_PACKAGE_OF = {name: package for package, names in _EXPORTS.items() for name in names}

__all__ = [
    "EARLIEST",
    "LATEST",
    "AsyncSeekClient",
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
    "Message",
    "Position",
    "SearchMethod",
    "SeekClient",
    "StoreOptions",
    "__version__",
    "messages_of",
    "pack",
    "peek",
    "split",
    "strip",
]


def __getattr__(name: str) -> Any:
    """Import a re-exported name when it is first used (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("pulsemark")
    elif name in _PACKAGE_OF:
        value = getattr(import_module(f".{_PACKAGE_OF[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List all re-exported names, including those that are not imported yet."""
    return sorted({*globals(), *__all__})
