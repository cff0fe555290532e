"""Records are put into an encoded answer without the codec."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from pulsemark.kafka.wire import RECORDS_MARK, splice

_Topic = FetchResponse.FetchableTopicResponse


def encoded(version, records):
    """A Fetch answer with these records, as the codec writes it."""
    partitions = [
        _Topic.PartitionData(
            partition_index=number,
            error_code=0,
            high_watermark=9,
            aborted_transactions=None,
            records=each,
        )
        for number, each in enumerate(records)
    ]
    response = FetchResponse(
        version=version,
        throttle_time_ms=0,
        error_code=0,
        responses=[_Topic(topic="t", partitions=partitions)],
    )
    response.with_header(3)
    return response.encode(header=True, framed=True)


@given(
    st.integers(0, 11),
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=3), max_size=4),
)
def test_a_spliced_answer_is_the_one_that_the_codec_makes(version, records):
    """In every version that is served, byte by byte."""
    plain = encoded(version, [b"".join(parts) for parts in records])
    marked = encoded(version, [RECORDS_MARK] * len(records))
    assert b"".join(splice(marked, records)) == plain


def test_records_without_a_mark_are_our_own_mistake():
    """A missing mark is noticed before anything is sent."""
    with pytest.raises(ValueError, match="0 marks for the records of 1 partitions"):
        splice(encoded(4, [b""]), [[b"r"]])
