"""The policy `mirrorSources` at all levels, over HTTP and by the command."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.broker.configuration.settings import parse_settings, runtime_settings
from pulsemark.broker.errors import ConfigError
from pulsemark.broker.policies.own_policies import MIRRORS
from pulsemark.broker.policies.policy import PolicyValueError
from pulsemark.cli import main
from pulsemark.testing import RawClient, running_broker

TOPIC = "persistent://public/default/t"
OF_NAMESPACE = "/admin/v2/namespaces/public/default/mirrorSources"
OF_TOPIC = "/admin/v2/persistent/public/default/t/mirrorSources"


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """A broker with a topic."""
    with running_broker() as running, RawClient.from_url(running.service_url) as client:
        client.create_producer(TOPIC)
        yield running


def call(broker: BrokerThread, method: str, path: str, value: Any = None) -> tuple[int, Any]:
    """Status, and the answer's JSON."""
    body = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(broker.http_url + path, body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_most_specific_level_counts(broker: BrokerThread) -> None:
    """The topic's value, else the namespace's, else the broker's; an empty list allows none."""
    assert call(broker, "GET", OF_TOPIC) == (200, None)
    assert call(broker, "GET", f"{OF_TOPIC}?applied=true") == (200, [])
    assert call(broker, "POST", OF_NAMESPACE, ["west", "east", "west"])[0] == 204
    assert call(broker, "GET", OF_NAMESPACE) == (200, ["east", "west"])
    assert call(broker, "GET", f"{OF_TOPIC}?applied=true") == (200, ["east", "west"])
    assert call(broker, "POST", OF_TOPIC, [])[0] == 204
    assert call(broker, "GET", f"{OF_TOPIC}?applied=true") == (200, [])
    assert call(broker, "DELETE", OF_TOPIC)[0] == 204
    assert call(broker, "DELETE", OF_NAMESPACE)[0] == 204
    assert call(broker, "GET", OF_NAMESPACE) == (200, None)


@pytest.mark.parametrize("value", ["west", {"a": 1}, [1], [""], ["x" * 256], ["c"] * 101])
def test_bad_values_are_refused(broker: BrokerThread, value: Any) -> None:
    """400 with the reason, and the old value stays."""
    call(broker, "POST", OF_NAMESPACE, ["west"])
    status, text = call(broker, "POST", OF_NAMESPACE, value)
    assert (status, "mirrorSources" in text) == (400, True)
    assert call(broker, "GET", OF_NAMESPACE) == (200, ["west"])
    with pytest.raises(PolicyValueError):
        MIRRORS.read(value)
    assert call(broker, "PUT", "/admin/v2/namespaces/public/n", {"mirrorSources": value})[0] == 400


def test_it_is_kept_and_a_namespace_can_be_made_with_it(tmp_path: Path) -> None:
    """Over a restart the policies are the same."""
    data = tmp_path / "data"
    with running_broker(data_dir=data) as broker, RawClient.from_url(broker.service_url) as client:
        client.create_producer(TOPIC)
        made = call(broker, "PUT", "/admin/v2/namespaces/public/n", {"mirrorSources": ["b", "a"]})
        assert made[0] == 204
        call(broker, "POST", OF_TOPIC, ["west"])
    with running_broker(data_dir=data, mirror_sources=("*",)) as broker:
        assert call(broker, "GET", OF_TOPIC) == (200, ["west"])
        assert call(broker, "GET", OF_NAMESPACE) == (200, None)
        path = "/admin/v2/namespaces/public/n/mirrorSources"
        assert call(broker, "GET", path) == (200, ["a", "b"])


def test_wrong_names(broker: BrokerThread) -> None:
    """Absent topics are 404, partitions 412."""
    assert call(broker, "GET", OF_TOPIC.replace("/t/", "/absent/"))[0] == 404
    assert call(broker, "GET", OF_TOPIC.replace("/t/", "/t-partition-0/"))[0] == 412


def test_the_command(broker: BrokerThread, capsys: pytest.CaptureFixture[str]) -> None:
    """`pulsemark policies` sets, shows and unsets it."""
    url = ("--admin-url", broker.http_url)

    def said(*arguments: str) -> str:
        assert main(["policies", *arguments, *url]) == 0
        return capsys.readouterr().out.strip()

    assert said("set", "public/default", "mirrorSources", "--clusters", "west, east") == ""
    assert said("get", "public/default", "mirrorSources") == "east,west"
    assert said("get", "t", "mirrorSources", "--applied", "--json") == (
        f'{{"target":"{TOPIC}","policy":"mirrorSources","value":["east","west"]}}'
    )
    assert said("set", "t", "mirrorSources", "--clusters", "") == ""
    assert said("get", "t", "mirrorSources") == "none"
    assert said("unset", "t", "mirrorSources") == ""
    assert said("get", "t", "mirrorSources") == "not set"
    assert main(["policies", "set", "t", "mirrorSources", "--bytes", "1", *url]) == 2
    assert main(["policies", "set", "t", "mirrorSources", *url]) == 2


def test_the_setting() -> None:
    """The broker's default is a setting, checked like others."""
    found = parse_settings({"pulsemarkMirrorSources": "west, east"}).config()
    assert found.mirror_sources == ("west", "east")
    assert runtime_settings(BrokerConfig(mirror_sources=("*",)))["pulsemarkMirrorSources"] == "*"
    with pytest.raises(ConfigError, match="mirror_sources"):
        BrokerConfig(mirror_sources="west")  # type: ignore[arg-type]
