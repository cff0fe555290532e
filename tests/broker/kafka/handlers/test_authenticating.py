"""SASL: PLAIN and OAUTHBEARER with the broker's tokens and passwords, and what comes before."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from pulsemark.broker import Broker, BrokerThread
from pulsemark.testing import SettableClock
from pulsemark.testing.raw_kafka import RawKafka
from tests.support.secured import rest, secured_broker, set_up, token_of

ILLEGAL_STATE, UNSUPPORTED, FAILED = 34, 33, 58
HTPASSWD = "reader:{SHA}" + base64.b64encode(hashlib.sha1(b"open").digest()).decode()
NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def secured() -> Iterator[BrokerThread]:
    """A broker that takes tokens and passwords."""
    settings = {
        "authentication_providers": ("token", "basic"),
        "basic_auth_conf": f"data:,{HTPASSWD}",
    }
    with secured_broker(settings, kafka_port=0, kafka_namespace="acme/ns") as broker:
        set_up(broker)
        assert rest(broker, "PUT", "/admin/v2/persistent/acme/ns/t", token_of("boss")).status == 204
        yield broker


@contextmanager
def raw_client(broker: BrokerThread) -> Iterator[RawKafka]:
    """A raw connection."""
    with RawKafka.from_url(broker.kafka_url, timeout_s=20) as client:
        yield client


def plain(user: str, password: str, authzid: str = "") -> bytes:
    """The credentials of PLAIN."""
    return f"{authzid}\0{user}\0{password}".encode()


def with_token(user: str, **changes: Any) -> bytes:
    """A token as PLAIN sends it."""
    return plain(user, "token:" + token_of(changes.pop("role", user), **changes))


def bearer(token: str, header: str = "n,,") -> bytes:
    """The credentials of OAUTHBEARER."""
    return f"{header}\x01auth=Bearer {token}\x01\x01".encode()


def authenticate(client: RawKafka, data: bytes, mechanism: str = "PLAIN", version: int = 1) -> Any:
    """Handshake and credentials; the answer to these."""
    chosen = client.call(SaslHandshakeRequest, 1, mechanism=mechanism)
    assert chosen.error_code == 0
    return client.call(SaslAuthenticateRequest, version, auth_bytes=data)


def topics_of(client: RawKafka) -> list[str]:
    """All topics that the client sees."""
    return [
        topic.name
        for topic in client.call(
            MetadataRequest, 4, topics=None, allow_auto_topic_creation=False
        ).topics
    ]


GOOD = {
    "token": ("PLAIN", with_token("reader")),
    "token with authzid": ("PLAIN", plain("reader", "token:" + token_of("reader"), "reader")),
    "password": ("PLAIN", plain("reader", "open")),
    "bearer": ("OAUTHBEARER", bearer(token_of("reader"))),
    "bearer with authzid": ("OAUTHBEARER", bearer(token_of("reader"), "n,a=reader,")),
}


@pytest.mark.parametrize(("mechanism", "data"), GOOD.values(), ids=GOOD)
def test_right_credentials(secured: BrokerThread, mechanism: str, data: bytes) -> None:
    """The client gets its role, and sees its topics."""
    with raw_client(secured) as client:
        answer = authenticate(client, data, mechanism)
        assert answer.error_code == 0
        # Passwords do not expire.
        assert bool(answer.session_lifetime_ms) is (b"open" not in data)
        assert topics_of(client) == ["t"]


def unsigned(role: str) -> str:
    """A token with the algorithm "none": what Kafka calls an unsecured token."""
    return token_of(role, key=None, algorithm="none")


OTHER = b"another secret with thirty-two bytes"
WRONG = {
    "no password": ("PLAIN", plain("reader", "")),
    "no user": ("PLAIN", plain("", "open")),
    "wrong password": ("PLAIN", plain("reader", "shut")),
    "another user's password": ("PLAIN", plain("admin", "open")),
    "token of another role": ("PLAIN", with_token("admin", role="reader")),
    "authzid of another role": ("PLAIN", plain("reader", "open", "admin")),
    "token without prefix": ("PLAIN", plain("reader", token_of("reader"))),
    "bad signature": ("PLAIN", with_token("reader", key=OTHER)),
    "expired": ("PLAIN", with_token("reader", exp=1)),
    "wrong audience": ("PLAIN", with_token("reader", aud="x")),
    "unsecured": ("PLAIN", plain("reader", "token:" + unsigned("reader"))),
    "two parts": ("PLAIN", b"reader\0open"),
    "four parts": ("PLAIN", b"\0reader\0open\0"),
    "no UTF-8": ("PLAIN", b"\0reader\0\xff\xfe"),
    "nothing": ("PLAIN", b""),
    "bearer of another role": ("OAUTHBEARER", bearer(token_of("reader"), "n,a=admin,")),
    "bearer with channel binding": ("OAUTHBEARER", bearer(token_of("reader"), "p=tls-unique,,")),
    "bearer twice": ("OAUTHBEARER", bearer(token_of("reader") + "\x01auth=Bearer x")),
    "bearer without token": ("OAUTHBEARER", bearer("")),
    "bearer nothing": ("OAUTHBEARER", b""),
}


@pytest.mark.parametrize(("mechanism", "data"), WRONG.values(), ids=WRONG)
def test_wrong_credentials(secured: BrokerThread, mechanism: str, data: bytes) -> None:
    """The client gets error 58, without the reason, and the connection ends."""
    with raw_client(secured) as client:
        answer = authenticate(client, data, mechanism)
        assert answer.error_code == FAILED
        assert answer.error_message.endswith(f"SASL mechanism {mechanism}")
        with pytest.raises(ConnectionError):
            client.receive_frame()


BAD_TOKENS = {
    "unsecured": bearer(unsigned("reader")),
    "bad signature": bearer(token_of("reader", key=OTHER)),
    "expired": bearer(token_of("reader", exp=1)),
}
CHALLENGE = '{"status":"invalid_token"}'


@pytest.mark.parametrize("answered", [b"\x01", bearer(token_of("reader")), b""])
@pytest.mark.parametrize("data", BAD_TOKENS.values(), ids=BAD_TOKENS)
def test_a_refused_bearer_token_is_answered_with_json(
    secured: BrokerThread, data: bytes, answered: bytes
) -> None:
    """As RFC 7628 wants and Kafka does: a challenge first, and 58 with the same text after it.

    Whatever the client answers, also a good token: this exchange has failed.
    """
    with raw_client(secured) as client:
        challenged = authenticate(client, data, "OAUTHBEARER")
        assert (challenged.error_code, challenged.auth_bytes) == (0, CHALLENGE.encode())
        assert not challenged.session_lifetime_ms
        refused = client.call(SaslAuthenticateRequest, 1, auth_bytes=answered)
        assert (refused.error_code, refused.error_message) == (FAILED, CHALLENGE)
        with pytest.raises(ConnectionError):
            client.receive_frame()


def test_a_client_with_a_refused_token_is_not_authenticated(secured: BrokerThread) -> None:
    """After the challenge any other request ends the connection."""
    with raw_client(secured) as client:
        assert authenticate(client, BAD_TOKENS["expired"], "OAUTHBEARER").error_code == 0
        client.send(MetadataRequest, 1, topics=None)
        with pytest.raises(ConnectionError):
            client.receive_frame()


def test_raw_sasl_answers_a_refused_bearer_token_too(secured: BrokerThread) -> None:
    """Without a request's header the challenge is a frame; the client's answer ends it."""
    with raw_client(secured) as client:
        client.call(SaslHandshakeRequest, 0, mechanism="OAUTHBEARER")
        data = BAD_TOKENS["expired"]
        client.send_bytes(struct.pack(">i", len(data)) + data)
        assert client.receive_frame() == CHALLENGE.encode()
        client.send_bytes(struct.pack(">i", 1) + b"\x01")
        with pytest.raises(ConnectionError):
            client.receive_frame()


def test_before_authentication_only_versions_and_sasl_are_answered(secured: BrokerThread) -> None:
    """Any other request ends the connection, before its bytes are read."""
    with raw_client(secured) as client:
        versions = client.call(ApiVersionsRequest, 0)
        assert versions.error_code == 0
        answer = client.call(SaslAuthenticateRequest, 1, auth_bytes=b"x")
        assert answer.error_code == ILLEGAL_STATE
        client.send(MetadataRequest, 1, topics=None)
        with pytest.raises(ConnectionError):
            client.receive_frame()
    with raw_client(secured) as client:
        client.send_bytes(struct.pack(">ihh", 10_000_000, 0, 7))
        with pytest.raises(ConnectionError):
            client.receive_frame()


def test_an_unknown_mechanism_gets_the_list_of_those_that_are_served(secured: BrokerThread) -> None:
    """A client may then choose one of them."""
    with raw_client(secured) as client:
        for name in ("GSSAPI", "SCRAM-SHA-256", ""):
            answer = client.call(SaslHandshakeRequest, 1, mechanism=name)
            assert answer.error_code == UNSUPPORTED
            assert answer.mechanisms == ["PLAIN", "OAUTHBEARER"]
        assert authenticate(client, with_token("reader"), version=0).error_code == 0


def test_raw_sasl_after_a_handshake_of_version_0(secured: BrokerThread) -> None:
    """The credentials come without a header; the answer is an empty frame, then requests follow."""
    with raw_client(secured) as client:
        assert client.call(SaslHandshakeRequest, 0, mechanism="PLAIN").error_code == 0
        data = with_token("reader")
        client.send_bytes(struct.pack(">i", len(data)) + data)
        assert client.receive_frame() == b""
        assert topics_of(client) == ["t"]
    for bad in (with_token("reader", exp=1), b""):
        with raw_client(secured) as client:
            client.call(SaslHandshakeRequest, 0, mechanism="PLAIN")
            client.send_bytes(struct.pack(">i", len(bad)) + bad)
            with pytest.raises(ConnectionError):
                client.receive_frame()
    with raw_client(secured) as client:
        client.call(SaslHandshakeRequest, 0, mechanism="PLAIN")
        client.send_bytes(struct.pack(">i", 1 << 20))
        with pytest.raises(ConnectionError):
            client.receive_frame()


def test_a_broker_without_authentication_serves_no_mechanism(kafka_broker: BrokerThread) -> None:
    """Its clients need no credentials."""
    with raw_client(kafka_broker) as client:
        answer = client.call(SaslHandshakeRequest, 1, mechanism="PLAIN")
        assert (answer.error_code, answer.mechanisms) == (UNSUPPORTED, [])
        assert client.call(MetadataRequest, 1, topics=[]).topics == []


def test_the_anonymous_role_needs_no_sasl() -> None:
    """A client without credentials has that role's permissions; one with credentials its own."""
    settings = {"anonymous_user_role": "reader"}
    with secured_broker(settings, kafka_port=0, kafka_namespace="acme/ns") as broker:
        set_up(broker)
        rest(broker, "PUT", "/admin/v2/persistent/acme/ns/t", token_of("boss"))
        with raw_client(broker) as client:
            assert topics_of(client) == ["t"]
            assert authenticate(client, with_token("stranger")).error_code == 0
            assert topics_of(client) == []


