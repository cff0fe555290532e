"""TLS of the broker's ports: contexts from Pulsar's settings, and renewed certificates.

Rules:

1. TLS 1.2 and 1.3, unless `tlsProtocols` names fewer. Older versions are not served.
2. With `tlsTrustCertsFilePath`, clients may show a certificate, and with
   `tlsRequireTrustedClientCertOnConnect` they must. One that is not trusted ends the handshake.
   Without the file no client is asked, and the machine's own list of authorities is not used: a
   certificate of a public authority must not become a role.
3. `tlsAllowInsecureConnection` asks for no client certificate, so an untrusted one never becomes a
   role.
4. Certificates of X.509 version 1 are accepted, as in Pulsar (no VERIFY_X509_STRICT).
5. Files are read again after they changed (`tlsCertRefreshCheckDurationSec`). If the new ones
   cannot be used, the old ones stay in use and a warning is logged. Connections keep theirs.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ...tls_files import Renewed
from ..configuration.security_config import SecurityConfig
from ..errors import ConfigError

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
#: The beginning of Java's names of ciphers.
_SUITE = "TLS_"


def make_context(config: SecurityConfig) -> ssl.SSLContext:
    """The context of the binary protocol's, Kafka's and gRPC's ports. Raises ConfigError."""
    return _context(config, config.tls_protocols, config.tls_ciphers)


def make_http_context(config: SecurityConfig) -> ssl.SSLContext:
    """The context of the HTTP port, which may have protocols and ciphers of its own."""
    protocols = config.http_tls_protocols or config.tls_protocols
    return _context(config, protocols, config.http_tls_ciphers or config.tls_ciphers)


def _context(
    config: SecurityConfig, protocols: Sequence[str], ciphers: Sequence[str]
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # A client could keep the broker busy with handshakes over one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _set_versions(context, protocols)
    _set_ciphers(context, ciphers)
    _load_certificate(context, config)
    _load_trust(context, config)
    return context


def _set_versions(context: ssl.SSLContext, protocols: Sequence[str]) -> None:
    for name in protocols:
        if name not in VERSIONS:
            known = ", ".join(VERSIONS)
            raise ConfigError("tls_protocols", name, f"is not served; there are {known}")
    versions = [VERSIONS[name] for name in protocols] or list(VERSIONS.values())
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_ciphers(context: ssl.SSLContext, ciphers: Sequence[str]) -> None:
    # Ciphers of TLS 1.3 have other names, and OpenSSL always has them.
    older = [
        _openssl_name(name) for name in ciphers if not name.startswith(_SUITE) or "_WITH_" in name
    ]
    if not older:
        return
    try:
        context.set_ciphers(":".join(older))
    except ssl.SSLError:
        raise ConfigError("tls_ciphers", ",".join(ciphers), "OpenSSL knows none of them") from None
    known = {cipher["name"] for cipher in context.get_ciphers()}
    for name in older:
        if name not in known and name.isupper():
            raise ConfigError("tls_ciphers", name, "OpenSSL does not know this cipher")


def _openssl_name(name: str) -> str:
    """OpenSSL's name of a cipher with Java's name, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    if "_WITH_" not in name:
        return name
    exchange, _, rest = name.removeprefix(_SUITE).partition("_WITH_")
    kinds = exchange.replace("_", "-").removeprefix("RSA")
    rest = rest.replace("AES_128", "AES128").replace("AES_256", "AES256")
    rest = rest.replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    return "-".join(filter(None, (kinds, rest.replace("_", "-"))))


def _load_certificate(context: ssl.SSLContext, config: SecurityConfig) -> None:
    certificate, key = config.tls_certificate_file, config.tls_key_file
    if certificate is None or key is None:
        missing = "tls_certificate_file" if certificate is None else "tls_key_file"
        raise ConfigError(missing, None, "must be given for a port with TLS")
    for name, path in (("tls_certificate_file", certificate), ("tls_key_file", key)):
        _check_readable(name, path)
    try:
        # A key with a password would make OpenSSL ask for it at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = f"does not fit {certificate}, or one is not PEM: {error}"
        raise ConfigError("tls_key_file", key, reason) from error


def _load_trust(context: ssl.SSLContext, config: SecurityConfig) -> None:
    trust = config.tls_trust_certs_file
    is_required = config.tls_require_trusted_client_cert_on_connect
    if is_required and (trust is None or config.tls_allow_insecure_connection):
        reason = "needs tls_trust_certs_file, and excludes tls_allow_insecure_connection"
        raise ConfigError("tls_require_trusted_client_cert_on_connect", True, reason)
    if trust is None or config.tls_allow_insecure_connection:
        return
    _check_readable("tls_trust_certs_file", trust)
    try:
        context.load_verify_locations(trust)
    except ssl.SSLError as error:
        raise ConfigError("tls_trust_certs_file", trust, f"is not PEM: {error}") from error
    context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL


def _check_readable(field: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(field, path, f"cannot be read: {error.strerror}") from error


def renewed_context(
    config: SecurityConfig,
    make: Callable[[SecurityConfig], ssl.SSLContext],
    now_s: Callable[[], float] = time.monotonic,
) -> Renewed[ssl.SSLContext]:
    """A context that is made again after its files changed. Raises ConfigError."""
    files = config.tls_certificate_file, config.tls_key_file, config.tls_trust_certs_file
    interval_s = config.tls_cert_refresh_check_s
    return Renewed("broker", files, partial(make, config), ConfigError, interval_s, now_s)
