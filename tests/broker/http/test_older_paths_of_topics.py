"""Topics and namespaces of Pulsar 1, whose names have a cluster: over REST and on the wire."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.broker.http.older_paths import current_path
from pulsemark.testing import RawClient
from tests.support.attackers import attacked_broker, signed
from tests.support.secured import rest

Ask = Callable[..., tuple[int, str]]
AskOf = Callable[[BrokerThread], Ask]
NAMESPACE = "/admin/namespaces/public/standalone/n"
TOPIC = "persistent://public/standalone/n/a/b"
PATH = "/admin/persistent/public/standalone/n/t"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker without authorization."""
    folder: Path = tmp_path_factory.mktemp("older") / "data"
    with BrokerThread(BrokerConfig(data_dir=folder, port=0, http_port=0)) as started:
        yield started


@pytest.fixture
def ask(broker: BrokerThread, ask_of: AskOf) -> Ask:
    """What asks the broker."""
    return ask_of(broker)


def reason(answer: tuple[int, str]) -> tuple[int, str]:
    """An error's status and reason."""
    return answer[0], json.loads(answer[1])["reason"]


def test_a_namespace_with_a_cluster(ask: Ask) -> None:
    """It is made, listed, given policies and deleted by the paths of Pulsar 1 only."""
    assert ask("PUT", NAMESPACE) == (204, "")
    assert reason(ask("PUT", NAMESPACE)) == (409, "Namespace already exists")
    assert reason(ask("PUT", "/admin/v2/namespaces/public/standalone%2Fm"))[0] == 412
    status, text = reason(ask("PUT", "/admin/namespaces/public/elsewhere/n"))
    assert status == 403
    assert text.startswith("Cluster [elsewhere] is not in the list of allowed clusters")
    assert json.loads(ask("GET", "/admin/namespaces/public/standalone")[1]) == [
        "public/standalone/n"
    ]
    assert json.loads(ask("GET", "/admin/v2/namespaces/public")[1]) == [
        "public/default",
        "public/standalone/n",
    ]
    assert reason(ask("GET", "/admin/namespaces/public/elsewhere")) == (
        404,
        "Cluster does not exist",
    )
    assert ask("POST", f"{NAMESPACE}/messageTTL", 7)[0] == 204
    assert ask("GET", f"{NAMESPACE}/messageTTL") == (200, "7")
    assert ask("GET", f"{NAMESPACE}/destinations") == (200, "[]")
    assert ask("GET", f"{NAMESPACE}/topics")[0] == 405
    assert ask("DELETE", NAMESPACE) == (204, "")
    assert reason(ask("GET", NAMESPACE)) == (404, "Namespace does not exist")


def test_absent_namespaces_of_both_versions(ask: Ask) -> None:
    """Only for one of Pulsar 1 the backlog of an absent namespace cannot be cleared."""
    assert ask("POST", "/admin/v2/namespaces/public/absent/clearBacklog")[0] == 204
    for call in ("POST clearBacklog", "POST unsubscribe/s", "PUT unload"):
        method, part = call.split(" ")
        found = reason(ask(method, f"/admin/namespaces/public/standalone/absent/{part}"))
        assert found == (404, "Namespace does not exist")


def test_a_topic_needs_no_namespace_with_a_cluster(ask: Ask) -> None:
    """Pulsar does not look for it, so neither the namespace nor the tenant must exist."""
    for tenant in ("public", "absent"):
        path = f"/admin/persistent/{tenant}/nowhere/n/t"
        assert ask("PUT", path) == (204, "")
        assert ask("PUT", f"{path}/subscription/s") == (204, "")
        assert ask("GET", f"{path}/subscriptions") == (200, '["s"]')
        assert ask("PUT", f"{path}/compaction") == (204, "")
        assert ask("GET", f"{path}/compaction")[0] == 200
        assert ask("POST", f"{path}/subscription/s/expireMessages/1")[0] == 409
        found = reason(ask("GET", f"/admin/persistent/{tenant}/nowhere/n"))
        assert found == (404, "Namespace does not exist")
        assert ask("DELETE", path) == (204, "")
    assert reason(ask("PUT", "/admin/v2/persistent/public/absent/t")) == (
        404,
        "Namespace not found",
    )


