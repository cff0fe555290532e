"""Settings that are changed over REST while the broker runs, as Pulsar's dynamic configuration."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from pulsemark.client import RequestRefusedError
from pulsemark.testing import RawClient, running_broker


def ask(broker, method, path=""):
    """Status and JSON of a route below `/admin/v2/brokers/configuration`."""
    url = f"{broker.http_url}/admin/v2/brokers/configuration{path}"
    try:
        request = urllib.request.Request(url, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            status, raw = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, raw = error.code, error.read()
    return status, json.loads(raw or b"null")


def test_a_changed_setting_is_in_force_at_once_and_after_a_restart(topic):
    """Until it is taken back; then the configuration's value holds again."""
    with running_broker() as broker:
        assert ask(broker, "POST", "/allowAutoTopicCreation/false") == (200, None)
        for _ in range(2):
            with (
                RawClient.from_url(broker.service_url) as raw,
                pytest.raises(RequestRefusedError, match="TopicNotFound"),
            ):
                raw.create_producer(topic)
            assert ask(broker, "GET", "/values") == (200, {"allowAutoTopicCreation": "false"})
            broker.restart()
        assert ask(broker, "DELETE", "/allowAutoTopicCreation") == (200, None)
        with RawClient.from_url(broker.service_url) as raw:
            raw.create_producer(topic).send(b"x")
        assert ask(broker, "GET", "/values") == (200, {})


def test_a_setting_that_is_read_at_the_start_holds_from_the_next_start_on(topic):
    """It is stored, has no effect before, and all parts of the next broker have it."""
    with running_broker() as broker:
        assert ask(broker, "POST", "/dispatcherMaxReadSizeBytes/4096") == (200, None)
        assert broker.broker.services.config.dispatch_round_bytes == 1024 * 1024
        broker.restart()
        assert broker.broker.services.config.dispatch_round_bytes == 4096
        assert broker.broker.services.topics.config.dispatch_round_bytes == 4096
        assert ask(broker, "GET", "/runtime")[1]["dispatcherMaxReadSizeBytes"] == "4096"


def test_a_value_that_is_not_valid_has_no_effect(broker, caplog):
    """As in Pulsar it is stored and shown; the log names setting and value."""
    assert ask(broker, "POST", "/allowAutoSubscriptionCreation/maybe") == (200, None)
    assert ask(broker, "GET", "/values") == (200, {"allowAutoSubscriptionCreation": "maybe"})
    assert broker.broker.services.config.allow_auto_subscription_creation is True
    assert "allowAutoSubscriptionCreation=maybe" in caplog.text
    assert ask(broker, "DELETE", "/allowAutoSubscriptionCreation") == (200, None)


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        ("POST", "/brokerServicePort/1", "Can't update non-dynamic configuration"),
        ("POST", "/superUserRoles/me", "Can't update non-dynamic configuration"),
        ("POST", "/nosuch/1", "Can't update non-dynamic configuration"),
        ("POST", "/loadBalancerEnabled/true", "Can't update non-dynamic configuration"),
        ("DELETE", "/brokerServicePort", "Can't delete non-dynamic configuration"),
    ],
)
def test_other_settings_are_refused(broker, method, path, reason):
    """With Pulsar's status and reason, and nothing has changed."""
    status, answer = ask(broker, method, path)
    assert status == 412
    assert reason in answer["reason"]
    assert ask(broker, "GET", "/values") == (200, {})
