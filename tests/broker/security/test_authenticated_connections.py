"""Connections of the binary protocol with authentication: who is let in, and for how long."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.handlers.authenticating import MAX_UNASKED
from pulsemark.client.errors import RequestRefusedError
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient, SettableClock, running_broker
from pulsemark.wire import commands

NOW_MS = 1_800_000_000_000
NOW_S = NOW_MS // 1000
REFRESH = pb.FeatureFlags(supports_auth_refresh=True)
ERROR_ID = commands.NO_REQUEST_ID


@pytest.fixture
def clock():
    """The broker's clock."""
    return SettableClock(NOW_MS)


@pytest.fixture
def serve(secret_url, passwords, clock):
    """Starts brokers with tokens and passwords, and other settings."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(**settings):
            security = SecurityConfig(
                **{
                    "authentication_enabled": True,
                    "authentication_providers": ("token", "basic"),
                    "token_secret_key": secret_url,
                    "basic_auth_conf": passwords,
                    "authentication_refresh_check_ms": 50,
                    **settings,
                }
            )
            return stack.enter_context(running_broker(security=security, clock=clock))

        yield start


def connect(broker, method=None, data=None, **options):
    """A raw connection with credentials."""
    return RawClient.from_url(
        broker.service_url, auth_method_name=method, auth_data=data, **options
    )


def refusal_of(broker, *arguments, **options):
    """The ERROR after CONNECT, and that the broker closes then."""
    client = connect(broker, handshake=False)
    with client:
        with pytest.raises(RequestRefusedError) as caught:
            client.connect(
                **dict(zip(("auth_method_name", "auth_data"), arguments, strict=False)), **options
            )
        client.wait_closed()
    assert caught.value.request_id == ERROR_ID
    return pb.ServerError.Name(caught.value.error), caught.value.message


def principals(broker):
    """Who is connected."""

    async def look(running):
        return [session.principal for session in running.services.sessions]

    return broker.call(look)


WRONG = ("AuthenticationError", "Failed to authenticate")


def test_credentials_decide_as_in_pulsar(serve, token):
    """The role of good ones; one and the same ERROR for everything else."""
    broker = serve()
    for method, data, role in (
        ("token", token({"sub": "bob"}), "bob"),
        ("basic", b"ann:secret:1", "ann"),
    ):
        with connect(broker, method, data) as client:
            assert client.connected is not None
            assert [principal.role for principal in principals(broker)] == [role]
            assert client.partitions("persistent://public/default/x") == 0
    wrong: tuple[tuple[str | None, bytes | None], ...] = (
        (None, None),
        ("none", b""),
        ("token", b""),
        ("token", token({"sub": "bob", "exp": NOW_S - 1})),
        ("basic", b"ann:wrong"),
        ("basic", token({"sub": "bob"})),
        ("tls", b""),
        ("unknown", token({"sub": "bob"})),
        ("TOKEN", token({"sub": "bob"})),
        ("x" * 100_000, b""),
    )
    for given, credentials in wrong:
        assert refusal_of(broker, given, credentials) == WRONG
    assert principals(broker) == []


def test_unknown_methods_get_the_anonymous_role(serve):
    """Credentials of a known method must be right all the same."""
    broker = serve(anonymous_user_role="guest")
    for method in (None, "none", "unknown"):
        with connect(broker, method, b""):
            assert [principal.role for principal in principals(broker)] == ["guest"]
    assert refusal_of(broker, "token", b"wrong") == WRONG
    assert refusal_of(broker, "basic", b"guest:") == WRONG


def test_a_proxy_names_whom_it_asks_for(serve, token):
    """Only a proxy may, it must, and it must not name a proxy."""
    broker = serve(proxy_roles=("proxy", "proxy-2"))
    proxy, plain = token({"sub": "proxy"}), token({"sub": "bob"})
    with connect(broker, "token", proxy, original_principal="carl"):
        (principal,) = principals(broker)
        assert (principal.role, principal.original_role) == ("proxy", "carl")
    invalid = ("AuthorizationError", "Invalid roles.")
    for data, original in ((proxy, None), (proxy, "proxy-2"), (proxy, "proxy"), (plain, "carl")):
        assert refusal_of(broker, "token", data, original_principal=original) == invalid


def test_what_a_proxy_passes_on_is_checked_if_so_configured(serve, token):
    """Then the original role is that of the passed credentials, whatever name is beside them."""
    broker = serve(proxy_roles=("proxy",), authenticate_original_auth_data=True)
    proxy, carl = token({"sub": "proxy"}), token({"sub": "carl"}).decode()
    passed = {"original_principal": "admin", "original_auth_method": "token"}
    with connect(broker, "token", proxy, original_auth_data=carl, **passed):
        (principal,) = principals(broker)
        assert (principal.role, principal.original_role) == ("proxy", "carl")
    assert refusal_of(broker, "token", proxy, original_auth_data="wrong", **passed) == WRONG


def test_a_password_is_checked_while_the_connection_waits(serve):
    """Commands sent with CONNECT close the connection: it is not authenticated yet."""
    broker = serve()
    lookup = commands.lookup("persistent://public/default/x", 1)
    with connect(broker, handshake=False) as client:
        client.write(
            commands.connect("x", auth_method_name="basic", auth_data=b"ann:wrong") + lookup
        )
        client.wait_closed()
        assert all(command.type != pb.BaseCommand.LOOKUP_RESPONSE for command in client.unsolicited)


@pytest.mark.parametrize("first", ["token", "basic"])
def test_a_second_connect_closes(serve, token, first):
    """Also while the first one's password is checked."""
    broker = serve()
    data = token({"sub": "bob"}) if first == "token" else b"ann:secret:1"
    frame = commands.connect("x", auth_method_name=first, auth_data=data)
    with connect(broker, handshake=False) as client:
        client.write(frame + frame)
        client.wait_closed()
    assert principals(broker) == []


