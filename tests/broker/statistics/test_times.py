"""Times in statistics, also from clocks that are far off."""

from __future__ import annotations

import json
from urllib.request import urlopen

import pulsar
import pytest

from pulsemark.broker.statistics.stats import iso_time
from pulsemark.testing import running_broker


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_763_000_000_120, "2025-11-13T02:13:20.12Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (2**63, "9999-12-31T23:59:59.999Z"),
        (-(2**63), "0001-01-01T00:00:00Z"),
    ],
)
def test_every_number_has_a_text(time_ms, text):
    """To the millisecond within the years 1 to 9999, and their ends for all other numbers."""
    assert iso_time(time_ms) == text


@pytest.mark.parametrize("days", [10_000 * 365, -10_000 * 365])
def test_statistics_of_a_broker_whose_clock_is_far_off(days):
    """Who sets the clock of a test broker ten thousand years away still reads statistics."""
    with running_broker() as broker:
        broker.clock.advance(days=days)
        client = pulsar.Client(broker.service_url)
        try:
            client.subscribe("far", "audit")
            client.create_producer("far").send(b"x")
            for route in ("stats", "internalStats"):
                path = f"/admin/v2/persistent/public/default/far/{route}"
                with urlopen(broker.http_url + path, timeout=20) as answer:
                    assert json.load(answer)
        finally:
            client.close()
