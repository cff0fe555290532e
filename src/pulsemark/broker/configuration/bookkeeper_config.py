"""The settings of Apache BookKeeper as a broker's storage."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from ...records import record
from ..errors import ConfigError
from .declaration import INT_MAX, Kind, check_declared, setting

if TYPE_CHECKING:
    from ...ledger.bookkeeper.client import BookieTls

BOOKKEEPER = "bookkeeper"
MAX_BOOKIES = 1_000


def _address_of_url(text: str) -> str:
    """Convert Pulsar's `zk:HOST:PORT[,HOST:PORT...][/CHROOT]` to a store's address."""
    if text.startswith("zk://"):
        return text
    if not text.startswith("zk:"):
        raise ValueError("must begin with zk: (a store in ZooKeeper and BookKeeper)")
    hosts, _, chroot = text.removeprefix("zk:").partition("/")
    return f"zk://{hosts}/{chroot}/ledgers" if chroot else f"zk://{hosts}/ledgers"


STORE_URL = Kind(_address_of_url)


@record(frozen=True, kw_only=True)
class BookKeeperConfig:
    """Raises ConfigError for a bad value, naming the field."""

    #: `zk://HOST:PORT[,HOST:PORT...]/ledgers`; None: entries are in files or in memory.
    store_address: str | None = setting(None, key="metadataStoreUrl", kind=STORE_URL)
    #: For a broker without others (`BrokerConfig` in a program): the path of its store's nodes.
    store_root: str = "/pulsemark"
    #: On how many bookies a ledger is spread.
    ensemble_size: int = setting(
        3, key="managedLedgerDefaultEnsembleSize", lowest=1, highest=MAX_BOOKIES
    )
    #: How many bookies get each entry.
    write_quorum_size: int = setting(
        3, key="managedLedgerDefaultWriteQuorum", lowest=1, highest=MAX_BOOKIES
    )
    #: How many of them must have an entry on disk before it is acknowledged.
    ack_quorum_size: int = setting(
        2, key="managedLedgerDefaultAckQuorum", lowest=1, highest=MAX_BOOKIES
    )
    #: After so much silence ZooKeeper ends the session.
    zookeeper_session_timeout_ms: int = setting(
        4_000, key="metadataStoreSessionTimeoutMillis", lowest=1_000, highest=600_000
    )

    # TLS to bookies
    #: Connections to bookies are TLS, and the broker shows them its certificate.
    bookkeeper_tls_client_authentication: bool = setting(
        False, key="bookkeeperTLSClientAuthentication"
    )
    #: The broker's private key for bookies (PEM, as all these files).
    bookkeeper_tls_key_file: str | None = setting(None, key="bookkeeperTLSKeyFilePath")
    #: The broker's certificate chain for bookies.
    bookkeeper_tls_certificate_file: str | None = setting(
        None, key="bookkeeperTLSCertificateFilePath"
    )
    #: The authorities of the bookies' certificates.
    bookkeeper_tls_trust_certs_file: str | None = setting(
        None, key="bookkeeperTLSTrustCertsFilePath"
    )
    #: A file with the key's password; None: it has none.
    bookkeeper_tls_key_password_file: str | None = setting(
        None, key="bookkeeperTLSKeyStorePasswordPath"
    )
    #: Whether a bookie's certificate must name the host that the broker connects to.
    bookkeeper_tls_hostname_verification: bool = setting(
        False, key="bookkeeper_tlsHostnameVerificationEnabled"
    )
    #: How often changed files are looked for; 0: never.
    bookkeeper_tls_cert_refresh_s: int = setting(
        300, key="bookkeeperTlsCertFilesRefreshDurationSeconds", lowest=0, highest=INT_MAX
    )

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
        for spec in fields(self):
            check_declared(spec, getattr(self, spec.name))

    def _check_tls(self) -> None:
        """Raise ConfigError if these settings allow no TLS to bookies."""
        from ...ledger.bookkeeper.client.errors import TlsFilesError

        for name in (
            "bookkeeper_tls_key_file",
            "bookkeeper_tls_certificate_file",
            "bookkeeper_tls_trust_certs_file",
        ):
            if getattr(self, name) is None:
                raise ConfigError(name, None, "must be given for TLS to bookies")
        tls = self.bookie_tls()
        assert tls is not None
        try:
            tls.context()
        except TlsFilesError as error:
            raise ConfigError("bookkeeper_tls", error.files, error.why) from error

    def bookie_tls(self) -> BookieTls | None:
        """The TLS settings of connections to bookies; None: no TLS."""
        trust = self.bookkeeper_tls_trust_certs_file
        if not self.bookkeeper_tls_client_authentication or trust is None:
            return None
        from ...ledger.bookkeeper.client import BookieTls

        return BookieTls(
            trust_certs_file=trust,
            certificate_file=self.bookkeeper_tls_certificate_file,
            key_file=self.bookkeeper_tls_key_file,
            key_password_file=self.bookkeeper_tls_key_password_file,
            check_hostname=self.bookkeeper_tls_hostname_verification,
            refresh_s=self.bookkeeper_tls_cert_refresh_s,
        )

    def check(self, storage: str, data_dir: object) -> None:
        """Check what depends on several settings: quorums, the store's one place, TLS's files.

        Raises ConfigError.
        """
        if self.store_address is not None and data_dir is not None:
            raise ConfigError("data_dir", data_dir, "the store is in BookKeeper")
        if self.store_address is not None and storage == "memory":
            raise ConfigError("storage", storage, "the store is in BookKeeper")
        sizes = self.ensemble_size, self.write_quorum_size, self.ack_quorum_size
        if not sizes[0] >= sizes[1] >= sizes[2]:
            reason = "ensemble size >= write quorum >= ack quorum must hold"
            raise ConfigError("bookkeeper", "/".join(map(str, sizes)), reason)
        if self.bookkeeper_tls_client_authentication:
            self._check_tls()
