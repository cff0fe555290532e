"""The endpoint's settings. `BrokerConfig` has them as `kafka_...` and `max_kafka_...`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KafkaOptions"]

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """The settings of one endpoint; docs/limits.md explains the limits."""

    #: What Metadata and FindCoordinator tell clients.
    host: str
    cluster: str
    auto_create: bool = True
    default_partitions: int = 1
    #: An empty group waits for so long after its first member, so that one rebalance is enough.
    group_initial_rebalance_delay_ms: int = 3_000
    #: The session timeouts that members may ask for.
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    max_request_bytes: int = 16 * MIB
    max_fetch_bytes: int = 16 * MIB
    max_message_bytes: int = 5 * MIB
    max_pending_requests: int = 100
    max_groups: int = 10_000
    max_group_members: int = 1_000
    max_group_bytes: int = 128 * MIB
    max_committed_offsets: int = 1_000_000
    max_producer_ids: int = 1_000
    max_partitions: int = 10_000
    write_buffer_high_water_bytes: int = 2 * MIB
    idle_timeout_ms: int = 600_000
    #: A client must be authenticated within this time.
    handshake_timeout_ms: int = 30_000
    #: After so much silence the system asks a client's host whether it is there.
    keep_alive_interval_ms: int = 30_000
    stalled_frame_timeout_ms: int = 30_000
    min_frame_rate_bytes_per_s: int = 16 * 1024