def challenge(client):
    """The next AUTH_CHALLENGE."""
    return client.wait_unsolicited(pb.BaseCommand.AUTH_CHALLENGE)


def test_expired_credentials_are_asked_for_again(serve, token, clock):
    """AUTH_CHALLENGE as Pulsar's; a good AUTH_RESPONSE keeps the connection, again and again."""
    broker = serve()
    data = token({"sub": "bob", "exp": NOW_S + 10})
    with connect(broker, "token", data, feature_flags=REFRESH, protocol_version=19) as client:
        producer = client.create_producer("persistent://public/default/refreshed")
        for turn in (10, 20):
            clock.advance(by_ms=10_000)
            found = challenge(client)
            assert not found.HasField("server_version")
            assert found.protocol_version == 19
            assert found.challenge.auth_method_name == "token"
            assert found.challenge.auth_data == b"PulsarAuthRefresh"
            newer = token({"sub": "bob", "exp": NOW_S + turn + 10})
            client.write(commands.auth_response("x", 19, "token", newer))
            producer.send(b"still here")


@pytest.mark.parametrize("answer", ["none", "expired", "other role", "other method", "garbage"])
def test_a_client_that_does_not_answer_well_is_closed(serve, token, clock, answer):
    """At the next look without an answer; at once after a wrong one."""
    broker = serve()
    data = token({"sub": "ann", "exp": NOW_S + 10})
    with connect(broker, "token", data, feature_flags=REFRESH) as client:
        clock.advance(by_ms=10_000)
        challenge(client)
        method, given = {
            "none": (None, b""),
            "expired": ("token", data),
            "other role": ("token", token({"sub": "bob"})),
            "other method": ("basic", b"ann:secret:1"),
            "garbage": ("token", b"\xff"),
        }[answer]
        if method is not None:
            client.write(commands.auth_response("x", 21, method, given))
        client.wait_closed()
    assert principals(broker) == []


def test_a_client_that_cannot_answer_is_closed(serve, token, clock):
    """An old client, and one whose proxy only names it."""
    broker = serve(proxy_roles=("proxy",))
    old = connect(broker, "token", token({"sub": "bob", "exp": NOW_S + 10}))
    behind = connect(
        broker,
        "token",
        token({"sub": "proxy", "exp": NOW_S + 10}),
        original_principal="carl",
        feature_flags=REFRESH,
    )
    staying = connect(broker, "token", token({"sub": "bob"}))
    clock.advance(by_ms=10_000)
    with old, behind, staying:
        old.wait_closed()
        behind.wait_closed()
        staying.ping()


