"""A broker's settings, by their names in a configuration file.

The `broker.conf` or `standalone.conf` of a user who comes from Pulsar has three kinds of settings:

- Settings of Pulsar that this broker has, too. A value that is not valid raises `SettingError`.
- Settings of Pulsar that this broker does not have; there are hundreds. They are ignored and listed
  in `Loaded.ignored`, so that the program can warn once. One that asks for protection, or for a
  limit, that this broker does not have is an error (`PROTECTIONS`, `LIMITS`).
- This broker's own settings: `pulsemark` and the field's name. `pulsemarkDataDir` is `data_dir`.
  An unknown one is an error. A setting that has a name in Pulsar has only that name.

A name that differs from one of these only in upper and lower case is an error, too.

An empty value means the default, as in Pulsar, but for three settings: an empty `brokerServicePort`
or `webServicePort` closes that port, and an empty `brokerEntryMetadataInterceptors` switches stamps
off. `pulsemarkStampers` takes any stamper by name, and overrides Pulsar's setting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ...ledger import StoreOptions
from ...metadata.stampers import join_stamper_names, split_stamper_names
from ...records import FactsError, record
from ..errors import BrokerError, ConfigError
from .bookkeeper_config import BOOKKEEPER, BookKeeperConfig
from .config import BrokerConfig
from .declaration import (
    BOOLEAN,
    INTEGER,
    MIBS,
    MINUTES,
    NAMES,
    TEXT,
    Declaration,
    Kind,
    declaration_of,
)
from .security_config import SecurityConfig

OUR_PREFIX = "pulsemark"
ENVIRONMENT_PREFIX = "PULSEMARK_"


@record(frozen=True)
class Setting:
    """A setting: its names, its field, and the form of its value."""

    #: The field's name, which TOML has, too.
    name: str
    #: The field of `BrokerConfig` that holds the field; "": it is a field of `BrokerConfig`.
    part: str
    #: Its name in a broker.conf.
    key: str
    #: How a broker.conf writes its value.
    kind: Kind
    #: How the environment writes it: in the field's own unit.
    plain: Kind
    #: The type, for people.
    type_name: str
    default: Any
    #: Whether it may have no value.
    is_optional: bool
    #: A tuple with the value that an empty text means; () for the default.
    empty: tuple[Any, ...]
    declaration: Declaration

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        """The default for people; "" for none."""
        if self.default is None or self.default == ():
            return ""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return ",".join(self.default) if isinstance(self.default, tuple) else str(self.default)

    def value_in(self, config: BrokerConfig) -> Any:
        """The field's value."""
        return getattr(getattr(config, self.part) if self.part else config, self.name)

    def parsed(self, key: str, text: str, kind: Kind) -> Any:
        """The value that a text of this kind stands for. Raises `SettingError`."""
        try:
            value = kind.parse(text)
        except ValueError as error:
            raise SettingError(key, text, str(error)) from error
        return self.check(key, text, value)

    def check(self, key: str, text: str, value: Any) -> Any:
        """The value, if the setting can have it. Raises `SettingError` with key and text."""
        try:
            # Made only to check the value.
            PARTS[self.part](**{self.name: value})
        except ValueError as error:
            reason = error.reason if isinstance(error, ConfigError) else str(error)
            raise SettingError(key, text, reason) from error
        return value


#: The fields of `BrokerConfig` that hold fields, with their classes; "" is `BrokerConfig` itself.
STORE, SECURITY = "store_options", "security"
PARTS: dict[str, Any] = {
    "": BrokerConfig,
    STORE: StoreOptions,
    SECURITY: SecurityConfig,
    BOOKKEEPER: BookKeeperConfig,
}


class SettingError(FactsError, BrokerError, ValueError, text="{key}={value}: {reason}"):
    """A setting that cannot be used: `key` and `value` as written, `reason`: what was expected."""

    key: str
    value: str
    reason: str


