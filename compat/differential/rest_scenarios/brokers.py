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
        GET /clusters
        GET /clusters
        POST /brokers/health
        PUT /brokers/health
        """,
    )


@cluster_wide
def rest_writes_to_the_cluster(broker: Recorder, topic: str) -> None:
    calls(
        broker,
        """
        POST /brokers/configuration/absentName/1
        DELETE /brokers/configuration/absentName
        """,
    )
