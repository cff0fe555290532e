"""A broker's settings, by their names in a configuration file.

A user who comes from Pulsar has a `broker.conf` or `standalone.conf`. It holds three kinds of
settings:

- Settings of Pulsar that this broker has, too. They are used. A value that is not valid raises
  `SettingError` with key and value.
- Settings of Pulsar that this broker does not have; there are hundreds. They are ignored and
  listed in `FileSettings.ignored`, so that the program can warn once. A setting that asks for
  protection, or for a limit, that this broker does not have is an error (`PROTECTIONS`, `LIMITS`).
- This broker's own settings: `pulsemark` and the field's name. `pulsemarkDataDir` is `data_dir`,
  `pulsemarkSyncIntervalMs` is the store's `sync_interval_ms`. An unknown one is an error, since
  only a mistake can put it there. A setting that has a name in Pulsar has only that name.

A name that differs from one of these only in upper and lower case is an error, too.

An empty value means the default, as in Pulsar. Three settings are different: an empty
`brokerServicePort` or `webServicePort` closes that port, and an empty
`brokerEntryMetadataInterceptors` switches stamps off (as by default in Pulsar).
`pulsemarkStampers` takes any stamper by name, and overrides Pulsar's setting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

from ...ledger import StoreOptions
from ...metadata.stampers import join_stamper_names, split_stamper_names
from ..errors import BrokerError, ConfigError
from .bookkeeper_config import BOOKKEEPER, BOOKKEEPER_SETTINGS, BookKeeperConfig
from .config import POLICY_SETTINGS, BrokerConfig
from .security_config import AUTHENTICATION, AUTHORIZATION, PROVIDERS, SecurityConfig, installed
from .setting_kinds import BOOLEAN, INTEGER, NAMES, TEXT, Kind, Setting, limit, multiple

__all__ = [
    "HIDDEN",
    "LIMITS",
    "PATH_BEGINNINGS",
    "PROTECTIONS",
    "SECRETS",
    "SECURITY_SETTINGS",
    "STAMPERS_KIND",
    "FileSettings",
    "SettingError",
    "all_settings",
    "parse_settings",
    "pulsar_defaults",
    "refusal",
    "runtime_settings",
]

OUR_PREFIX = "pulsemark"
MIB = 1024 * 1024

_INTERCEPT = "org.apache.pulsar.common.intercept."
#: Pulsar's interceptors and the stampers that write the same fields.
INTERCEPTORS = {
    f"{_INTERCEPT}AppendBrokerTimestampMetadataInterceptor": "broker-time",
    f"{_INTERCEPT}AppendIndexMetadataInterceptor": "index",
}

#: The fields of `BrokerConfig` that hold fields, with their classes; "" is `BrokerConfig` itself.
STORE, SECURITY = "store_options", "security"
PARTS: dict[str, Any] = {
    "": BrokerConfig,
    STORE: StoreOptions,
    SECURITY: SecurityConfig,
    BOOKKEEPER: BookKeeperConfig,
}


class SettingError(BrokerError, ValueError):
    """A setting in a configuration file that cannot be used.

    `key` and `value` are from the file, `reason` says what was expected.
    """

    def __init__(self, key: str, value: str, reason: str) -> None:
        super().__init__(f"{key}={value}: {reason}")
        self.key = key
        self.value = value
        self.reason = reason


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The settings of a configuration file, as fields of this broker's configuration."""

    #: The fields by part: of `BrokerConfig` itself (""), and of those that it holds.
    parts: dict[str, dict[str, Any]]
    #: Keys that this broker does not know.
    ignored: tuple[str, ...]

    @property
    def broker(self) -> dict[str, Any]:
        """Fields of `BrokerConfig` itself."""
        return self.parts[""]

    def config(self, **overrides: Any) -> BrokerConfig:
        """The configuration; `overrides` are fields of `BrokerConfig` that override the file.

        Raises `ConfigError` for an override that cannot be used.
        """
        held = {part: PARTS[part](**values) for part, values in self.parts.items() if part}
        return BrokerConfig(**{**held, **self.broker, **overrides})


