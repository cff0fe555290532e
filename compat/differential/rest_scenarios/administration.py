"""Tenants and namespaces."""

from __future__ import annotations

from ..peers import Recorder
from .registry import calls, scenario, unique


@scenario
def rest_tenants_and_bodies(broker: Recorder, topic: str) -> None:
    calls(
        broker,
        """
        GET /tenants/<tenant>
        PUT /tenants/<tenant>
        PUT /tenants/<tenant> {}
        PUT /tenants/<tenant> []
        PUT /tenants/<tenant> "x"
        PUT /tenants/<tenant> 5
        PUT /tenants/<tenant> null
        PUT /tenants/<tenant> {"adminRoles":"x","allowedClusters":["standalone"]}
        PUT /tenants/<tenant> {"adminRoles":[" x "],"allowedClusters":["standalone"]}
        PUT /tenants/<tenant> {"allowedClusters":[]}
        PUT /tenants/<tenant> {"allowedClusters":["nowhere"]}
        PUT /tenants/<tenant> {"allowedClusters":["standalone"],"zzz":1}
        PUT /tenants/<tenant> {"allowedClusters":["standalone"]}
        GET /tenants/<tenant>
        GET /tenants/<tenant>/
        POST /tenants/<tenant> {"adminRoles":["b","a"],"allowedClusters":["standalone"]}
        GET /tenants/<tenant>
        POST /tenants/<tenant>
        POST /tenants/<tenant> {"allowedClusters":[]}
        POST /tenants/absent-<tenant> {"allowedClusters":["standalone"]}
        PUT /tenants/a%20b {"allowedClusters":["standalone"]}
        PUT /tenants/a%2Fb {"allowedClusters":["standalone"]}
        GET /tenants/%zz
        DELETE /tenants/<tenant>
        """,
        tenant=unique(topic),
    )


