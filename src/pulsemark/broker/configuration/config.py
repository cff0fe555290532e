"""A broker's settings, each declared once, and checked when they are made.

Names are those of Pulsar's `broker.conf`, if it has the setting, in Python's spelling, with the
unit last. Every limit has a default, so that no client can make the broker grow without limit. A
wrong value raises `ConfigError` with the field's name, so that a command line can show it.
What name, type and default do not say of a setting is in its `setting(...)` (`declaration`).
"""

from __future__ import annotations

import os
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any

from ...audit.rows import MAX_BUCKET_MS, AuditInputError, parse_tags
from ...ledger import MemoryFolder, StoreOptions
from ...metadata import Clock, SystemClock
from ...metadata.stampers import split_stamper_names
from ...records import record
from ...wire import InvalidTopicNameError, check_namespace
from ..errors import ConfigError
from .bookkeeper_config import BookKeeperConfig
from .declaration import (
    MIB,
    MINUTES,
    SECONDS,
    Kind,
    changeable_limit,
    check_declared,
    is_whole,
    limit,
    setting,
)
from .security_config import SecurityConfig

_INTERCEPT = "org.apache.pulsar.common.intercept."
#: Pulsar's interceptors and the stampers that write the same fields.
INTERCEPTORS = {
    f"{_INTERCEPT}AppendBrokerTimestampMetadataInterceptor": "broker-time",
    f"{_INTERCEPT}AppendIndexMetadataInterceptor": "index",
}


