"""The pytest plugin `pulsemark`: a broker as a fixture.

    def test_my_app(pulsar_broker):
        client = pulsar.Client(pulsar_broker.service_url)

- `pulsar_broker`: one broker for the whole session; use different topic names in each test.
- `pulsemark_broker`: a new one for each test.

Both run in this process on free ports, with HTTP, without gRPC, with a temporary data folder, and
give what `running_broker` gives. With `pulsemark_storage = memory` in pytest's configuration
they keep everything in memory, and need no disk. Nothing but pytest is imported before a test asks
for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..broker import BrokerThread

__all__ = ["pulsar_broker", "pulsemark_broker"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting of the fixtures."""
    parser.addini(
        "pulsemark_storage",
        "where the broker fixtures keep entries: files or memory",
        default="files",
    )


@pytest.fixture(scope="session")
def pulsar_broker(pytestconfig: pytest.Config) -> Iterator[BrokerThread]:
    """A broker shared by all tests of the session."""
    from .running import running_broker

    with running_broker(storage=pytestconfig.getini("pulsemark_storage")) as broker:
        yield broker


@pytest.fixture
def pulsemark_broker(pytestconfig: pytest.Config) -> Iterator[BrokerThread]:
    """A new broker for this test."""
    from .running import running_broker

    with running_broker(storage=pytestconfig.getini("pulsemark_storage")) as broker:
        yield broker