@record
class Loaded:
    """Settings from all sources, and the source of each."""

    #: The values by their fields' names, of which no two parts have the same.
    values: dict[str, Any] = field(default_factory=dict)
    #: Source and name in that source, by field.
    origins: dict[str, str] = field(default_factory=dict)
    #: Keys of the file that this broker does not know.
    ignored: tuple[str, ...] = ()
    #: Remarks for the user, in sentences.
    warnings: list[str] = field(default_factory=list)

    def of(self, part: str) -> dict[str, Any]:
        """The fields of one part."""
        known = setting_fields()
        return {name: value for name, value in self.values.items() if known[name].part == part}

    def put(self, name: str, value: Any, origin: str) -> None:
        """Set a field; it wins over what was there."""
        self.values[name] = value
        self.origins[name] = origin

    def made(self, **overrides: Any) -> BrokerConfig:
        """The configuration; `overrides` win over all sources. Raises ConfigError."""
        held = {part: PARTS[part](**self.of(part)) for part in PARTS if part}
        return BrokerConfig(**{**held, **self.of(""), **overrides})

    def config(self, **overrides: Any) -> BrokerConfig:
        """As `made`; the error's message names the value's source."""
        try:
            return self.made(**overrides)
        except ConfigError as error:
            origin = self.origins.get(error.field)
            if origin is None or error.field in overrides:
                raise
            raise ConfigError(error.field, error.value, f"{error.reason} ({origin})") from error


STAMPERS_KIND = Kind(split_stamper_names, join_stamper_names)

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
    text = Path(__file__).with_name(_DEFAULTS).read_text(encoding="utf-8")
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
    # Settings by which Pulsar refuses things to clients.
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

#: What a user may do instead.
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
    """The reason why a setting must stop the start; None: it need not."""
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

#: How fields of the store are declared: the store knows nothing of Pulsar.
_OF_STORE = {
    "ledger_age_ms": Declaration("managedLedgerMaxLedgerRolloverTimeMinutes", MINUTES),
    "ledger_size_bytes": Declaration("managedLedgerMaxSizePerLedgerMbytes", MIBS),
    "tail_cache_bytes": Declaration("managedLedgerCacheSizeMB", MIBS),
    "max_unacked_ranges_to_persist": Declaration("managedLedgerMaxUnackedRangesToPersist"),
    "max_batch_deleted_index_to_persist": Declaration("managedLedgerMaxBatchDeletedIndexToPersist"),
    "ledger_entries": Declaration("managedLedgerMaxEntriesPerLedger"),
}
#: By a field's type: what people call it, how a file writes it, and what an empty text means.
_TYPES: dict[Any, tuple[str, Kind, tuple[Any, ...]]] = {
    tuple[str, ...]: ("list of names", NAMES, ((),)),
    tuple[str, ...] | str: ("list of names", NAMES, ((),)),
    int: ("whole number", INTEGER, ()),
    int | None: ("whole number", INTEGER, (None,)),
    bool: ("true or false", BOOLEAN, ()),
    str: ("text", TEXT, ()),
    str | None: ("text", TEXT, (None,)),
    str | os.PathLike[str] | None: ("path", Kind(Path), ()),
}


@cache
def setting_fields() -> Mapping[str, Setting]:
    """Every setting by its field's name, in the order of the classes."""
    found: dict[str, Setting] = {}
    for part, owner in PARTS.items():
        types = get_type_hints(owner)
        for spec in fields(owner):
            name, kind = spec.name, types[spec.name]
            # Not the clock, and others that no text can say. The store has the sync interval.
            if kind not in _TYPES or (part, name) == ("", "sync_interval_ms"):
                continue
            assert name not in found, f"two settings are called {name}"
            declared = _OF_STORE.get(name) or declaration_of(spec)
            type_name, usual, empty = _TYPES[kind]
            found[name] = Setting(
                name,
                part,
                declared.key or _key_of(name),
                declared.kind or usual,
                usual,
                type_name,
                None if spec.default is MISSING else spec.default,
                is_optional=type(None) in get_args(kind),
                empty=() if declared.is_never_empty else empty,
                declaration=declared,
            )
    return found


