"""Clusters: this broker's own, and the descriptions of others that an administrator keeps here.

The broker replicates nothing, so a description of another cluster has no effect. Isolation policies
and failure domains have none either, since there is one broker. They are kept and given back, so
that the scripts of an administrator work.
"""

from __future__ import annotations

from typing import Any

from ...wire.topic_name import is_entity_name
from .documents import delete, documents, get, put
from .messages import HttpError, Request, Response
from .table import Route

__all__ = ["ROUTES", "cluster_names"]

CLUSTER, DOMAIN, ISOLATION = "cluster", "failure-domain", "isolation-policy"
URLS = {"serviceUrl": "http", "serviceUrlTls": "https"}
BROKER_URLS = {"brokerServiceUrl": "pulsar", "brokerServiceUrlTls": "pulsar+ssl"}
FLAGS = (
    "brokerClientTlsEnabled",
    "tlsAllowInsecureConnection",
    "brokerClientTlsEnabledWithKeyStore",
)
TEXTS = (
    *URLS,
    *BROKER_URLS,
    "proxyServiceUrl",
    "proxyProtocol",
    "authenticationPlugin",
    "authenticationParameters",
    "listenerName",
)
NO_CLUSTER = "Cluster does not exist"


async def clusters(request: Request) -> Response:
    """The names of the clusters."""
    return Response.of_json(sorted(await cluster_names(request)))


async def cluster_names(request: Request) -> set[str]:
    """This broker's cluster, and those that were described."""
    return {request.services.config.cluster, *await documents(request, CLUSTER)}


async def cluster(request: Request, name: str) -> Response:
    """The URLs of a cluster."""
    return Response.of_json(await _cluster(request, name))


async def create_cluster(request: Request, name: str) -> Response:
    """Describe another cluster."""
    if not is_entity_name(name):
        raise HttpError(412, "Cluster name is not valid")
    if name in await cluster_names(request):
        raise HttpError(409, "Cluster already exists")
    await put(request, CLUSTER, name, _checked(request.json()))
    return Response(200)


async def update_cluster(request: Request, name: str) -> Response:
    """Change the description of another cluster."""
    await _cluster(request, name)
    _check_is_other(request, name)
    await put(request, CLUSTER, name, _checked(request.json()))
    return Response(200)


async def delete_cluster(request: Request, name: str) -> Response:
    """Remove the description of another cluster, with its domains and isolation policies."""
    await _cluster(request, name)
    _check_is_other(request, name)
    for kind in (DOMAIN, ISOLATION):
        for key in await documents(request, kind):
            if key.partition("/")[0] == name:
                await delete(request, kind, key)
    await delete(request, CLUSTER, name)
    return Response()


async def peers(request: Request, name: str) -> Response:
    """The peers of a cluster; an empty body if it has none."""
    found = (await _cluster(request, name)).get("peerClusterNames")
    return Response(200) if found is None else Response.of_json(found)


async def set_peers(request: Request, name: str) -> Response:
    """Set the peers of another cluster."""
    described = await _cluster(request, name)
    wanted = request.json() or []
    if not isinstance(wanted, list) or not all(isinstance(peer, str) for peer in wanted):
        raise HttpError(400, "the body must be a list of clusters", text_type="text/plain")
    for peer in wanted:
        if peer == name:
            raise HttpError(412, f"{name} itself can't be part of peer-list")
        if peer not in await cluster_names(request):
            raise HttpError(412, f"Peer cluster {peer} does not exist")
    _check_is_other(request, name)
    await put(request, CLUSTER, name, {**described, "peerClusterNames": wanted})
    return Response()


async def migration(request: Request, name: str) -> Response:
    """Whether a cluster moves to another one: none does here."""
    raise HttpError(404, NO_CLUSTER)


async def _cluster(request: Request, name: str) -> dict[str, Any]:
    services = request.services
    if name == services.config.cluster:
        return {
            "serviceUrl": services.http_url,
            **({"serviceUrlTls": services.http_url_tls} if services.http_url_tls else {}),
            "brokerServiceUrl": services.service_url,
            **(
                {"brokerServiceUrlTls": services.service_url_tls}
                if services.service_url_tls
                else {}
            ),
            **dict.fromkeys(FLAGS, False),
            "brokerClientTlsTrustStoreType": "JKS",
            "brokerClientTlsKeyStoreType": "JKS",
            "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
        }
    described: dict[str, Any] | None = await get(request, CLUSTER, name)
    if described is None:
        raise HttpError(404, NO_CLUSTER)
    return described


def _check_is_other(request: Request, name: str) -> None:
    if name == request.services.config.cluster:
        raise HttpError(412, f"{name} is this broker's own cluster: its settings describe it")


def _checked(body: Any) -> dict[str, Any]:
    """A cluster's description. Unknown fields are left out. Raises `HttpError` 400."""
    if body is None:
        raise HttpError(400, "cluster data is required")
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object", text_type="text/plain")
    for field, scheme in {**URLS, **BROKER_URLS}.items():
        value = body.get(field)
        if value is not None and not str(value).startswith(f"{scheme}://"):
            kind = "service" if field in URLS else "broker service"
            tls = " tls" if scheme in ("https", "pulsar+ssl") else ""
            port = {"http": 8080, "https": 8443, "pulsar": 6650, "pulsar+ssl": 6651}[scheme]
            example = f"{scheme}://pulsar.example.com:{port}"
            raise HttpError(400, f"Illegal {kind}{tls} url, example: {example}")
    texts = {name: str(body[name]) for name in TEXTS if body.get(name) is not None}
    return {**texts, **{name: bool(body.get(name, False)) for name in FLAGS}}