@scenario
def rest_namespaces_and_bundles(broker: Recorder, topic: str) -> None:
    calls(
        broker,
        """
        PUT /tenants/<tenant> {"allowedClusters":["standalone"]}
        GET /namespaces/<tenant>
        GET /namespaces/absent-<tenant>
        GET /namespaces/<tenant>/absent
        PUT /namespaces/<tenant>/n1
        PUT /namespaces/<tenant>/n1
        PUT /namespaces/absent-<tenant>/n1
        PUT /namespaces/<tenant>/a%20b
        PUT /namespaces/<tenant>/n2 {"bundles":{"numBundles":8}}
        PUT /namespaces/<tenant>/n3 {"bundles":{"boundaries":["0x00000000","0x80000000","0xffffffff"]}}
        PUT /namespaces/<tenant>/n4 {"bundles":{"numBundles":0}}
        PUT /namespaces/<tenant>/n5 {"bundles":{"numBundles":-1}}
        PUT /namespaces/<tenant>/n7 {"replication_clusters":["nowhere"]}
        PUT /namespaces/<tenant>/n8 {"zzz":1,"message_ttl_in_seconds":7}
        PUT /namespaces/<tenant>/n9 {no
        PUT /namespaces/<tenant>/n10 []
        PUT /namespaces/<tenant>/n11 {"bundles":{"numBundles":3}}
        GET /namespaces/<tenant>
        GET /namespaces/<tenant>/n1
        GET /namespaces/<tenant>/n2/bundles
        GET /namespaces/<tenant>/n3/bundles
        GET /namespaces/<tenant>/n11/bundles
        GET /namespaces/<tenant>/n8
        GET /namespaces/<tenant>/absent/bundles
        GET /namespaces/<tenant>/n1/topics
        GET /namespaces/<tenant>/n1/topics?mode=ALL
        GET /namespaces/<tenant>/n1/topics?mode=zzz
        GET /namespaces/<tenant>/absent/topics
        GET /namespaces/public/default
        DELETE /tenants/<tenant>
        DELETE /tenants/absent-<tenant>
        DELETE /tenants/absent-<tenant>?force=true
        GET /namespaces/<tenant>/n1/replication
        POST /namespaces/<tenant>/n1/replication ["standalone"]
        POST /namespaces/<tenant>/n1/replication ["nowhere"]
        POST /namespaces/<tenant>/n1/replication []
        POST /namespaces/<tenant>/n1/replication ["global"]
        POST /namespaces/<tenant>/n1/replication
        GET /namespaces/<tenant>/absent/replication
        GET /namespaces/<tenant>/n1/properties
        PUT /namespaces/<tenant>/n1/property/k/v
        GET /namespaces/<tenant>/n1/property/k
        GET /namespaces/<tenant>/n1/property/absent
        PUT /namespaces/<tenant>/n1/properties {"a":"1","b":"2"}
        PUT /namespaces/<tenant>/n1/properties {"a":1}
        PUT /namespaces/<tenant>/n1/properties []
        GET /namespaces/<tenant>/n1/properties
        DELETE /namespaces/<tenant>/n1/property/a
        DELETE /namespaces/<tenant>/n1/property/absent
        DELETE /namespaces/<tenant>/n1/properties
        GET /namespaces/<tenant>/n1/properties
        GET /namespaces/<tenant>/absent/properties
        PUT /namespaces/<tenant>/absent/property/k/v
        PUT /namespaces/<tenant>/n1/unload
        PUT /namespaces/<tenant>/absent/unload
        PUT /namespaces/<tenant>/n1/0x00000000_0x40000000/unload
        PUT /namespaces/<tenant>/n1/0x00000000_0x50000000/unload
        PUT /namespaces/<tenant>/n1/zzz/unload
        PUT /namespaces/<tenant>/n1/0x00000000_0x40000000/split
        PUT /namespaces/<tenant>/n1/0x40000000_0x80000000/split?unload=true
        PUT /namespaces/<tenant>/n1/zzz/split
        PUT /namespaces/<tenant>/n1/0x80000000_0xc0000000/split?splitAlgorithmName=zzz
        GET /namespaces/<tenant>/n1/bundles
        GET /namespaces/<tenant>/n1/0x80000000_0xc0000000/topicHashPositions
        GET /namespaces/<tenant>/n1/zzz/topicHashPositions
        POST /namespaces/<tenant>/n1/clearBacklog
        POST /namespaces/<tenant>/n1/clearBacklog/s
        POST /namespaces/<tenant>/absent/clearBacklog
        POST /namespaces/<tenant>/absent/clearBacklog/s
        POST /namespaces/<tenant>/n1/0x80000000_0xc0000000/clearBacklog
        POST /namespaces/<tenant>/n1/0x80000000_0xc0000000/clearBacklog/s
        POST /namespaces/<tenant>/n1/zzz/clearBacklog
        POST /namespaces/<tenant>/n1/unsubscribe/s
        POST /namespaces/<tenant>/absent/unsubscribe/s
        POST /namespaces/<tenant>/n1/0x80000000_0xc0000000/unsubscribe/s
        POST /namespaces/<tenant>/n1/unsubscribe/pulsar.repl.x
        GET /namespaces/<tenant>/n1/subscriptionAuthMode
        GET /namespaces/<tenant>/n1/clusters
        DELETE /namespaces/<tenant>/n1/0x80000000_0xc0000000
        DELETE /namespaces/<tenant>/n1
        DELETE /namespaces/<tenant>/n1
        DELETE /namespaces/<tenant>/n1?force=true
        DELETE /namespaces/<tenant>/n2?force=true
        PUT /persistent/<tenant>/n3/t
        DELETE /namespaces/<tenant>/n3
        DELETE /tenants/<tenant>?force=true
        DELETE /persistent/<tenant>/n3/t
        DELETE /namespaces/<tenant>/n3
        """,
        tenant=unique(topic),
    )
