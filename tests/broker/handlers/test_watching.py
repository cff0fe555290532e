"""WATCH_TOPIC_LIST: clients are notified of topics that come and go."""

from __future__ import annotations

from typing import Any

import pytest

from pulsemark.broker.topics.topic_watchers import topics_hash
from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import BaseCommand
from pulsemark.testing import RawClient
from pulsemark.wire import TopicName, commands
from tests.support.secured import rest, secured_broker, set_up, token_of

UPDATE = BaseCommand.WATCH_TOPIC_UPDATE


def watch(client, number, pattern, digest=None, namespace="public/default"):
    """The answer to WATCH_TOPIC_LIST."""
    return client.request(
        lambda request: commands.watch_topic_list(namespace, request, number, pattern, digest)
    )


def test_a_watcher_gets_new_and_deleted_topics(raw, broker, topic):
    """Each change comes with the digest of all matching names, before the producer's answer."""
    assert watch(raw, 1, f"{topic}-.*").topics_hash == "00000000"
    first, second = f"{topic}-a", f"{topic}-b"
    for names in ([first], [first, second]):
        producer = raw.create_producer(names[-1])
        update = raw.wait_unsolicited(UPDATE)
        assert list(update.new_topics) == names[-1:]
        assert not update.deleted_topics
        assert update.topics_hash == topics_hash(names)
    raw.create_producer(f"other-{topic.rpartition('/')[2]}")
    producer.close()
    broker.call(lambda running: running.services.topics.delete(TopicName.parse(second)))
    update = raw.wait_unsolicited(UPDATE)
    assert list(update.deleted_topics) == [second]
    assert not update.new_topics
    assert update.topics_hash == topics_hash([first])


def test_a_watcher_with_the_right_digest_gets_no_names(raw, topic):
    """The names come only if the client does not have them."""
    raw.create_producer(topic)
    answer = watch(raw, 1, topic)
    assert list(answer.topic) == [topic]
    again = watch(raw, 2, topic, answer.topics_hash)
    assert not again.topic
    assert again.topics_hash == answer.topics_hash


def test_the_end_of_a_watch_ends_its_updates(raw, topic):
    """SUCCESS, also for a watcher that does not exist; then no update comes."""
    watch(raw, 1, f"{topic}.*")
    for _ in range(2):
        raw.request(lambda request: commands.watch_topic_list_close(request, 1))
    raw.create_producer(topic)
    watch(raw, 2, f"{topic}.*")
    raw.create_producer(f"{topic}-later")
    assert raw.wait_unsolicited(UPDATE).watcher_id == 2


def test_watchers_end_with_their_connection(broker, topic):
    """A lost connection leaves no watcher, which would keep its session in memory."""
    watchers = broker.broker.services.topics.names.watchers
    with RawClient.from_url(broker.service_url) as client:
        watch(client, 1, f"{topic}.*", namespace="public/default")
        assert watchers.count() == 1
    with RawClient.from_url(broker.service_url) as client:
        for _ in range(100):
            client.ping()
            if watchers.count() == 0:
                break
        assert watchers.count() == 0


@pytest.mark.parametrize(
    ("pattern", "error"), [("[", "InvalidTopicName"), ("(a+)+b", "NotAllowedError")]
)
def test_a_pattern_that_cannot_be_used_is_refused(raw, pattern, error):
    """An invalid pattern, and one that could take too long."""
    with pytest.raises(RequestRefusedError) as caught:
        watch(raw, 1, pattern)
    assert caught.value.error_name == error


def test_a_malformed_namespace_closes_the_connection(broker):
    """As in Pulsar."""
    with RawClient.from_url(broker.service_url) as client:
        client.write(commands.watch_topic_list("x", 1, 1, ".*"))
        client.wait_closed()


def test_a_connection_has_a_limited_number_of_watchers(broker, topic):
    """The 101st is refused; an ended one makes room."""
    with RawClient.from_url(broker.service_url) as client:
        for number in range(100):
            watch(client, number, topic)
        with pytest.raises(RequestRefusedError, match="at most 100"):
            watch(client, 100, topic)
        client.request(lambda request: commands.watch_topic_list_close(request, 5))
        watch(client, 100, topic)


def test_a_long_pattern_is_left_to_the_client(raw):
    """Above 50 characters, as in Pulsar."""
    watch(raw, 1, "x" * 50)
    with pytest.raises(RequestRefusedError, match="Pattern longer than maximum: 50"):
        watch(raw, 2, "x" * 51)


@pytest.mark.parametrize("domain", ["persistent://", "non-persistent://"])
def test_the_domain_of_a_pattern_does_not_count_for_its_length(raw, domain):
    """Java clients send it with the pattern; Pulsar takes it off before it looks at the length."""
    watch(raw, 1, domain + "x" * 50)
    with pytest.raises(RequestRefusedError, match="Pattern longer than maximum: 50"):
        watch(raw, 2, domain + "x" * 51)


def test_a_role_that_lost_its_permission_gets_no_more_names():
    """Neither updates nor the answer to a watch that began before; with the permission, again."""
    place = "/admin/v2/namespaces/acme/ns/permissions/y"
    boss = token_of("boss")
    with secured_broker() as broker:
        set_up(broker)
        assert rest(broker, "POST", place, boss, ["consume"]).status == 204
        options: dict[str, Any] = {"auth_method_name": "token"}
        with (
            RawClient.from_url(
                broker.service_url, auth_data=token_of("y").encode(), **options
            ) as y,
            RawClient.from_url(broker.service_url, auth_data=boss.encode(), **options) as other,
        ):
            for client in (y, other):
                watch(client, 1, "acme/ns/.*", namespace="acme/ns")
            assert rest(broker, "DELETE", place, boss).status == 204
            other.create_producer("persistent://acme/ns/secret")
            assert list(other.wait_unsolicited(UPDATE).new_topics)
            assert rest(broker, "POST", place, boss, ["consume"]).status == 204
            other.create_producer("persistent://acme/ns/open")
            update = y.wait_unsolicited(UPDATE)
            assert list(update.new_topics) == ["persistent://acme/ns/open"]
