"""A client of Apache BookKeeper for asyncio: ledgers over BookKeeper's protocol, version 3.

It knows nothing of topics. Metadata is in a coordination service (`pulsemark.coordination`), in
BookKeeper's own format, so that its Java client and its tools read and recover these ledgers, and
this client theirs.
"""

from .client import BookKeeperClient
from .entries import DigestType, LedgerEntry
from .ledger_nodes import VersionedMetadata
from .metadata import LedgerMetadata, LedgerState, Segment
from .options import ClientOptions
from .reader import LedgerReader
from .tls import BookieTls
from .writer import LedgerWriter

__all__ = [
    "BookKeeperClient",
    "BookieTls",
    "ClientOptions",
    "DigestType",
    "LedgerEntry",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "Segment",
    "VersionedMetadata",
]