def _interceptors(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in INTERCEPTORS:
            known = ", ".join(name.removeprefix(_INTERCEPT) for name in INTERCEPTORS)
            raise ValueError(
                f"no interceptor {name}; use {known} of {_INTERCEPT}*, or {OUR_PREFIX}Stampers "
                "for any stamper"
            )
    return tuple(dict.fromkeys(INTERCEPTORS[name] for name in names))


def _show_interceptors(stampers: tuple[str, ...]) -> str:
    return ",".join(name for name, stamper in INTERCEPTORS.items() if stamper in stampers)


STAMPERS_KIND = Kind(split_stamper_names, join_stamper_names)

#: How the settings of policies are written.
_OF_POLICIES = {
    "boolean": (BOOLEAN, ()),
    "integer": (INTEGER, ()),
    "integer or none": (INTEGER, (None,)),
    "minutes": (multiple(60_000), ()),
    "names": (NAMES, ()),
    "seconds": (multiple(1000), ()),
    "text": (TEXT, ()),
}

# -- security -------------------------------------------------------------------------------------

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


# -- settings that stop the start -----------------------------------------------------------------
#
# A broker must not be less safe than its file says. The values of Pulsar's own files do not stop
# it, so that these files start a broker; nor does a limit that is switched off, or wider than
# Pulsar's.

_DEFAULTS = "pulsar_defaults.txt"


@cache
def pulsar_defaults() -> dict[str, frozenset[str]]:
    """The settings of Pulsar, with the values that its own files give them."""
    text = files(__package__).joinpath(_DEFAULTS).read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, set()).add(value)
    return {name: frozenset(values) for name, values in found.items()}


_BOOKKEEPERS_TLS = "org.apache.bookkeeper.tls.TLSContextFactory"
_PULSARS_SSL = "org.apache.pulsar.common.util.DefaultPulsarSslFactory"

#: Settings that ask for protection, with the values that do not ask for it: Pulsar's defaults.
PROTECTIONS: dict[str, tuple[str, ...]] = {
    "encryptionRequireOnProducer": ("", "false"),
    "tlsEnabledWithKeyStore": ("", "false"),
    "tlsKeyStore": ("",),
    "tlsTrustStore": ("",),
    "sslFactoryPlugin": ("", _PULSARS_SSL),
    "saslJaasClientAllowedIds": ("", ".*pulsar.*"),
    "saslJaasServerSectionName": ("", "PulsarBroker"),
    "saslJaasServerRoleTokenSignerSecretPath": ("",),
    "athenzDomainNames": ("",),
    "bookkeeperClientAuthenticationPlugin": ("",),
    "bookkeeperTLSKeyFileType": ("", "PEM"),
    "bookkeeperTLSProviderFactoryClass": ("", _BOOKKEEPERS_TLS),
    "bookkeeperTLSTrustCertTypes": ("", "PEM"),
    # Code that decides what clients may do, and what consumers get.
    "brokerInterceptors": ("",),
    "brokerEntryPayloadProcessors": ("",),
    "entryFilterNames": ("",),
    # What is refused to clients.
    "clientLibraryVersionCheckEnabled": ("", "false"),
    "enableNonPersistentTopics": ("", "true"),
    "enablePersistentTopics": ("", "true"),
    "httpRequestsLimitEnabled": ("", "false"),
    "strictTopicNameEnabled": ("", "false"),
    "strictlyVerifySubscriptionName": ("", "false"),
    "subscriptionKeySharedEnable": ("", "true"),
    # Which bookies hold the entries.
    "bookkeeperClientEnforceMinNumRacksPerWriteQuorum": ("", "false"),
    "bookkeeperClientIsolationGroups": ("",),
    "strictBookieAffinityEnabled": ("", "false"),
}

