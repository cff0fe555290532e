"""Routes of services that a Pulsar broker can run without: functions, packages, transactions.

This broker answers as a Pulsar standalone that was started without them, so that clients say what
is missing, and do not take it for a wrong path.
"""

from __future__ import annotations

from .messages import HttpError, Request, Response, UnservedError
from .table import Route

__all__ = ["ROUTES"]

NO_WORKER = "Pulsar Function Worker is not enabled, probably functionsWorkerEnabled is set to false"
NO_PACKAGES = "Package Management Service is not enabled in the broker."
NO_METADATA = "Unknown error, metadata is null when processing update package metadata request"
FORM = "multipart/form-data"
PACKAGE_KINDS = ("function", "sink", "source")
NO_TRANSACTIONS = "This Broker is not configured with transactionCoordinatorEnabled=true."


async def no_worker(request: Request, *_: str) -> Response:
    """Refused: there is no function worker."""
    raise HttpError(409, NO_WORKER)


async def no_form(request: Request, *_: str) -> Response:
    """Refused: there is no function worker; without a form Pulsar cannot read the request."""
    if not request.headers.get("content-type", "").startswith(FORM):
        raise UnservedError(400)
    raise HttpError(409, NO_WORKER)


async def no_packages(request: Request, kind: str, *_: str) -> Response:
    """Refused: there is no package management."""
    is_form = request.headers.get("content-type", "").startswith(FORM)
    if request.method == "POST" and not is_form:
        raise UnservedError(400)
    if request.method == "PUT" and request.json() is None:
        raise HttpError(400, NO_METADATA)
    if kind not in PACKAGE_KINDS:
        raise HttpError(412, f"Invalid package domain: '{kind}'")
    raise HttpError(503, NO_PACKAGES)


async def no_transactions(request: Request, *_: str) -> Response:
    """Refused: there is no transaction coordinator."""
    raise HttpError(503, NO_TRANSACTIONS)


