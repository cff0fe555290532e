"""TLS on the ports: certificates of both sides, renewals, and handshakes that go wrong."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest

from pulsemark import tls_files
from pulsemark.broker import ConfigError
from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.security.tls import make_context, make_http_context, renewed_context
from pulsemark.client.errors import RequestRefusedError
from pulsemark.testing import RawClient, running_broker
from pulsemark.tls_files import look_at_files
from pulsemark.wire import commands

TOPIC = "persistent://public/default/tls"


def settings_of(folder, **others):
    """A configuration with the broker's certificate."""
    return SecurityConfig(
        **{
            "tls_certificate_file": str(folder / "broker.pem"),
            "tls_key_file": str(folder / "broker.key"),
            "tls_trust_certs_file": str(folder / "ca.pem"),
            **others,
        }
    )


@pytest.fixture
def serve(certificates):
    """Starts brokers with TLS on the binary protocol and HTTP, and other settings."""
    with ExitStack() as stack:

        def start(**others):
            security = settings_of(certificates, **{"tls_port": 0, "http_tls_port": 0, **others})
            return stack.enter_context(running_broker(security=security))

        yield start


def context_of(folder, name=None):
    """A client's context, with its certificate if it has one."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


def connect(broker, context, **options):
    """A raw connection with TLS."""
    return RawClient.from_url(broker.service_url_tls, ssl_context=context, **options)


def port_of(broker):
    """The port with TLS."""
    return int(broker.service_url_tls.rpartition(":")[2])


def test_a_client_works_over_tls(serve, certificates):
    """Large messages both ways; lookups over both protocols name both ports."""
    broker = serve()
    payload = bytes(300_000)
    with connect(broker, context_of(certificates)) as client:
        consumer = client.subscribe(TOPIC, "s")
        producer = client.create_producer(TOPIC)
        consumer.flow(30)
        for _ in range(30):
            producer.send(payload)
        assert all(payload in message.headers_and_payload for message in consumer.receive_many(30))
        found = client.lookup(TOPIC)
        assert found.brokerServiceUrl == broker.service_url
        assert found.brokerServiceUrlTls == broker.service_url_tls
        assert broker.service_url_tls.startswith("pulsar+ssl://")


def test_a_broker_may_serve_tls_only(serve, certificates):
    """Without a plain port, lookups name only the one with TLS."""
    security = settings_of(certificates, tls_port=0)
    with running_broker(port=None, http_port=None, security=security) as broker:
        assert broker.service_url == broker.http_url == ""
        with connect(broker, context_of(certificates)) as client:
            found = client.lookup(TOPIC)
            assert (found.brokerServiceUrl, found.brokerServiceUrlTls) == (
                "",
                broker.service_url_tls,
            )
    with pytest.raises(ConfigError, match="port"):
        running_broker(port=None).__enter__()


def roles_of(broker):
    """The roles of connected clients."""

    async def look(running):
        return [session.principal.role for session in running.services.sessions]

    return broker.call(look)


def test_a_certificate_is_a_role(serve, certificates):
    """The last common name, of a certificate of version 1, too; a token goes with it."""
    broker = serve(
        authentication_enabled=True, authentication_providers=("tls",), anonymous_user_role="guest"
    )
    with connect(broker, context_of(certificates, "client"), auth_method_name="tls"):
        assert roles_of(broker) == ["client-role"]
    # Only the method that the client names counts.
    with connect(broker, context_of(certificates, "client")):
        assert roles_of(broker) == ["guest"]
    for name in (None, "nameless"):
        with pytest.raises(RequestRefusedError, match="Failed to authenticate"):
            connect(broker, context_of(certificates, name), auth_method_name="tls")
    with pytest.raises(RequestRefusedError, match="Failed to authenticate"):
        RawClient.from_url(broker.service_url, auth_method_name="tls")


@pytest.mark.parametrize("required", [False, True])
def test_a_strangers_certificate_ends_the_handshake(serve, certificates, required):
    """Also where certificates are optional; where they are required, none ends it, too."""
    broker = serve(tls_require_trusted_client_cert_on_connect=required)
    refused = ["stranger", None] if required else ["stranger"]
    for name in refused:
        with pytest.raises((OSError, Exception)) as caught:
            connect(broker, context_of(certificates, name)).ping()
        assert not isinstance(caught.value, AssertionError)
    with connect(broker, context_of(certificates, "client")) as client:
        client.ping()
    assert roles_of(broker) in ([], [None])


def test_insecure_connections_show_no_certificate(certificates):
    """`tlsAllowInsecureConnection` never makes an untrusted certificate a role."""
    context = make_context(settings_of(certificates, tls_allow_insecure_connection=True))
    assert context.verify_mode is ssl.CERT_NONE
    assert make_context(settings_of(certificates)).verify_mode is ssl.CERT_OPTIONAL
    no_trust = settings_of(certificates, tls_trust_certs_file=None)
    assert make_context(no_trust).verify_mode is ssl.CERT_NONE
    assert not make_context(settings_of(certificates)).verify_flags & ssl.VERIFY_X509_STRICT


def test_versions_and_ciphers_are_those_of_the_settings(certificates):
    """OpenSSL's and Java's names; HTTP may have others; older versions are not served."""
    plain = make_context(settings_of(certificates))
    assert plain.minimum_version is ssl.TLSVersion.TLSv1_2
    newest = settings_of(certificates, tls_protocols=("TLSv1.3",))
    assert make_context(newest).minimum_version is ssl.TLSVersion.TLSv1_3
    other = settings_of(
        certificates, tls_protocols=("TLSv1.3",), http_tls_protocols=("TLSv1.2", "TLSv1.3")
    )
    assert make_http_context(other).minimum_version is ssl.TLSVersion.TLSv1_2
    for name in ("ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"):
        context = make_context(settings_of(certificates, tls_ciphers=(name,)))
        older = [c["name"] for c in context.get_ciphers() if not c["name"].startswith("TLS_")]
        assert older == ["ECDHE-RSA-AES256-GCM-SHA384"]
    for wrong in (
        {"tls_protocols": ("TLSv1",)},
        {"tls_protocols": ("SSLv3", "TLSv1.3")},
        {"tls_ciphers": ("NO-SUCH-CIPHER",)},
        {"tls_ciphers": ("ECDHE-RSA-AES256-GCM-SHA384", "NO-SUCH-CIPHER")},
    ):
        with pytest.raises(ConfigError) as caught:
            make_context(settings_of(certificates, **wrong))
        assert caught.value.field in wrong


@pytest.mark.parametrize(
    ("others", "field"),
    [
        ({"tls_certificate_file": None}, "tls_certificate_file"),
        ({"tls_key_file": None}, "tls_key_file"),
        ({"tls_key_file": "/nowhere/key.pem"}, "tls_key_file"),
        ({"tls_certificate_file": "/nowhere/cert.pem"}, "tls_certificate_file"),
        ({"tls_trust_certs_file": "/nowhere/ca.pem"}, "tls_trust_certs_file"),
        ({"tls_key_file": "other.key"}, "tls_key_file"),
        ({"tls_trust_certs_file": "broker.key"}, "tls_trust_certs_file"),
        (
            {"tls_trust_certs_file": None, "tls_require_trusted_client_cert_on_connect": True},
            "tls_require_trusted_client_cert_on_connect",
        ),
        (
            {
                "tls_allow_insecure_connection": True,
                "tls_require_trusted_client_cert_on_connect": True,
            },
            "tls_require_trusted_client_cert_on_connect",
        ),
    ],
)
def test_files_that_cannot_be_used_stop_the_start(certificates, others, field):
    """ConfigError names the setting, before a port is open for long."""
    found = {
        name: str(certificates / value) if name.endswith("_file") and value else value
        for name, value in others.items()
    }
    with (
        pytest.raises(ConfigError) as caught,
        running_broker(security=settings_of(certificates, tls_port=0, **found)),
    ):
        pass
    assert caught.value.field == field


def replace(folder: Path, name: str, source: Path) -> None:
    """Put another certificate into the broker's files."""
    for kind in ("pem", "key"):
        shutil.copy(source / f"{name}.{kind}", folder / f"new.{kind}")
        (folder / f"new.{kind}").replace(folder / f"broker.{kind}")


