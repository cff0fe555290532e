"""PARTITIONED_METADATA, LOOKUP and GET_TOPICS_OF_NAMESPACE."""

from __future__ import annotations

import pytest

from pulsemark.broker.topics.topic_watchers import topics_hash
from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import CommandGetTopicsOfNamespace, CommandLookupTopicResponse
from pulsemark.wire import commands


def topics_of(raw, namespace, **options):
    """The answer to GET_TOPICS_OF_NAMESPACE."""
    return raw.request(
        lambda request_id: commands.get_topics_of_namespace(namespace, request_id, **options)
    )


def test_lookup_names_this_broker_through_the_address_the_client_used(raw, broker, topic):
    """Connect, authoritative, through the service URL: this also works after a port mapping."""
    answer = raw.lookup(topic)
    assert CommandLookupTopicResponse.Connect == answer.response
    assert broker.service_url == answer.brokerServiceUrl
    assert answer.authoritative
    assert answer.proxy_through_service_url


def test_an_unknown_listener_is_not_ready(raw, topic):
    """The text is what official clients look for."""
    with pytest.raises(RequestRefusedError) as caught:
        raw.lookup(topic, advertised_listener_name="test")
    assert caught.value.error_name == "ServiceNotReady"
    assert caught.value.message == "the broker do not have test listener"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("persistent://public/nowhere/t", "TopicNotFound"),
        ("persistent://public/default/..", "InvalidTopicName"),
    ],
)
def test_lookup_and_partitions_refuse_what_cannot_be(raw, name, error):
    """Both commands answer with their own response's error."""
    for ask in (raw.lookup, raw.partitions):
        with pytest.raises(RequestRefusedError) as caught:
            ask(name)
        assert error == caught.value.error_name


def test_partitions_of_an_absent_topic(raw, topic):
    """0 where it could come into being, TopicNotFound where the client asks not to."""
    assert raw.partitions(topic) == 0
    with pytest.raises(RequestRefusedError, match="TopicNotFound"):
        raw.partitions(topic, create=False)
    raw.create_producer(topic)
    assert raw.partitions(topic, create=False) == 0


def test_topics_of_a_namespace_with_their_hash(raw, http):
    """Names sorted, partitions one by one, with Pulsar's digest of the list."""
    assert http("PUT", "/admin/v2/namespaces/public/listed").status == 204
    assert http("PUT", "/admin/v2/persistent/public/listed/p/partitions", 2).status == 204
    raw.create_producer("persistent://public/listed/a")
    answer = topics_of(raw, "public/listed")
    names = [f"persistent://public/listed/{n}" for n in ("a", "p-partition-0", "p-partition-1")]
    assert names == list(answer.topics)
    assert topics_hash(names) == answer.topics_hash
    assert answer.changed


def test_an_unchanged_list_is_not_sent_again(raw, http):
    """A client that knows the hash gets changed=False and no names."""
    http("PUT", "/admin/v2/namespaces/public/known")
    raw.create_producer("persistent://public/known/a")
    digest = topics_of(raw, "public/known").topics_hash
    answer = topics_of(raw, "public/known", topics_hash=digest)
    assert ([], False, digest) == (list(answer.topics), answer.changed, answer.topics_hash)


def test_an_absent_namespace_has_no_topics(raw):
    """The answer is an empty success, with the hash 00000000."""
    answer = topics_of(raw, "public/nowhere")
    assert (list(answer.topics), answer.topics_hash) == ([], "00000000")


@pytest.mark.parametrize(
    ("mode", "count"),
    [
        (CommandGetTopicsOfNamespace.PERSISTENT, 1),
        (CommandGetTopicsOfNamespace.NON_PERSISTENT, 0),
        (CommandGetTopicsOfNamespace.ALL, 1),
    ],
)
def test_the_mode_chooses_the_domain(raw, http, mode, count):
    """PERSISTENT, NON_PERSISTENT or ALL."""
    http("PUT", "/admin/v2/namespaces/public/modes")
    raw.create_producer("persistent://public/modes/a")
    assert count == len(topics_of(raw, "public/modes", mode=mode).topics)


@pytest.mark.parametrize(
    ("pattern", "found", "filtered"),
    [
        ("persistent://public/filtered/a.*", ["a1", "a2"], True),
        ("public/filtered/b", ["b"], True),
        ("(a+)+$", ["a1", "a2", "b"], False),
        ("a" + "1" * 49, [], True),
        ("", [], True),
        ("a" + "1" * 50, ["a1", "a2", "b"], False),
    ],
)
def test_a_pattern_is_applied_where_that_is_cheap(raw, http, pattern, found, filtered):
    """A pattern that may be slow is left to the client, and the answer says so."""
    http("PUT", "/admin/v2/namespaces/public/filtered")
    for name in ("a1", "a2", "b"):
        raw.create_producer(f"persistent://public/filtered/{name}").close()
    answer = topics_of(raw, "public/filtered", topics_pattern=pattern)
    assert found == [name.rpartition("/")[2] for name in answer.topics]
    assert filtered == answer.filtered


def test_an_invalid_pattern_is_refused(raw):
    """MetadataError, as in Pulsar."""
    with pytest.raises(RequestRefusedError, match="MetadataError"):
        topics_of(raw, "public/default", topics_pattern="[")


def test_the_hash_is_pulsars():
    """CRC32C of the sorted names joined by commas, little-endian hex."""
    assert topics_hash([]) == "00000000"
    assert topics_hash(["b", "a"]) == topics_hash(["a", "b"])
    assert topics_hash(["a", "b"]) != "c0a8f6dc"


@pytest.mark.parametrize(
    "mode", [CommandGetTopicsOfNamespace.NON_PERSISTENT, CommandGetTopicsOfNamespace.ALL]
)
def test_only_stored_topics_of_an_absent_namespace_can_be_asked_for(raw, mode):
    """Other modes get an error, as in Pulsar."""
    with pytest.raises(RequestRefusedError, match="Namespace not found"):
        topics_of(raw, "public/nowhere", mode=mode)


def test_there_are_no_transaction_coordinators(raw):
    """A client that wants transactions reads 0 partitions, and says that they are off."""
    name = "persistent://pulsar/system/transaction_coordinator_assign"
    answer = raw.request(lambda request: commands.partitioned_metadata(name, request))
    assert answer.partitions == 0


def test_a_pattern_matches_partitions_by_their_topics_name(raw, http):
    """As Java clients look for them; a pattern with the partition's own name finds nothing."""
    assert http("PUT", "/admin/v2/namespaces/public/parts").status == 204
    assert http("PUT", "/admin/v2/persistent/public/parts/p/partitions", 2).status == 204
    names = [f"persistent://public/parts/p-partition-{n}" for n in range(2)]
    patterns = {"^persistent://public/parts/p$": names, "public/parts/p-partition-.*": []}
    for number, (pattern, expected) in enumerate(patterns.items()):
        answer = topics_of(raw, "public/parts", topics_pattern=pattern)
        assert (list(answer.topics), answer.filtered) == (expected, True)
        watched = raw.request(
            lambda request, pattern=pattern, number=number: commands.watch_topic_list(
                "public/parts", request, number, pattern
            )
        )
        assert list(watched.topic) == expected