# -- failure domains ------------------------------------------------------------------------------


async def _of_cluster(request: Request, kind: str, name: str) -> dict[str, Any]:
    found = await documents(request, kind)
    start = f"{name}/"
    return {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)}


async def domains(request: Request, name: str) -> Response:
    """A cluster's failure domains."""
    return Response.of_json(await _of_cluster(request, DOMAIN, name))


async def domain(request: Request, name: str, key: str) -> Response:
    """One failure domain."""
    found = await get(request, DOMAIN, f"{name}/{key}")
    if found is None:
        raise HttpError(404, f"Domain {key} for cluster {name} does not exist")
    return Response.of_json(found)


async def set_domain(request: Request, name: str, key: str) -> Response:
    """Create a failure domain, or change its brokers."""
    await _cluster(request, name)
    body = request.json()
    listed = (body.get("brokers") or []) if isinstance(body, dict) else None
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise HttpError(400, 'the body must be {"brokers": [...]}', text_type="text/plain")
    for other, value in (await _of_cluster(request, DOMAIN, name)).items():
        taken = [each for each in listed if other != key and each in value["brokers"]]
        if taken:
            raise HttpError(409, f"[{', '.join(taken)}] already exists in {other}")
    await put(request, DOMAIN, f"{name}/{key}", {"brokers": listed})
    return Response()


async def delete_domain(request: Request, name: str, key: str) -> Response:
    """Delete a failure domain."""
    if not await delete(request, DOMAIN, f"{name}/{key}"):
        raise HttpError(404, f"Domain-name {key} or cluster {name} does not exist")
    return Response(200)


# -- isolation policies ---------------------------------------------------------------------------


async def _isolation(request: Request, name: str) -> dict[str, Any]:
    if name not in await cluster_names(request):
        raise HttpError(404, f"Cluster {name} does not exist.")
    found = await _of_cluster(request, ISOLATION, name)
    if not found:
        raise HttpError(404, f"NamespaceIsolationPolicies for cluster {name} does not exist")
    return found


async def isolation_policies(request: Request, name: str) -> Response:
    """A cluster's isolation policies."""
    return Response.of_json(await _isolation(request, name))


async def isolation_policy(request: Request, name: str, key: str) -> Response:
    """One isolation policy."""
    found = (await _isolation(request, name)).get(key)
    if found is None:
        raise HttpError(404, f"Cannot find NamespaceIsolationPolicy {key} for cluster {name}")
    return Response.of_json(found)


async def set_isolation_policy(request: Request, name: str, key: str) -> Response:
    """Create or change an isolation policy. It has no effect: there is one broker."""
    if name not in await cluster_names(request):
        raise HttpError(404, f"Cluster {name} does not exist.")
    body = request.json()
    if not isinstance(body, dict) or not all(
        isinstance(body.get(field), list) for field in ("namespaces", "primary")
    ):
        raise HttpError(400, f"Invalid format of input policy data. policy: {key}; data: {body}")
    fields = ("namespaces", "primary", "secondary", "auto_failover_policy", "unload_scope")
    value = {field: body[field] for field in fields if body.get(field) is not None}
    await put(request, ISOLATION, f"{name}/{key}", value)
    return Response()


async def delete_isolation_policy(request: Request, name: str, key: str) -> Response:
    """Delete an isolation policy; it may be absent."""
    await delete(request, ISOLATION, f"{name}/{key}")
    return Response()


async def isolated_brokers(request: Request, name: str) -> Response:
    """The brokers with the isolation policies that apply to them: this one, and none."""
    await _isolation(request, name)
    address = request.services.http_url.partition("://")[2]
    return Response.of_json([_not_isolated(address)])


async def isolated_broker(request: Request, name: str, address: str) -> Response:
    """The isolation policies of one broker: none."""
    await _isolation(request, name)
    return Response.of_json(_not_isolated(address))


def _not_isolated(address: str) -> dict[str, Any]:
    return {"brokerName": address, "namespaceRegex": [], "primary": False}


ALL = "/admin/v2/clusters"
ONE = f"{ALL}/{{cluster}}"
POLICIES = f"{ONE}/namespaceIsolationPolicies"
DOMAINS = f"{ONE}/failureDomains"

ROUTES = (
    Route("GET", ALL, clusters),
    Route("GET", ONE, cluster, (404,)),
    Route("PUT", ONE, create_cluster, (200, 400, 409, 412)),
    Route("POST", ONE, update_cluster, (200, 400, 404, 412)),
    Route("DELETE", ONE, delete_cluster, (404, 412)),
    Route("GET", f"{ONE}/peers", peers, (404,)),
    Route("POST", f"{ONE}/peers", set_peers, (400, 404, 412)),
    Route("GET", f"{ONE}/migrate", migration, (404,)),
    Route("GET", DOMAINS, domains),
    Route("GET", f"{DOMAINS}/{{domain_name}}", domain, (404,)),
    Route("POST", f"{DOMAINS}/{{domain_name}}", set_domain, (400, 404, 409)),
    Route("DELETE", f"{DOMAINS}/{{domain_name}}", delete_domain, (200, 404)),
    Route("GET", POLICIES, isolation_policies, (404,)),
    Route("GET", f"{POLICIES}/brokers", isolated_brokers, (404,)),
    Route("GET", f"{POLICIES}/brokers/{{broker}}", isolated_broker, (404,)),
    Route("GET", f"{POLICIES}/{{policy}}", isolation_policy, (404,)),
    Route("POST", f"{POLICIES}/{{policy}}", set_isolation_policy, (400, 404)),
    Route("DELETE", f"{POLICIES}/{{policy}}", delete_isolation_policy),
)