def _interceptors(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in INTERCEPTORS:
            known = ", ".join(name.removeprefix(_INTERCEPT) for name in INTERCEPTORS)
            instead = f"{known} of {_INTERCEPT}*, or pulsemarkStampers for any stamper"
            raise ValueError(f"no interceptor {name}; use {instead}")
    return tuple(dict.fromkeys(INTERCEPTORS[name] for name in names))


def _show_interceptors(stampers: tuple[str, ...]) -> str:
    return ",".join(name for name, stamper in INTERCEPTORS.items() if stamper in stampers)


INTERCEPTOR_NAMES = Kind(_interceptors, _show_interceptors)
QUOTA_POLICIES = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
TOPIC_TYPES = ("partitioned", "non-partitioned")
DELETE_MODES = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
#: In the order of Pulsar's enumeration.
SCHEMA_STRATEGIES = (
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)


@record(frozen=True, kw_only=True)
class PolicyDefaults:
    """The broker's level of the policies (docs/policies.md)."""

    #: Whether topics may have policies of their own over REST.
    topic_level_policies_enabled: bool = True

    # Limits; 0: without limit
    #: Tenants of the broker.
    max_tenants: int = changeable_limit()
    #: Namespaces of a tenant.
    max_namespaces_per_tenant: int = changeable_limit()
    #: Producers of a topic.
    max_producers_per_topic: int = setting(0, lowest=0, reloadable=True)
    #: Consumers of a topic.
    max_consumers_per_topic: int = setting(0, lowest=0, reloadable=True)
    #: Consumers of a subscription.
    max_consumers_per_subscription: int = setting(0, lowest=0, reloadable=True)
    #: Topics of a namespace.
    max_topics_per_namespace: int = changeable_limit()

    # Backlog quotas
    #: Whether backlog quotas are enforced.
    backlog_quota_check_enabled: bool = True
    #: How often backlogs are compared with their quotas.
    backlog_quota_check_interval_ms: int = setting(
        60_000, key="backlogQuotaCheckIntervalInSeconds", kind=SECONDS
    )
    #: -1 and 0: without limit.
    backlog_quota_default_limit_bytes: int = setting(-1, lowest=-1, reloadable=True)
    #: The older form, which counts if it is above 0.
    backlog_quota_default_limit_gb: int = setting(
        -1, key="backlogQuotaDefaultLimitGB", lowest=-1, reloadable=True
    )
    #: The quota by the age of the oldest message; -1 and 0: without limit.
    backlog_quota_default_limit_s: int = setting(
        -1, key="backlogQuotaDefaultLimitSecond", lowest=-1, reloadable=True
    )
    #: producer_request_hold, producer_exception or consumer_backlog_eviction.
    backlog_quota_default_retention_policy: str = setting(
        "producer_request_hold", choices=QUOTA_POLICIES, reloadable=True
    )

    # Creation and deletion
    #: "partitioned" or "non-partitioned".
    allow_auto_topic_creation_type: str = setting(
        "non-partitioned", choices=TOPIC_TYPES, reloadable=True, dynamic=True
    )
    #: Partitions of topics that are created as partitioned ones.
    default_num_partitions: int = setting(1, lowest=1, reloadable=True, dynamic=True)
    #: Whether consumers create subscriptions that do not exist.
    allow_auto_subscription_creation: bool = setting(True, reloadable=True, dynamic=True)
    #: Whether topics that no one uses are deleted.
    broker_delete_inactive_topics_enabled: bool = setting(False, dynamic=True)
    #: delete_when_no_subscriptions or delete_when_subscriptions_caught_up.
    broker_delete_inactive_topics_mode: str = setting(
        "delete_when_no_subscriptions", choices=DELETE_MODES, dynamic=True
    )
    #: How often inactive topics are looked for.
    broker_delete_inactive_topics_frequency_ms: int = setting(
        60_000, key="brokerDeleteInactiveTopicsFrequencySeconds", kind=SECONDS, dynamic=True
    )
    #: None: as the frequency.
    broker_delete_inactive_topics_max_inactive_duration_s: int | None = setting(
        None, key="brokerDeleteInactiveTopicsMaxInactiveDurationSeconds", dynamic=True
    )
    #: A subscription without consumers is deleted after so long; 0: never.
    subscription_expiration_time_minutes: int = setting(0, lowest=0)
    #: How often subscriptions without consumers are looked for.
    subscription_expiry_check_interval_ms: int = setting(
        300_000, key="subscriptionExpiryCheckIntervalInMinutes", kind=MINUTES
    )
    #: The types that consumers may use.
    subscription_types_enabled: tuple[str, ...] = setting(
        ("Exclusive", "Shared", "Failover", "Key_Shared"), is_never_empty=True, dynamic=True
    )

    # Deduplication
    #: Whether messages that a producer sends again are stored once.
    broker_deduplication_enabled: bool = False
    #: A snapshot of the producers' sequence ids is stored after so many entries of a topic.
    broker_deduplication_entries_interval: int = setting(1_000, lowest=1)
    #: How often topics are looked at for a snapshot that is due.
    broker_deduplication_snapshot_frequency_ms: int = setting(
        120_000, key="brokerDeduplicationSnapshotFrequencyInSeconds", kind=SECONDS
    )
    #: A snapshot is stored after so long, if a topic got entries; 0: only after so many entries.
    broker_deduplication_snapshot_interval_s: int = setting(
        120, key="brokerDeduplicationSnapshotIntervalSeconds", lowest=0
    )
    #: A producer that is gone for so long is forgotten.
    broker_deduplication_producer_inactivity_timeout_ms: int = setting(
        360 * 60_000, key="brokerDeduplicationProducerInactivityTimeoutMinutes", kind=MINUTES
    )
    #: The most producers in a snapshot; those that published last stay.
    broker_deduplication_max_number_of_producers: int = setting(10_000, lowest=1)

    # Delivery
    #: Whether messages are held back until their delivery time.
    delayed_delivery_enabled: bool = True
    #: How exactly delivery times are kept.
    delayed_delivery_tick_time_ms: int = setting(1_000, key="delayedDeliveryTickTimeMillis")
    #: 0: without limit.
    delayed_delivery_max_delay_ms: int = setting(0, key="delayedDeliveryMaxDelayInMillis", lowest=0)

    # Rates, per second; 0: without limit
    #: Messages that a topic takes.
    max_publish_rate_per_topic_in_messages: int = changeable_limit()
    #: Bytes that a topic takes.
    max_publish_rate_per_topic_in_bytes: int = changeable_limit()
    #: Messages that a topic delivers.
    dispatch_throttling_rate_per_topic_in_msg: int = changeable_limit()
    #: Bytes that a topic delivers.
    dispatch_throttling_rate_per_topic_in_byte: int = changeable_limit()
    #: Messages that a subscription gets.
    dispatch_throttling_rate_per_subscription_in_msg: int = changeable_limit()
    #: Bytes that a subscription gets.
    dispatch_throttling_rate_per_subscription_in_byte: int = changeable_limit()
    #: How often a consumer may subscribe, in a period.
    subscribe_throttling_rate_per_consumer: int = changeable_limit()
    #: The period of `subscribe_throttling_rate_per_consumer`.
    subscribe_rate_period_per_consumer_s: int = setting(
        30, key="subscribeRatePeriodPerConsumerInSecond", lowest=1, reloadable=True, dynamic=True
    )

    # Schemas
    #: Which new schemas a topic accepts.
    schema_compatibility_strategy: str = setting("FULL", choices=SCHEMA_STRATEGIES)
    #: Whether producers may add a new version of a schema.
    is_allow_auto_update_schema_enabled: bool = setting(True, dynamic=True)
    #: Whether producers without a schema are refused where a topic has one.
    is_schema_validation_enforced: bool = False


#: Fields that are lists of names, and what is named.
NAME_LISTS = (
    ("stampers", "stamper"),
    ("http_allowed_hosts", "host"),
    ("audit_tags", "tag"),
    ("mirror_sources", "cluster"),
)
KAFKA_FORMAT_VERSION = "3.0"
"""The newest entry format: magic 2."""


@record(frozen=True, kw_only=True)
class BrokerConfig(PolicyDefaults):
    """All settings of a broker. The defaults make a usable standalone broker."""

    # Data folder and addresses
    #: Where entries are kept: in "files", or in "memory", which ends with the process.
    storage: str = setting("files", choices=("files", "memory"))
    #: Data folder. None: a temporary folder, removed when the broker closes. Not with "memory".
    data_dir: str | os.PathLike[str] | None = None
    #: The content with which a broker in memory starts, and which the next broker can take over.
    #: None: it starts empty.
    memory: MemoryFolder | None = None
    #: Entries in Apache BookKeeper, in the place of files, if it has an address.
    bookkeeper: BookKeeperConfig = field(default_factory=BookKeeperConfig)
    #: Address to listen on; 0.0.0.0 for all IPv4 addresses of the machine.
    host: str = setting("127.0.0.1", key="bindAddress")
    #: Port of the binary protocol; 0 picks a free one (see `Broker.port`). None: clients can only
    #: use the port with TLS.
    port: int | None = setting(6650, key="brokerServicePort")
    #: Port of lookup, admin and metrics; None: no HTTP.
    http_port: int | None = setting(8080, key="webServicePort")
    #: Port of the seek service; None: no gRPC (and grpc is not imported).
    grpc_port: int | None = None
    #: File with the bearer token that callers of AppendControl must send; None: the call is off.
    grpc_control_token_file: str | os.PathLike[str] | None = None
    #: Port for Kafka's clients; None: not served (and kafka-python is not imported).
    kafka_port: int | None = None
    #: The port that the broker tells Kafka's clients; None: the one to which they connected. Set it
    #: if that port is mapped, as by a container. The port with TLS is always told as it is.
    kafka_advertised_port: int | None = None
    #: The namespace whose topics Kafka's clients see, by their local names.
    kafka_namespace: str = "public/default"
    #: Port of the schema registry for Kafka's serializers; None: not served.
    schema_registry_port: int | None = None
    #: Host names that HTTP requests may use, in addition to those that are always allowed
    #: (`http/authentication.py`); "*" allows every name.
    http_allowed_hosts: tuple[str, ...] = ()
    #: Host that lookups return to clients; None: `host`, or the machine's name for 0.0.0.0.
    advertised_address: str | None = None
    #: The cluster's name, which clients and policies see.
    cluster: str = setting("standalone", key="clusterName")
    #: Authentication, authorisation and TLS.
    security: SecurityConfig = field(default_factory=SecurityConfig)

    # Entries and storage
    #: The largest message; clients get this limit when they connect.
    max_message_size_bytes: int = setting(5 * MIB, key="maxMessageSize", lowest=1024)
    #: Send an entry's broker time and index to clients that ask for them (PIP-90).
    exposing_broker_entry_metadata_to_client_enabled: bool = False
    #: Names of the stampers, in order, or in one line as on the command line; () writes entries
    #: without a prefix.
    stampers: tuple[str, ...] | str = setting(
        ("broker-time", "index"), key="brokerEntryMetadataInterceptors", kind=INTERCEPTOR_NAMES
    )
    #: Clusters from which topics accept mirrors; "*" is every cluster (docs/mirror.md).
    mirror_sources: tuple[str, ...] = ()
    #: When an entry is acknowledged. 0: after it is synced. N > 0: after it is written; it is
    #: synced within N ms (a power cut may lose the last interval). None: as in `store_options`,
    #: whose default is 0.
    sync_interval_ms: int | None = None
    store_options: StoreOptions = field(default_factory=StoreOptions)
    clock: Clock = field(default_factory=SystemClock)

    # Log of `pulsemark standalone`; a program that embeds a broker sets up its own logging
    #: debug, info, warning or error.
    log_level: str = setting(
        "warning", choices=("debug", "info", "warning", "error"), reloadable=True
    )
    #: "text", or "json" with one object per line.
    log_format: str = setting("text", choices=("text", "json"), reloadable=True)

    # The metrics page's length (docs/operations.md)
    #: Whether each topic has metrics of its own. If not, they are added up for each namespace.
    expose_topic_level_metrics_in_prometheus: bool = True
    #: Whether each consumer has metrics of its own, where topics have.
    expose_consumer_level_metrics_in_prometheus: bool = False
    #: Whether each producer has metrics of its own, where topics have.
    expose_producer_level_metrics_in_prometheus: bool = False

    # Behaviour
    #: Whether producers and consumers create topics that do not exist.
    allow_auto_topic_creation: bool = setting(True, reloadable=True, dynamic=True)
    #: Whether an administrator may delete a namespace together with its topics.
    force_delete_namespace_allowed: bool = setting(False, reloadable=True, dynamic=True)
    #: The most partitions of a topic; 0: as many as the broker can have.
    max_num_partitions_per_partitioned_topic: int = changeable_limit()
    #: Keep acknowledgements of single messages of a batch (off in Pulsar's standalone).
    acknowledgment_at_batch_index_level_enabled: bool = False
    #: Skip damaged entries when dispatching. Off: the subscription stops before a damaged entry.
    auto_skip_non_recoverable_data: bool = setting(False, dynamic=True)
    #: How long a Failover subscription waits before another consumer becomes active.
    active_consumer_failover_delay_ms: int = setting(
        1_000, key="activeConsumerFailoverDelayTimeMillis", lowest=0
    )
    #: Key_Shared with AUTO_SPLIT puts its consumers on a ring: how many points each of them has.
    subscription_key_shared_consistent_hashing_replica_points: int = 100

    #: How long a publish may wait for more publishes of a client that does not wait for receipts.
    #: Messages that are handled together cost the broker much less. 0: none waits.
    publish_gathering_ms: int = setting(2, lowest=0)

    #: Whether a leader epoch begins when this broker takes a topic over, for topics of Pulsar's
    #: format without a policy of their own or of their namespace (docs/control-entries.md).
    leader_epochs_enabled: bool = False

    #: Whether Pulsar's clients may use transactions.
    transaction_coordinator_enabled: bool = False
    #: Transactions that have not ended; above it none can begin.
    max_active_transactions_per_coordinator: int = setting(10_000, kind=limit(1))

    # Kafka's clients (docs/kafka.md)
    #: Partitions of a topic that a Kafka client creates without saying how many (num.partitions).
    kafka_default_partitions: int = setting(1, lowest=1)
    #: The entry format of topics that Kafka clients create without one (message.format.version).
    kafka_message_format_version: str = KAFKA_FORMAT_VERSION
    #: How long a new consumer group waits for more members before its first generation.
    kafka_group_initial_rebalance_delay_ms: int = setting(3_000, lowest=0)
    #: The session timeouts that members of a group may ask for.
    kafka_group_min_session_timeout_ms: int = 6_000
    #: The longest session timeout that a member may ask for.
    kafka_group_max_session_timeout_ms: int = 1_800_000
    #: How often members of the consumer protocol (KIP-848) are to send heartbeats.
    kafka_group_consumer_heartbeat_interval_ms: int = 5_000
    #: A member of the consumer protocol that is silent for so long is removed.
    kafka_group_consumer_session_timeout_ms: int = 45_000

    # Cleaning, for topics without a policy of their own or of their namespace (docs/cleaning.md)
    #: Retention: how long, and how many bytes of, acknowledged messages are kept; -1: no limit.
    default_retention_time_minutes: int = setting(
        0, key="defaultRetentionTimeInMinutes", lowest=-1, reloadable=True
    )
    #: The bytes of retention, in MiB; -1: no limit.
    default_retention_size_mb: int = setting(
        0, key="defaultRetentionSizeInMB", lowest=-1, reloadable=True
    )
    #: After this time unacknowledged messages expire; 0: never.
    default_message_ttl_s: int = setting(
        0, key="ttlDurationDefaultInSeconds", lowest=0, reloadable=True
    )
    #: A topic is compacted after more new bytes than this; 0: only on request.
    default_compaction_threshold_bytes: int = setting(
        0, key="brokerServiceCompactionThresholdInBytes", lowest=0, reloadable=True
    )
    #: How often retention is applied to all topics.
    retention_check_interval_ms: int = setting(
        120_000, key="retentionCheckIntervalInSeconds", kind=SECONDS
    )
    #: How often messages are looked at whose time to live is over.
    message_expiry_check_interval_ms: int = setting(
        300_000, key="messageExpiryCheckIntervalInMinutes", kind=MINUTES
    )
    #: How often topics are looked at that are due for compaction.
    compaction_monitor_interval_ms: int = setting(
        60_000, key="brokerServiceCompactionMonitorIntervalInSeconds", kind=SECONDS
    )
    #: The most bytes that compaction reads and writes in a second.
    max_compaction_bytes_per_s: int = 32 * MIB

    # The audit (docs/audit.md)
    #: Count each topic's entries by time and tags, and keep the counts.
    audit_enabled: bool = False
    #: Tags to count by, as named by `metadata.tags_of`; "producer" is short for "producer_name".
    audit_tags: tuple[str, ...] = ("producer_name",)
    #: Width of the buckets. They begin at multiples of it since 1970, UTC.
    audit_bucket_ms: int = setting(60_000, lowest=1, highest=MAX_BUCKET_MS)
    #: How often counts are stored. After a kill, what came since is counted again.
    audit_save_interval_ms: int = 10_000
    #: Above it the oldest bucket is dropped, which is reported.
    max_audit_rows_per_topic: int = 10_000
    #: Combinations of tag values in a bucket; above it they are counted together in a rest row.
    max_audit_values_per_bucket: int = 100
    #: Rows in memory, over all topics; others are read from the catalog again.
    max_audit_rows: int = 200_000
    #: Above it the auditor takes up to half of a processor, also while clients write.
    max_audit_lag_messages: int = 1_000_000

    # Timeouts
    #: After so much silence a client gets a PING; after twice the time it is closed.
    keep_alive_interval_ms: int = setting(30_000, key="keepAliveIntervalSeconds", kind=SECONDS)
    #: How long a new connection may take to send CONNECT.
    handshake_timeout_ms: int = 30_000
    #: A frame must arrive whole within this time, plus a second for each
    #: `min_frame_rate_bytes_per_s` of it that has arrived.
    stalled_frame_timeout_ms: int = 30_000
    #: How fast a frame must arrive, after `stalled_frame_timeout_ms`.
    min_frame_rate_bytes_per_s: int = 16 * 1024
    #: How long a connection may take to answer a PING when another client asks for the producer
    #: name, or the Exclusive subscription, that it holds. Then it is closed.
    connection_liveness_check_timeout_ms: int = setting(
        5_000, key="connectionLivenessCheckTimeoutMillis"
    )
    #: How long a reader's position is kept after a seek until the reader reconnects.
    non_durable_return_timeout_ms: int = 60_000
    #: Shutdown: how long to wait for publishes in flight and for sockets to drain, together.
    shutdown_timeout_ms: int = setting(8_000, key="brokerShutdownTimeoutMs", dynamic=True)

    #: A Kafka client's connection is closed after so long without a request.
    kafka_idle_timeout_ms: int = 600_000

    # Limits
    #: Connections of the binary protocol.
    max_connections: int = setting(20_000, key="brokerMaxConnections", kind=limit(1))
    #: Connections of the binary protocol and of Kafka's from one address; 0: without limit.
    max_connections_per_ip: int = setting(0, key="brokerMaxConnectionsPerIp", lowest=0)
    #: Calls in progress at the seek service, and streams among them; above: RESOURCE_EXHAUSTED.
    max_grpc_calls: int = 256
    #: Streams of the seek service at a time.
    max_grpc_streams: int = 32
    #: Producers of one connection.
    max_producers_per_connection: int = 20_000
    #: Consumers of one connection.
    max_consumers_per_connection: int = 20_000
    #: Requests of one connection that are not answered yet.
    max_pending_requests_per_connection: int = 5_000
    #: Publishes of a connection that wait for the disk; above, it is not read.
    max_in_flight_publish_messages_per_connection: int = setting(
        10_000, key="maxPendingPublishRequestsPerConnection"
    )
    #: Their bytes.
    max_in_flight_publish_bytes_per_connection: int = 16 * MIB
    #: Over all connections; reading pauses above it and resumes at half of it.
    max_in_flight_publish_bytes: int = setting(
        128 * MIB, key="maxMessagePublishBufferSizeInMB", kind=limit(MIB), dynamic=True
    )
    #: Dispatch to a connection pauses above this much unsent data, and resumes at half of it.
    write_buffer_high_water_bytes: int = 2 * MIB
    #: Bytes of one dispatch round of a subscription, before other subscriptions get their turn.
    dispatch_round_bytes: int = setting(1 * MIB, key="dispatcherMaxReadSizeBytes", dynamic=True)
    #: Messages without acknowledgement; above, the consumer gets no more.
    max_unacked_messages_per_consumer: int = setting(50_000, kind=limit(1))
    #: The same, of all consumers of a subscription.
    max_unacked_messages_per_subscription: int = setting(200_000, kind=limit(1))
    #: Topics of the broker; above, none can be created.
    max_topics: int = 100_000
    #: Subscriptions of a topic.
    max_subscriptions_per_topic: int = setting(10_000, kind=limit(1))
    #: Entries that wait for their delivery time; above it no new entries are dispatched.
    max_delayed_entries_per_subscription: int = 200_000
    #: The same over all subscriptions, of which each may have 100 in any case.
    max_delayed_entries: int = 1_000_000
    #: Buffers of incomplete frames and HTTP bodies, over all connections. Above it the connection
    #: whose frame began first is closed.
    max_input_buffer_bytes: int = 256 * MIB
    #: Data that sockets have not accepted yet, over all connections. Above half of it, connections
    #: with much unsent data get no more. Above it, the connections that have read nothing for the
    #: longest time are closed.
    max_unsent_bytes: int = 256 * MIB
    #: Memory of producers, consumers and requests; above it requests are refused.
    max_kept_bytes_per_connection: int = 64 * MIB
    #: Memory of producers, consumers and requests, over all connections.
    max_kept_bytes: int = 256 * MIB
    #: Schema definitions in memory; others are read from the catalog again.
    max_schema_cache_bytes: int = 64 * MIB
    #: All versions of a topic's schema together.
    max_schema_bytes_per_topic: int = 8 * MIB
    #: Schemas with an id of the schema registry's.
    max_registered_schemas: int = 100_000
    #: A Produce request of a Kafka client; other requests are at most 1 MiB.
    max_kafka_request_bytes: int = 16 * MIB
    #: Records in one answer to a Fetch, whatever the client asks for.
    max_kafka_fetch_bytes: int = 16 * MIB
    #: Fetch sessions of Kafka's clients (KIP-227).
    max_kafka_fetch_sessions: int = 1_000
    #: Partitions of all fetch sessions together.
    max_kafka_fetch_session_partitions: int = 100_000
    #: Requests of a Kafka client that are not answered yet.
    max_kafka_pending_requests_per_connection: int = 100
    #: Consumer groups with members, members of one group, and memory of all members together.
    max_kafka_groups: int = 10_000
    #: Members of one consumer group.
    max_kafka_group_members: int = 1_000
    #: Memory of all members of all groups together.
    max_kafka_group_bytes: int = 128 * MIB
    #: Committed offsets of all groups together.
    max_kafka_committed_offsets: int = 1_000_000
    #: Idempotent producers remembered for each partition; those that sent last are kept.
    max_kafka_producer_ids_per_partition: int = 1_000
    #: Transactional ids of Kafka's producers.
    max_kafka_transactional_ids: int = 10_000
    #: Partitions and groups of one transaction of a Kafka producer.
    max_kafka_transaction_partitions: int = 1_000
    #: The longest transaction.timeout.ms that a Kafka producer may ask for.
    max_kafka_transaction_timeout_ms: int = 900_000
    #: HTTP connections; above, they are answered with 503.
    max_http_connections: int = setting(1_000, key="maxHttpServerConnections", kind=limit(1))
    #: The body of an HTTP request.
    max_http_body_bytes: int = 1 * MIB
    #: How long an incomplete HTTP request, or an answer that is not read, may take.
    http_idle_timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.sync_interval_ms is not None:
            object.__setattr__(self, "store_options", _synced_at(self.sync_interval_ms, self))
        if not isinstance(self.security, SecurityConfig):
            raise ConfigError("security", self.security, "must be a SecurityConfig")
        if self.port is None and self.security.tls_port is None:
            raise ConfigError("port", None, "must be a port number: there is no port with TLS")
        _check_texts(self)
        for spec in fields(self):
            if spec.name != "sync_interval_ms":
                check_declared(spec, getattr(self, spec.name))
        if not isinstance(self.clock, Clock):
            reason = "must have a method now_ms(), as pulsemark.testing.SettableClock has"
            raise ConfigError("clock", self.clock, reason)
        if self.grpc_control_token_file is not None:
            path = path_of("grpc_control_token_file", self.grpc_control_token_file)
            object.__setattr__(self, "grpc_control_token_file", path)
        _check_kafka(self)
        check_storage(self)
        _check_audit(self)


def _synced_at(interval_ms: Any, config: BrokerConfig) -> StoreOptions:
    """The store's options with this interval, which replaces theirs."""
    if not is_whole(interval_ms):
        raise ConfigError("sync_interval_ms", interval_ms, "must be a whole number or None")
    try:
        return replace(config.store_options, sync_interval_ms=interval_ms)
    except ValueError as error:
        raise ConfigError("sync_interval_ms", interval_ms, str(error)) from error


def _check_audit(config: BrokerConfig) -> None:
    try:
        tags = parse_tags(config.audit_tags)
    except AuditInputError as error:
        raise ConfigError("audit_tags", config.audit_tags, str(error)) from error
    object.__setattr__(config, "audit_tags", tags)


def _check_texts(config: BrokerConfig) -> None:
    for name in ("host", "cluster"):
        text: Any = getattr(config, name)
        if not isinstance(text, str) or not text or any(c.isspace() or c == "/" for c in text):
            raise ConfigError(name, text, "must be a name without spaces and slashes")
    for name, what in NAME_LISTS:
        names: Any = getattr(config, name)
        if name == "stampers" and isinstance(names, str):  # as on the command line
            names = split_stamper_names(names)
            object.__setattr__(config, name, names)
        if isinstance(names, str) or not all(isinstance(each, str) for each in names):
            raise ConfigError(name, names, f"must be a sequence of {what} names")


def _check_kafka(config: BrokerConfig) -> None:
    name = config.kafka_namespace
    try:
        check_namespace(name)
    except (InvalidTopicNameError, AttributeError) as error:
        raise ConfigError("kafka_namespace", name, str(error)) from error
    version = config.kafka_message_format_version
    if version != KAFKA_FORMAT_VERSION:  # most brokers have nothing of Kafka's
        from ...kafka.topic_settings import magic_of_version

        try:
            magic_of_version(version)
        except (ValueError, AttributeError) as error:
            raise ConfigError("kafka_message_format_version", version, str(error)) from error
    most_ms = config.kafka_group_max_session_timeout_ms
    if most_ms < config.kafka_group_min_session_timeout_ms:
        reason = "must be at least kafka_group_min_session_timeout_ms"
        raise ConfigError("kafka_group_max_session_timeout_ms", most_ms, reason)


def check_storage(config: BrokerConfig) -> None:
    """Raise ConfigError if there are two places to store in."""
    storage, memory = config.storage, config.memory
    data_dir: Any = config.data_dir
    if data_dir is not None:
        data_dir = path_of("data_dir", data_dir)
        object.__setattr__(config, "data_dir", data_dir)
    if data_dir is not None and storage == "memory":
        raise ConfigError("data_dir", data_dir, "a broker in memory has no data folder")
    if memory is not None and not isinstance(memory, MemoryFolder):
        raise ConfigError("memory", memory, "must be a MemoryFolder or None")
    if memory is not None and storage != "memory":
        raise ConfigError("memory", memory, "needs storage='memory'")
    config.bookkeeper.check(storage, data_dir)


def path_of(name: str, value: Any) -> Path:
    """A setting's path. Raises ConfigError if it is not a path."""
    try:
        return Path(value)
    except TypeError as error:
        raise ConfigError(name, value, "must be a path or None") from error
