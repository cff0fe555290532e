"""The settings of authentication, authorisation and TLS, checked when they are made.

They are a part of `BrokerConfig`. By default nothing is switched on. Names are Pulsar's in
Python's spelling. What a class name in `authentication_providers` means is in `PROVIDERS`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from ..errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

_PULSARS = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
#: Pulsar's providers that this broker has, too, and their methods.
PROVIDERS = {f"{_PULSARS}Token": "token", f"{_PULSARS}Basic": "basic", f"{_PULSARS}Tls": "tls"}

HIGHEST_PORT = 65_535
PORTS = ("tls_port", "http_tls_port", "grpc_tls_port", "kafka_tls_port")
#: Numbers, with the lowest value of each.
NUMBERS = {
    "token_allowed_clock_skew_s": 0,
    "authentication_refresh_check_ms": 1,
    "tls_cert_refresh_check_s": 0,
    "max_tls_handshakes": 1,
    "tls_handshake_timeout_ms": 1,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurityConfig:
    """Who may connect, how, and as whom."""

    # Authentication
    #: Whether clients must say who they are.
    authentication_enabled: bool = False
    #: Class names as in Pulsar, or `token`, `basic`, `tls`, or names of the entry points
    #: `pulsemark.authentication` of installed packages.
    authentication_providers: tuple[str, ...] = ()
    #: The role of clients with a method that has no provider; None: they are refused.
    anonymous_user_role: str | None = None
    #: Check the credentials that a proxy passes on (CONNECT.original_auth_data).
    authenticate_original_auth_data: bool = False
    #: Ask for credentials on the metrics page, too.
    authenticate_metrics_endpoint: bool = False
    #: How often expired credentials are looked for.
    authentication_refresh_check_ms: int = 60_000
    #: Roles of proxies: they must name the role for which they ask.
    proxy_roles: tuple[str, ...] = ()

    # Authorisation
    #: Whether roles need permissions.
    authorization_enabled: bool = False
    #: The entry point `pulsemark.authorization` of an installed package, which is asked before
    #: Pulsar's rules; None: only these decide.
    authorization_provider: str | None = None
    #: Roles that may do everything.
    super_user_roles: tuple[str, ...] = ()
    #: Whether the role of a permission may begin or end with `*`, which stands for any text.
    authorization_allow_wildcards_matching: bool = False

    # Tokens (JWT). Keys are file: or data: URLs, or paths.
    #: The key of tokens signed with a secret (HS256...).
    token_secret_key: str | None = field(default=None, repr=False)
    #: The key of tokens signed with a private key (RS256, ES256...).
    token_public_key: str | None = field(default=None, repr=False)
    #: The algorithm of `token_public_key`.
    token_public_alg: str = "RS256"  # noqa: S105 - not a password
    #: The claim that names the role.
    token_auth_claim: str = "sub"  # noqa: S105 - not a password
    #: The claim that names who may accept the token; None: it is not looked at.
    token_audience_claim: str | None = None
    #: What that claim must have.
    token_audience: str | None = None
    #: How far the clock of the machine that makes tokens may be off.
    token_allowed_clock_skew_s: int = 0

    #: The .htpasswd of the method `basic`: a file: or data: URL, or a path.
    basic_auth_conf: str | None = field(default=None, repr=False)

    # TLS
    #: Port of the binary protocol with TLS; 0 picks a free one; None: not served.
    tls_port: int | None = None
    #: Port of HTTP with TLS.
    http_tls_port: int | None = None
    #: Port of the seek service with TLS.
    grpc_tls_port: int | None = None
    #: Port of Kafka's protocol with TLS.
    kafka_tls_port: int | None = None
    #: The broker's certificate chain, PEM.
    tls_certificate_file: str | None = None
    #: Its private key, PEM.
    tls_key_file: str | None = None
    #: Authorities of clients' certificates, PEM.
    tls_trust_certs_file: str | None = None
    #: Accept clients' certificates of any authority. Unsafe.
    tls_allow_insecure_connection: bool = False
    #: Refuse clients without a certificate.
    tls_require_trusted_client_cert_on_connect: bool = False
    #: Versions such as TLSv1.3; (): 1.2 and 1.3.
    tls_protocols: tuple[str, ...] = ()
    #: OpenSSL's or IANA's names; (): OpenSSL's default.
    tls_ciphers: tuple[str, ...] = ()
    #: The same for HTTP; (): as above.
    http_tls_protocols: tuple[str, ...] = ()
    #: The ciphers of HTTP; (): as `tls_ciphers`.
    http_tls_ciphers: tuple[str, ...] = ()
    #: How often certificate files are looked at for changes; 0: at every connection.
    tls_cert_refresh_check_s: int = 300
    #: Handshakes in progress, over all ports; more connections are closed.
    max_tls_handshakes: int = 256
    #: How long a TLS handshake may take.
    tls_handshake_timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        types = get_type_hints(SecurityConfig)
        for spec in fields(self):
            _check_type(spec.name, getattr(self, spec.name), types[spec.name])
            check_no_nul(spec.name, getattr(self, spec.name))
        for name, lowest in NUMBERS.items():
            if getattr(self, name) < lowest:
                raise ConfigError(name, getattr(self, name), f"must be at least {lowest}")
        for name in PORTS:
            port = getattr(self, name)
            if port is not None and not 0 <= port <= HIGHEST_PORT:
                raise ConfigError(name, port, f"must be a port number from 0 to {HIGHEST_PORT}")


def check_no_nul(name: str, value: Any) -> None:
    """Raise ConfigError for a text or path that the system cannot take: with a NUL byte."""
    if isinstance(value, str | os.PathLike) and "\0" in str(value):
        raise ConfigError(name, value, "must be without NUL bytes")


def _check_type(name: str, value: Any, kind: Any) -> None:
    if kind is bool:
        fits, wanted = isinstance(value, bool), "True or False"
    elif value is None:
        fits, wanted = kind in (int | None, str | None), "given"
    elif kind in (int, int | None):
        fits = isinstance(value, int) and not isinstance(value, bool)
        wanted = "a whole number"
    elif kind in (str, str | None):
        fits, wanted = isinstance(value, str) and bool(value), "a text that is not empty"
    else:
        fits = not isinstance(value, str) and all(isinstance(each, str) for each in value)
        wanted = "a sequence of names"
    if not fits:
        raise ConfigError(name, value, f"must be {wanted}")


AUTHENTICATION = "pulsemark.authentication"
AUTHORIZATION = "pulsemark.authorization"


def installed(group: str) -> EntryPoints:
    """The entry points of a group. Nothing is imported."""
    from importlib.metadata import entry_points

    return entry_points(group=group)
