"""gRPC calls with authentication and TLS."""

from __future__ import annotations

import shutil
import ssl
import time
from contextlib import ExitStack

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pulsemark.broker import ConfigError
from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.grpc.seek_service import NEEDS
from pulsemark.finder import (
    ClientTls,
    PermissionDeniedError,
    SeekCallError,
    SeekClient,
    UnauthenticatedError,
    rpc,
)
from pulsemark.proto import seek_pb2
from pulsemark.proto.broker_entry_pb2 import ControlType
from pulsemark.testing import RawClient, SettableClock, running_broker

CONTROL = ControlType.CONTROL_CHECKPOINT
TOPIC = "persistent://public/default/called"


@pytest.fixture
def serve(secret_url, token):
    """Starts brokers whose topic has a message; `settings` are of the security."""
    with ExitStack() as stack:

        def start(config=None, **settings):
            security = SecurityConfig(
                **{
                    "authentication_enabled": True,
                    "authentication_providers": ("token", "tls"),
                    "token_secret_key": secret_url,
                    "super_user_roles": ("admin",),
                    **settings,
                }
            )
            broker = stack.enter_context(
                running_broker(grpc_port=0, security=security, **(config or {}))
            )
            with RawClient.from_url(
                broker.service_url, auth_method_name="token", auth_data=token({"sub": "admin"})
            ) as client:
                client.create_producer(TOPIC).send(b"one")
            return broker

        yield start


def test_every_call_needs_credentials(serve, token):
    """UNAUTHENTICATED for none and for wrong ones; health checks need none."""
    broker = serve()
    with SeekClient(broker.grpc_url, token=token({"sub": "bob"}).decode()) as seek:
        assert not seek.by_time(TOPIC, 0).end
        assert len(list(seek.read_entries(TOPIC))) == 1
    for wrong in (None, "wrong", token({"sub": "bob", "exp": 1}).decode()):
        with SeekClient(broker.grpc_url, token=wrong) as seek:
            for call in (
                lambda client: client.by_time(TOPIC, 0),
                lambda client: client.by_index(TOPIC, 0),
                lambda client: client.range(TOPIC, 0, 1),
                lambda client: list(client.read_entries(TOPIC)),
                lambda client: client.append_control(TOPIC, CONTROL, "x"),
                lambda client: client.epochs(TOPIC),
                lambda client: client.audit(TOPIC),
                lambda client: client.reset_cursor(TOPIC, "s", time_ms=0),
            ):
                with pytest.raises(UnauthenticatedError):
                    call(seek)
    with grpc.insecure_channel(broker.grpc_url) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status == 1


