"""The settings of authentication, authorisation and TLS, checked when they are made.

They are a part of `BrokerConfig`. By default nothing is switched on. Names are Pulsar's in
Python's spelling. What a class name in `authentication_providers` means is in `PROVIDERS`.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from ...records import record
from ..errors import ConfigError
from .declaration import SECONDS, WORDS, Kind, check_declared, is_whole, setting

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

_PULSARS = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
#: Pulsar's providers that this broker has, too, and their methods.
PROVIDERS = {f"{_PULSARS}Token": "token", f"{_PULSARS}Basic": "basic", f"{_PULSARS}Tls": "tls"}

AUTHENTICATION = "pulsemark.authentication"
AUTHORIZATION = "pulsemark.authorization"


def installed(group: str) -> EntryPoints:
    """The entry points of a group. Nothing is imported."""
    from importlib.metadata import entry_points

    return entry_points(group=group)


PULSARS_RULES = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"


def _providers(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in PROVIDERS and name not in PROVIDERS.values():
            plugins = installed(AUTHENTICATION).names
            if name not in plugins:
                known = ", ".join([*PROVIDERS, *sorted(plugins)])
                raise ValueError(f"{name} is not a provider of this broker, which has {known}")
    return names


def _authorization(name: str) -> str | None:
    """The entry point of a provider; None for Pulsar's own class, whose rules always hold."""
    if name == PULSARS_RULES:
        return None
    plugins = installed(AUTHORIZATION).names
    if name not in plugins:
        known = ", ".join([PULSARS_RULES, *sorted(plugins)])
        raise ValueError(f"{name} is not a provider of this broker, which has {known}")
    return name


PROVIDER_NAMES = Kind(_providers, ",".join)
AUTHORIZATION_NAME = Kind(_authorization)


@record(frozen=True, kw_only=True)
class SecurityConfig:
    """Who may connect, how, and as whom."""

    # Authentication
    #: Whether clients must say who they are.
    authentication_enabled: bool = False
    #: Class names as in Pulsar, or `token`, `basic`, `tls`, or names of the entry points
    #: `pulsemark.authentication` of installed packages.
    authentication_providers: tuple[str, ...] = setting((), kind=PROVIDER_NAMES)
    #: The role of clients with a method that has no provider; None: they are refused.
    anonymous_user_role: str | None = None
    #: Check the credentials that a proxy passes on (CONNECT.original_auth_data).
    authenticate_original_auth_data: bool = False
    #: Ask for credentials on the metrics page, too.
    authenticate_metrics_endpoint: bool = False
    #: How often expired credentials are looked for.
    authentication_refresh_check_ms: int = setting(
        60_000, key="authenticationRefreshCheckSeconds", kind=SECONDS, lowest=1
    )
    #: Roles of proxies: they must name the role for which they ask.
    proxy_roles: tuple[str, ...] = ()

    # Authorisation
    #: Whether roles need permissions.
    authorization_enabled: bool = False
    #: The entry point `pulsemark.authorization` of an installed package, which is asked before
    #: Pulsar's rules; None: only these decide.
    authorization_provider: str | None = setting(None, kind=AUTHORIZATION_NAME)
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
    token_public_alg: str = setting("RS256", key="tokenPublicAlg")
    #: The claim that names the role.
    token_auth_claim: str = "sub"  # noqa: S105 - not a password
    #: The claim that names who may accept the token; None: it is not looked at.
    token_audience_claim: str | None = None
    #: What that claim must have.
    token_audience: str | None = None
    #: How far the clock of the machine that makes tokens may be off.
    token_allowed_clock_skew_s: int = setting(0, key="tokenAllowedClockSkewSeconds", lowest=0)

    #: The .htpasswd of the method `basic`: a file: or data: URL, or a path.
    basic_auth_conf: str | None = field(default=None, repr=False)

    # TLS
    #: Port of the binary protocol with TLS; 0 picks a free one; None: not served.
    tls_port: int | None = setting(None, key="brokerServicePortTls")
    #: Port of HTTP with TLS.
    http_tls_port: int | None = setting(None, key="webServicePortTls")
    #: Port of the seek service with TLS.
    grpc_tls_port: int | None = None
    #: Port of Kafka's protocol with TLS.
    kafka_tls_port: int | None = None
    #: The broker's certificate chain, PEM.
    tls_certificate_file: str | None = setting(None, key="tlsCertificateFilePath")
    #: Its private key, PEM.
    tls_key_file: str | None = setting(None, key="tlsKeyFilePath")
    #: Authorities of clients' certificates, PEM.
    tls_trust_certs_file: str | None = setting(None, key="tlsTrustCertsFilePath")
    #: Accept clients' certificates of any authority. Unsafe.
    tls_allow_insecure_connection: bool = False
    #: Refuse clients without a certificate.
    tls_require_trusted_client_cert_on_connect: bool = False
    #: Versions such as TLSv1.3; (): 1.2 and 1.3.
    tls_protocols: tuple[str, ...] = setting((), kind=WORDS)
    #: OpenSSL's or IANA's names; (): OpenSSL's default.
    tls_ciphers: tuple[str, ...] = setting((), kind=WORDS)
    #: The same for HTTP; (): as above.
    http_tls_protocols: tuple[str, ...] = setting((), key="webServiceTlsProtocols", kind=WORDS)
    #: The ciphers of HTTP; (): as `tls_ciphers`.
    http_tls_ciphers: tuple[str, ...] = setting((), key="webServiceTlsCiphers", kind=WORDS)
    #: How often certificate files are looked at for changes; 0: at every connection.
    tls_cert_refresh_check_s: int = setting(300, key="tlsCertRefreshCheckDurationSec", lowest=0)
    #: Handshakes in progress, over all ports; more connections are closed.
    max_tls_handshakes: int = setting(256, lowest=1)
    #: How long a TLS handshake may take.
    tls_handshake_timeout_ms: int = setting(10_000, lowest=1)

    def __post_init__(self) -> None:
        types = get_type_hints(SecurityConfig)
        for spec in fields(self):
            _check_type(spec.name, getattr(self, spec.name), types[spec.name])
            check_declared(spec, getattr(self, spec.name))


def _check_type(name: str, value: Any, kind: Any) -> None:
    if kind is bool:
        fits, wanted = isinstance(value, bool), "True or False"
    elif value is None:
        fits, wanted = kind in (int | None, str | None), "given"
    elif kind in (int, int | None):
        fits, wanted = is_whole(value), "a whole number"
    elif kind in (str, str | None):
        fits, wanted = isinstance(value, str) and bool(value), "a text that is not empty"
    else:
        fits = not isinstance(value, str) and all(isinstance(each, str) for each in value)
        wanted = "a sequence of names"
    if not fits:
        raise ConfigError(name, value, f"must be {wanted}")