#: Limits, with Pulsar's values; 0 is without limit, as are an empty and a negative one.
LIMITS: dict[str, int] = {
    "brokerPublisherThrottlingMaxByteRate": 0,
    "brokerPublisherThrottlingMaxMessageRate": 0,
    "dispatchThrottlingRateInByte": 0,
    "dispatchThrottlingRateInMsg": 0,
    "httpMaxRequestSize": 0,
    "maxConcurrentHttpRequests": 1024,
    "maxConcurrentLookupRequest": 50_000,
    "maxConcurrentTopicLoadRequest": 5000,
    "maxConsumerMetadataSize": 1024,
    "maxSameAddressConsumersPerTopic": 0,
    "maxSameAddressProducersPerTopic": 0,
    "maxUnackedMessagesPerBroker": 0,
    "subscriptionPatternMaxLength": 50,
}

#: What a user may set in their place.
_INSTEAD = {
    "bookkeeperTLSKeyFileType": "PEM: convert the file",
    "bookkeeperTLSProviderFactoryClass": _BOOKKEEPERS_TLS,
    "bookkeeperTLSTrustCertTypes": "PEM: convert the file",
    "httpMaxRequestSize": "pulsemarkMaxHttpBodyBytes",
    "maxConcurrentHttpRequests": "maxHttpServerConnections, since each has one request at a time",
    "maxConcurrentLookupRequest": "pulsemarkMaxPendingRequestsPerConnection",
    "maxUnackedMessagesPerBroker": "maxUnackedMessagesPerSubscription",
    "subscriptionKeySharedEnable": "subscriptionTypesEnabled",
}


def refusal(key: str, value: str) -> str | None:
    """Why a setting stops the start; None: it does not."""
    if key in PROTECTIONS:
        harmless = PROTECTIONS[key]
        is_harmless, what = value in harmless or value.lower() in harmless, "protection"
    elif key in LIMITS:
        is_harmless, what = _is_wide(value, LIMITS[key]), "limit"
    else:
        return None
    if is_harmless:
        return None
    instead = f" (there is {_INSTEAD[key]})" if key in _INSTEAD else ""
    return f"this broker does not have this {what}{instead}; remove the line to start"


def _is_wide(text: str, pulsars: int) -> bool:
    try:
        number = int(text or 0)
    except ValueError:
        return False
    return number <= 0 or 0 < pulsars <= number


# -- names ----------------------------------------------------------------------------------------