def test_renewed_certificates_are_used_without_a_restart(certificates, tmp_path, caplog):
    """New connections get the new one, old ones stay; files that vanish or do not fit change
    nothing.
    """
    for name in ("ca.pem", "broker.pem", "broker.key"):
        shutil.copy(certificates / name, tmp_path / name)
    security = settings_of(tmp_path, tls_port=0, tls_cert_refresh_check_s=0)

    def shown():
        context = context_of(certificates)
        with (
            socket.create_connection(("127.0.0.1", port_of(broker)), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            return dict(pair for (pair,) in client.getpeercert()["subject"])["commonName"]

    with (
        running_broker(security=security) as broker,
        connect(broker, context_of(certificates)) as old,
    ):
        assert shown() == "broker"
        (tmp_path / "broker.key").unlink()
        assert shown() == "broker"
        shutil.copy(certificates / "other.key", tmp_path / "broker.key")
        assert shown() == "broker"
        (tmp_path / "broker.pem").write_bytes(b"not PEM")
        assert shown() == "broker"
        replace(tmp_path, "renewed", certificates)
        assert shown() == "renewed"
        old.ping()
    assert "the old one stays" in caplog.text


def test_files_are_looked_at_once_in_an_interval(certificates, monkeypatch):
    """Not at every connection, unless so configured."""
    times = iter([0.0, 1.0, 299.0, 300.0, 301.0])
    looks: list[int] = []
    security = settings_of(certificates, tls_cert_refresh_check_s=300)
    renewed = renewed_context(security, make_context, lambda: next(times))

    def counting(paths):
        looks.append(1)
        return look_at_files(paths)

    monkeypatch.setattr(tls_files, "look_at_files", counting)
    for _ in range(4):
        renewed()
    assert len(looks) == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x16\x03\x01",
        b"\x16\x03\x01\x40\x00\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        commands.connect("plain"),
        b"\0" * 70_000,
    ],
)
def test_broken_handshakes_harm_no_others(serve, certificates, sent, caplog):
    """Cut after some bytes, plain text, zeros: the next client is served, and no handshake is
    counted any more.
    """
    broker = serve()
    for port in (port_of(broker), int(broker.http_url_tls.rpartition(":")[2])):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port), 10) as client:
                client.sendall(sent)
    with connect(broker, context_of(certificates)) as client:
        client.ping()
    wait_for_no_handshakes(broker)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def wait_for_no_handshakes(broker):
    """Return when no handshake is in progress."""

    async def wait(running):
        handshakes = running.listening.handshakes
        async with asyncio.timeout(60):
            while handshakes.count:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)

    broker.call(wait)


