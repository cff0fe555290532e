"""The protocol core: frames of any cut, order of answers, and bytes that no client should send."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions
from kafka.protocol.consumer import FetchRequest, FetchResponse, HeartbeatRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest

from pulsemark.kafka import protocol as connection_module
from pulsemark.kafka.errors import ProtocolError
from pulsemark.kafka.protocol import (
    APIS,
    HIGHEST_FOR,
    RECORDS_MARK,
    Connection,
    decode_body,
    splice,
)
from pulsemark.testing.raw_kafka import fetch_fields, produce_fields

LIMIT = 1 << 20


def frame(request, version, correlation_id=1, **fields):
    """A request's bytes."""
    made = request(version=version, **fields)
    made.with_header(correlation_id, "test")
    return made.encode(header=True, framed=True)


def taken(connection):
    """All complete requests."""
    requests = []
    while (request := connection.take()) is not None:
        requests.append(request)
    return requests


STREAM = (
    frame(ApiVersionsRequest, 0, 1)
    + frame(MetadataRequest, 4, 2, topics=None, allow_auto_topic_creation=False)
    + frame(ProduceRequest, 7, 3, **produce_fields([("t", 0, b"r" * 300)], -1))
    + frame(FetchRequest, 11, 4, **fetch_fields([("t", 0, 5, 100, -1)], 0, 1, 100))
)


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=20))
def test_any_cut_of_the_stream_gives_the_same_requests(cuts):
    """Requests do not depend on how their bytes arrive."""
    connection = Connection(LIMIT)
    requests = []
    places = [0, *sorted(set(cuts)), len(STREAM)]
    for start, end in itertools.pairwise(places):
        connection.receive(STREAM[start:end])
        requests += taken(connection)
    assert [request.correlation_id for request in requests] == [1, 2, 3, 4]
    assert [request.api.name for request in requests] == [
        "ApiVersions",
        "Metadata",
        "Produce",
        "Fetch",
    ]
    assert requests[2].body.topic_data[0].partition_data[0].records == b"r" * 300
    assert requests[3].client_id == "test"
    assert connection.pending_bytes == 0


@given(st.permutations(range(6)))
def test_answers_leave_in_the_order_of_requests(order):
    """An answer waits for those of all earlier requests, in whatever order they come."""
    connection = Connection(LIMIT)
    connection.receive(b"".join(frame(ApiVersionsRequest, 0, n) for n in range(6)))
    requests = taken(connection)
    sent = []
    for number in order:
        sent += connection.answer(requests[number], [b"%d" % number])
    assert sent == [b"%d" % number for number in range(6)]
    assert connection.unanswered == 0
    assert connection.waiting_bytes == 0


def test_a_produce_without_answer_keeps_its_place():
    """The answer after an acks=0 is held back until that request is done, then sent."""
    connection = Connection(LIMIT)
    connection.receive(frame(ApiVersionsRequest, 0, 1) * 2)
    first, second = taken(connection)
    assert connection.answer(second, [b"second"]) == []
    assert connection.answer(first, ()) == [b"second"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (struct.pack(">i", -1), "-1 bytes"),
        (struct.pack(">i", LIMIT + 1), f"{LIMIT + 1} bytes"),
        (struct.pack(">i", 3), "3 bytes"),
        (struct.pack(">ihh", 20, 999, 0), "kind 999"),
        (struct.pack(">ihh", 20, 0, 13), "versions 0 to 12, not 13"),
        (struct.pack(">ihh", 20, 0, -1), "versions 0 to 12, not -1"),
        (struct.pack(">ihh", 5000, 18, 3), "at most 4096"),
    ],
)
def test_a_wrong_head_ends_the_connection_before_its_body_arrives(data, says):
    """Size, kind and version are refused as soon as they are there, naming the value."""
    connection = Connection(LIMIT)
    connection.receive(data)
    with pytest.raises(ProtocolError, match=says):
        connection.take()


def test_a_higher_version_of_apiversions_is_a_request_without_body():
    """The client gets an answer from which it can take a lower version."""
    connection = Connection(LIMIT)
    connection.receive(struct.pack(">ihhih", 12, 18, 9, 77, -1) + b"??")
    (request,) = taken(connection)
    assert (request.body, request.correlation_id, request.version) == (None, 77, 9)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(APIS)).flatmap(
        lambda key: st.tuples(st.just(key), st.integers(0, APIS[key].highest))
    ),
    st.binary(max_size=200),
)
def test_any_body_is_decoded_or_refused(kind, body):
    """Bytes from a client raise nothing but ProtocolError."""
    key, version = kind
    head = struct.pack(">hhih", key, version, 5, -1)
    connection = Connection(LIMIT)
    connection.receive(struct.pack(">i", len(head) + len(body)) + head + body)
    try:
        request = connection.take()
    except ProtocolError:
        return
    assert request is not None
    assert request.correlation_id == 5


@given(st.integers(8, len(frame(HeartbeatRequest, 3, group_id="g", member_id="m")) - 5))
def test_a_body_that_is_cut_short_is_refused(length):
    """A string that ends after its frame is an error, not a shorter string."""
    whole = frame(HeartbeatRequest, 3, group_id="g", member_id="m")[4:]
    cut = whole[:length]
    connection = Connection(LIMIT)
    connection.receive(struct.pack(">i", len(cut)) + cut)
    with pytest.raises(ProtocolError):
        taken(connection)
    assert connection.unanswered == 0