async def no_snapshots(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Refused: without transactions a topic has no snapshots of them."""
    topics, full = request.services.topics, f"persistent://{tenant}/{namespace}/{topic}"
    is_there = f"{tenant}/{namespace}" in topics.namespaces and topics.exists(topics.parse(full))
    if not is_there:
        raise HttpError(404, f"Topic not found {full}")
    raise HttpError(404, "Transaction buffer Snapshot for the topic does not exist")


WORKLOADS = (
    "/admin/v2/functions",
    "/admin/v3/functions",
    "/admin/v3/sinks",
    "/admin/v3/sink",
    "/admin/v3/sources",
    "/admin/v3/source",
)
ALL = "/{tenant}/{namespace}"
ONE = f"{ALL}/{{name}}"
INSTANCE = f"{ONE}/{{instance}}"


OF_FUNCTIONS_2 = ("status",), ("stop", "restart")
OF_FUNCTIONS_3 = ("status", "stats"), ("start", "stop", "restart")
OF_CONNECTORS = ("status",), ("start", "stop", "restart")


def _workload(base: str) -> tuple[Route, ...]:
    """The routes of a kind of workload: version 2 has fewer, and only functions have stats."""
    version_3 = OF_FUNCTIONS_3 if base.endswith("/functions") else OF_CONNECTORS
    asked, done = OF_FUNCTIONS_2 if base.startswith("/admin/v2") else version_3
    calls = (
        ("GET", ALL),
        ("GET", ONE),
        ("DELETE", ONE),
        *(("GET", f"{path}/{what}") for path in (ONE, INSTANCE) for what in asked),
        *(("POST", f"{path}/{what}") for path in (ONE, INSTANCE) for what in done),
    )
    return (
        *(Route(method, base + path, no_worker, (409,)) for method, path in calls),
        *(Route(method, base + ONE, no_form, (400, 409)) for method in ("POST", "PUT")),
    )


FUNCTIONS = tuple(
    Route(method, base + path, no_worker, (409,))
    for base in ("/admin/v2/functions", "/admin/v3/functions")
    for method, path in (
        ("GET", "/connectors"),
        ("GET", "/builtins"),
        ("POST", "/builtins/reload"),
        ("GET", "/download"),
        ("GET", f"{ONE}/state/{{key}}"),
    )
)
FORMS_OF_FUNCTIONS = (
    Route("POST", "/admin/v2/functions/upload", no_form, (400, 409)),
    Route("POST", "/admin/v3/functions/upload", no_form, (400, 409)),
    Route("POST", f"/admin/v2/functions{ONE}/trigger", no_form, (400, 409)),
    Route("POST", f"/admin/v3/functions{ONE}/trigger", no_form, (400, 409)),
    Route("GET", f"/admin/v3/functions{ONE}/download", no_worker, (409,)),
    Route("POST", f"/admin/v3/functions{ONE}/state/{{key}}", no_form, (400, 409)),
)
CONNECTORS = tuple(
    Route(method, path, no_worker, (409,))
    for method, path in (
        *(("GET", f"/admin/v3/{base}/builtinsinks") for base in ("sink", "sinks")),
        *(("GET", f"/admin/v3/{base}/builtinsources") for base in ("source", "sources")),
        *(("POST", f"/admin/v3/{base}/reloadBuiltInSinks") for base in ("sink", "sinks")),
        *(("POST", f"/admin/v3/{base}/reloadBuiltInSources") for base in ("source", "sources")),
        ("GET", "/admin/v2/worker/cluster"),
        ("GET", "/admin/v2/worker/cluster/leader"),
        ("GET", "/admin/v2/worker/cluster/leader/ready"),
        ("GET", "/admin/v2/worker/assignments"),
        ("GET", "/admin/v2/worker/connectors"),
        ("GET", "/admin/v2/worker/drain"),
        ("PUT", "/admin/v2/worker/drain"),
        ("GET", "/admin/v2/worker/leader/drain"),
        ("PUT", "/admin/v2/worker/leader/drain"),
        ("PUT", "/admin/v2/worker/rebalance"),
        ("GET", "/admin/v3/sinks/builtinsinks/{name}/configdefinition"),
        ("GET", "/admin/v3/sources/builtinsources/{name}/configdefinition"),
        ("GET", "/admin/v2/worker-stats/metrics"),
        ("GET", "/admin/v2/worker-stats/functionsmetrics"),
    )
)

PACKAGES = "/admin/v3/packages/{type}/{tenant}/{namespace}"
PACKAGE = f"{PACKAGES}/{{package}}"
VERSION = f"{PACKAGE}/{{version}}"
PACKAGE_ROUTES = tuple(
    Route(method, path, no_packages, (503,))
    for method, path in (
        ("GET", PACKAGES),
        ("GET", PACKAGE),
        ("GET", VERSION),
        ("POST", VERSION),
        ("DELETE", VERSION),
        ("GET", f"{VERSION}/metadata"),
        ("PUT", f"{VERSION}/metadata"),
    )
)

TRANSACTIONS = "/admin/v3/transactions"
TOPIC = "{tenant}/{namespace}/{topic}"
TRANSACTION_ROUTES = tuple(
    Route(method, f"{TRANSACTIONS}/{path}", no_transactions, (503,))
    for method, path in (
        ("GET", "coordinators"),
        ("GET", "coordinatorStats"),
        ("GET", "coordinatorInternalStats/{id}"),
        ("GET", "slowTransactions/{timeout}"),
        ("GET", "transactionMetadata/{most}/{least}"),
        ("GET", f"transactionBufferStats/{TOPIC}"),
        ("GET", f"pendingAckStats/{TOPIC}/{{subscription}}"),
        ("GET", f"pendingAckInternalStats/{TOPIC}/{{subscription}}"),
        ("GET", f"transactionInBufferStats/{TOPIC}/{{most}}/{{least}}"),
        ("GET", f"transactionInPendingAckStats/{TOPIC}/{{subscription}}/{{most}}/{{least}}"),
        ("GET", f"positionStatsInPendingAck/{TOPIC}/{{subscription}}/{{ledger}}/{{entry}}"),
        ("POST", "transactionCoordinator/replicas"),
        ("POST", "abortTransaction/{most}/{least}"),
    )
)

ROUTES = (
    *(route for base in WORKLOADS for route in _workload(base)),
    *FUNCTIONS,
    *FORMS_OF_FUNCTIONS,
    *CONNECTORS,
    *PACKAGE_ROUTES,
    *TRANSACTION_ROUTES,
    Route("GET", f"{TRANSACTIONS}/transactionBufferInternalStats/{TOPIC}", no_snapshots, (404,)),
)
