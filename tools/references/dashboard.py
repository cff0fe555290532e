"""deploy/grafana-dashboard.json: panels over metrics of docs/metrics.md."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["dashboard"]

BROKER = 'cluster=~"$cluster"'
TOPIC = f'{BROKER},namespace=~"$namespace",topic=~"$topic"'

#: Rows of panels: title, unit, and each query with its legend.
ROWS: tuple[tuple[str, tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]], ...] = (
    (
        "The broker",
        (
            ("Health", "bool", ((f"pulsar_health{{{BROKER}}}", "healthy"),)),
            ("Storage takes writes", "bool", ((f"pulsemark_storage_is_well{{{BROKER}}}", "well"),)),
            ("Open topics", "short", ((f"pulsar_broker_topics_count{{{BROKER}}}", "topics"),)),
            (
                "Connections",
                "short",
                (
                    (f"pulsar_active_connections{{{BROKER}}}", "Pulsar"),
                    (f"pulsemark_kafka_connections{{{BROKER}}}", "Kafka"),
                ),
            ),
        ),
    ),
    (
        "Traffic",
        (
            (
                "Messages",
                "cps",
                (
                    (f"sum(rate(pulsar_in_messages_total{{{TOPIC}}}[5m]))", "in"),
                    (f"sum(rate(pulsar_out_messages_total{{{TOPIC}}}[5m]))", "out"),
                ),
            ),
            (
                "Bytes",
                "Bps",
                (
                    (f"sum(rate(pulsar_in_bytes_total{{{TOPIC}}}[5m]))", "in"),
                    (f"sum(rate(pulsar_out_bytes_total{{{TOPIC}}}[5m]))", "out"),
                ),
            ),
            (
                "Time from publish to disk, mean",
                "ms",
                (
                    (
                        (
                            f"sum(rate(pulsar_storage_write_latency_sum{{{TOPIC}}}[5m])) / "
                            f"sum(rate(pulsar_storage_write_latency_count{{{TOPIC}}}[5m]))"
                        ),
                        "mean",
                    ),
                ),
            ),
            (
                "Publishes that took more than 100 ms",
                "cps",
                (
                    (
                        (
                            f"sum(rate(pulsar_storage_write_latency_le_200{{{TOPIC}}}[5m])) + "
                            f"sum(rate(pulsar_storage_write_latency_le_1000{{{TOPIC}}}[5m])) + "
                            f"sum(rate(pulsar_storage_write_latency_overflow{{{TOPIC}}}[5m]))"
                        ),
                        "slow",
                    ),
                ),
            ),
        ),
    ),
    (
        "Backlogs",
        (
            (
                "Messages not acknowledged, the ten largest",
                "short",
                (
                    (
                        f"topk(10, pulsar_subscription_back_log{{{TOPIC}}})",
                        "{{topic}} {{subscription}}",
                    ),
                ),
            ),
            (
                "Messages with consumers, not acknowledged",
                "short",
                (
                    (
                        f"topk(10, pulsar_subscription_unacked_messages{{{TOPIC}}})",
                        "{{topic}} {{subscription}}",
                    ),
                ),
            ),
            (
                "Bytes of topics, the ten largest",
                "bytes",
                ((f"topk(10, pulsar_storage_size{{{TOPIC}}})", "{{topic}}"),),
            ),
            (
                "Removed by retention",
                "cps",
                (
                    (
                        f"sum(rate(pulsemark_cleaning_entries_removed_total{{{TOPIC}}}[5m]))",
                        "entries",
                    ),
                ),
            ),
        ),
    ),
    (
        "The process",
        (
            (
                "Processor",
                "percentunit",
                ((f"rate(process_cpu_seconds_total{{{BROKER}}}[5m])", "cores"),),
            ),
            ("Memory", "bytes", ((f"process_resident_memory_bytes{{{BROKER}}}", "resident"),)),
            (
                "Open files",
                "short",
                (
                    (f"process_open_fds{{{BROKER}}}", "open"),
                    (f"process_max_fds{{{BROKER}}}", "limit"),
                ),
            ),
            (
                "Bytes held for clients",
                "bytes",
                (
                    (f"pulsemark_publish_bytes_in_flight{{{BROKER}}}", "publishes in flight"),
                    (f"pulsemark_unsent_bytes{{{BROKER}}}", "not yet sent"),
                    (f"pulsemark_input_buffer_bytes{{{BROKER}}}", "input buffers"),
                    (f"pulsemark_kept_bytes{{{BROKER}}}", "state"),
                ),
            ),
        ),
    ),
    (
        "What is wrong",
        (
            (
                "Missing indexes (audit)",
                "short",
                ((f"sum by (topic) (pulsemark_audit_missing{{{TOPIC}}}) > 0", "{{topic}}"),),
            ),
            (
                "Damaged entries met",
                "short",
                ((f"pulsemark_damaged_entries{{{TOPIC}}} > 0", "{{topic}}"),),
            ),
            (
                "Publishes that the disk refused",
                "short",
                ((f"pulsemark_failed_publishes{{{TOPIC}}} > 0", "{{topic}}"),),
            ),
            (
                "Failed cleanings",
                "cps",
                ((f"rate(pulsemark_cleaning_failures_total{{{BROKER}}}[5m])", "topics"),),
            ),
        ),
    ),
)

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 6, 7


def dashboard() -> str:
    """The dashboard as JSON that Grafana imports."""
    panels: list[dict[str, Any]] = []
    for row, (title, row_panels) in enumerate(ROWS):
        top = row * (HEIGHT + 1)
        panels.append(
            {
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
            }
        )
        for column, (name, unit, queries) in enumerate(row_panels):
            panels.append(_panel(name, unit, queries, column * WIDTH, top + 1))
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    shown = {
        "title": "pulsemark",
        "uid": "pulsemark",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["pulsemark"],
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(shown, indent=1) + "\n"


def _panel(
    name: str, unit: str, queries: tuple[tuple[str, str], ...], x: int, y: int
) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": name,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expr, "legendFormat": legend}
            for number, (expr, legend) in enumerate(queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    queries = (
        ("cluster", "label_values(pulsar_health, cluster)"),
        ("namespace", f"label_values(pulsar_topics_count{{{BROKER}}}, namespace)"),
        (
            "topic",
            f'label_values(pulsar_storage_size{{{BROKER},namespace=~"$namespace"}}, topic)',
        ),
    )
    return [
        source,
        *(
            {
                "name": name,
                "type": "query",
                "datasource": SOURCE,
                "query": query,
                "refresh": 2,
                "includeAll": True,
                "multi": True,
                "current": {"text": "All", "value": "$__all"},
            }
            for name, query in queries
        ),
    ]