def test_answers_without_a_challenge_are_checked_all_the_same(serve, token):
    """Some good ones are taken, as Pulsar does; too many, or a wrong one, end the connection."""
    broker = serve(authentication_refresh_check_ms=3_600_000)
    good = commands.auth_response("x", 21, "token", token({"sub": "bob"}))
    with connect(broker, "token", token({"sub": "bob"}), feature_flags=REFRESH) as client:
        client.write(good * MAX_UNASKED)
        client.ping()
        client.write(good)
        client.wait_closed()
    with connect(broker, "token", token({"sub": "bob"}), feature_flags=REFRESH) as client:
        client.write(commands.auth_response("x", 21, "token", token({"sub": "bob"}, key=b"z")))
        client.wait_closed()
    with connect(broker, "basic", b"ann:secret:1") as client:
        client.write(commands.auth_response("x", 21, "basic", b"ann:wrong") * 50)
        client.wait_closed()
    assert principals(broker) == []


def test_passwords_that_are_checked_do_not_hold_up_others(serve, token, monkeypatch):
    """While one check lasts, others are answered, and its own connection is not."""
    from pulsemark.broker.security.providers import BasicProvider

    goes_on = threading.Event()
    check = BasicProvider.check_password

    def slow(self, user, password):
        assert goes_on.wait(60)
        check(self, user, password)

    monkeypatch.setattr(BasicProvider, "check_password", slow)
    broker = serve()
    with connect(broker, handshake=False) as waiting:
        waiting.write(commands.connect("x", auth_method_name="basic", auth_data=b"ann:secret:1"))
        with connect(broker, "token", token({"sub": "bob"})) as other:
            other.create_producer("persistent://public/default/quick").send(b"x")
        assert waiting.connected is None
        goes_on.set()
        waiting.wait_connected()


def test_a_limited_number_of_passwords_waits(serve, monkeypatch):
    """Those beyond it are refused at once."""
    from pulsemark.broker.security import authentication
    from pulsemark.broker.security.providers import BasicProvider

    goes_on = threading.Event()
    monkeypatch.setattr(authentication, "MAX_WAITING", 2)
    monkeypatch.setattr(BasicProvider, "check_password", lambda *_: goes_on.wait(60))
    broker = serve()
    frame = commands.connect("x", auth_method_name="basic", auth_data=b"ann:secret:1")
    clients = [connect(broker, handshake=False) for _ in range(2)]
    try:
        for client in clients:
            client.write(frame)
            client.ping()
        assert refusal_of(broker, "basic", b"ann:secret:1") == WRONG
        goes_on.set()
        for client in clients:
            client.wait_connected()
    finally:
        goes_on.set()
        for client in clients:
            client.close()


def test_a_client_that_leaves_while_its_password_is_checked(serve, monkeypatch):
    """The check's result is dropped; nothing is left of the connection."""
    from pulsemark.broker.security.providers import BasicProvider

    goes_on, begun = threading.Event(), threading.Event()

    def slow(*_):
        begun.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(BasicProvider, "check_password", slow)
    broker = serve()
    with connect(broker, handshake=False) as client:
        client.write(commands.connect("x", auth_method_name="basic", auth_data=b"ann:secret:1"))
        assert begun.wait(60)
    goes_on.set()

    async def gone(running):
        while running.services.sessions:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)

    broker.call(gone)


def test_frames_are_small_before_authentication(serve, token):
    """A client that has no role yet cannot make the broker buffer a large frame."""
    broker = serve()
    with socket.create_connection(("127.0.0.1", broker.broker.port), 10) as client:
        client.sendall((5_000_000).to_bytes(4, "big") + b"\0\0\0\x10")
        assert client.recv(1) == b""


def test_without_authentication_credentials_are_not_looked_at():
    """As in Pulsar: clients may send them."""
    with running_broker() as broker, connect(broker, "token", b"anything") as client:
        assert client.connected is not None
        assert [principal.role for principal in principals(broker)] == [None]
        client.write(commands.auth_response("x", 21, "token", b"anything"))
        client.wait_closed()
