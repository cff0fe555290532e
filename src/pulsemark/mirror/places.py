"""FROM and TO of a mirror: a broker's URL, or a data folder."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from .broker_source import BrokerSource
from .broker_target import BrokerTarget
from .entries import Source, Target
from .errors import PlaceError
from .folder_source import FolderSource
from .folder_target import FolderTarget

__all__ = ["Options", "folder_of", "open_source", "open_target"]

BROKER_SCHEMES = ("pulsar", "pulsar+ssl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to mirror. The command's options have the same names (docs/mirror.md)."""

    source_cluster: str = "standalone"
    subscription: str = "pulsemark-mirror"
    stampers: tuple[str, ...] = ("broker-time", "index")
    append: bool = False
    without_deduplication: bool = False
    source_token: str | None = None
    target_token: str | None = None
    trusted_certificates: str | os.PathLike[str] | None = None


def folder_of(place: str) -> Path | None:
    """The data folder that a place means; None for a broker's URL. Raises PlaceError."""
    scheme, separator, rest = place.partition("://")
    if not separator:
        if not place:
            raise PlaceError(place, "neither a broker's URL nor a data folder")
        return Path(place)
    if scheme == "file":
        return Path(rest)
    if scheme not in BROKER_SCHEMES:
        known = ", ".join((*BROKER_SCHEMES, "file"))
        raise PlaceError(place, f"unknown scheme {scheme!r}; known are {known}")
    return None


def open_source(place: str, options: Options) -> Source:
    """The source at a place. Raises PlaceError, ServiceUrlError, LedgerError, OSError."""
    folder = folder_of(place)
    if folder is None:
        return BrokerSource(
            place,
            options.source_cluster,
            options.subscription,
            ssl_context=_tls(place, options),
            token=options.source_token,
        )
    if not folder.is_dir():
        raise PlaceError(place, "there is no such data folder")
    return FolderSource(folder, options.source_cluster)


def open_target(place: str, options: Options) -> Target:
    """The target at a place. Raises as `open_source`, and StampError for a stamper."""
    folder = folder_of(place)
    if folder is None:
        return BrokerTarget(
            place,
            options.source_cluster,
            append=options.append,
            without_deduplication=options.without_deduplication,
            ssl_context=_tls(place, options),
            token=options.target_token,
        )
    return FolderTarget(
        folder, options.source_cluster, stampers=options.stampers, append=options.append
    )


def _tls(place: str, options: Options) -> ssl.SSLContext | None:
    if not place.startswith("pulsar+ssl:") or options.trusted_certificates is None:
        return None
    return ssl.create_default_context(cafile=str(options.trusted_certificates))
