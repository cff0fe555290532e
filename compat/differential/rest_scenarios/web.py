"""Wrong paths, methods and bodies: what the web server answers before any route does."""

from __future__ import annotations

from ..peers import Recorder
from .registry import calls, scenario, unique


@scenario
def rest_wrong_requests(broker: Recorder, topic: str) -> None:
    calls(
        broker,
        """
        PUT /tenants/<tenant>/zzz
        DELETE /tenants/<tenant>/zzz
        POST /tenants/<tenant>/zzz
        HEAD /zzz
        OPTIONS /zzz
        OPTIONS /persistent/<tenant>/n2/t2
        OPTIONS /clusters
        GET //clusters
        GET /clusters//
        GET ///admin/v2/clusters
        GET /./clusters
        GET /tenants/../clusters
        GET /tenants/%2e%2e/clusters
        GET /tenants/public?a=%zz
        GET //lookup/v2/topic/persistent/public/default/x/
        GET //lookup/v2/zz
        GET //admin/v1/clusters
        GET //status.html/
        PUT /tenants/<tenant> {"allowedClusters":["nowhere"]
        PUT /tenants/<tenant> {"allowedClusters":["nowhere"]} x
        PUT /tenants/<tenant> {'a':1}
        PUT /tenants/<tenant> {
        PUT /tenants/<tenant> [
        PUT /tenants/<tenant> "abc
        PUT /tenants/<tenant> nul
        PUT /tenants/<tenant> {"a"}
        PUT /tenants/<tenant> {"a":}
        PUT /tenants/<tenant> {"a":1,}
        PUT /tenants/<tenant> true
        PUT /tenants/<tenant> 1.5
        PUT /tenants/<tenant> ""
        PUT /tenants/<tenant> NaN
        PUT /tenants/<tenant> 01
        POST /tenants/<tenant> <a>
        GET /brokers/health/zz
        GET /worker
        POST /persistent/<tenant>/n2/t2/zzz
        PUT /persistent/<tenant>
        """,
        tenant=unique(topic),
    )