#: Pulsar's names of settings that this broker has, too.
PULSAR_SETTINGS = {
    "brokerServicePort": Setting("port", INTEGER, empty=(None,)),
    "webServicePort": Setting("http_port", INTEGER, empty=(None,)),
    "bindAddress": Setting("host", TEXT),
    "advertisedAddress": Setting("advertised_address", TEXT),
    "clusterName": Setting("cluster", TEXT),
    "maxMessageSize": Setting("max_message_size_bytes", INTEGER),
    "brokerEntryMetadataInterceptors": Setting(
        "stampers", Kind(_interceptors, _show_interceptors), empty=((),)
    ),
    "exposingBrokerEntryMetadataToClientEnabled": Setting(
        "exposing_broker_entry_metadata_to_client_enabled", BOOLEAN
    ),
    **{
        f"expose{level}LevelMetricsInPrometheus": Setting(
            f"expose_{level.lower()}_level_metrics_in_prometheus", BOOLEAN
        )
        for level in ("Topic", "Consumer", "Producer")
    },
    "allowAutoTopicCreation": Setting("allow_auto_topic_creation", BOOLEAN),
    "forceDeleteNamespaceAllowed": Setting("force_delete_namespace_allowed", BOOLEAN),
    "maxNumPartitionsPerPartitionedTopic": Setting(
        "max_num_partitions_per_partitioned_topic", INTEGER
    ),
    "acknowledgmentAtBatchIndexLevelEnabled": Setting(
        "acknowledgment_at_batch_index_level_enabled", BOOLEAN
    ),
    "autoSkipNonRecoverableData": Setting("auto_skip_non_recoverable_data", BOOLEAN),
    "activeConsumerFailoverDelayTimeMillis": Setting("active_consumer_failover_delay_ms", INTEGER),
    "subscriptionKeySharedUseConsistentHashing": Setting(
        "subscription_key_shared_use_consistent_hashing", BOOLEAN
    ),
    "subscriptionKeySharedConsistentHashingReplicaPoints": Setting(
        "subscription_key_shared_consistent_hashing_replica_points", INTEGER
    ),
    "keepAliveIntervalSeconds": Setting("keep_alive_interval_ms", multiple(1000)),
    "connectionLivenessCheckTimeoutMillis": Setting(
        "connection_liveness_check_timeout_ms", INTEGER
    ),
    "brokerShutdownTimeoutMs": Setting("shutdown_timeout_ms", INTEGER),
    "brokerMaxConnections": Setting("max_connections", limit(1)),
    "brokerMaxConnectionsPerIp": Setting("max_connections_per_ip", INTEGER),
    "maxPendingPublishRequestsPerConnection": Setting(
        "max_in_flight_publish_messages_per_connection", INTEGER
    ),
    "maxMessagePublishBufferSizeInMB": Setting("max_in_flight_publish_bytes", limit(MIB)),
    "dispatcherMaxReadSizeBytes": Setting("dispatch_round_bytes", INTEGER),
    "maxUnackedMessagesPerConsumer": Setting("max_unacked_messages_per_consumer", limit(1)),
    "maxUnackedMessagesPerSubscription": Setting("max_unacked_messages_per_subscription", limit(1)),
    "maxSubscriptionsPerTopic": Setting("max_subscriptions_per_topic", limit(1)),
    "maxHttpServerConnections": Setting("max_http_connections", limit(1)),
    "defaultRetentionTimeInMinutes": Setting("default_retention_time_minutes", INTEGER),
    "defaultRetentionSizeInMB": Setting("default_retention_size_mb", INTEGER),
    "retentionCheckIntervalInSeconds": Setting("retention_check_interval_ms", multiple(1000)),
    "ttlDurationDefaultInSeconds": Setting("default_message_ttl_s", INTEGER),
    "messageExpiryCheckIntervalInMinutes": Setting(
        "message_expiry_check_interval_ms", multiple(60_000)
    ),
    "brokerServiceCompactionThresholdInBytes": Setting(
        "default_compaction_threshold_bytes", INTEGER
    ),
    "brokerServiceCompactionMonitorIntervalInSeconds": Setting(
        "compaction_monitor_interval_ms", multiple(1000)
    ),
    "managedLedgerMaxLedgerRolloverTimeMinutes": Setting(
        "ledger_age_ms", multiple(60_000), part=STORE
    ),
    "managedLedgerMaxSizePerLedgerMbytes": Setting("ledger_size_bytes", multiple(MIB), part=STORE),
    "managedLedgerCacheSizeMB": Setting("tail_cache_bytes", multiple(MIB), part=STORE),
    "managedLedgerMaxUnackedRangesToPersist": Setting(
        "max_unacked_ranges_to_persist", INTEGER, part=STORE
    ),
    "managedLedgerMaxBatchDeletedIndexToPersist": Setting(
        "max_batch_deleted_index_to_persist", INTEGER, part=STORE
    ),
    "managedLedgerMaxEntriesPerLedger": Setting("ledger_entries", INTEGER, part=STORE),
    **SECURITY_SETTINGS,
    **BOOKKEEPER_SETTINGS,
    **{key: Setting(field, *_OF_POLICIES[kind]) for key, (field, kind) in POLICY_SETTINGS.items()},
}

_KIND_OF_TYPE: dict[Any, tuple[Kind, tuple[Any, ...]]] = {
    tuple[str, ...]: (NAMES, ((),)),
    int: (INTEGER, ()),
    int | None: (INTEGER, (None,)),
    bool: (BOOLEAN, ()),
    str: (TEXT, ()),
    str | None: (TEXT, (None,)),
    str | os.PathLike[str] | None: (Kind(Path), ()),
}


