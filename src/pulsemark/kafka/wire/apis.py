"""The requests that are served: key, versions, codecs, and how large a request may be.

Only Produce carries records, so only it may be large. A decoded request takes up to a hundred times
its size in memory, so the other ones have lower limits. ApiVersions is a few words. An OffsetFetch
is 4 bytes a partition, and its answer many more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer, sasl

__all__ = [
    "APIS",
    "API_VERSIONS",
    "HIGHEST_FOR",
    "PRODUCE",
    "RAW_SASL",
    "SASL_AUTHENTICATE",
    "SASL_HANDSHAKE",
    "Api",
]

KIB = 1024
PRODUCE, LIST_OFFSETS, API_VERSIONS = 0, 2, 18
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


@dataclass(frozen=True, slots=True)
class Api:
    """A request that is served."""

    key: int
    lowest: int
    highest: int
    request: Any
    response: Any
    #: Bytes of a request of this kind. None: the connection's own limit.
    limit_bytes: int | None = 1024 * KIB

    @property
    def name(self) -> str:
        """Its name in Kafka's protocol, such as "Fetch"."""
        return str(self.request.name).removesuffix("Request")


def _api(key: int, highest: int, of: Any, name: str, **limits: int | None) -> Api:
    return Api(
        key, 0, highest, getattr(of, f"{name}Request"), getattr(of, f"{name}Response"), **limits
    )


APIS = {
    api.key: api
    for api in (
        _api(PRODUCE, 8, producer, "Produce", limit_bytes=None),
        _api(1, 11, consumer, "Fetch"),
        _api(LIST_OFFSETS, 11, consumer, "ListOffsets"),
        _api(3, 8, metadata, "Metadata"),
        _api(8, 7, consumer, "OffsetCommit"),
        _api(9, 5, consumer, "OffsetFetch", limit_bytes=256 * KIB),
        _api(10, 2, metadata, "FindCoordinator"),
        _api(11, 5, consumer, "JoinGroup"),
        _api(12, 3, consumer, "Heartbeat"),
        _api(13, 3, consumer, "LeaveGroup"),
        _api(14, 3, consumer, "SyncGroup"),
        _api(15, 4, admin, "DescribeGroups"),
        _api(16, 5, admin, "ListGroups"),
        _api(SASL_HANDSHAKE, 1, sasl, "SaslHandshake", limit_bytes=4 * KIB),
        _api(API_VERSIONS, 3, metadata, "ApiVersions", limit_bytes=4 * KIB),
        _api(19, 4, admin, "CreateTopics"),
        _api(20, 3, admin, "DeleteTopics"),
        _api(21, 1, admin, "DeleteRecords"),
        _api(22, 1, producer, "InitProducerId", limit_bytes=4 * KIB),
        _api(23, 3, consumer, "OffsetForLeaderEpoch"),
        _api(29, 1, admin, "DescribeAcls"),
        _api(30, 1, admin, "CreateAcls"),
        _api(31, 1, admin, "DeleteAcls"),
        _api(32, 3, admin, "DescribeConfigs"),
        _api(33, 1, admin, "AlterConfigs"),
        _api(34, 2, admin, "AlterReplicaLogDirs"),
        _api(35, 4, admin, "DescribeLogDirs"),
        _api(SASL_AUTHENTICATE, 1, sasl, "SaslAuthenticate", limit_bytes=64 * KIB),
        _api(37, 1, admin, "CreatePartitions"),
        _api(42, 1, admin, "DeleteGroups"),
        _api(43, 2, admin, "ElectLeaders"),
        _api(44, 0, admin, "IncrementalAlterConfigs"),
        _api(45, 0, admin, "AlterPartitionReassignments"),
        _api(46, 0, admin, "ListPartitionReassignments"),
        _api(47, 0, consumer, "OffsetDelete"),
        _api(50, 0, admin, "DescribeUserScramCredentials"),
        _api(60, 1, admin, "DescribeCluster"),
        _api(66, 1, admin, "ListTransactions"),
    )
}
"""By key. The order is that of ApiVersions' answer."""

HIGHEST_FOR: dict[str, dict[int, int]] = {"kafka-python": {LIST_OFFSETS: 5}}
"""The highest versions that ApiVersions shows to clients of this software, by the request's key.

kafka-python concludes from the requests' versions which Kafka a broker is. It must conclude 2.4
(Produce 8): for a later one it would send, if it is configured as a client of 2.4 or later,
versions that are not served, such as Metadata 9. So for it ListOffsets ends at 5 (7: a Kafka 3.0);
requests about ACLs end at 1 (2: 2.5), and DescribeClientQuotas (2.6) is not served.
"""

RAW_SASL = Api(
    -1, 0, 0, sasl.SaslAuthenticateRequest, sasl.SaslAuthenticateResponse, limit_bytes=64 * KIB
)
"""A frame after a SaslHandshake of version 0: bytes of the mechanism, without a header."""
