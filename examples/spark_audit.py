"""Count a topic's messages minute by minute in Spark, and read one minute of them.

    python examples/spark_audit.py

A store in a temporary folder gets an hour of batches. The audit counts them from their stamps
alone. Then one of its minutes is read as a DataFrame, by broker time. This needs
the extra `spark`, which finds or installs a Java.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from pulsemark.ledger import LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.pipeline import audit, local_session
from pulsemark.pipeline.session import BRIEF_SETTINGS
from pulsemark.testing import SettableClock
from pulsemark.testing.raw_messages import BatchMember, batched_message

TOPIC = "persistent://public/default/orders"
MONDAY_NOON_MS = int(datetime(2024, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)
SECOND_MS = 1000


def publish(folder: Path) -> None:
    """A batch of ten orders every ten seconds, for an hour from Monday noon on."""
    clock = SettableClock(MONDAY_NOON_MS)  # so that the example's hour takes no time
    store = LocalStore.open(folder, clock=clock)
    topic = store.open_topic(TOPIC)
    topic.stampers = StamperChain.from_names(["broker-time", "index"])
    for number in range(360):
        orders = [
            BatchMember(payload=f"order {number}-{place}".encode(), key=f"customer-{place % 3}")
            for place in range(10)
        ]
        body = batched_message(orders, publish_time_ms=clock.now_ms() - 5)
        appended = topic.append(body, message_count=len(orders))
        clock.advance(by_ms=10 * SECOND_MS)
    appended.commit.wait()  # durable
    store.close()


def main(folder: Path) -> None:
    """Publish, count, read."""
    publish(folder)
    spark = local_session("spark_audit", conf=BRIEF_SETTINGS)

    counted = audit(spark, folder, bucket="15 minutes")
    counted.select("bucket_start", "count", "min_index", "max_index", "missing").show()

    minute = (
        spark.read.format("pulsar-ledger")
        .option("topic", "orders")
        .option("startingTime", "2024-01-01T12:30:00Z")
        .option("endingTime", "2024-01-01T12:31:00Z")
        .load(str(folder))
    )
    orders = minute.selectExpr("string(__key) AS customer", "string(value) AS newest")
    orders.groupBy("customer").agg({"*": "count", "newest": "max"}).orderBy("customer").show()
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary) / "data")
