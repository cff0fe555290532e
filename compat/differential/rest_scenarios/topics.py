"""Topics, partitions and subscriptions, persistent and non-persistent."""

from __future__ import annotations

from ..peers import Recorder
from .registry import ADMIN, calls, scenario, unique


def prepare(broker: Recorder, topic: str) -> str:
    """A tenant with a namespace n2 of eight bundles; its name."""
    tenant = unique(topic)
    body = {"allowedClusters": ["standalone"]}
    broker.rest("PUT", f"{ADMIN}/tenants/{tenant}", body, quiet=True)
    bundles = {"bundles": {"numBundles": 8}}
    broker.rest("PUT", f"{ADMIN}/namespaces/{tenant}/n2", bundles, quiet=True)
    return tenant


@scenario
def rest_topics_in_detail(broker: Recorder, topic: str) -> None:
    calls(
        broker,
        """
        GET /persistent/<tenant>/n2
        GET /persistent/<tenant>/absent
        GET /persistent/absent-<tenant>/absent
        GET /persistent/<tenant>/n2/partitioned
        GET /persistent/<tenant>/absent/partitioned
        GET /non-persistent/<tenant>/n2
        PUT /persistent/<tenant>/absent/t
        PUT /persistent/absent-<tenant>/absent/t
        PUT /persistent/<tenant>/n2/t1
        PUT /persistent/<tenant>/n2/t1
        PUT /persistent/<tenant>/n2/t2 {"k":"v"}
        PUT /persistent/<tenant>/n2/t2b [1]
        PUT /persistent/<tenant>/n2/t2c {no
        PUT /persistent/<tenant>/n2/t3?authoritative=false {"k":"v"}
        GET /persistent/<tenant>/n2/t2/properties
        PUT /persistent/<tenant>/n2/t2/properties {"k2":"v2"}
        GET /persistent/<tenant>/n2/t2/properties
        DELETE /persistent/<tenant>/n2/t2/properties?key=k
        DELETE /persistent/<tenant>/n2/t2/properties?key=absent
        DELETE /persistent/<tenant>/n2/t2/properties
        GET /persistent/<tenant>/n2/t1/properties
        GET /persistent/<tenant>/n2/absent/properties
        PUT /persistent/<tenant>/n2/x%2Fy
        PUT /persistent/<tenant>/n2/x%20y
        GET /persistent/<tenant>/n2/x%20y/stats
        PUT /persistent/<tenant>/n2/t-partition-0
        PUT /persistent/<tenant>/n2/t-partition-1/partitions 2
        GET /persistent/<tenant>/n2/t1/partitions
        GET /persistent/<tenant>/n2/absent/partitions
        GET /persistent/<tenant>/n2/absent/partitions?checkAllowAutoCreation=true
        PUT /persistent/<tenant>/n2/p/partitions 0
        PUT /persistent/<tenant>/n2/p/partitions -1
        PUT /persistent/<tenant>/n2/p/partitions "x"
        PUT /persistent/<tenant>/n2/p/partitions x
        PUT /persistent/<tenant>/n2/p/partitions {"partitions":2}
        PUT /persistent/<tenant>/n2/p/partitions 2
        PUT /persistent/<tenant>/n2/p/partitions 2
        PUT /persistent/<tenant>/n2/p
        PUT /persistent/<tenant>/n2/t1/partitions 2
        GET /persistent/<tenant>/n2/pm/partitions
        GET /persistent/<tenant>/n2/pm/properties
        PUT /persistent/<tenant>/absent/p/partitions 2
        GET /persistent/<tenant>/n2/p/partitions
        GET /persistent/<tenant>/n2/p-partition-0/partitions
        POST /persistent/<tenant>/n2/p/partitions 3
        POST /persistent/<tenant>/n2/p/partitions 3
        POST /persistent/<tenant>/n2/p/partitions 1
        POST /persistent/<tenant>/n2/p/partitions 0
        POST /persistent/<tenant>/n2/p/partitions
        POST /persistent/<tenant>/n2/p/partitions x
        POST /persistent/<tenant>/n2/t1/partitions 3
        POST /persistent/<tenant>/n2/absent/partitions 3
        POST /persistent/<tenant>/n2/p/createMissedPartitions
        POST /persistent/<tenant>/n2/t1/createMissedPartitions
        POST /persistent/<tenant>/n2/absent/createMissedPartitions
        GET /persistent/<tenant>/n2/p/partitioned-stats
        GET /persistent/<tenant>/n2/p/partitioned-stats?perPartition=false
        GET /persistent/<tenant>/n2/t1/partitioned-stats
        GET /persistent/<tenant>/n2/absent/partitioned-stats
        GET /persistent/<tenant>/n2/p/partitioned-internalStats
        GET /persistent/<tenant>/n2/t1/partitioned-internalStats
        GET /persistent/<tenant>/n2/p/stats
        GET /persistent/<tenant>/n2/p/internalStats
        GET /persistent/<tenant>/n2/p/internal-info
        GET /persistent/<tenant>/n2/t1/internal-info
        GET /persistent/<tenant>/n2/absent/internal-info
        GET /persistent/<tenant>/n2/t1/stats
        GET /persistent/<tenant>/n2/t1/stats?getPreciseBacklog=true&subscriptionBacklogSize=true&getEarliestTimeInBacklog=true
        GET /persistent/<tenant>/n2/absent/stats
        GET /persistent/<tenant>/absent/absent/stats
        GET /persistent/<tenant>/n2/t1/internalStats
        GET /persistent/<tenant>/n2/t1/internalStats?metadata=true
        GET /persistent/<tenant>/n2/absent/internalStats
        GET /persistent/<tenant>/n2/t1/lastMessageId
        GET /persistent/<tenant>/n2/p/lastMessageId
        GET /persistent/<tenant>/n2/absent/lastMessageId
        GET /persistent/<tenant>/n2/t1/messageid/0
        GET /persistent/<tenant>/n2/p/messageid/0
        GET /persistent/<tenant>/n2/t1/messageid/x
        GET /persistent/<tenant>/n2/absent/messageid/0
        GET /persistent/<tenant>/n2/t1/compaction
        GET /persistent/<tenant>/n2/p/compaction
        GET /persistent/<tenant>/n2/absent/compaction
        GET /persistent/<tenant>/n2/t1/offload
        GET /persistent/<tenant>/n2/p/offload
        GET /persistent/<tenant>/n2/absent/offload
        PUT /persistent/<tenant>/n2/t1/offload {"ledgerId":1,"entryId":1}
        PUT /persistent/<tenant>/n2/t1/backlogSize {"ledgerId":1,"entryId":1}
        PUT /persistent/<tenant>/n2/p/backlogSize {"ledgerId":1,"entryId":1}
        PUT /persistent/<tenant>/n2/absent/backlogSize {"ledgerId":1,"entryId":1}
        GET /persistent/<tenant>/n2/t1/backlog
        GET /persistent/<tenant>/n2/t1/subscriptions
        GET /persistent/<tenant>/n2/p/subscriptions
        GET /persistent/<tenant>/n2/absent/subscriptions
        PUT /persistent/<tenant>/n2/t1/subscription/s1
        PUT /persistent/<tenant>/n2/t1/subscription/s1
        PUT /persistent/<tenant>/n2/absent/subscription/s1
        PUT /persistent/<tenant>/n2/p/subscription/s1
        PUT /persistent/<tenant>/n2/p/subscription/s1
        PUT /persistent/<tenant>/n2/t1/subscription/s2 {"ledgerId":-1,"entryId":-1}
        PUT /persistent/<tenant>/n2/t1/subscription/s3 {"ledgerId":-1,"entryId":-1,"properties":{"a":"b"}}
        PUT /persistent/<tenant>/n2/t1/subscription/s4?replicated=true {"ledgerId":9223372036854775807,"entryId":9223372036854775807}
        PUT /persistent/<tenant>/n2/t1/subscription/s5 {no
        PUT /persistent/<tenant>/n2/t1/subscription/s6 {"ledgerId":5}
        PUT /persistent/<tenant>/n2/t1/subscription/s7 "zzz"
        PUT /persistent/<tenant>/n2/t1/subscription/a%2Fb
        GET /persistent/<tenant>/n2/t1/subscriptions
        GET /persistent/<tenant>/n2/t1/subscription/s3/properties
        GET /persistent/<tenant>/n2/t1/subscription/absent/properties
        PUT /persistent/<tenant>/n2/t1/subscription/s3/properties {"x":"y"}
        GET /persistent/<tenant>/n2/t1/subscription/s3/properties
        PUT /persistent/<tenant>/n2/t1/subscription/s3/properties {}
        PUT /persistent/<tenant>/n2/p/subscription/s1/properties {"x":"y"}
        GET /persistent/<tenant>/n2/p/subscription/s1/properties
        GET /persistent/<tenant>/n2/t1/subscription/s1/replicatedSubscriptionStatus
        POST /persistent/<tenant>/n2/t1/subscription/s1/replicatedSubscriptionStatus true
        POST /persistent/<tenant>/n2/t1/subscription/s1/replicatedSubscriptionStatus false
        GET /persistent/<tenant>/n2/t1/subscription/absent/replicatedSubscriptionStatus
        GET /persistent/<tenant>/n2/p/subscription/s1/replicatedSubscriptionStatus
        POST /persistent/<tenant>/n2/t1/subscription/s1/analyzeBacklog
        POST /persistent/<tenant>/n2/t1/subscription/absent/analyzeBacklog
        POST /persistent/<tenant>/n2/p/subscription/s1/analyzeBacklog
        POST /persistent/<tenant>/n2/t1/subscription/s1/resetcursor/0
        POST /persistent/<tenant>/n2/t1/subscription/s1/resetcursor/x
        POST /persistent/<tenant>/n2/t1/subscription/absent/resetcursor/0
        POST /persistent/<tenant>/n2/p/subscription/absent/resetcursor/0
        POST /persistent/<tenant>/n2/p/subscription/s1/resetcursor/0
        POST /persistent/<tenant>/n2/t1/subscription/s1/resetcursor {"ledgerId":1,"entryId":1}
        POST /persistent/<tenant>/n2/t1/subscription/absent/resetcursor {"ledgerId":1,"entryId":1}
        POST /persistent/<tenant>/n2/p/subscription/s1/resetcursor {"ledgerId":1,"entryId":1}
        POST /persistent/<tenant>/n2/t1/subscription/s1/expireMessages/1
        POST /persistent/<tenant>/n2/t1/subscription/s1/expireMessages {"ledgerId":1,"entryId":1}
        POST /persistent/<tenant>/n2/t1/subscription/absent/expireMessages/1
        POST /persistent/<tenant>/n2/t1/all_subscription/expireMessages/1
        POST /persistent/<tenant>/n2/absent/all_subscription/expireMessages/1
        POST /persistent/<tenant>/n2/t1/subscription/s1/skip/1
        POST /persistent/<tenant>/n2/t1/subscription/absent/skip/1
        POST /persistent/<tenant>/n2/p/subscription/s1/skip/1
        POST /persistent/<tenant>/n2/t1/subscription/s1/skip_all
        POST /persistent/<tenant>/n2/t1/subscription/absent/skip_all
        POST /persistent/<tenant>/n2/p/subscription/absent/skip_all
        DELETE /persistent/<tenant>/n2/t1/subscription/s4
        DELETE /persistent/<tenant>/n2/t1/subscription/s4
        DELETE /persistent/<tenant>/n2/p/subscription/s1
        DELETE /persistent/<tenant>/n2/p/subscription/absent
        DELETE /persistent/<tenant>/n2/absent/subscription/s
        GET /persistent/<tenant>/n2/t1/ledger/1/entry/1
        GET /persistent/<tenant>/n2/p/ledger/1/entry/1
        GET /persistent/<tenant>/n2/t1/ledger/x/entry/1
        PUT /persistent/<tenant>/n2/t1/unload
        PUT /persistent/<tenant>/n2/p/unload
        PUT /persistent/<tenant>/n2/absent/unload
        DELETE /persistent/<tenant>/n2/t1/truncate
        DELETE /persistent/<tenant>/n2/p/truncate
        DELETE /persistent/<tenant>/n2/absent/truncate
        POST /persistent/<tenant>/n2/t1/trim
        POST /persistent/<tenant>/n2/absent/trim
        GET //lookup/v2/topic/persistent/<tenant>/n2/t1
        GET //lookup/v2/topic/persistent/<tenant>/n2/t1/bundle
        GET //lookup/v2/topic/persistent/<tenant>/absent/t1/bundle
        GET //lookup/v2/topic/persistent/<tenant>/absent/t1
        GET //lookup/v2/topic/zzz/<tenant>/n2/t1
        GET //lookup/v2/topic/persistent/<tenant>/n2/p
        GET //lookup/v2/topic/persistent/<tenant>/n2/absent?authoritative=true
        GET /persistent/<tenant>/n2
        GET /persistent/<tenant>/n2?includeSystemTopic=true
        GET /persistent/<tenant>/n2?bundle=0x00000000_0x20000000
        GET /persistent/<tenant>/n2/partitioned
        GET /namespaces/<tenant>/n2/0x00000000_0x20000000/topicHashPositions
        GET /namespaces/<tenant>/n2/0x00000000_0x20000000/topicHashPositions?topics=persistent://<tenant>/n2/t1
        DELETE /persistent/<tenant>/n2/p
        DELETE /persistent/<tenant>/n2/p-partition-0
        DELETE /persistent/<tenant>/n2/t1/partitions
        DELETE /persistent/<tenant>/n2/absent/partitions
        DELETE /persistent/<tenant>/n2/p/partitions
        DELETE /persistent/<tenant>/n2/t1
        DELETE /persistent/<tenant>/n2/t1
        DELETE /persistent/<tenant>/n2/t1?force=true
        DELETE /persistent/<tenant>/absent/t1
        DELETE /persistent/absent-<tenant>/absent/t1
        """,
        tenant=prepare(broker, topic),
    )


@scenario
def rest_non_persistent_topics(broker: Recorder, topic: str) -> None:
    calls(
        broker,
        """
        PUT /non-persistent/<tenant>/n2/np
        PUT /non-persistent/<tenant>/n2/np
        GET /non-persistent/<tenant>/n2
        GET /non-persistent/<tenant>/n2/np/stats
        GET /non-persistent/<tenant>/n2/np/internalStats
        GET /non-persistent/<tenant>/n2/np/lastMessageId
        GET /non-persistent/<tenant>/n2/np/internal-info
        PUT /non-persistent/<tenant>/n2/np/unload
        PUT /non-persistent/<tenant>/n2/npp/partitions 2
        GET /non-persistent/<tenant>/n2/npp/partitions
        GET /non-persistent/<tenant>/n2/npp/partitioned-stats
        GET /non-persistent/<tenant>/n2/partitioned
        DELETE /non-persistent/<tenant>/n2/npp/partitions
        DELETE /non-persistent/<tenant>/n2/np
        """,
        tenant=prepare(broker, topic),
    )
