"""docs/metrics.md: every metric, from the page of a broker that has something of everything."""

from __future__ import annotations

import re
import time
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit

import kafka

from pulsemark.testing import RawClient, running_broker

__all__ = ["Metric", "metrics_of", "metrics_page", "scrape", "unit_of"]

INTRODUCTION = """\
# Metrics

The metrics of `GET /metrics`, made from a broker's own page by `tools/write_references.py`; do not
edit it. How to collect and to watch them is in [operations.md](operations.md).

Metrics that begin with `pulsar_` have Pulsar's names and labels. Like Pulsar's, all of them are
gauges, also where they only rise. `_total` at the end marks a counter of pulsemark or of the
process. All counters begin at 0 when the broker starts. A topic that is not open has no series.
Metrics of compaction appear with a topic's first compaction, as in Pulsar.

With `exposeTopicLevelMetricsInPrometheus=false` the metrics of topics are added up for each
namespace, and subscriptions have none. Where topics have metrics, each consumer has some with
`exposeConsumerLevelMetricsInPrometheus=true`, and each producer with
`exposeProducerLevelMetricsInPrometheus=true`.
"""

LABELS = """
## Labels

| label | value |
|---|---|
| `cluster` | the broker's cluster (`clusterName`), on every metric |
| `namespace` | tenant and namespace, such as `public/default` |
| `topic` | the topic's full name, such as `persistent://public/default/orders` |
| `subscription` | the subscription's name |
| `consumer_name`, `consumer_id` | the consumer's name, and its number in its connection |
| `producer_name`, `producer_id` | the producer's name, and its number in its connection |
| `request`, `version`, `handling` | a request of Kafka's; whether sets go `as_is` or `converted` |
| `broker`, `metric` | the broker's host, and what Pulsar calls the figure |
| `tag_...` | a tag of `audit_tags`, each in its own label; the rest series has `rest="true"` |
"""

#: How long the audit may take to count one message.
WAIT_S = 60

SECTIONS = (
    ("The process", r"process_"),
    ("The audit", r"pulsemark_audit_"),
    ("Kafka's clients", r"pulsemark_kafka_"),
    ("Single producers", r"pulsar_producer_"),
    ("Single consumers", r"pulsar_consumer_"),
    ("The whole broker", None),
    ("Namespaces", ("namespace",)),
    ("Topics", ("namespace", "topic")),
    ("Subscriptions", ("namespace", "topic", "subscription")),
)

#: The first pattern that is found in a metric's name gives its unit.
UNITS = (
    (r"_le_|_overflow$|_seconds_count$|_latency_count$|entry_size_count$", "entries"),
    (r"storage_write_latency|_ms$|in_mills$", "milliseconds"),
    (r"timestamp$", "milliseconds since 1970, 0: never"),
    (r"start_time_seconds$", "seconds since 1970"),
    (r"_seconds(_total)?$|limit_time$", "seconds"),
    (r"throughput", "bytes per second"),
    (r"storage_(write|read)_rate$|cache_(hits|misses)_rate$", "entries per second"),
    (r"_rate(_in|_out|_redeliver)?$", "messages per second"),
    (r"health$|is_well$|blocked_on|version_info$", "0 or 1"),
    (r"entries_size$|entry_size_sum$|_bytes(_|$)|Size$|_size$|quota_limit$", "bytes"),
    (r"evictions$", "evictions"),
    (r"entries|failed_publishes$|cache_hits_total$|cache_misses_total$|bad_copies", "entries"),
    (r"workers_away$", "workers"),
    (r"audit_(missing|uncounted)$", "indexes"),
    (r"audit_(messages|out_of_order|left|dropped_messages)$", "messages"),
    (r"audit_rows$", "rows"),
    (r"_failures_total$", "failures"),
    (r"rounds_total$", "rounds"),
    (r"headers_parsed", "headers"),
    (r"topics_count$|ml_count$", "topics"),
    (r"producers_count$", "producers"),
    (r"consumers_count$", "consumers"),
    (r"subscriptions_count$", "subscriptions"),
    (r"connection", "connections"),
    (r"kafka_groups$", "groups"),
    (r"kafka_fetch_session_partitions$", "partitions"),
    (r"kafka_fetch_sessions", "fetch sessions"),
    (r"kafka_(topic_)?sets|kafka_(de)?compressions$", "record sets"),
    (r"converted_records$", "records"),
    (r"compaction_(succeed|failed)_count$", "compactions"),
    (r"removed_event_count$|permits$|messages|Messages|back_log|backlog$|_msg_", "messages"),
    (r"txn_tb_", "transactions"),
    (r"_fds$", "file descriptors"),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a page."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


def unit_of(name: str) -> str:
    """A metric's unit, by its name; "number" if no pattern of UNITS fits."""
    for pattern, unit in UNITS:
        if re.search(pattern, name):
            return unit
    return "number"


def scrape() -> str:
    """The page of a broker with clients, a compacted topic, Kafka's endpoint and an audit."""
    topic = "persistent://public/default/orders"
    with running_broker(
        audit_enabled=True,
        kafka_port=0,
        expose_consumer_level_metrics_in_prometheus=True,
        expose_producer_level_metrics_in_prometheus=True,
    ) as broker:
        address = urlsplit(broker.service_url)
        with RawClient(address.hostname or "", address.port or 0) as client:
            client.subscribe(topic, "billing")
            client.create_producer(topic, producer_name="shop").send(b"an order")
            with kafka.KafkaProducer(bootstrap_servers=broker.kafka_url) as producer:
                producer.send("payments", b"a payment").get(WAIT_S)
            broker.admin.request("PUT", "persistent/public/default/orders/compaction")
            deadline_s = time.monotonic() + WAIT_S
            while True:
                with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=30) as answer:
                    page = str(answer.read().decode())
                wanted = ("pulsemark_audit_messages{", "pulsar_compaction_succeed_count{")
                missing = [each for each in wanted if each not in page]
                if not missing:
                    return page
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"the page has no {missing} after {WAIT_S} s")
                time.sleep(0.05)


def metrics_of(page: str) -> list[Metric]:
    """The metrics of a page, in its order, with the labels of their first series."""
    found: list[Metric] = []
    family = re.compile(r"# HELP (\S+) (.*)\n# TYPE \1 (\w+)\n(?:\1\{(.*)\} \S+)?", re.MULTILINE)
    for name, text, kind, labels in family.findall(page):
        names = tuple(re.findall(r'(\w+)="', labels or ""))
        found.append(Metric(name, kind, text, names))
    return found


def metrics_page() -> str:
    """The page of docs/."""
    metrics = metrics_of(scrape())
    parts = [INTRODUCTION, LABELS]
    left = list(metrics)
    for title, which in SECTIONS:
        chosen = [metric for metric in left if _belongs(metric, which)]
        left = [metric for metric in left if metric not in chosen]
        if chosen:
            parts.append(f"\n## {title}\n\n")
            parts.append("| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n")
            parts += map(_row, chosen)
    assert not left, left
    return "".join(parts)


def _belongs(metric: Metric, which: str | tuple[str, ...] | None) -> bool:
    if isinstance(which, str):
        return re.match(which, metric.name) is not None
    labels = set(metric.labels)
    if which is None:
        return not labels & {"namespace", "topic"}
    return labels & {"namespace", "topic", "subscription"} == set(which)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels if label != "cluster")
    text = metric.text.replace("|", "\\|")
    unit = unit_of(metric.name)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {unit} | {text} |\n"
