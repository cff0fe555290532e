"""The endpoint for Kafka's clients: the same topics, read and written by Kafka's protocol.

A partition's offset is the index in the prefix. An entry holds one set of records, as the client
sent it. The endpoint is a listener of the broker's process (`kafka_port`). It stands below the
broker and knows it only through `ports`; `broker.kafka.ports` implements that interface.

`records` has Kafka's record formats: what a producer sends, what is stored, what a consumer gets.
kafka-python's codecs are used by `protocol` and `handlers`; the broker imports these only if a port
is configured.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing_kafka() -> Iterator[None]:
    """Import kafka-python in this block, also where warnings are errors, as in many tests.

    It reads its schemas in a way that Python 3.11 and 3.12 call deprecated.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
        yield
