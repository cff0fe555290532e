"""Commands that ask a broker with authentication and TLS."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys

import jwt
import pytest

from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.testing import RawClient, running_broker
from tests.support.certificates import Certificates

SECRET = "data:;base64,AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
TOKEN = jwt.encode({"sub": "admin"}, bytes(range(32)), algorithm="HS256")
TOPIC = "persistent://public/default/access"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for localhost that is its own authority."""
    folder = tmp_path_factory.mktemp("certificate")
    hosts = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    Certificates(folder).self_signed("localhost", "key.pem", "cert.pem", hosts)
    return folder


@pytest.fixture(scope="module")
def broker(certificate):
    """A broker with authentication, TLS, and a topic with a message."""
    security = SecurityConfig(
        authentication_enabled=True,
        authentication_providers=("token",),
        authorization_enabled=True,
        super_user_roles=("admin",),
        token_secret_key=SECRET,
        tls_port=0,
        http_tls_port=0,
        grpc_tls_port=0,
        tls_certificate_file=str(certificate / "cert.pem"),
        tls_key_file=str(certificate / "key.pem"),
    )
    with running_broker(security=security) as running:
        with RawClient.from_url(
            running.service_url, auth_method_name="token", auth_data=TOKEN.encode()
        ) as client:
            client.create_producer(TOPIC).send(b"x")
        yield running


def test_a_token_comes_from_a_file_or_the_environment(pulsemark, broker, tmp_path, monkeypatch):
    """Without one the broker refuses; a wrong file is named."""
    ask = ("policies", "get", "public/default", "messageTTL", "--admin-url", broker.http_url)
    assert "401" in pulsemark(*ask).err
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert pulsemark(*ask, "--token-file", str(tmp_path / "token")).status == 0
    monkeypatch.setenv("PULSEMARK_TOKEN", TOKEN)
    assert pulsemark(*ask).status == 0
    assert "absent" in pulsemark(*ask, "--token-file", str(tmp_path / "absent")).err


def test_commands_use_tls(pulsemark, broker, certificate, monkeypatch):
    """HTTP and gRPC; an authority that is not trusted ends the command."""
    monkeypatch.setenv("PULSEMARK_TOKEN", TOKEN)
    ca = str(certificate / "cert.pem")
    grpc = "localhost:" + broker.grpc_url_tls.rpartition(":")[2]
    over_http = ("policies", "get", "public/default", "messageTTL", "--admin-url")
    for trusted in (("--tls-ca", ca), ("--tls-trust-certs", ca)):
        assert pulsemark(*over_http, broker.http_url_tls, *trusted).status == 0
        assert pulsemark("seek", TOPIC, "0", "--grpc", grpc, *trusted).status == 0
        assert pulsemark("control", "list", TOPIC, "--grpc", grpc, *trusted).status == 0
    untrusted = pulsemark(*over_http, broker.http_url_tls)
    assert (untrusted.status, untrusted.err.count("\n")) == (2, 1)
    monkeypatch.setenv("PULSEMARK_TLS_CA", ca)
    assert pulsemark(*over_http, broker.http_url_tls).status == 0
    assert "together" in pulsemark(*over_http, broker.http_url_tls, "--tls-cert", ca).err
    assert "TLS" in pulsemark(*over_http, broker.http_url_tls, "--tls-ca", "/nowhere").err


def test_standalone_serves_tls(certificate, tmp_path):
    """Its options; the ready line has the addresses."""
    command = [
        sys.executable, "-m", "pulsemark", "standalone", "--json", "--port", "0",
        "--http-port", "0", "--data-dir", str(tmp_path / "data"), "--tls-port", "0",
        "--http-tls-port", "0", "--tls-cert", str(certificate / "cert.pem"),
        "--tls-key", str(certificate / "key.pem"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["service_url_tls"].startswith("pulsar+ssl://")
        assert ready["http_url_tls"].startswith("https://")
        assert ready["grpc_url_tls"] is None
        context = ssl.create_default_context(cafile=certificate / "cert.pem")
        with RawClient.from_url(ready["service_url_tls"], ssl_context=context) as client:
            client.ping()
    finally:
        process.terminate()
        rest, _ = process.communicate(timeout=60)
        assert rest == ""
        assert process.returncode == 0
