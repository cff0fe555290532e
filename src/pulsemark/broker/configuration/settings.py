"""A broker's settings, by their names in a configuration file.

A user who comes from Pulsar has a `broker.conf` or `standalone.conf`. It holds three kinds of
settings:

- Settings of Pulsar that this broker has, too. They are used. A value that is not valid raises
  `SettingError` with key and value.
- Settings of Pulsar that this broker does not have; there are hundreds. They are ignored and
  listed in `FileSettings.ignored`, so that the program can warn once. Some of them ask for
  protection, such as authentication, that this broker does not give; `unprotected` lists these.
- This broker's own settings: `pulsemark` and the field's name. `pulsemarkDataDir` is `data_dir`,
  `pulsemarkSyncIntervalMs` is the store's `sync_interval_ms`. An unknown one is an error, since
  only a mistake can put it there. A setting that has a name in Pulsar has only that name.

An empty value means the default, as in Pulsar. Two settings are different: an empty
`webServicePort` serves no HTTP, and an empty `brokerEntryMetadataInterceptors` switches stamps off
(as by default in Pulsar). `pulsemarkStampers` takes any stamper by name, and overrides Pulsar's
setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from ...ledger import StoreOptions
from ...metadata.stamper_names import join_stamper_names, split_stamper_names
from ..errors import BrokerError, ConfigError
from .config import BrokerConfig

__all__ = ["FileSettings", "SettingError", "parse_settings", "runtime_settings"]

OUR_PREFIX = "pulsemark"
MIB = 1024 * 1024
INT_MAX = 2**31 - 1

_INTERCEPT = "org.apache.pulsar.common.intercept."
#: Pulsar's interceptors and the stampers that write the same fields.
INTERCEPTORS = {
    f"{_INTERCEPT}AppendBrokerTimestampMetadataInterceptor": "broker-time",
    f"{_INTERCEPT}AppendIndexMetadataInterceptor": "index",
}

#: Settings that ask for protection which this broker does not give, with the values that do not
#: ask for it.
PROTECTION = {
    "authenticationEnabled": ("", "false"),
    "authorizationEnabled": ("", "false"),
    "brokerServicePortTls": ("",),
    "webServicePortTls": ("",),
    "tlsEnabled": ("", "false"),
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

    #: Fields of `BrokerConfig`.
    broker: dict[str, Any]
    #: Fields of `StoreOptions`.
    store: dict[str, Any]
    #: Keys that this broker does not know.
    ignored: tuple[str, ...]
    #: Ignored keys that ask for protection, which this broker does not give.
    unprotected: tuple[str, ...]

    def config(self, **overrides: Any) -> BrokerConfig:
        """The configuration; `overrides` are fields of `BrokerConfig` that override the file.

        Raises `ConfigError` for an override that cannot be used.
        """
        options = StoreOptions(**self.store)
        return BrokerConfig(**{"store_options": options, **self.broker, **overrides})


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a value is written in a file. `parse` raises ValueError with what was expected."""

    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class _Setting:
    field: str
    kind: _Kind
    #: A tuple with the value that an empty text means; () for the default.
    empty: tuple[Any, ...] = ()
    of_store: bool = False

    def value_in(self, config: BrokerConfig) -> Any:
        return getattr(config.store_options if self.of_store else config, self.field)


# -- values ---------------------------------------------------------------------------------------


