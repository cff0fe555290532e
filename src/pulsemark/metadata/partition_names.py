"""Names of partitions: a partition of a topic is a topic of its own named `<topic>-partition-<n>`.

The number is one as a broker writes it: ASCII digits without a leading zero, at most 2**31-1, as
Java's `int`. A name that ends otherwise is that of a topic without partitions, as in Pulsar. The
rule stands below the protocol, because the pipeline and Kafka's endpoint read such names, too.
"""

from __future__ import annotations

import re

_NUMBER_MAX = 2**31 - 1
# A topic's local name, after the last slash, is not empty.
_PARTITION = re.compile(r"(.*[^/])-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)


def partition_name(topic: str, index: int) -> str:
    """The name of partition `index` (from 0 on) of a topic; short or full as the topic's is."""
    return f"{topic}-partition-{index}"


def partition_of(name: str) -> tuple[str, int]:
    """The topic and number of a partition's short or full name; another name and -1."""
    match = _PARTITION.fullmatch(name)
    if match is None or (index := int(match[2])) > _NUMBER_MAX:
        return name, -1
    return match[1], index
