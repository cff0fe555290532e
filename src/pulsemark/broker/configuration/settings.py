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
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

from ...ledger import StoreOptions
from ...metadata.stampers import join_stamper_names, split_stamper_names
from ..errors import BrokerError, ConfigError
from .bookkeeper_config import BOOKKEEPER, BookKeeperConfig
from .config import BrokerConfig
from .security_config import AUTHENTICATION, AUTHORIZATION, PROVIDERS, SecurityConfig, installed

OUR_PREFIX = "pulsemark"
MIB = 1024 * 1024

INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is written in a file. `parse` raises ValueError with what was expected."""

    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a file: the field that it sets, and how its value is written."""

    field: str
    kind: Kind
    #: A tuple with the value that an empty text means; () for the default.
    empty: tuple[Any, ...] = ()
    #: The field of `BrokerConfig` that holds the field; "": it is a field of `BrokerConfig`.
    part: str = ""

    def value_in(self, config: BrokerConfig) -> Any:
        """The field's value."""
        return getattr(getattr(config, self.part) if self.part else config, self.field)


def _integer(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise ValueError("must be a whole number")
    return int(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def limit(unit: int) -> Kind:
    """A limit in some unit. 0 and below mean "no limit", which is the highest value here."""

    def parse(text: str) -> int:
        number = _integer(text)
        return min(number, INT_MAX) * unit if number > 0 else INT_MAX * unit

    return Kind(parse, lambda value: str(value // unit))


def multiple(unit: int) -> Kind:
    """A quantity in a unit that is larger than ours. Pulsar allows whole numbers, we fractions."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", text):
            raise ValueError("must be a number")
        whole, _, fraction = text.partition(".")
        return int(whole + fraction) * unit // int(10 ** len(fraction))

    def show(value: int) -> str:
        return str(value // unit if value % unit == 0 else value / unit)

    return Kind(parse, show)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


INTEGER = Kind(_integer)
BOOLEAN = Kind(_boolean, lambda value: str(value).lower())
TEXT = Kind(str)
NAMES = Kind(_names, ",".join)

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


def _address_of_url(text: str) -> str:
    """Pulsar's `zk:HOST:PORT[,HOST:PORT...][/CHROOT]` as an address; its ledgers are below."""
    if text.startswith("zk://"):
        return text
    if not text.startswith("zk:"):
        raise ValueError("must begin with zk: (a store in ZooKeeper and BookKeeper)")
    hosts, _, chroot = text.removeprefix("zk:").partition("/")
    return f"zk://{hosts}/{chroot}/ledgers" if chroot else f"zk://{hosts}/ledgers"


STAMPERS_KIND = Kind(split_stamper_names, join_stamper_names)

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

#: Names of Pulsar's that are not our field in camel case, or that its files do not list, by part.
_NAMES: dict[str, dict[str, str]] = {
    "": {
        "brokerServicePort": "port",
        "webServicePort": "http_port",
        "bindAddress": "host",
        "clusterName": "cluster",
        "maxMessageSize": "max_message_size_bytes",
        "brokerEntryMetadataInterceptors": "stampers",
        "activeConsumerFailoverDelayTimeMillis": "active_consumer_failover_delay_ms",
        "keepAliveIntervalSeconds": "keep_alive_interval_ms",
        "connectionLivenessCheckTimeoutMillis": "connection_liveness_check_timeout_ms",
        "brokerShutdownTimeoutMs": "shutdown_timeout_ms",
        "brokerMaxConnections": "max_connections",
        "brokerMaxConnectionsPerIp": "max_connections_per_ip",
        "maxPendingPublishRequestsPerConnection": "max_in_flight_publish_messages_per_connection",
        "maxMessagePublishBufferSizeInMB": "max_in_flight_publish_bytes",
        "dispatcherMaxReadSizeBytes": "dispatch_round_bytes",
        "maxHttpServerConnections": "max_http_connections",
        "defaultRetentionTimeInMinutes": "default_retention_time_minutes",
        "defaultRetentionSizeInMB": "default_retention_size_mb",
        "retentionCheckIntervalInSeconds": "retention_check_interval_ms",
        "ttlDurationDefaultInSeconds": "default_message_ttl_s",
        "messageExpiryCheckIntervalInMinutes": "message_expiry_check_interval_ms",
        "brokerServiceCompactionThresholdInBytes": "default_compaction_threshold_bytes",
        "brokerServiceCompactionMonitorIntervalInSeconds": "compaction_monitor_interval_ms",
        "backlogQuotaCheckIntervalInSeconds": "backlog_quota_check_interval_ms",
        "backlogQuotaDefaultLimitGB": "backlog_quota_default_limit_gb",
        "backlogQuotaDefaultLimitSecond": "backlog_quota_default_limit_s",
        "brokerDeleteInactiveTopicsFrequencySeconds": "broker_delete_inactive_topics_frequency_ms",
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": (
            "broker_delete_inactive_topics_max_inactive_duration_s"
        ),
        "subscriptionExpiryCheckIntervalInMinutes": "subscription_expiry_check_interval_ms",
        "brokerDeduplicationSnapshotFrequencyInSeconds": (
            "broker_deduplication_snapshot_frequency_ms"
        ),
        "brokerDeduplicationSnapshotIntervalSeconds": "broker_deduplication_snapshot_interval_s",
        "brokerDeduplicationProducerInactivityTimeoutMinutes": (
            "broker_deduplication_producer_inactivity_timeout_ms"
        ),
        "delayedDeliveryTickTimeMillis": "delayed_delivery_tick_time_ms",
        "delayedDeliveryMaxDelayInMillis": "delayed_delivery_max_delay_ms",
        "subscribeRatePeriodPerConsumerInSecond": "subscribe_rate_period_per_consumer_s",
    },
    STORE: {
        "managedLedgerMaxLedgerRolloverTimeMinutes": "ledger_age_ms",
        "managedLedgerMaxSizePerLedgerMbytes": "ledger_size_bytes",
        "managedLedgerCacheSizeMB": "tail_cache_bytes",
        "managedLedgerMaxUnackedRangesToPersist": "max_unacked_ranges_to_persist",
        "managedLedgerMaxBatchDeletedIndexToPersist": "max_batch_deleted_index_to_persist",
        "managedLedgerMaxEntriesPerLedger": "ledger_entries",
    },
    SECURITY: {
        "authenticationRefreshCheckSeconds": "authentication_refresh_check_ms",
        "tokenAllowedClockSkewSeconds": "token_allowed_clock_skew_s",
        "brokerServicePortTls": "tls_port",
        "webServicePortTls": "http_tls_port",
        "tlsCertificateFilePath": "tls_certificate_file",
        "tlsKeyFilePath": "tls_key_file",
        "tlsTrustCertsFilePath": "tls_trust_certs_file",
        "webServiceTlsProtocols": "http_tls_protocols",
        "webServiceTlsCiphers": "http_tls_ciphers",
        "tlsCertRefreshCheckDurationSec": "tls_cert_refresh_check_s",
        "tokenPublicAlg": "token_public_alg",
    },
    BOOKKEEPER: {
        "metadataStoreUrl": "store_address",
        "metadataStoreSessionTimeoutMillis": "zookeeper_session_timeout_ms",
        "managedLedgerDefaultEnsembleSize": "ensemble_size",
        "managedLedgerDefaultWriteQuorum": "write_quorum_size",
        "managedLedgerDefaultAckQuorum": "ack_quorum_size",
        "bookkeeperTLSClientAuthentication": "bookkeeper_tls_client_authentication",
        "bookkeeperTLSKeyFilePath": "bookkeeper_tls_key_file",
        "bookkeeperTLSCertificateFilePath": "bookkeeper_tls_certificate_file",
        "bookkeeperTLSTrustCertsFilePath": "bookkeeper_tls_trust_certs_file",
        "bookkeeperTLSKeyStorePasswordPath": "bookkeeper_tls_key_password_file",
        "bookkeeper_tlsHostnameVerificationEnabled": "bookkeeper_tls_hostname_verification",
        "bookkeeperTlsCertFilesRefreshDurationSeconds": "bookkeeper_tls_cert_refresh_s",
    },
}

_SECONDS, _MINUTES, _MIBS = multiple(1000), multiple(60_000), multiple(MIB)
#: How Pulsar writes fields of which their type does not say it.
_KINDS: dict[str, Kind] = {
    "authentication_providers": Kind(_providers, ",".join),
    "authentication_refresh_check_ms": _SECONDS,
    "authorization_provider": Kind(_authorization),
    "backlog_quota_check_interval_ms": _SECONDS,
    "broker_deduplication_producer_inactivity_timeout_ms": _MINUTES,
    "broker_deduplication_snapshot_frequency_ms": _SECONDS,
    "broker_delete_inactive_topics_frequency_ms": _SECONDS,
    "compaction_monitor_interval_ms": _SECONDS,
    "http_tls_ciphers": _WORDS,
    "http_tls_protocols": _WORDS,
    "keep_alive_interval_ms": _SECONDS,
    "ledger_age_ms": _MINUTES,
    "ledger_size_bytes": _MIBS,
    "max_connections": limit(1),
    "max_http_connections": limit(1),
    "max_in_flight_publish_bytes": limit(MIB),
    "max_subscriptions_per_topic": limit(1),
    "max_unacked_messages_per_consumer": limit(1),
    "max_unacked_messages_per_subscription": limit(1),
    "message_expiry_check_interval_ms": _MINUTES,
    "retention_check_interval_ms": _SECONDS,
    "stampers": Kind(_interceptors, _show_interceptors),
    "store_address": Kind(_address_of_url),
    "subscription_expiry_check_interval_ms": _MINUTES,
    "tail_cache_bytes": _MIBS,
    "tls_ciphers": _WORDS,
    "tls_protocols": _WORDS,
}
#: Lists that an empty text does not empty: it means the default.
_NEVER_EMPTY = frozenset({"subscription_types_enabled"})

_KIND_OF_TYPE: dict[Any, tuple[Kind, tuple[Any, ...]]] = {
    tuple[str, ...]: (NAMES, ((),)),
    tuple[str, ...] | str: (NAMES, ((),)),
    int: (INTEGER, ()),
    int | None: (INTEGER, (None,)),
    bool: (BOOLEAN, ()),
    str: (TEXT, ()),
    str | None: (TEXT, (None,)),
    str | os.PathLike[str] | None: (Kind(Path), ()),
}


@cache
def pulsar_settings() -> dict[str, Setting]:
    """The settings of Pulsar that this broker has, too, by Pulsar's names.

    A field has the name that `_NAMES` gives it, or its own one in camel case if Pulsar has that.
    """
    pulsars, found = pulsar_defaults(), {}
    for part, spec, kind, empty in _fields():
        named = {field: key for key, field in _NAMES.get(part, {}).items()}
        key = named.get(spec, _camel_case(spec))
        if spec in named or key in pulsars:
            shown = () if spec in _NEVER_EMPTY else empty
            found[key] = Setting(spec, _KINDS.get(spec, kind), shown, part)
    return found


def _fields() -> Iterator[tuple[str, str, Kind, tuple[Any, ...]]]:
    """Part and name of each field that a file can set, and how a value of its type is written."""
    for part, owner in PARTS.items():
        types = get_type_hints(owner)
        for spec in fields(owner):
            if types[spec.name] in _KIND_OF_TYPE:
                yield part, spec.name, *_KIND_OF_TYPE[types[spec.name]]


def _camel_case(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


@cache
def _our_settings() -> dict[str, Setting]:
    """This broker's own names, made from the fields for which Pulsar has no name."""
    taken = {(setting.part, setting.field) for setting in pulsar_settings().values()}
    # The store has this field; `BrokerConfig` only passes it on.
    taken.add(("", "sync_interval_ms"))
    found = {f"{OUR_PREFIX}Stampers": Setting("stampers", STAMPERS_KIND, empty=((),))}
    for part, field, kind, empty in _fields():
        if (part, field) not in taken:
            found[OUR_PREFIX + _camel_case(f"_{field}")] = Setting(field, kind, empty, part)
    return found


def all_settings() -> dict[str, Setting]:
    """Every setting by its name in a file: Pulsar's first, then this broker's own."""
    return {**pulsar_settings(), **_our_settings()}


# -- both ways ------------------------------------------------------------------------------------


def parse_settings(properties: Mapping[str, str]) -> FileSettings:
    """What the keys and values of a configuration file mean. Raises `SettingError`."""
    _refuse(properties)
    found = FileSettings({part: {} for part in PARTS}, _unknown(properties))
    # In this order, so that our own setting overrides Pulsar's.
    for known in (pulsar_settings(), _our_settings()):
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
    unknown = [key for key in properties if key not in pulsar_settings() and key not in ours]
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
