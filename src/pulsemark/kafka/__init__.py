"""Kafka's protocol and formats: what the broker's endpoint, mirrors and jobs share.

`records` has the record formats: what a producer sends, what is stored, what a consumer gets.
`protocol` has frames and requests, with kafka-python's codecs; `client` talks to other Kafkas.
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