def test_credentials_that_expire_must_be_renewed() -> None:
    """Before they expire the client may renew them; after that it can do nothing else (KIP-368)."""
    clock = SettableClock(NOW_MS)
    with secured_broker(clock=clock, kafka_port=0, kafka_namespace="acme/ns") as broker:
        set_up(broker)
        with raw_client(broker) as client:
            first = authenticate(client, with_token("reader", exp=NOW_MS // 1000 + 60))
            assert first.session_lifetime_ms == 60_000
            clock.set(NOW_MS + 50_000)
            again = authenticate(client, with_token("reader", exp=NOW_MS // 1000 + 120))
            assert (again.error_code, again.session_lifetime_ms) == (0, 70_000)
            clock.set(NOW_MS + 119_000)
            assert topics_of(client) == []
            clock.set(NOW_MS + 120_000)
            renewed = authenticate(client, with_token("reader", exp=NOW_MS // 1000 + 180))
            assert renewed.error_code == 0
            assert topics_of(client) == []
            clock.set(NOW_MS + 180_000)
            client.send(MetadataRequest, 1, topics=None)
            with pytest.raises(ConnectionError):
                client.receive_frame()


def test_a_renewal_must_not_change_the_role(secured: BrokerThread) -> None:
    """Neither the role nor the mechanism of a connection can change."""
    with raw_client(secured) as client:
        assert authenticate(client, with_token("reader")).error_code == 0
        assert authenticate(client, with_token("both")).error_code == FAILED
        with pytest.raises(ConnectionError):
            client.receive_frame()
    with raw_client(secured) as client:
        assert authenticate(client, with_token("reader")).error_code == 0
        client.send(SaslHandshakeRequest, 1, mechanism="OAUTHBEARER")
        with pytest.raises(ConnectionError):
            client.receive_frame()


def test_a_client_has_to_authenticate_in_time(secured: BrokerThread) -> None:
    """One that only keeps its connection is closed after the handshake's timeout."""

    async def look(broker: Broker, late_s: float) -> None:
        kafka = broker.kafka
        assert kafka is not None
        for session in tuple(kafka.sessions):
            session.check_time(kafka.loop.time() + late_s)

    with raw_client(secured) as idle, raw_client(secured) as working:
        assert authenticate(working, with_token("reader")).error_code == 0
        idle.call(ApiVersionsRequest, 0)
        secured.call(lambda broker: look(broker, 29))
        idle.call(ApiVersionsRequest, 0)
        secured.call(lambda broker: look(broker, 31))
        with pytest.raises(ConnectionError):
            idle.receive_frame()
        assert topics_of(working) == ["t"]


def test_a_connection_remembers_a_bounded_number_of_names(secured: BrokerThread) -> None:
    """A client cannot fill the broker's memory with names that it makes up."""

    async def sizes(broker: Broker) -> list[int]:
        kafka = broker.kafka
        assert kafka is not None
        return [session.access.remembered for session in kafka.sessions]

    with raw_client(secured) as client:
        authenticate(client, with_token("stranger"))
        for start in range(0, 3_000, 500):
            names = [f"n{start + number}" for number in range(500)] + ["x" * 20_000]
            wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
            answer = client.call(MetadataRequest, 4, topics=wanted, allow_auto_topic_creation=False)
            assert {topic.error_code for topic in answer.topics} == {29}
        assert max(secured.call(sizes)) <= 1_000
