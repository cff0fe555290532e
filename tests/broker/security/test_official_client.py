"""The official Python client with each way to authenticate, over plain ports and over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest
from _pulsar import LoggerLevel

from pulsemark.broker import BrokerThread
from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.testing import SettableClock, running_broker

TOPIC = "persistent://public/default/official"
NOW_MS = 1_800_000_000_000
NOW_S = NOW_MS // 1000
KINDS = ("token", "basic", "tls")


@pytest.fixture(scope="module")
def folder(certificates: Path) -> Path:
    """The certificates, for fixtures of the module."""
    return certificates


@pytest.fixture
def clock() -> SettableClock:
    """The broker's clock."""
    return SettableClock(NOW_MS)


@pytest.fixture
def broker(
    folder: Path, secret_url: str, passwords: str, clock: SettableClock
) -> Iterator[BrokerThread]:
    """A broker with all three providers, TLS, and permissions for the super users only."""
    security = SecurityConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        authentication_providers=KINDS,
        authentication_refresh_check_ms=50,
        token_secret_key=secret_url,
        basic_auth_conf=passwords,
        super_user_roles=("admin", "ann", "client-role"),
        tls_port=0,
        tls_certificate_file=str(folder / "broker.pem"),
        tls_key_file=str(folder / "broker.key"),
        tls_trust_certs_file=str(folder / "ca.pem"),
    )
    with running_broker(security=security, clock=clock) as running:
        yield running


def connected(
    broker: BrokerThread, folder: Path, login: Any, *, tls: bool, timeout_s: int = 30
) -> Any:
    """A client of the plain port, or of the one with TLS."""
    options: dict[str, Any] = {"authentication": login, "operation_timeout_seconds": timeout_s}
    options["logger"] = pulsar.ConsoleLogger(LoggerLevel.Error)
    if not tls:
        return closing(pulsar.Client(broker.service_url, **options))
    port = broker.service_url_tls.rpartition(":")[2]
    options |= {"tls_trust_certs_file_path": str(folder / "ca.pem"), "tls_validate_hostname": True}
    return closing(pulsar.Client(f"pulsar+ssl://localhost:{port}", **options))


def login_of(kind: str, folder: Path, token: Any) -> Any:
    """Good credentials."""
    if kind == "token":
        return pulsar.AuthenticationToken(token({"sub": "admin"}).decode())
    if kind == "basic":
        return pulsar.AuthenticationBasic("ann", "secret:1")
    return pulsar.AuthenticationTLS(str(folder / "client.pem"), str(folder / "client.key"))


@pytest.mark.parametrize(
    ("kind", "tls"),
    [("token", False), ("token", True), ("basic", False), ("basic", True), ("tls", True)],
)
def test_produce_and_consume(
    broker: BrokerThread, folder: Path, token: Any, kind: str, tls: bool
) -> None:
    """Each way to authenticate works on each port that it is possible on."""
    with connected(broker, folder, login_of(kind, folder, token), tls=tls) as client:
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        client.create_producer(TOPIC).send(b"hello")
        message = consumer.receive(20_000)
        assert message.data() == b"hello"
        consumer.acknowledge(message)


@pytest.mark.parametrize(
    ("kind", "tls"),
    [("none", False), ("token", False), ("expired", True), ("basic", False), ("tls", True)],
)
def test_wrong_credentials(
    broker: BrokerThread, folder: Path, token: Any, kind: str, tls: bool
) -> None:
    """The client gets an error, and no topic is made."""
    logins = {
        "none": lambda: None,
        "token": lambda: pulsar.AuthenticationToken(
            token({"sub": "admin"}, key=b"x" * 32).decode()
        ),
        "expired": lambda: pulsar.AuthenticationToken(
            token({"sub": "admin", "exp": NOW_S - 1}).decode()
        ),
        "basic": lambda: pulsar.AuthenticationBasic("ann", "secret:2"),
        "tls": lambda: pulsar.AuthenticationTLS(
            str(folder / "stranger.pem"), str(folder / "stranger.key")
        ),
    }
    with (
        connected(broker, folder, logins[kind](), tls=tls, timeout_s=3) as client,
        pytest.raises(pulsar.PulsarException),
    ):
        client.create_producer(TOPIC)
    assert broker.broker.services.topics.names_in("public/default") == []


def test_a_role_without_permission(broker: BrokerThread, folder: Path, token: Any) -> None:
    """A good token of another role gets AuthorizationError for producers and consumers."""
    other = pulsar.AuthenticationToken(token({"sub": "bob"}).decode())
    with connected(broker, folder, other, tls=False) as client:
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer(TOPIC)
        with pytest.raises(pulsar.AuthorizationError):
            client.subscribe(TOPIC, "s")


def test_a_token_is_renewed_while_messages_go_on(
    broker: BrokerThread, folder: Path, token: Any, clock: SettableClock
) -> None:
    """The client's supplier is asked again, and its producer stays on its connection."""
    asked: list[int] = []

    def supply() -> str:
        asked.append(clock.now_ms())
        expires_s = clock.now_ms() // 1000 + 60
        return str(token({"sub": "admin", "exp": expires_s}).decode())

    login = pulsar.AuthenticationToken(supply)
    with connected(broker, folder, login, tls=True) as client:
        producer = client.create_producer(TOPIC, producer_name="renewed")
        producer.send(b"before")
        sessions = {id(each) for each in broker.broker.services.sessions}
        before = len(asked)
        clock.advance(by_ms=120_000)
        for number in range(200):
            producer.send(b"%d" % number)
            if len(asked) > before:
                break
        else:
            pytest.fail("the client was not asked for a new token")
        producer.send(b"after")
        assert {id(each) for each in broker.broker.services.sessions} == sessions
