"""The client of the admin interface, with a broker of our own."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pulsemark.client import AdminClient, AdminError, ServiceUrlError, UnreachableError
from pulsemark.testing import RawClient, running_broker


@pytest.fixture(scope="module")
def broker():
    """One broker; each test has its own names."""
    with running_broker(storage="memory", force_delete_namespace_allowed=True) as running:
        yield running


def test_topics(broker):
    """Created, listed, counted and deleted, partitioned or not, with odd names."""
    admin = broker.admin
    admin.create_namespace("public/topics")
    odd = "persistent://public/topics/a b%2F?#ü"
    admin.create_topic(odd)
    admin.create_topic("public/topics/many", partitions=3)
    assert odd in admin.topics("public/topics")
    assert admin.partitioned_topics("public/topics") == ["persistent://public/topics/many"]
    assert (admin.partitions(odd), admin.partitions("public/topics/many")) == (0, 3)
    assert admin.stats(odd)["msgInCounter"] == 0
    assert admin.stats("public/topics/many")["metadata"]["partitions"] == 3
    assert admin.internal_stats(odd)["entriesAddedCounter"] == 0
    admin.delete_topic(odd)
    admin.delete_topic("public/topics/many", partitioned=True, force=True)
    assert admin.topics("public/topics") == []


def test_subscriptions(broker):
    """Created at either end, listed, skipped, reset and deleted."""
    admin, topic = broker.admin, "persistent://public/default/subscribed"
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        producer.send(b"1")
        producer.send(b"2")
    admin.create_subscription(topic, "from/start", at="earliest")
    admin.create_subscription(topic, "from end")
    assert sorted(admin.subscriptions(topic)) == ["from end", "from/start"]
    assert (admin.backlog(topic, "from/start"), admin.backlog(topic, "from end")) == (2, 0)
    admin.skip_all(topic, "from/start")
    assert admin.backlog(topic, "from/start") == 0
    admin.reset_cursor(topic, "from/start", 1)
    assert admin.backlog(topic, "from/start") == 2
    admin.delete_subscription(topic, "from/start")
    assert admin.subscriptions(topic) == ["from end"]
    with pytest.raises(ValueError, match="'middle': must be"):
        admin.create_subscription(topic, "x", at="middle")


def test_tenants_and_namespaces(broker):
    """Created, listed and deleted."""
    admin = broker.admin
    admin.create_tenant("acme")
    admin.create_namespace("acme/orders")
    assert "acme" in admin.tenants()
    assert admin.namespaces("acme") == ["acme/orders"]
    admin.create_topic("acme/orders/t")
    admin.delete_namespace("acme/orders", force=True)
    admin.delete_tenant("acme")
    assert "acme" not in admin.tenants()


def test_a_refusal_has_status_and_reason(broker):
    """As the broker gives them, with the call's URL."""
    with pytest.raises(AdminError, match=r"404 Topic .* not found") as refusal:
        broker.admin.stats("absent")
    assert refusal.value.status == 404
    assert refusal.value.url.startswith(broker.http_url)
    with pytest.raises(AdminError) as refusal:
        broker.admin.schema("absent")
    assert refusal.value.status == 404


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "pulsar://h:1", "http://", "http://h:x",
                                 "http://h:1?a=b", "http://h:1#f"])  # fmt: skip
def test_what_is_no_address(url):
    """It is refused when the client is made."""
    with pytest.raises(ServiceUrlError):
        AdminClient(url)


def test_what_does_not_answer_as_a_broker_does():
    """Nothing listens there, or something else: UnreachableError with the reason."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def answer():
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UnreachableError, match="does not answer like a broker"):
            AdminClient(url).tenants()
        thread.join()
    with pytest.raises(UnreachableError, match="refused"):
        AdminClient(url).tenants()


class Elsewhere(BaseHTTPRequestHandler):
    """Redirects each call to another address, as a cluster's broker does that has not the topic."""

    owner = ""

    def do_PUT(self):
        """Not here."""
        self.send_response(307)
        self.send_header("Location", f"{self.owner}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Nothing is written."""


def test_a_call_that_changes_something_follows_a_redirect(broker):
    """With its method and its body; the topic is made by its owner."""
    here = type("Here", (Elsewhere,), {"owner": broker.http_url})
    with HTTPServer(("127.0.0.1", 0), here) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        AdminClient(f"http://127.0.0.1:{server.server_port}").create_topic("moved", partitions=2)
    assert broker.admin.partitions("moved") == 2