def test_permissions_need_the_namespace(ask: Ask) -> None:
    """They are kept in it, so a topic of Pulsar 1 whose namespace is absent can have none."""
    path = "/admin/persistent/public/nowhere/n/p"
    assert ask("PUT", path) == (204, "")
    found = reason(ask("POST", f"{path}/permissions/r", ["produce"]))
    assert found == (404, "Topic's namespace does not exist")
    assert reason(ask("DELETE", f"{path}/permissions/r")) == (404, "")
    assert ask("GET", f"{path}/permissions")[0] == 404


def test_clients_use_names_with_a_cluster(broker: BrokerThread, ask: Ask) -> None:
    """What looks like a slash in a topic's name makes a name of Pulsar 1."""
    assert ask("PUT", NAMESPACE) == (204, "")
    with RawClient.from_url(broker.service_url) as raw:
        consumer = raw.subscribe(TOPIC, "s", earliest=True)
        raw.create_producer(TOPIC).send(b"x")
        consumer.flow(1)
        assert consumer.receive().message_id.entry_id == 0
    assert json.loads(ask("GET", "/admin/persistent/public/standalone/n")[1]) == [TOPIC]
    encoded = "/admin/persistent/public/standalone/n/a%2Fb/stats"
    assert json.loads(ask("GET", encoded)[1])["msgInCounter"] == 1
    lookup = "/lookup/v2/destination/persistent/public/standalone/n/a%2Fb"
    assert json.loads(ask("GET", lookup)[1])["brokerUrl"] == broker.service_url


def test_topics_with_a_cluster_are_there_after_a_restart(tmp_path: Path, ask_of: AskOf) -> None:
    """Their namespace, which does not exist, is found in their names."""
    config = BrokerConfig(data_dir=tmp_path / "data", port=0, http_port=0)
    with BrokerThread(config) as broker, RawClient.from_url(broker.service_url) as raw:
        raw.create_producer(TOPIC).send(b"x")
    with BrokerThread(config) as broker:
        call = ask_of(broker)
        path = "/admin/persistent/public/standalone/n/a%2Fb/stats"
        assert json.loads(call("GET", path)[1])["msgInCounter"] == 0
        assert call("PUT", NAMESPACE) == (204, "")
        assert json.loads(call("GET", "/admin/persistent/public/standalone/n")[1]) == [TOPIC]
        assert call("DELETE", "/admin/persistent/public/standalone/n/a%2Fb") == (204, "")


def test_who_may_not_use_a_tenant_may_not_use_its_older_names() -> None:
    """The cluster in a name changes nothing: the tenant decides, an absent one has no users."""
    with attacked_broker() as broker:
        for path in (
            "/admin/persistent/acme/standalone/ns/t",
            "/admin/persistent/absent/standalone/ns/t",
            "/admin/v2/persistent/acme/ns/a%2Fb",
            "/admin/namespaces/acme/standalone/n",
        ):
            status = rest(broker, "PUT", path, signed("stranger")).status
            assert status in (401, 403, 404), path


@pytest.mark.parametrize(
    ("older", "now"),
    [
        ("admin/properties/t", "admin/v2/tenants/t"),
        ("admin/functions/t/n", "admin/v2/functions/t/n"),
        ("admin/broker-stats/destinations", "admin/v2/broker-stats/topics"),
        (
            "admin/namespaces/standalone/antiAffinity/g",
            "admin/namespaces/standalone/antiAffinity/g",
        ),
        ("admin/persistent/t/c/n/x/maxProducers", "admin/persistent/t/c/n/x/maxProducers"),
        ("admin/v2/clusters", "admin/v2/clusters"),
    ],
)
def test_paths_that_have_another_form_now(older: str, now: str) -> None:
    """Only what Pulsar 1 had is translated."""
    assert current_path(tuple(older.split("/"))) == tuple(now.split("/"))


def test_a_part_of_the_web_server_without_a_slash(broker: BrokerThread) -> None:
    """The client is sent to the path with one."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    opener = urllib.request.build_opener(Stay)
    with pytest.raises(urllib.error.HTTPError) as caught:
        opener.open(f"{broker.http_url}/admin/v2", timeout=30)
    with caught.value as answer:
        found = (answer.code, answer.headers["Location"])
        assert found == (302, f"{broker.http_url}/admin/v2/")
