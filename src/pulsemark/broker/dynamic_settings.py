"""Settings that are changed over REST while the broker runs: Pulsar's dynamic configuration.

A setting is stored in the catalog and overrides the configuration file, also after a restart. What
`configuration.reloading` lists is in force at once; the others of `DYNAMIC_NAMES` from the broker's
next start on. Settings that this broker does not have, or that Pulsar cannot change while it runs,
are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from .configuration.config import BrokerConfig
from .configuration.reloading import reload_policies
from .configuration.settings import SettingError, parse_settings

if TYPE_CHECKING:
    from ..ledger.store import MetadataStore
    from .services import Services

__all__ = [
    "DYNAMIC_KIND",
    "DYNAMIC_NAMES",
    "change_setting",
    "put_in_force",
    "stored_settings",
    "with_settings",
]

log = logging.getLogger(__name__)

DYNAMIC_KIND = "dynamic-setting"
#: The settings of this broker that Apache Pulsar 4.0.8 can change while it runs, without
#: `superUserRoles`: here the rights of roles are read when the broker starts.
DYNAMIC_NAMES = frozenset(
    {
        "allowAutoSubscriptionCreation",
        "allowAutoTopicCreation",
        "allowAutoTopicCreationType",
        "autoSkipNonRecoverableData",
        "brokerDeleteInactiveTopicsEnabled",
        "brokerDeleteInactiveTopicsFrequencySeconds",
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        "brokerDeleteInactiveTopicsMode",
        "brokerShutdownTimeoutMs",
        "defaultNumPartitions",
        "dispatchThrottlingRatePerSubscriptionInByte",
        "dispatchThrottlingRatePerSubscriptionInMsg",
        "dispatchThrottlingRatePerTopicInByte",
        "dispatchThrottlingRatePerTopicInMsg",
        "dispatcherMaxReadSizeBytes",
        "forceDeleteNamespaceAllowed",
        "isAllowAutoUpdateSchemaEnabled",
        "managedLedgerCacheSizeMB",
        "maxMessagePublishBufferSizeInMB",
        "maxNamespacesPerTenant",
        "maxNumPartitionsPerPartitionedTopic",
        "maxPublishRatePerTopicInBytes",
        "maxPublishRatePerTopicInMessages",
        "maxTenants",
        "maxTopicsPerNamespace",
        "subscribeRatePeriodPerConsumerInSecond",
        "subscribeThrottlingRatePerConsumer",
        "subscriptionTypesEnabled",
    }
)


def stored_settings(catalog: MetadataStore) -> dict[str, str]:
    """The changed settings of a data folder. Blocks."""
    return {name: value.decode() for name, value in catalog.items(DYNAMIC_KIND)}


def with_settings(config: BrokerConfig, changed: Mapping[str, str]) -> BrokerConfig:
    """A configuration with changed settings. One that is no longer valid is logged and left out."""
    for name, value in changed.items():
        try:
            config = replace(config, **parse_settings({name: value}).broker)
        except SettingError as error:
            log.error("a setting that was changed over REST is not used: %s", error)
    return config


def put_in_force(services: Services) -> None:
    """Use what the configuration file and the changed settings say, as far as it can change now."""
    wanted = with_settings(services.configured, services.dynamic)
    services.config = reload_policies(services.topics.policies, services.config, wanted)


async def change_setting(services: Services, name: str, value: str | None) -> None:
    """Store a setting and put it in force; None: what the configuration file says holds again.

    As in Pulsar a value that is not valid is stored too. It has no effect, and the log says so.

    Raises `KeyError` for a setting that is not one of `DYNAMIC_NAMES`, and `LedgerError`.
    """
    if name not in DYNAMIC_NAMES:
        raise KeyError(name)

    def show() -> None:
        if value is None:
            services.dynamic.pop(name, None)
        else:
            services.dynamic[name] = value
        put_in_force(services)

    stored = None if value is None else value.encode()
    await services.topics.catalog_writer.put(DYNAMIC_KIND, name, stored, show)
