"""HTTP requests with authentication: who is let in, what a refusal says."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from contextlib import ExitStack

import pytest

from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.http import routing
from pulsemark.testing import running_broker

CLUSTERS = "/admin/v2/clusters"
OPEN = ("/", "/metrics", "/metrics/", "/status.html")


@pytest.fixture
def serve(secret_url, passwords):
    """Starts brokers with tokens and passwords, and other settings."""
    with ExitStack() as stack:

        def start(**settings):
            security = SecurityConfig(
                **{
                    "authentication_enabled": True,
                    "authentication_providers": ("token", "basic"),
                    "token_secret_key": secret_url,
                    "basic_auth_conf": passwords,
                    **settings,
                }
            )
            return stack.enter_context(running_broker(security=security))

        yield start


def ask(broker, path=CLUSTERS, method="GET", *, context=None, **headers):
    """One request: status, content type, body."""
    url = broker.http_url if context is None else broker.http_url_tls
    _, _, address = url.partition("://")
    connection = (
        http.client.HTTPConnection(address, timeout=10)
        if context is None
        else http.client.HTTPSConnection(address, timeout=10, context=context)
    )
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type"), answer.read()
    finally:
        connection.close()


def bearer(token):
    """The value of Authorization."""
    return f"Bearer {token.decode()}"


def basic(text):
    """The value of Authorization."""
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.fixture
def roles(monkeypatch):
    """The principals that requests were answered for."""
    seen = []
    answer = routing.answer

    async def watching(request):
        seen.append((request.principal.role, request.principal.original_role))
        return await answer(request)

    monkeypatch.setattr("pulsemark.broker.http.connection.answer", watching)
    return seen


def test_credentials_decide(serve, token, roles):
    """Tokens and passwords; the method's name may be given, and then counts."""
    broker = serve()
    good, password = bearer(token({"sub": "bob"})), basic("ann:secret:1")
    assert ask(broker, Authorization=good)[0] == 200
    assert ask(broker, Authorization=password)[0] == 200
    assert ask(broker, Authorization=good.replace("Bearer", "bearer"))[0] == 200
    assert ask(broker, Authorization=good, X_Pulsar_Auth_Method_Name="token")[0] == 200
    assert roles == [("bob", None), ("ann", None), ("bob", None), ("bob", None)]
    for headers in (
        {},
        {"Authorization": ""},
        {"Authorization": good.partition(" ")[2]},
        {"Authorization": good + "x"},
        {"Authorization": good + ", " + good},
        {"Authorization": bearer(token({"sub": "bob", "exp": 1}))},
        {"Authorization": basic("ann:wrong")},
        {"Authorization": "Basic ###"},
        {"Authorization": "Negotiate abc"},
        {"Authorization": good, "X_Pulsar_Auth_Method_Name": "basic"},
        {"Authorization": good, "X_Pulsar_Auth_Method_Name": "sasl"},
        {"X_Pulsar_Auth_Method_Name": "tls"},
    ):
        assert ask(broker, **headers)[0] == 401
    assert len(roles) == 4


def test_a_refusal_has_a_reason(serve):
    """401, as JSON; nothing of the request is shown."""
    status, kind, body = ask(serve(), CLUSTERS + "?x=<b>")
    assert (status, kind) == (401, "application/json")
    assert json.loads(body) == {"reason": "Authentication required"}


def test_only_metrics_and_status_are_open(serve):
    """Every route of the table needs credentials, also with another method or an odd path."""
    broker = serve()
    for path in OPEN:
        assert ask(broker, path)[0] in (200, 404)
    for route in routing.all_routes():
        path = route.path.replace("{domain}", "persistent")
        path = "".join("x" if c in "{}" else c for c in path)
        if path in OPEN:
            continue
        for method in {route.method, "GET", "HEAD"}:
            assert ask(broker, path, method)[0] == 401, (method, path)
    for path in ("//", "/x", "/metrics/../admin/v2/clusters", "/%6detrics/x", "//metrics/x"):
        assert ask(broker, path)[0] == 401
    closed = serve(authenticate_metrics_endpoint=True)
    assert [ask(closed, path)[0] for path in ("/metrics", "/metrics/")] == [401, 401]


def test_without_credentials_the_anonymous_role_counts(serve, token, roles):
    """Wrong credentials are refused all the same."""
    broker = serve(anonymous_user_role="guest")
    assert ask(broker)[0] == 200
    assert roles == [("guest", None)]
    assert ask(broker, Authorization=bearer(token({"sub": "bob", "exp": 1})))[0] == 401
    assert ask(broker, Authorization="Negotiate abc")[0] == 401


def test_a_proxy_names_whom_it_asks_for(serve, token, roles):
    """In X-Original-Principal; only a proxy may, and it must."""
    broker = serve(proxy_roles=("proxy",))
    proxy, plain = bearer(token({"sub": "proxy"})), bearer(token({"sub": "bob"}))
    assert ask(broker, Authorization=proxy, X_Original_Principal="carl")[0] == 200
    assert roles == [("proxy", "carl")]
    for headers in (
        {"Authorization": proxy},
        {"Authorization": proxy, "X_Original_Principal": "proxy"},
        {"Authorization": plain, "X_Original_Principal": "carl"},
    ):
        assert ask(broker, **headers)[0] == 401


def test_a_certificate_is_a_credential(serve, certificates, token, roles):
    """In the configured order, unless the method is named; not over plain HTTP."""
    broker = serve(
        authentication_providers=("tls", "token"),
        http_tls_port=0,
        tls_certificate_file=str(certificates / "broker.pem"),
        tls_key_file=str(certificates / "broker.key"),
        tls_trust_certs_file=str(certificates / "ca.pem"),
    )
    plain = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    shown = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    shown.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    good = bearer(token({"sub": "bob"}))
    assert ask(broker, context=plain)[0] == 401
    assert ask(broker, context=plain, Authorization=good)[0] == 200
    assert ask(broker, context=shown)[0] == 200
    assert ask(broker, context=shown, Authorization=good)[0] == 200
    named = {"Authorization": good, "X_Pulsar_Auth_Method_Name": "token"}
    assert ask(broker, context=shown, **named)[0] == 200
    assert ask(broker, X_Pulsar_Auth_Method_Name="tls")[0] == 401
    assert [role for role, _ in roles] == ["bob", "client-role", "client-role", "bob"]


def test_foreign_pages_are_refused_as_before(serve, token):
    """A host of any name is fine if all must authenticate; another origin never is."""
    good = bearer(token({"sub": "bob"}))
    strict, open_ = serve(), serve(anonymous_user_role="guest")
    assert ask(strict, Host="pulsar.example.com", Authorization=good)[0] == 200
    assert ask(open_, Host="pulsar.example.com", Authorization=good)[0] == 421
    foreign = {"Origin": "https://evil.example", "Authorization": good}
    assert ask(strict, "/admin/v2/tenants/x", "DELETE", **foreign)[0] == 403
