"""Where a broker's entries are when they are in Apache BookKeeper, and their names in a file."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from .setting_kinds import INTEGER, Kind, Setting

__all__ = ["BOOKKEEPER", "BOOKKEEPER_SETTINGS", "BookKeeperConfig"]

BOOKKEEPER = "bookkeeper"
MAX_BOOKIES = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class BookKeeperConfig:
    """Raises ConfigError for a bad value, naming the field."""

    #: `zk://HOST:PORT[,HOST:PORT...]/ledgers`; None: entries are in files or in memory.
    store_address: str | None = None
    #: For a broker without others (`BrokerConfig` in a program): the path of its store's nodes.
    store_root: str = "/pulsemark"
    #: On how many bookies a ledger is spread.
    ensemble_size: int = 3
    #: How many bookies get each entry.
    write_quorum_size: int = 3
    #: How many of them must have an entry on disk before it is acknowledged.
    ack_quorum_size: int = 2
    #: After so much silence ZooKeeper ends the session.
    zookeeper_session_timeout_ms: int = 4_000

    def __post_init__(self) -> None:
        if self.store_address is not None:
            from ...ledger.bookkeeper.address import StoreAddress, StoreAddressError

            try:
                StoreAddress.parse(self.store_address)
            except StoreAddressError as error:
                raise ConfigError("store_address", self.store_address, error.reason) from error
        root = self.store_root
        if not root.startswith("/") or root.endswith("/") or "//" in root:
            raise ConfigError("store_root", root, "must be a path such as /pulsemark")
        for name in ("ensemble_size", "write_quorum_size", "ack_quorum_size"):
            value = getattr(self, name)
            if not 1 <= value <= MAX_BOOKIES:
                raise ConfigError(name, value, f"must be from 1 to {MAX_BOOKIES}")
        if not 1_000 <= self.zookeeper_session_timeout_ms <= 600_000:
            raise ConfigError(
                "zookeeper_session_timeout_ms",
                self.zookeeper_session_timeout_ms,
                "must be from 1000 to 600000",
            )

    def check(self, storage: str, data_dir: object) -> None:
        """Raise ConfigError unless ensemble >= write quorum >= ack quorum, and the store has one
        place: this one, or the broker's ``storage`` and ``data_dir``.
        """
        if self.store_address is not None and data_dir is not None:
            raise ConfigError("data_dir", data_dir, "the store is in BookKeeper")
        if self.store_address is not None and storage == "memory":
            raise ConfigError("storage", storage, "the store is in BookKeeper")
        sizes = self.ensemble_size, self.write_quorum_size, self.ack_quorum_size
        if not sizes[0] >= sizes[1] >= sizes[2]:
            reason = "ensemble size >= write quorum >= ack quorum must hold"
            raise ConfigError("bookkeeper", "/".join(map(str, sizes)), reason)


def _address_of_url(text: str) -> str:
    """Pulsar's `zk:HOST:PORT[,HOST:PORT...][/CHROOT]` as an address; its ledgers are below."""
    if text.startswith("zk://"):
        return text
    if not text.startswith("zk:"):
        raise ValueError("must begin with zk: (a store in ZooKeeper and BookKeeper)")
    hosts, _, chroot = text.removeprefix("zk:").partition("/")
    return f"zk://{hosts}/{chroot}/ledgers" if chroot else f"zk://{hosts}/ledgers"


def _setting(field: str, kind: Kind = INTEGER, empty: tuple[object, ...] = ()) -> Setting:
    return Setting(field, kind, empty, BOOKKEEPER)


BOOKKEEPER_SETTINGS: dict[str, Setting] = {
    "metadataStoreUrl": _setting("store_address", Kind(_address_of_url), (None,)),
    "metadataStoreSessionTimeoutMillis": _setting("zookeeper_session_timeout_ms"),
    "managedLedgerDefaultEnsembleSize": _setting("ensemble_size"),
    "managedLedgerDefaultWriteQuorum": _setting("write_quorum_size"),
    "managedLedgerDefaultAckQuorum": _setting("ack_quorum_size"),
}
