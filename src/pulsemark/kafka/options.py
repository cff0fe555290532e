"""The endpoint's settings. `BrokerConfig` has them as `kafka_...` and `max_kafka_...`.

They have no default values here: `BrokerConfig` is the one place that has them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KafkaOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """The settings of one endpoint; docs/limits.md explains the limits."""

    #: What Metadata and FindCoordinator answer.
    host: str
    cluster: str
    auto_create: bool
    default_partitions: int
    #: An empty group waits for so long after its first member, so that one rebalance is enough.
    group_initial_rebalance_delay_ms: int
    #: The session timeouts that members may ask for.
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    max_request_bytes: int
    max_fetch_bytes: int
    max_fetch_sessions: int
    max_fetch_session_partitions: int
    max_pending_requests: int
    max_groups: int
    max_group_members: int
    max_group_bytes: int
    max_committed_offsets: int
    max_producer_ids: int
    max_partitions: int
    write_buffer_high_water_bytes: int
    idle_timeout_ms: int
    #: A client must be authenticated within this time.
    handshake_timeout_ms: int
    #: After so much silence the system asks a client's host whether it is there.
    keep_alive_interval_ms: int
    stalled_frame_timeout_ms: int
    min_frame_rate_bytes_per_s: int
