"""Several brokers in this process, on one coordination service and one engine in memory."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from functools import partial

import pulsar
import pytest

from pulsemark.broker import Broker, BrokerConfig, BrokerThread
from pulsemark.cluster import Balanced, BundleStores, ClusterMember
from pulsemark.ledger import MemoryFolder, MemoryStore
from tests.support.certificates import Certificates
from tests.support.faulty_coordination import FaultyTree

LIMIT_S = 30


class Running(BrokerThread):
    """A broker, and what makes it one of a cluster."""

    member: ClusterMember


class Brokers:
    """Brokers that share everything; each runs in a thread of its own."""

    def __init__(self):
        self.tree = FaultyTree(session_timeout_ms=4_000)
        self.folders = {}
        self.running = []
        self._closing = ExitStack()

    def start(self, **settings):
        """One more broker."""
        member = self.member()
        chosen = {"port": 0, "http_port": 0, "storage": "memory", **settings}
        thread = Running(BrokerConfig(**chosen), make_broker=partial(Broker, membership=member))
        thread.member = member
        self._closing.enter_context(thread)
        self.running.append(thread)
        return thread

    def member(self):
        """A broker's way into this cluster."""

        async def connect():
            return self.tree.session()

        def stores(broker, notify):
            def open_store(bundle):
                folder = self.folders.setdefault(bundle, MemoryFolder())
                return MemoryStore.open(
                    folder,
                    clock=broker.config.clock,
                    options=broker.config.store_options,
                    notify=notify,
                )

            return BundleStores(open_store, broker.run_blocking)

        return ClusterMember(connect, stores, Balanced(shedding_interval_ms=3_600_000))

    def client(self, *threads):
        """The official client, closed after the test."""
        urls = ",".join(
            thread.service_url.removeprefix("pulsar://") for thread in threads or self.running
        )
        client = pulsar.Client(f"pulsar://{urls}", operation_timeout_seconds=20)
        self._closing.callback(_close, client)
        return client

    def owner(self, topic):
        """The broker that serves a topic; its bundle may be on the way from one to another."""
        path = f"/lookup/v2/topic/{topic.replace('://', '/')}"
        served = [until(partial(_found, thread, path), path) for thread in self.running]
        assert len(set(served)) == 1, served
        return next(thread for thread in self.running if thread.service_url == served[0])

    def close(self):
        """End all brokers and clients."""
        self._closing.close()


def _found(thread, path):
    """What a lookup answers, or None while the bundle is given away or taken over (503)."""
    status, body = call(thread, "GET", path)
    assert status in (200, 503), body
    return body["brokerUrl"] if status == 200 else None


def _close(client):
    with suppress(pulsar.AlreadyClosed):
        client.close()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def http_error_307(self, req, fp, code, msg, headers):
        return None


def call(thread, method, path, body=None, *, follow=True):
    """Status and JSON body of a REST call; redirects are followed, with any method."""
    opener = urllib.request.build_opener(_NoRedirects)
    url = thread.http_url + path
    for _ in range(5):
        request = urllib.request.Request(
            url,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with opener.open(request, timeout=LIMIT_S) as answer:
                text = answer.read()
                return answer.status, decoded(text)
        except urllib.error.HTTPError as error:
            if error.code == 307 and follow:
                url = error.headers["location"]
                continue
            if error.code == 307:
                return 307, error.headers["location"]
            return error.code, error.read().decode()
    pytest.fail(f"too many redirects: {url}")


def decoded(text):
    """JSON where it is JSON."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text.decode()


def until(holds, what):
    """Wait for something, with a limit."""
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        if found := holds():
            return found
        time.sleep(0.02)
    pytest.fail(f"not within {LIMIT_S} s: {what}")


async def within_rounds(holds):
    """Let the loop work, for a bounded number of rounds."""
    for _ in range(2_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    pytest.fail("not within 2,000 rounds")


@pytest.fixture
def brokers():
    """Brokers to be started, and ended after the test."""
    made = Brokers()
    yield made
    made.close()


@pytest.fixture
def rest():
    """Makes REST calls."""
    return call


@pytest.fixture
def eventually():
    """Waits for something."""
    return until


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """The settings of brokers with a certificate that has signed itself."""
    folder = tmp_path_factory.mktemp("certificates")
    hosts = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    Certificates(folder).self_signed("broker", "key", "cert", hosts)
    return {
        "grpc_tls_port": 0,
        "http_tls_port": 0,
        "tls_certificate_file": str(folder / "cert"),
        "tls_key_file": str(folder / "key"),
        "tls_trust_certs_file": str(folder / "cert"),
    }
