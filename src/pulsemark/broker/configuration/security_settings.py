"""Pulsar's settings of authentication, authorisation and TLS."""

from __future__ import annotations

from .provider_names import AUTHENTICATION, AUTHORIZATION, installed
from .security_config import PROVIDERS
from .setting_kinds import BOOLEAN, INTEGER, NAMES, TEXT, Kind, Setting, multiple

__all__ = ["HIDDEN", "PATH_BEGINNINGS", "SECRETS", "SECURITY_SETTINGS"]

SECURITY = "security"
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


def _words(text: str) -> tuple[str, ...]:
    """Names with commas or spaces between them, as the TLS settings have."""
    return tuple(text.replace(",", " ").split())


_WORDS = Kind(_words, ",".join)


def _setting(field: str, kind: Kind = TEXT, empty: tuple[object, ...] = ()) -> Setting:
    return Setting(field, kind, empty, SECURITY)


SECURITY_SETTINGS: dict[str, Setting] = {
    "authenticationEnabled": _setting("authentication_enabled", BOOLEAN),
    "authenticationProviders": _setting(
        "authentication_providers", Kind(_providers, ",".join), ((),)
    ),
    "anonymousUserRole": _setting("anonymous_user_role", empty=(None,)),
    "authenticateOriginalAuthData": _setting("authenticate_original_auth_data", BOOLEAN),
    "authenticateMetricsEndpoint": _setting("authenticate_metrics_endpoint", BOOLEAN),
    "authenticationRefreshCheckSeconds": _setting(
        "authentication_refresh_check_ms", multiple(1000)
    ),
    "proxyRoles": _setting("proxy_roles", NAMES, ((),)),
    "authorizationEnabled": _setting("authorization_enabled", BOOLEAN),
    "authorizationAllowWildcardsMatching": _setting(
        "authorization_allow_wildcards_matching", BOOLEAN
    ),
    "authorizationProvider": _setting(
        "authorization_provider", Kind(_authorization), empty=(None,)
    ),
    "superUserRoles": _setting("super_user_roles", NAMES, ((),)),
    "tokenSecretKey": _setting("token_secret_key", empty=(None,)),
    "tokenPublicKey": _setting("token_public_key", empty=(None,)),
    "tokenPublicAlg": _setting("token_public_alg"),
    "tokenAuthClaim": _setting("token_auth_claim"),
    "tokenAudienceClaim": _setting("token_audience_claim", empty=(None,)),
    "tokenAudience": _setting("token_audience", empty=(None,)),
    "tokenAllowedClockSkewSeconds": _setting("token_allowed_clock_skew_s", INTEGER),
    "basicAuthConf": _setting("basic_auth_conf", empty=(None,)),
    "brokerServicePortTls": _setting("tls_port", INTEGER, (None,)),
    "webServicePortTls": _setting("http_tls_port", INTEGER, (None,)),
    "tlsCertificateFilePath": _setting("tls_certificate_file", empty=(None,)),
    "tlsKeyFilePath": _setting("tls_key_file", empty=(None,)),
    "tlsTrustCertsFilePath": _setting("tls_trust_certs_file", empty=(None,)),
    "tlsAllowInsecureConnection": _setting("tls_allow_insecure_connection", BOOLEAN),
    "tlsRequireTrustedClientCertOnConnect": _setting(
        "tls_require_trusted_client_cert_on_connect", BOOLEAN
    ),
    "tlsProtocols": _setting("tls_protocols", _WORDS, ((),)),
    "tlsCiphers": _setting("tls_ciphers", _WORDS, ((),)),
    "webServiceTlsProtocols": _setting("http_tls_protocols", _WORDS, ((),)),
    "webServiceTlsCiphers": _setting("http_tls_ciphers", _WORDS, ((),)),
    "tlsCertRefreshCheckDurationSec": _setting("tls_cert_refresh_check_s", INTEGER),
}

#: Settings that may hold a key itself, as a `data:` URL or base64.
SECRETS = frozenset({"tokenSecretKey", "tokenPublicKey", "basicAuthConf"})
#: What is shown instead, unless the value is the path or URL of a file.
HIDDEN = "data:***"
PATH_BEGINNINGS = ("file:", "/", "./", "../")
