"""The pytest plugin `pulsemark`: a broker as a fixture.

    def test_my_app(pulsar_broker):
        client = pulsar.Client(pulsar_broker.service_url)

- `pulsar_broker`: one broker for the whole session; tests keep apart by topic names.
- `pulsemark_broker`: a fresh one for each test.

Both run in this process on free ports, with HTTP, without gRPC, over a temporary data folder, and
hand out what `running_broker` does. Nothing but pytest is imported before a test asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..broker import BrokerThread

__all__ = ["pulsar_broker", "pulsemark_broker"]


@pytest.fixture(scope="session")
def pulsar_broker() -> Iterator[BrokerThread]:
    """A broker shared by all tests of the session."""
    from .running import running_broker

    with running_broker() as broker:
        yield broker


@pytest.fixture
def pulsemark_broker() -> Iterator[BrokerThread]:
    """A broker of the test's own."""
    from .running import running_broker

    with running_broker() as broker:
        yield broker