@pytest.mark.parametrize("version", range(13))
def test_a_large_body_of_many_parts_is_left_for_a_thread(version):
    """A Produce is large by its records, which are not decoded: it is left for its sets."""
    one = produce_fields([("topic", 0, b"r" * 300_000)], -1) | {"transactional_id": "tx"}
    topics = ProduceRequest.TopicProduceData
    sets = ProduceRequest.TopicProduceData.PartitionProduceData
    many = [
        topics(name="t", partition_data=[sets(index=n, records=b"r" * 50) for n in range(5000)])
    ]
    few = [
        topics(name=name, partition_data=[sets(index=0, records=b"r" * 50_000)]) for name in "ab"
    ]
    lists = FetchRequest, fetch_fields([("t", n, 5, 100, -1) for n in range(5_000)], 0, 1, 100)
    connection = Connection(1 << 24)
    for kind, fields in (
        (ProduceRequest, one),
        (ProduceRequest, one | {"topic_data": many}),
        (ProduceRequest, one | {"topic_data": few}),
        lists,
    ):
        highest = APIS[kind.API_KEY].highest
        connection.receive(frame(kind, min(version, highest), **fields))
    asked = [request.undecoded is not None for request in taken(connection)]
    assert asked == [False, True, False, True]


@pytest.mark.parametrize("version", [7, 12])
@pytest.mark.parametrize("topics", [1, 7_000])
def test_a_produce_with_too_many_sets_is_refused_before_it_is_decoded(monkeypatch, topics, version):
    """The limit counts sets, over any number of topics, and topics without sets."""
    monkeypatch.setattr(connection_module, "MAX_SETS", 20_000)
    topic = ProduceRequest.TopicProduceData
    sets = [topic.PartitionProduceData(index=n, records=None) for n in range(20_001)]
    for count, is_served in ((20_000, True), (20_001, False)):
        connection = Connection(1 << 24)
        each = -(-count // topics)
        data = [
            topic(
                name=f"t{number}",
                partition_data=sets[number * each : min(count, (number + 1) * each)],
            )
            for number in range(-(-count // each))
        ]
        connection.receive(
            frame(ProduceRequest, version, **produce_fields([], -1) | {"topic_data": data})
        )
        (request,) = taken(connection)
        if is_served:
            decode_body(request)
            assert sum(len(each.partition_data) for each in request.body.topic_data) == count
        else:
            with pytest.raises(ProtocolError, match="more than 20000 sets"):
                decode_body(request)


@pytest.mark.parametrize("version", [7, 12])
def test_topics_without_sets_count_as_sets(monkeypatch, version):
    """They take memory, too."""
    monkeypatch.setattr(connection_module, "MAX_SETS", 20_000)
    connection = Connection(1 << 24)
    data = [ProduceRequest.TopicProduceData(name="t", partition_data=[])] * 20_001
    fields = produce_fields([], -1) | {"topic_data": data}
    connection.receive(frame(ProduceRequest, version, **fields))
    (request,) = taken(connection)
    with pytest.raises(ProtocolError, match="more than 20000 sets"):
        decode_body(request)


def test_a_produce_with_tagged_fields_is_refused():
    """No version has one. The codec would copy all that follows for each of them."""
    sent = frame(ProduceRequest, 12, **produce_fields([("t", 0, b"r" * 100)], -1))
    assert sent[-3:] == bytes(3)
    for struct_from_the_end in range(3):
        at = len(sent) - 1 - struct_from_the_end
        tagged = bytearray(sent[:at] + b"\x01\x07\x01x" + sent[at + 1 :])
        struct.pack_into(">i", tagged, 0, len(tagged) - 4)
        connection = Connection(1 << 24)
        connection.receive(bytes(tagged))
        with pytest.raises(ProtocolError, match="tagged"):
            connection.take()


@pytest.mark.parametrize("tagged", [8, 2_000])
def test_tagged_fields_cost_no_more_than_their_bytes(tagged):
    """The codec copies all that follows for each struct that has some."""
    topics = (
        bytes(16) + b"\x02t" + (b"\x01\x07\x01x" if n < tagged else b"\0") for n in range(2_000)
    )
    body = b"\xd1\x0f" + b"".join(topics) + bytes(3)
    head = struct.pack(">hhih", 3, 12, 1, 1) + b"c\0"
    connection = Connection(LIMIT)
    connection.receive(struct.pack(">i", len(head + body)) + head + body)
    if tagged < 16:
        (request,) = taken(connection)
        assert len(request.body.topics) == 2_000
    else:
        with pytest.raises(ProtocolError, match="too many places"):
            connection.take()


def test_kafka_python_takes_the_broker_for_the_kafka_whose_requests_it_serves():
    """As a client "of 2.4" it would else send that Kafka's versions, such as Metadata 9."""
    less = HIGHEST_FOR["kafka-python"]
    served = {api.key: (api.lowest, less.get(api.key, api.highest)) for api in APIS.values()}
    assert infer_broker_version_from_api_versions(served) == (2, 4)


# -- Records are put into an encoded answer without the codec


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