@cache
def _our_settings() -> dict[str, Setting]:
    """This broker's own names, made from the fields for which Pulsar has no name."""
    taken = {(setting.part, setting.field) for setting in PULSAR_SETTINGS.values()}
    # The store has this field; `BrokerConfig` only passes it on.
    taken.add(("", "sync_interval_ms"))
    found = {f"{OUR_PREFIX}Stampers": Setting("stampers", STAMPERS_KIND, empty=((),))}
    for part, owner in PARTS.items():
        types = get_type_hints(owner)
        for spec in fields(owner):
            kind = _KIND_OF_TYPE.get(types[spec.name])
            if kind is not None and (part, spec.name) not in taken:
                found[_our_key(spec.name)] = Setting(spec.name, *kind, part=part)
    return found


def _our_key(field: str) -> str:
    return OUR_PREFIX + "".join(part.capitalize() for part in field.split("_"))


def all_settings() -> dict[str, Setting]:
    """Every setting by its name in a file: Pulsar's first, then this broker's own."""
    return {**PULSAR_SETTINGS, **_our_settings()}


# -- both ways ------------------------------------------------------------------------------------


def parse_settings(properties: Mapping[str, str]) -> FileSettings:
    """What the keys and values of a configuration file mean. Raises `SettingError`."""
    _refuse(properties)
    found = FileSettings({part: {} for part in PARTS}, _unknown(properties))
    # In this order, so that our own setting overrides Pulsar's.
    for known in (PULSAR_SETTINGS, _our_settings()):
        for key, setting in known.items():
            if key in properties:
                _take(key, properties[key], setting, found)
    return found


def runtime_settings(config: BrokerConfig) -> dict[str, str]:
    """All settings of a broker by their names in a file, as text; "" for None."""
    shown = {}
    for key, setting in all_settings().items():
        value = setting.value_in(config)
        text = "" if value is None else setting.kind.show(value)
        is_hidden = key in SECRETS and text and not text.startswith(PATH_BEGINNINGS)
        shown[key] = HIDDEN if is_hidden else text
    return shown


def _unknown(properties: Mapping[str, str]) -> tuple[str, ...]:
    ours = _our_settings()
    unknown = [key for key in properties if key not in PULSAR_SETTINGS and key not in ours]
    for key in unknown:
        meant = _spellings().get(key.lower())
        if meant is not None and key not in pulsar_defaults() and key != meant:
            # Without the value, which may be a key.
            raise SettingError(key, "...", f"there is no such setting; it is {meant}")
        if key.startswith(OUR_PREFIX):
            import difflib

            near = difflib.get_close_matches(key, ours, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingError(key, properties[key], f"there is no such setting{hint}")
    return tuple(unknown)


@cache
def _spellings() -> dict[str, str]:
    """Every name in lower case: `AuthenticationEnabled=true` must not start an open broker."""
    names = (*pulsar_defaults(), *LIMITS, *PROTECTIONS, *all_settings())
    return {name.lower(): name for name in names}


def _refuse(properties: Mapping[str, str]) -> None:
    """Raise for the first setting that asks for what this broker does not have."""
    for key, value in properties.items():
        reason = refusal(key, value)
        if reason is not None:
            raise SettingError(key, value, reason)
    ports = (properties.get("brokerServicePortTls"), properties.get("webServicePortTls"))
    if properties.get("tlsEnabled", "").lower() == "true" and not any(ports):
        reason = "needs the port brokerServicePortTls or webServicePortTls"
        raise SettingError("tlsEnabled", properties["tlsEnabled"], reason)


def _take(key: str, text: str, setting: Setting, found: FileSettings) -> None:
    """Add one setting to those found."""
    target = found.parts[setting.part]
    if not text:
        if setting.empty:
            target[setting.field] = setting.empty[0]
        return
    try:
        value = setting.kind.parse(text)
        # Made only to check the value, so that an error names the key of the file.
        PARTS[setting.part](**{setting.field: value})
    except ConfigError as error:
        raise SettingError(key, text, error.reason) from error
    except ValueError as error:
        raise SettingError(key, text, str(error)) from error
    target[setting.field] = value
