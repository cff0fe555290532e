"""The types of metrics."""

from __future__ import annotations

import re
from urllib.request import urlopen

from pulsemark.testing import running_broker


def test_own_totals_are_counters_and_all_others_gauges() -> None:
    """Pulsar's names keep Pulsar's type; our own that end with _total are counters."""
    with running_broker() as broker, urlopen(f"{broker.http_url}/metrics", timeout=20) as page:
        types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page.read().decode(), re.MULTILINE))
    counters = {name for name, kind in types.items() if kind == "counter"}
    assert "pulsemark_cleaning_rounds_total" in counters
    assert types["pulsar_in_messages_total"] == "gauge"
    own = {n for n in types if not n.startswith("pulsar_") and n.endswith("_total")}
    assert "process_cpu_seconds_total" in own
    assert counters == own
    assert set(types.values()) == {"counter", "gauge"}
