"""Clusters, brokers and their figures, and services that a broker can run without."""

from __future__ import annotations

from ..peers import Recorder
from .registry import calls, cluster_wide, scenario


@scenario
def rest_reads_of_the_cluster(broker: Recorder, topic: str) -> None:
    calls(
        broker,
        """
        GET /brokers
        GET /brokers/
        GET /brokers/standalone
        GET /brokers/nocluster
        GET /brokers/leaderBroker
        GET /brokers/health
        GET /brokers/health?topicVersion=V2
        GET /brokers/healthcheck
        GET /brokers/ready
        GET /brokers/internal-configuration
        GET /brokers/configuration/values
        GET /brokers/configuration/absentName
        GET /brokers/backlog-quota-check
        OPTIONS /brokers/health
        HEAD /brokers/health
        HEAD /clusters
        PATCH /tenants/public
        TRACE /tenants/public
        FOO /tenants/public
        OPTIONS /tenants/public
        GET /broker-stats/destinations
        GET /broker-stats/allocator-stats/absent
        GET /broker-stats/load-report
        GET /broker-stats/broker-resource-availability/public/default
        GET /clusters/
        GET /clusters/standalone
        GET /clusters/standalone/
        GET /clusters/absent/peers
        GET /clusters/standalone/peers
        GET /clusters/standalone/migrate
        GET /clusters/absent/migrate
        GET /clusters/standalone/failureDomains
        GET /clusters/absent/failureDomains
        GET /clusters/standalone/failureDomains/x
        GET /clusters/standalone/namespaceIsolationPolicies
        GET /clusters/absent/namespaceIsolationPolicies
        GET /clusters/standalone/namespaceIsolationPolicies/x
        GET /clusters/standalone/namespaceIsolationPolicies/brokers
        GET /clusters/standalone/namespaceIsolationPolicies/brokers/b:1
        GET /clusters
        GET /clusters
        GET /bookies/racks-info
        GET /bookies/racks-info
        GET /resource-quotas
        GET /resource-quotas/public/default/0x00000000_0x40000000
        GET /resource-quotas/public/default/0x00000000_0x70000000
        GET /resource-quotas/public/default/zz
        GET /resource-quotas/public/absent/0x00000000_0x40000000
        GET /resourcegroups
        GET /resourcegroups/absent
        GET /resourcegroups
        GET /worker/cluster
        GET /worker/assignments
        GET /worker/cluster/leader
        GET /worker/zzz
        GET /worker-stats/functionsmetrics
        POST /brokers/health
        PUT /brokers/health
        """,
    )


@scenario
def rest_absent_services(broker: Recorder, topic: str) -> None:
    calls(
        broker,
        """
        GET //admin/v3/packages/function/public/default
        GET //admin/v3/packages/function/public/default/x
        GET //admin/v3/packages/zzz/public/default/x
        GET //admin/v3/packages/function/public/default/x/v1/metadata
        GET //admin/v3/sinks/public/default
        GET //admin/v3/sink/public/default
        GET //admin/v3/sources/public/default
        GET //admin/v3/sources/builtinsources
        GET //admin/v3/functions/connectors
        GET //admin/v3/functions/public/default/x
        GET //admin/v3/functions/foo
        GET //admin/v3/transactions/coordinators
        GET //admin/v3/transactions/coordinatorStats
        GET //admin/v3/transactions/slowTransactions/1000
        GET //admin/v3/transactions/transactionMetadata/1/2
        GET //admin/v3/transactions/transactionBufferStats/public/default/x
        GET //admin/v3/transactions/coordinatorInternalStats/0
        """,
    )


@cluster_wide
def rest_writes_to_the_cluster(broker: Recorder, topic: str) -> None:
    calls(
        broker,
        """
        POST /brokers/configuration/absentName/1
        DELETE /brokers/configuration/absentName
        DELETE /clusters/standalone/failureDomains/x
        DELETE /clusters/standalone/namespaceIsolationPolicies/x
        DELETE /clusters/absent
        PUT /clusters/standalone {}
        PUT /clusters/ar%20x {"serviceUrl":"http://x:1"}
        PUT /clusters/arx
        PUT /clusters/arx {"serviceUrl":"x:1"}
        PUT /clusters/arx {nojson
        PUT /clusters/arx {"serviceUrl":"http://x:1","brokerServiceUrl":"pulsar://x:2","zzz":1}
        GET /clusters/arx
        POST /clusters/arx {"serviceUrl":"http://y:1"}
        GET /clusters/arx
        POST /clusters/absent {"serviceUrl":"http://y:1"}
        POST /clusters/arx/peers ["standalone"]
        POST /clusters/arx/peers ["arx"]
        POST /clusters/arx/peers ["nope"]
        GET /clusters/arx/peers
        GET /clusters/arx
        POST /clusters/arx/failureDomains/d1 {"brokers":["b1:1"]}
        GET /clusters/arx/failureDomains/d1
        GET /clusters/arx/failureDomains
        POST /clusters/arx/failureDomains/d2 {"brokers":["b1:1"]}
        DELETE /clusters/arx/failureDomains/d1
        DELETE /clusters/arx/failureDomains/d1
        POST /clusters/arx/namespaceIsolationPolicies/p1 {"namespaces":["a/b"],"primary":["x"],"secondary":[],"auto_failover_policy":{"policy_type":"min_available","parameters":{"min_limit":"1","usage_threshold":"80"}}}
        GET /clusters/arx/namespaceIsolationPolicies
        GET /clusters/arx/namespaceIsolationPolicies/p1
        GET /clusters/arx/namespaceIsolationPolicies/brokers
        POST /clusters/arx/namespaceIsolationPolicies/p2 {}
        DELETE /clusters/arx/namespaceIsolationPolicies/p1
        GET /clusters/arx/namespaceIsolationPolicies/p1
        DELETE /clusters/arx
        DELETE /clusters/arx
        GET /bookies/racks-info/b1
        DELETE /bookies/racks-info/b1
        POST /bookies/racks-info/b1?group=g {"rack":"/r","hostname":"h"}
        POST /bookies/racks-info/b1 {"rack":"/r","hostname":"h"}
        POST /bookies/racks-info/b1?group=default {}
        GET /bookies/racks-info/b1
        DELETE /bookies/racks-info/b1
        POST /resource-quotas {"msgRateIn":1}
        POST /resource-quotas {no
        PUT /resourcegroups/arg {"publishRateInMsgs":10,"publishRateInBytes":100}
        GET /resourcegroups/arg
        PUT /resourcegroups/arg {"publishRateInMsgs":11}
        GET /resourcegroups/arg
        PUT /resourcegroups/arg2 {zz
        DELETE /resourcegroups/arg
        DELETE /resourcegroups/arg
        """,
    )