def test_stalled_handshakes_are_limited_in_number_and_time(serve, certificates):
    """Beyond the limit connections are closed at once. Stalled ones end, and others come in."""
    broker = serve(max_tls_handshakes=3, tls_handshake_timeout_ms=1_000)
    address = ("127.0.0.1", port_of(broker))
    stalled = [socket.create_connection(address, 30) for _ in range(3)]
    try:
        # The plain port is served all the while.
        with RawClient.from_url(broker.service_url) as plain:
            plain.ping()
            with socket.create_connection(address, 30) as beyond:
                assert beyond.recv(1) == b""
        for client in stalled:
            assert client.recv(1) == b""
        wait_for_no_handshakes(broker)
        with connect(broker, context_of(certificates)) as client:
            client.ping()
    finally:
        for client in stalled:
            client.close()


def test_a_stalled_handshake_does_not_hold_up_the_end(certificates):
    """The broker closes while a client does not go on with its handshake."""
    security = settings_of(certificates, tls_port=0, tls_handshake_timeout_ms=3_600_000)
    with (
        running_broker(security=security, shutdown_timeout_ms=500) as broker,
        socket.create_connection(("127.0.0.1", port_of(broker)), 10) as client,
    ):
        client.sendall(b"\x16\x03\x01")

        async def arrived(running):
            while not running.listening.handshakes.count:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)

        broker.call(arrived)
        broker.close()


def test_the_broker_closes_connections_with_tls(serve, certificates):
    """An orderly end: a client that sent a message has its receipt, and sees the end."""
    broker = serve()
    with connect(broker, context_of(certificates)) as client:
        client.create_producer(TOPIC).send(b"x")
        broker.close()
        client.wait_closed()