def _integer(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise ValueError("must be a whole number")
    return int(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _limit(unit: int) -> _Kind:
    """A limit in some unit. 0 and below mean "no limit", which is the highest value here."""

    def parse(text: str) -> int:
        number = _integer(text)
        return min(number, INT_MAX) * unit if number > 0 else INT_MAX * unit

    return _Kind(parse, lambda value: str(value // unit))


def _multiple(unit: int) -> _Kind:
    """A quantity in a unit that is larger than ours. Pulsar allows whole numbers, we fractions."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", text):
            raise ValueError("must be a number")
        whole, _, fraction = text.partition(".")
        return int(whole + fraction) * unit // int(10 ** len(fraction))

    def show(value: int) -> str:
        return str(value // unit if value % unit == 0 else value / unit)

    return _Kind(parse, show)


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


_INTEGER = _Kind(_integer)
_BOOLEAN = _Kind(_boolean, lambda value: str(value).lower())
_TEXT = _Kind(str)
_STAMPERS = _Kind(split_stamper_names, join_stamper_names)
_NAMES = _Kind(lambda text: tuple(n.strip() for n in text.split(",") if n.strip()), ",".join)

# -- names ----------------------------------------------------------------------------------------

#: Pulsar's names of settings that this broker has, too.
PULSAR_SETTINGS = {
    "brokerServicePort": _Setting("port", _INTEGER),
    "webServicePort": _Setting("http_port", _INTEGER, empty=(None,)),
    "bindAddress": _Setting("host", _TEXT),
    "advertisedAddress": _Setting("advertised_address", _TEXT),
    "clusterName": _Setting("cluster", _TEXT),
    "maxMessageSize": _Setting("max_message_size_bytes", _INTEGER),
    "brokerEntryMetadataInterceptors": _Setting(
        "stampers", _Kind(_interceptors, _show_interceptors), empty=((),)
    ),
    "exposingBrokerEntryMetadataToClientEnabled": _Setting(
        "exposing_broker_entry_metadata_to_client_enabled", _BOOLEAN
    ),
    "allowAutoTopicCreation": _Setting("allow_auto_topic_creation", _BOOLEAN),
    "forceDeleteNamespaceAllowed": _Setting("force_delete_namespace_allowed", _BOOLEAN),
    "acknowledgmentAtBatchIndexLevelEnabled": _Setting(
        "acknowledgment_at_batch_index_level_enabled", _BOOLEAN
    ),
    "autoSkipNonRecoverableData": _Setting("auto_skip_non_recoverable_data", _BOOLEAN),
    "activeConsumerFailoverDelayTimeMillis": _Setting(
        "active_consumer_failover_delay_ms", _INTEGER
    ),
    "keepAliveIntervalSeconds": _Setting("keep_alive_interval_ms", _multiple(1000)),
    "connectionLivenessCheckTimeoutMillis": _Setting(
        "connection_liveness_check_timeout_ms", _INTEGER
    ),
    "brokerShutdownTimeoutMs": _Setting("shutdown_timeout_ms", _INTEGER),
    "brokerMaxConnections": _Setting("max_connections", _limit(1)),
    "maxPendingPublishRequestsPerConnection": _Setting(
        "max_in_flight_publish_messages_per_connection", _INTEGER
    ),
    "maxMessagePublishBufferSizeInMB": _Setting("max_in_flight_publish_bytes", _limit(MIB)),
    "dispatcherMaxReadSizeBytes": _Setting("dispatch_round_bytes", _INTEGER),
    "maxUnackedMessagesPerConsumer": _Setting("max_unacked_messages_per_consumer", _limit(1)),
    "maxUnackedMessagesPerSubscription": _Setting(
        "max_unacked_messages_per_subscription", _limit(1)
    ),
    "maxSubscriptionsPerTopic": _Setting("max_subscriptions_per_topic", _limit(1)),
    "maxHttpServerConnections": _Setting("max_http_connections", _limit(1)),
    "defaultRetentionTimeInMinutes": _Setting("default_retention_time_minutes", _INTEGER),
    "defaultRetentionSizeInMB": _Setting("default_retention_size_mb", _INTEGER),
    "retentionCheckIntervalInSeconds": _Setting("retention_check_interval_ms", _multiple(1000)),
    "ttlDurationDefaultInSeconds": _Setting("default_message_ttl_s", _INTEGER),
    "messageExpiryCheckIntervalInMinutes": _Setting(
        "message_expiry_check_interval_ms", _multiple(60_000)
    ),
    "brokerServiceCompactionThresholdInBytes": _Setting(
        "default_compaction_threshold_bytes", _INTEGER
    ),
    "brokerServiceCompactionMonitorIntervalInSeconds": _Setting(
        "compaction_monitor_interval_ms", _multiple(1000)
    ),
    "managedLedgerMaxLedgerRolloverTimeMinutes": _Setting(
        "ledger_age_ms", _multiple(60_000), of_store=True
    ),
    "managedLedgerMaxSizePerLedgerMbytes": _Setting(
        "ledger_size_bytes", _multiple(MIB), of_store=True
    ),
    "managedLedgerCacheSizeMB": _Setting("tail_cache_bytes", _multiple(MIB), of_store=True),
    "managedLedgerMaxUnackedRangesToPersist": _Setting(
        "max_unacked_ranges_to_persist", _INTEGER, of_store=True
    ),
    "managedLedgerMaxBatchDeletedIndexToPersist": _Setting(
        "max_batch_deleted_index_to_persist", _INTEGER, of_store=True
    ),
}

_KIND_OF_TYPE: dict[Any, tuple[_Kind, tuple[Any, ...]]] = {
    tuple[str, ...]: (_NAMES, ((),)),
    int: (_INTEGER, ()),
    int | None: (_INTEGER, (None,)),
    bool: (_BOOLEAN, ()),
    str: (_TEXT, ()),
    str | None: (_TEXT, (None,)),
    Path | None: (_Kind(Path), ()),
}


@cache
def _our_settings() -> dict[str, _Setting]:
    """This broker's own names, made from the fields for which Pulsar has no name."""
    taken = {(setting.of_store, setting.field) for setting in PULSAR_SETTINGS.values()}
    # The store has this field; `BrokerConfig` only passes it on.
    taken.add((False, "sync_interval_ms"))
    found = {f"{OUR_PREFIX}Stampers": _Setting("stampers", _STAMPERS, empty=((),))}
    for owner, of_store in ((BrokerConfig, False), (StoreOptions, True)):
        types = get_type_hints(owner)
        for spec in fields(owner):
            kind = _KIND_OF_TYPE.get(types[spec.name])
            if kind is not None and (of_store, spec.name) not in taken:
                found[_our_key(spec.name)] = _Setting(spec.name, *kind, of_store=of_store)
    return found


def _our_key(field: str) -> str:
    return OUR_PREFIX + "".join(part.capitalize() for part in field.split("_"))


# -- both ways ------------------------------------------------------------------------------------


def parse_settings(properties: Mapping[str, str]) -> FileSettings:
    """What the keys and values of a configuration file mean. Raises `SettingError`."""
    found = FileSettings({}, {}, _unknown(properties), _unprotected(properties))
    # In this order, so that our own setting overrides Pulsar's.
    for known in (PULSAR_SETTINGS, _our_settings()):
        for key, setting in known.items():
            if key in properties:
                _take(key, properties[key], setting, found)
    return found


def runtime_settings(config: BrokerConfig) -> dict[str, str]:
    """All settings of a broker by their names in a file, as text; "" for None."""
    shown = {}
    for key, setting in {**PULSAR_SETTINGS, **_our_settings()}.items():
        value = setting.value_in(config)
        shown[key] = "" if value is None else setting.kind.show(value)
    return shown


def _unknown(properties: Mapping[str, str]) -> tuple[str, ...]:
    ours = _our_settings()
    unknown = [key for key in properties if key not in PULSAR_SETTINGS and key not in ours]
    for key in unknown:
        if key.startswith(OUR_PREFIX):
            import difflib

            near = difflib.get_close_matches(key, ours, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingError(key, properties[key], f"there is no such setting{hint}")
    return tuple(unknown)


def _unprotected(properties: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        key
        for key, harmless in PROTECTION.items()
        if properties.get(key, "").lower() not in harmless
    )


def _take(key: str, text: str, setting: _Setting, found: FileSettings) -> None:
    """Add one setting to those found."""
    target = found.store if setting.of_store else found.broker
    if not text:
        if key == "brokerServicePort":
            # Pulsar closes its plain port then. Here the port must not stay open unnoticed.
            raise SettingError(
                key, text, "must be a port number: this broker has no other port for clients"
            )
        if setting.empty:
            target[setting.field] = setting.empty[0]
        return
    try:
        value = setting.kind.parse(text)
        # Made only to check the value, so that an error names the key of the file.
        (StoreOptions if setting.of_store else BrokerConfig)(**{setting.field: value})
    except ConfigError as error:
        raise SettingError(key, text, error.reason) from error
    except ValueError as error:
        raise SettingError(key, text, str(error)) from error
    target[setting.field] = value
