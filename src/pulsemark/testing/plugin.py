"""The pytest plugin `pulsemark`: a broker as a fixture.

    def test_my_app(pulsar_broker, pulsar_topic):
        client = pulsar.Client(pulsar_broker.service_url)

- `pulsar_broker`: one broker for the whole session (with pytest-xdist: of each worker).
- `pulsemark_broker`: a new one for this test, which it may stop, kill and disturb.
- `pulsar_namespace`, `pulsar_topic`: names in `pulsar_broker` that no other test has.
- `pulsar_client`: an official client of `pulsar_broker`, closed after the test.
- `pulsar_admin`: its admin interface (`AdminClient`).
- `kafka_bootstrap_servers`: its address for Kafka's clients, whose topics are those of
  public/default. Asking for it starts the endpoint (the extra `kafka`).

Both brokers are a `PulsarBroker` in a thread of this process, on free ports, with HTTP, without
gRPC. They keep everything in memory; with `pulsemark_storage = files` in pytest's configuration, in
a temporary folder. Nothing but pytest is imported before a test asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from ..client.admin import AdminClient
    from .broker import PulsarBroker

KAFKA_FIXTURE = "kafka_bootstrap_servers"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting of the fixtures."""
    parser.addini(
        "pulsemark_storage",
        "where the broker fixtures keep entries: memory or files",
        default="memory",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the setting. Raises pytest.UsageError."""
    storage = config.getini("pulsemark_storage")
    if storage not in ("memory", "files"):
        raise pytest.UsageError(f"pulsemark_storage = {storage}: must be memory or files")


@pytest.fixture(scope="session")
def pulsar_broker(request: pytest.FixtureRequest) -> Iterator[PulsarBroker]:
    """A broker shared by all tests of the session."""
    from .broker import running_broker

    wanted = (getattr(item, "fixturenames", ()) for item in request.session.items)
    kafka_port = 0 if any(KAFKA_FIXTURE in names for names in wanted) else None
    storage = request.config.getini("pulsemark_storage")
    with running_broker(storage=storage, kafka_port=kafka_port) as broker:
        yield broker


@pytest.fixture
def pulsemark_broker(pytestconfig: pytest.Config) -> Iterator[PulsarBroker]:
    """A new broker for this test."""
    from .broker import running_broker

    with running_broker(storage=pytestconfig.getini("pulsemark_storage")) as broker:
        yield broker


@pytest.fixture
def pulsar_admin(pulsar_broker: PulsarBroker) -> AdminClient:
    """The admin interface of the session's broker."""
    return pulsar_broker.admin


@pytest.fixture
def pulsar_namespace(pulsar_admin: AdminClient) -> str:
    """A new namespace of the session's broker, as `public/NAME`."""
    name = f"public/test-{uuid4().hex}"
    pulsar_admin.create_namespace(name)
    return name


@pytest.fixture
def pulsar_topic(pulsar_namespace: str) -> str:
    """The full name of a topic in a new namespace. It is created when it is first used."""
    return f"persistent://{pulsar_namespace}/topic"


@pytest.fixture
def pulsar_client(pulsar_broker: PulsarBroker) -> Iterator[Any]:
    """An official client (`pulsar.Client`) of the session's broker. It logs errors only."""
    import pulsar

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(pulsar_broker.service_url, logger=logger)
    yield client
    client.close()


@pytest.fixture
def kafka_bootstrap_servers(pulsar_broker: PulsarBroker) -> str:
    """`host:port` of the session's broker for Kafka's clients."""
    return pulsar_broker.kafka_url
