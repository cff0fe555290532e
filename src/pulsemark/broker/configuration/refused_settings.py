"""Settings of Pulsar that protect or limit, and that this broker does not have.

A file with one of them stops the start: a broker must not be less safe than its file says. The
values of Pulsar's own files do not, so that these files start a broker; nor does a limit that is
switched off, or wider than Pulsar's.
"""

from __future__ import annotations

__all__ = ["LIMITS", "PROTECTIONS", "refusal"]

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
