"""RawReader: what it reads is tested with its users; here is how a wait for entries ends."""

from __future__ import annotations

import threading

import pytest

from pulsemark.client import ConnectionLostError, RawProducer, RawReader, Service, WaitTimeoutError
from pulsemark.testing import running_broker
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/read"


def test_a_wait_for_entries_ends_with_the_topic_or_the_time() -> None:
    """If the broker closes the consumer no entry can come; else one must come in time."""
    with running_broker(storage="memory") as broker, Service(broker.service_url) as service:
        with RawProducer(service, TOPIC) as producer:
            producer.publish(unbatched_message(b"never sent", publish_time_ms=1))
        hasty, patient = RawReader(service, TOPIC, timeout_s=0.2), RawReader(service, TOPIC)
        with broker.faults.pausing_delivery(TOPIC):
            with pytest.raises(WaitTimeoutError, match="its last one is"):
                next(hasty.entries())
            deleting = threading.Timer(0.2, broker.admin.delete_topic, [TOPIC], {"force": True})
            deleting.start()
            with pytest.raises(ConnectionLostError, match="closed the consumer"):
                next(patient.entries())
            deleting.join()