def _key_of(name: str) -> str:
    """A field's name in camel case if Pulsar has that, else this broker's own name for it."""
    first, *others = name.split("_")
    key = first + "".join(map(str.capitalize, others))
    return key if key in pulsar_defaults() else f"{OUR_PREFIX}{key[0].upper()}{key[1:]}"


@cache
def all_settings() -> Mapping[str, Setting]:
    """Every setting by its name in a file: Pulsar's first, then this broker's own."""
    found = {spec.key: spec for spec in setting_fields().values()}
    ours = {key: spec for key, spec in found.items() if key.startswith(OUR_PREFIX)}
    pulsars = {key: spec for key, spec in found.items() if key not in ours}
    # The same field as Pulsar's setting of interceptors, which it overrides.
    stampers = replace(setting_fields()["stampers"], kind=STAMPERS_KIND)
    return {**pulsars, f"{OUR_PREFIX}Stampers": stampers, **ours}


def pulsar_settings() -> dict[str, Setting]:
    """The settings of Pulsar that this broker has, too, by Pulsar's names."""
    return {key: spec for key, spec in all_settings().items() if not key.startswith(OUR_PREFIX)}


# -- both ways ------------------------------------------------------------------------------------


def parse_settings(properties: Mapping[str, str], where: str = "") -> Loaded:
    """Parse the keys and values of a configuration file. Raises `SettingError`.

    `where`: what follows a setting's name when a message says where its value comes from.
    """
    found = Loaded()
    # In this order, so that our own setting overrides Pulsar's.
    for key in sorted(properties, key=lambda name: name.startswith(OUR_PREFIX)):
        take(key, properties[key], found, where)
    reason = tls_refusal(properties)
    if reason is not None:
        raise SettingError("tlsEnabled", properties["tlsEnabled"], reason)
    return found


def take(key: str, text: str, found: Loaded, where: str = "") -> None:
    """Take a key and its value from a configuration file. Raises `SettingError`."""
    reason = refusal(key, text)
    if reason is not None:
        raise SettingError(key, text, reason)
    setting = all_settings().get(key)
    if setting is None:
        _check_unknown(key, text)
        found.ignored += (key,)
    elif text:
        found.put(setting.name, setting.parsed(key, text, setting.kind), f"{key}{where}")
    elif setting.empty:
        found.put(setting.name, setting.empty[0], f"{key}{where}")


def _check_unknown(key: str, text: str) -> None:
    """Raise `SettingError` for a name that is misspelt, or that only this broker could have."""
    meant = _spellings().get(key.lower())
    if meant is not None and key not in pulsar_defaults() and key != meant:
        # Without the value, which may be a key.
        raise SettingError(key, "...", f"there is no such setting; it is {meant}")
    if key.startswith(OUR_PREFIX):
        import difflib

        ours = (name for name in all_settings() if name.startswith(OUR_PREFIX))
        near = difflib.get_close_matches(key, ours, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingError(key, text, f"there is no such setting{hint}")


def runtime_settings(config: BrokerConfig) -> dict[str, str]:
    """All settings of a broker by their names in a file, as text; "" for None."""
    shown = {}
    for key, setting in all_settings().items():
        value = setting.value_in(config)
        text = "" if value is None else setting.kind.show(value)
        is_hidden = key in SECRETS and text and not text.startswith(PATH_BEGINNINGS)
        shown[key] = HIDDEN if is_hidden else text
    return shown


@cache
def _spellings() -> dict[str, str]:
    """Every name in lower case: `AuthenticationEnabled=true` must not start an open broker."""
    names = (*pulsar_defaults(), *LIMITS, *PROTECTIONS, *all_settings())
    return {name.lower(): name for name in names}


def tls_refusal(properties: Mapping[str, Any]) -> str | None:
    """The reason why a file must not set `tlsEnabled`; None: it may."""
    ports = (properties.get("brokerServicePortTls"), properties.get("webServicePortTls"))
    is_asked = str(properties.get("tlsEnabled", "")).lower() == "true"
    if any(ports) or not is_asked:
        return None
    return "needs the port brokerServicePortTls or webServicePortTls"