def test_a_stream_ends_with_its_token(serve, token):
    """UNAUTHENTICATED in the middle, however slowly its client reads."""
    clock = SettableClock()
    broker = serve({"clock": clock})
    boss = token({"sub": "admin"})
    auth = {"auth_method_name": "token", "auth_data": boss}
    with RawClient.from_url(broker.service_url, **auth) as client:
        producer = client.create_producer(TOPIC)
        for _ in range(8):
            producer.send(b"x" * (4 << 20))
    short = token({"sub": "bob", "exp": clock.now_ms() // 1000 + 2}).decode()
    request = seek_pb2.ReadEntriesRequest(topic=TOPIC)
    metadata = (("authorization", f"Bearer {short}"),)
    with grpc.insecure_channel(broker.grpc_url) as channel:
        read = channel.unary_stream(rpc.path("ReadEntries"), **rpc.client_codec("ReadEntries"))
        stream = read(request, metadata=metadata, timeout=100)
        assert next(stream).pieces
        with pytest.raises(grpc.RpcError) as refused:
            _read_slowly(stream)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "expired during the call" in refused.value.details()


def _read_slowly(stream):
    for _ in stream:
        time.sleep(0.3)  # slower than the broker, which waits for this reader


def test_roles_need_permission(serve, token):
    """With authorisation, a call needs its permission on the topic that it names."""
    broker = serve(authorization_enabled=True)
    with SeekClient(broker.grpc_url, token=token({"sub": "admin"}).decode()) as seek:
        assert not seek.by_time(TOPIC, 0).end
        seek.append_control(TOPIC, CONTROL, "x")
    with SeekClient(broker.grpc_url, token=token({"sub": "bob"}).decode()) as seek:
        for call in (
            lambda: seek.by_time(TOPIC, 0),
            lambda: list(seek.read_entries(TOPIC)),
            lambda: seek.append_control(TOPIC, CONTROL, "x"),
            lambda: seek.by_time("not a name://", 0),
        ):
            with pytest.raises(PermissionDeniedError):
                call()


def test_every_call_of_the_service_has_a_need():
    """A new call is refused to roles without a rule only if it is named."""
    methods = seek_pb2.DESCRIPTOR.services_by_name["SeekService"].methods_by_name
    assert set(NEEDS) == set(methods)


def test_a_control_token_goes_with_no_roles(secret_url, tmp_path):
    """Two answers to who may append are refused at the start."""
    (tmp_path / "token").write_text("t" * 32)
    security = SecurityConfig(
        authentication_enabled=True,
        authentication_providers=("token",),
        token_secret_key=secret_url,
    )
    with (
        pytest.raises(ConfigError, match="grpc_control_token_file"),
        running_broker(grpc_port=0, security=security, grpc_control_token_file=tmp_path / "token"),
    ):
        pass


def test_a_port_with_tls(serve, certificates, token, tmp_path):
    """Beside the plain one; a renewed certificate is used without a restart."""
    for name in ("ca.pem", "broker.pem", "broker.key"):
        shutil.copy(certificates / name, tmp_path / name)
    broker = serve(
        grpc_tls_port=0,
        tls_certificate_file=str(tmp_path / "broker.pem"),
        tls_key_file=str(tmp_path / "broker.key"),
        tls_trust_certs_file=str(tmp_path / "ca.pem"),
        tls_cert_refresh_check_s=0,
    )
    role = token({"sub": "bob"}).decode()
    port = broker.grpc_url_tls.rpartition(":")[2]

    def ask(ca):
        tls = ClientTls(ca=ca)
        with SeekClient(f"localhost:{port}", token=role, tls=tls) as seek:
            return seek.by_time(TOPIC, 0).end

    assert ask(certificates / "ca.pem") is False
    with pytest.raises(SeekCallError):
        ask(certificates / "other.pem")
    before = ssl.get_server_certificate(("localhost", int(port)))
    for kind in ("pem", "key"):
        shutil.copy(certificates / f"renewed.{kind}", tmp_path / f"new.{kind}")
        (tmp_path / f"new.{kind}").replace(tmp_path / f"broker.{kind}")
    assert ssl.get_server_certificate(("localhost", int(port))) != before
    assert ask(certificates / "ca.pem") is False
    with SeekClient(broker.grpc_url, token=role) as plain:
        assert not plain.by_time(TOPIC, 0).end


def test_a_certificate_is_a_role_where_it_is_required(serve, certificates):
    """gRPC asks for certificates only if it must have one."""
    broker = serve(
        grpc_tls_port=0,
        tls_certificate_file=str(certificates / "broker.pem"),
        tls_key_file=str(certificates / "broker.key"),
        tls_trust_certs_file=str(certificates / "ca.pem"),
        tls_require_trusted_client_cert_on_connect=True,
    )
    target = "localhost:" + broker.grpc_url_tls.rpartition(":")[2]
    tls = ClientTls(
        ca=certificates / "ca.pem",
        certificate=certificates / "client.pem",
        key=certificates / "client.key",
    )
    with SeekClient(target, tls=tls) as seek:
        assert not seek.by_time(TOPIC, 0).end
    with (
        SeekClient(target, tls=ClientTls(ca=certificates / "ca.pem")) as seek,
        pytest.raises(SeekCallError),
    ):
        seek.by_time(TOPIC, 0)


def test_the_log_has_the_reason_without_the_credential(serve, caplog):
    """As for connections and HTTP requests."""
    broker = serve()
    caplog.set_level("INFO", logger="pulsemark.broker.grpc.seek_service")
    seek = SeekClient(broker.grpc_url, token="a.credential.c")
    with seek, pytest.raises(UnauthenticatedError):
        seek.by_time(TOPIC, 0)
    assert "SeekByTime: gRPC call refused: token: it is not a token (JWT)" in caplog.text
    assert "a.credential.c" not in caplog.text
