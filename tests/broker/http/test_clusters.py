"""Clusters, failure domains, isolation policies: Pulsar's answers, kept over a restart."""

from __future__ import annotations

import pytest

from pulsemark.testing import running_broker

C = "/admin/v2/clusters"
GOOD = {"serviceUrl": "http://y:1"}
SHOWN = {
    "serviceUrl": "http://y:1",
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
    "brokerClientTlsEnabledWithKeyStore": False,
}


def reason(text):
    """An error's body."""
    return {"reason": text}


STEPS = [
    ("PUT", f"{C}/standalone", {}, 409, reason("Cluster already exists")),
    ("PUT", f"{C}/a%20b", GOOD, 412, reason("Cluster name is not valid")),
    ("PUT", f"{C}/far", None, 400, reason("cluster data is required")),
    (
        "PUT",
        f"{C}/far",
        {"serviceUrl": "x:1"},
        400,
        reason("Illegal service url, example: http://pulsar.example.com:8080"),
    ),
    ("PUT", f"{C}/far", {"zzz": 1, **GOOD}, 200, None),
    ("GET", f"{C}/far", None, 200, SHOWN),
    ("GET", C, None, 200, ["far", "standalone"]),
    ("POST", f"{C}/absent", GOOD, 404, reason("Cluster does not exist")),
    ("GET", f"{C}/standalone/peers", None, 200, None),
    ("POST", f"{C}/far/peers", ["far"], 412, reason("far itself can't be part of peer-list")),
    ("POST", f"{C}/far/peers", ["nope"], 412, reason("Peer cluster nope does not exist")),
    ("POST", f"{C}/far/peers", ["standalone"], 204, None),
    ("GET", f"{C}/far/peers", None, 200, ["standalone"]),
    ("POST", f"{C}/far/failureDomains/d1", {"brokers": ["b1:1"]}, 204, None),
    ("GET", f"{C}/far/failureDomains", None, 200, {"d1": {"brokers": ["b1:1"]}}),
    (
        "POST",
        f"{C}/far/failureDomains/d2",
        {"brokers": ["b1:1"]},
        409,
        reason("[b1:1] already exists in d1"),
    ),
    ("DELETE", f"{C}/far/failureDomains/d1", None, 200, None),
    (
        "DELETE",
        f"{C}/far/failureDomains/d1",
        None,
        404,
        reason("Domain-name d1 or cluster far does not exist"),
    ),
    (
        "GET",
        f"{C}/far/namespaceIsolationPolicies",
        None,
        404,
        reason("NamespaceIsolationPolicies for cluster far does not exist"),
    ),
    (
        "POST",
        f"{C}/far/namespaceIsolationPolicies/p",
        {"namespaces": ["a/b"], "primary": ["x"]},
        204,
        None,
    ),
    (
        "GET",
        f"{C}/far/namespaceIsolationPolicies/p",
        None,
        200,
        {"namespaces": ["a/b"], "primary": ["x"]},
    ),
    ("DELETE", f"{C}/far/namespaceIsolationPolicies/p", None, 204, None),
]


def test_answers_are_pulsars_and_outlive_a_restart(tmp_path, http_of):
    """Each step as a Pulsar 4.0.8 answered it; a described cluster is there after a restart."""
    with running_broker(data_dir=tmp_path) as broker:
        ask = http_of(broker)
        for method, path, body, status, expected in STEPS:
            answer = ask(method, path, body)
            found = answer.json if answer.body else None
            assert (answer.status, found) == (status, expected), (method, path)
    with running_broker(data_dir=tmp_path) as broker:
        ask = http_of(broker)
        assert ask("GET", C).json == ["far", "standalone"]
        assert ask("DELETE", f"{C}/far").status == 204
        assert ask("DELETE", f"{C}/far").status == 404


@pytest.mark.parametrize("path", ["", "/peers"])
def test_the_brokers_own_cluster_stays(http, path):
    """It is described by settings, so no call changes or deletes it."""
    body = [] if path else GOOD
    assert http("POST", f"{C}/standalone{path}", body).status == 412
    assert http("DELETE", f"{C}/standalone").status == 412
    assert http("GET", C).body == b'["standalone"]'


def test_documents_of_a_kind_are_limited(http, monkeypatch):
    """A client cannot fill the catalog; what is there can still be changed."""
    monkeypatch.setattr("pulsemark.broker.http.documents.MAX_DOCUMENTS", 2)
    groups = "/admin/v2/resourcegroups"
    for name in ("a", "b"):
        assert http("PUT", f"{groups}/{name}", {"publishRateInMsgs": 1}).status == 204
    assert http("PUT", f"{groups}/c", {}).status == 412
    assert http("PUT", f"{groups}/a", {"publishRateInMsgs": 2}).status == 204
    assert http("GET", f"{groups}/a").json["publishRateInMsgs"] == 2
    for name in ("a", "b"):
        assert http("DELETE", f"{groups}/{name}").status == 204
    assert http("DELETE", f"{groups}/a").status == 404


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/admin/v3/functions/public/default", 409, "Function Worker is not enabled"),
        ("/admin/v3/sinks/public/default", 409, "Function Worker is not enabled"),
        ("/admin/v2/worker/cluster", 409, "Function Worker is not enabled"),
        ("/admin/v3/packages/function/public/default", 503, "Package Management Service"),
        ("/admin/v3/transactions/coordinators", 503, "transactionCoordinatorEnabled"),
        ("/admin/v2/broker-stats/allocator-stats/x", 406, "Invalid allocator name : x"),
    ],
)
def test_services_that_are_off_say_so(http, path, status, word):
    """As a Pulsar standalone without them."""
    answer = http("GET", path)
    assert answer.status == status
    assert word in answer.json["reason"]
