"""Official Kafka clients with SASL, with and without TLS, against a broker with permissions."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import AdminClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from pulsemark.broker import BrokerThread
from tests.support.certificates import Certificates
from tests.support.secured import rest, secured_broker, set_up, token_of

WAIT_S = 60
PERMISSIONS = "/admin/v2/namespaces/acme/ns/permissions"


def make_certificates(folder: Path) -> None:
    """A certificate of the broker, by itself, and one of a client, by the broker's key."""
    made = Certificates(folder)
    made.authority("ca")
    for name in ("broker", "both"):
        made.issue(name, "ca", "DNS:localhost,IP:127.0.0.1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates."""
    path = tmp_path_factory.mktemp("certificates")
    make_certificates(path)
    return path


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[BrokerThread]:
    """A broker with Kafka's ports with and without TLS."""
    settings = {
        "authentication_providers": ("token", "tls"),
        "kafka_tls_port": 0,
        "tls_certificate_file": str(folder / "broker.pem"),
        "tls_key_file": str(folder / "broker.key"),
        "tls_trust_certs_file": str(folder / "ca.pem"),
    }
    with secured_broker(
        settings,
        kafka_port=0,
        kafka_namespace="acme/ns",
        kafka_group_initial_rebalance_delay_ms=0,
    ) as broker:
        set_up(broker)
        yield broker


def plain(role: str) -> dict[str, str]:
    """The user and password of a role."""
    return {"username": role, "password": f"token:{token_of(role)}"}


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Gives kafka-python a token."""

    def token(self) -> str:
        """A role that may write and read."""
        return token_of("both")


class AsyncTokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    """Gives aiokafka a token."""

    async def token(self) -> str:
        """A role that may write and read."""
        return token_of("both")


KAFKA_PYTHON: dict[str, dict[str, Any]] = {
    "PLAIN": {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "both",
        "sasl_plain_password": plain("both")["password"],
    },
    "OAUTHBEARER": {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
    },
}


@pytest.mark.parametrize("mechanism", KAFKA_PYTHON)
def test_kafka_python(secured: BrokerThread, topic: str, mechanism: str) -> None:
    """Writes, reads in a group, and commits."""
    options = {"bootstrap_servers": secured.kafka_url, **KAFKA_PYTHON[mechanism]}
    producer = kafka.KafkaProducer(**options)
    assert producer.send(topic, b"v").get(WAIT_S).offset == 0
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        **options,
        group_id="g" + topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=WAIT_S * 1000,
        metadata_max_age_ms=1_000,
    )
    assert next(consumer).value == b"v"
    consumer.commit()
    consumer.close()


def test_kafka_python_with_tls(secured: BrokerThread, topic: str, folder: Path) -> None:
    """TLS with SASL inside, and TLS with a client's certificate alone."""
    url, ca = secured.broker.kafka_url_tls, str(folder / "ca.pem")
    with_sasl = {**KAFKA_PYTHON["PLAIN"], "security_protocol": "SASL_SSL", "ssl_cafile": ca}
    with_certificate = {
        "security_protocol": "SSL",
        "ssl_cafile": ca,
        "ssl_certfile": str(folder / "both.pem"),
        "ssl_keyfile": str(folder / "both.key"),
    }
    for number, options in enumerate((with_sasl, with_certificate)):
        producer = kafka.KafkaProducer(bootstrap_servers=url, **options)
        assert producer.send(topic, b"v").get(WAIT_S).offset == number
        producer.close()


def test_aiokafka(secured: BrokerThread, topic: str, folder: Path) -> None:
    """PLAIN over TLS, and OAUTHBEARER without."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    tls = {
        "bootstrap_servers": secured.broker.kafka_url_tls,
        "security_protocol": "SASL_SSL",
        "ssl_context": context,
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "both",
        "sasl_plain_password": plain("both")["password"],
    }

    async def run() -> Any:
        async with aiokafka.AIOKafkaProducer(**tls) as producer:
            await producer.send_and_wait(topic, b"v")
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=secured.kafka_url,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=AsyncTokens(),
            group_id="g" + topic,
            auto_offset_reset="earliest",
        )
        async with consumer:
            return (await asyncio.wait_for(consumer.getone(), WAIT_S)).value

    assert asyncio.run(run()) == b"v"


def bearer(_: str) -> tuple[str, float]:
    """A token and when it expires, as librdkafka wants them."""
    return token_of("both"), time.time() + 3_600


LIBRDKAFKA: dict[str, dict[str, Any]] = {
    "PLAIN": {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "both",
        "sasl.password": plain("both")["password"],
    },
    "OAUTHBEARER": {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": bearer,
    },
}


@pytest.mark.parametrize("mechanism", LIBRDKAFKA)
def test_librdkafka(secured: BrokerThread, topic: str, mechanism: str) -> None:
    """Writes as an idempotent producer, and reads in a group."""
    options = {"bootstrap.servers": secured.kafka_url, **LIBRDKAFKA[mechanism]}
    producer = confluent_kafka.Producer({**options, "enable.idempotence": True})
    errors: list[Any] = []
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors == [None]
    consumer = confluent_kafka.Consumer(
        {**options, "group.id": "g" + topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    until_s = time.monotonic() + WAIT_S
    message = None
    while message is None or message.error() is not None:
        assert time.monotonic() < until_s
        message = consumer.poll(1)
    assert message.value() == b"v"
    consumer.close()


def test_clients_see_what_they_may_not_do(secured: BrokerThread, topic: str) -> None:
    """A role that may only read gets the client's authorisation error, and nothing is stored."""
    boss = token_of("boss")
    assert rest(secured, "PUT", f"/admin/v2/persistent/acme/ns/{topic}", boss).status == 204
    options = {
        **KAFKA_PYTHON["PLAIN"],
        "bootstrap_servers": secured.kafka_url,
        "sasl_plain_username": "reader",
        "sasl_plain_password": plain("reader")["password"],
    }
    producer = kafka.KafkaProducer(**options, enable_idempotence=False)
    with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
        producer.send(topic, b"v").get(WAIT_S)
    producer.close()
    stats = rest(secured, "GET", f"/admin/v2/persistent/acme/ns/{topic}/stats", boss).json
    assert stats["msgInCounter"] == 0


def test_a_group_does_not_show_topics_that_a_client_may_not_see(
    secured: BrokerThread, topic: str
) -> None:
    """ConsumerGroupDescribe refuses the whole group then, as Kafka does."""
    other = f"public-{topic}"
    allow_guest(secured, other, topic)
    group = "g" + topic
    consumer = member_of(secured, group, "both")
    consumer.subscribe([topic])
    until_assigned({consumer: [topic]})

    def described(role: str) -> Any:
        admin = AdminClient(librdkafka(secured, role))
        return admin.describe_consumer_groups([group])[group].result(WAIT_S)

    (member,) = described("both").members
    assert [each.topic for each in member.assignment.topic_partitions] == [topic]
    with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        described("guest")
    consumer.close()


def test_each_member_gets_what_its_own_role_may_see(secured: BrokerThread, topic: str) -> None:
    """Though both have one regex, in both orders; and also once a role may see more."""
    pytest.importorskip("re2", reason="google-re2 is not installed (the extra `kafka`)")
    other = f"{topic}-2"
    allow_guest(secured, other, topic)
    for first, second in (("guest", "both"), ("both", "guest")):
        members = {role: member_of(secured, first + topic, role) for role in (first, second)}
        for member in members.values():
            member.subscribe([f"^{topic}.*"])
        # The guest has one topic at most, and both get all of them.
        until_assigned({members["guest"]: [other], members["both"]: [topic]})
        members["both"].close()
        allow_guest(secured, topic)
        until_assigned({members["guest"]: [topic, other]})
        path = f"/admin/v2/persistent/acme/ns/{topic}/permissions/guest"
        assert rest(secured, "DELETE", path, token_of("boss")).status == 204
        members["guest"].close()


def librdkafka(secured: BrokerThread, role: str) -> dict[str, Any]:
    """What librdkafka needs to be that role."""
    own = {"sasl.username": role, "sasl.password": plain(role)["password"]}
    return {**LIBRDKAFKA["PLAIN"], "bootstrap.servers": secured.kafka_url, **own}


def member_of(secured: BrokerThread, group: str, role: str) -> confluent_kafka.Consumer:
    """A member of a group of the consumer protocol."""
    options = {**librdkafka(secured, role), "group.id": group, "group.protocol": "consumer"}
    return confluent_kafka.Consumer(options)


def allow_guest(secured: BrokerThread, topic: str, *others: str) -> None:
    """Let the role `guest` consume from a topic; make it, and others, if they are not there."""
    boss = token_of("boss")
    for name in (topic, *others):
        path = f"/admin/v2/persistent/acme/ns/{name}"
        assert rest(secured, "PUT", path, boss).status in (204, 409)
    path = f"/admin/v2/persistent/acme/ns/{topic}/permissions/guest"
    assert rest(secured, "POST", path, boss, ["consume"]).status == 204


def until_assigned(wanted: dict[confluent_kafka.Consumer, list[str]]) -> None:
    """Let consumers poll until they have these topics."""
    until_s = time.monotonic() + WAIT_S
    while any(sorted(t.topic for t in c.assignment()) != sorted(wanted[c]) for c in wanted):
        assert time.monotonic() < until_s, [c.assignment() for c in wanted]
        for consumer in wanted:
            consumer.poll(0.1)
