"""The HTTP interface: lookup, administration, and bad requests of browsers and scanners."""

from __future__ import annotations

import socket
from urllib.parse import quote

import pulsar
import pytest

from pulsemark.proto.pulsar_api_pb2 import Schema
from pulsemark.testing import RawClient, SettableClock, running_broker

START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def clock():
    """The clock of this module's broker."""
    return SettableClock(START_MS)


@pytest.fixture(scope="module")
def broker(clock):
    """A broker with a settable clock, with small limits for bodies."""
    with running_broker(
        clock=clock,
        max_http_body_bytes=2000,
        http_idle_timeout_ms=500,
        force_delete_namespace_allowed=True,
    ) as running:
        yield running


def path_of(topic, rest=""):
    """The admin interface's path of a topic."""
    return f"/admin/v2/{topic.replace('://', '/')}{rest}"


def exchange(broker, data):
    """Send bytes to the HTTP port and return all that comes until the connection ends."""
    host, port = broker.http_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as link:
        link.sendall(data)
        answer = b""
        while part := link.recv(65536):
            answer += part
        return answer


# -- the broker -----------------------------------------------------------------------------------


def test_a_fresh_broker_has_the_cluster_standalone(http):
    """Readiness checks compare this answer as text."""
    answer = http("GET", "/admin/v2/clusters")
    assert (
        answer.status,
        answer.body,
        answer.content_type,
    ) == (200, b'["standalone"]', "application/json")


def test_health_is_ok(http):
    """The word that health checks look for."""
    assert (http("GET", "/admin/v2/brokers/health").status, b"ok") == (200, b"ok")
    assert http("GET", "/admin/v2/brokers/health").body == b"ok"
    assert http("GET", "/admin/v2/brokers/ready").body == b"ok"
    assert http("GET", "/status.html").body == b"OK"


def test_clusters_and_brokers_name_this_one(broker, http):
    """Details of the one cluster, and of no other."""
    details = http("GET", "/admin/v2/clusters/standalone").json
    assert (broker.http_url, broker.service_url) == (
        details["serviceUrl"],
        details["brokerServiceUrl"],
    )
    address = broker.http_url.removeprefix("http://")
    assert [address] == http("GET", "/admin/v2/brokers/standalone").json
    assert http("GET", "/admin/v2/clusters/other").status == 404
    assert b"pulsemark" in http("GET", "/admin/v2/brokers/version").body


def test_lookup_answers_every_key_that_clients_read(broker, http, topic):
    """brokerUrl, brokerUrlSsl (empty), httpUrl, nativeUrl."""
    answer = http("GET", f"/lookup/v2/topic/{topic.replace('://', '/')}")
    assert {
        "brokerUrl": broker.service_url,
        "brokerUrlSsl": "",
        "httpUrl": broker.http_url,
        "nativeUrl": broker.service_url,
    } == answer.json
    assert http("GET", "/lookup/v2/topic/persistent/public/nowhere/t").status == 404
    assert http("GET", "/lookup/v2/topic/elsewhere/public/default/t").status == 404


# -- tenants and namespaces -----------------------------------------------------------------------


def test_a_tenants_life(http):
    """Make, see, change, and delete once it is empty."""
    here = {"allowedClusters": ["standalone"]}
    assert http("PUT", "/admin/v2/tenants/acme", {"adminRoles": ["a"], **here}).status == 204
    assert http("PUT", "/admin/v2/tenants/acme", here).status == 409
    assert "acme" in http("GET", "/admin/v2/tenants").json
    assert http("GET", "/admin/v2/tenants/acme").json == {
        "adminRoles": ["a"],
        "allowedClusters": ["standalone"],
    }
    assert http("POST", "/admin/v2/tenants/acme", {"adminRoles": ["b"], **here}).status == 204
    assert http("GET", "/admin/v2/tenants/acme").json["adminRoles"] == ["b"]
    assert http("PUT", "/admin/v2/namespaces/acme/n").status == 204
    assert http("DELETE", "/admin/v2/tenants/acme").status == 409
    assert http("DELETE", "/admin/v2/namespaces/acme/n").status == 204
    assert http("DELETE", "/admin/v2/tenants/acme").status == 204
    assert http("GET", "/admin/v2/tenants/acme").status == 404


def test_a_namespaces_life(http, raw):
    """Make, list, refuse to delete with topics in it, delete with force."""
    assert http("PUT", "/admin/v2/namespaces/nobody/n").status == 404
    assert http("PUT", "/admin/v2/namespaces/public/life").status == 204
    assert http("PUT", "/admin/v2/namespaces/public/life").status == 409
    assert "public/life" in http("GET", "/admin/v2/namespaces/public").json
    assert http("GET", "/admin/v2/namespaces/public/life").json["bundles"]["numBundles"] == 4
    raw.create_producer("persistent://public/life/a").close()
    assert http("PUT", "/admin/v2/persistent/public/life/p/partitions", 1).status == 204
    names = ["persistent://public/life/a", "persistent://public/life/p-partition-0"]
    assert names == http("GET", "/admin/v2/namespaces/public/life/topics").json
    assert names == http("GET", "/admin/v2/persistent/public/life").json
    assert http("GET", "/admin/v2/non-persistent/public/life").json == []
    assert http("GET", "/admin/v2/namespaces/public/life/topics?mode=NON_PERSISTENT").json == []
    assert http("DELETE", "/admin/v2/namespaces/public/life").status == 409
    assert http("DELETE", "/admin/v2/namespaces/public/life?force=true").status == 204
    assert http("GET", "/admin/v2/namespaces/public/life").status == 404
    assert http("GET", "/admin/v2/persistent/public/life").status == 404


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "a%00b", "a%2F..%2Fb", "x" * 300, "%20"])
def test_impossible_names_are_refused_everywhere(http, name):
    """No path out of the data folder, no control characters, no empty parts."""
    assert http("PUT", f"/admin/v2/tenants/{name}").status == 412
    assert http("PUT", f"/admin/v2/namespaces/public/{name}").status == 412
    for rest, method in (("", "PUT"), ("/partitions", "GET"), ("/stats", "GET")):
        assert http(method, f"/admin/v2/persistent/public/default/{name}{rest}", {}).status == 412


# -- topics ---------------------------------------------------------------------------------------


def test_a_topics_life(http, raw, topic):
    """Make, see, not delete while in use, delete; its data is gone."""
    assert http("GET", path_of(topic, "/stats")).status == 404
    assert http("PUT", path_of(topic)).status == 204
    assert http("PUT", path_of(topic)).status == 409
    producer = raw.create_producer(topic)
    producer.send(b"x")
    assert http("DELETE", path_of(topic)).status == 412
    producer.close()
    assert http("DELETE", path_of(topic)).status == 204
    assert http("DELETE", path_of(topic)).status == 404
    consumer = raw.subscribe(topic, "s", earliest=True)
    assert consumer.get_last_message_id()[0].entry_id == -1


def test_deleting_with_force_disconnects(http, broker, topic):
    """Producers and consumers are closed, and the topic goes."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s")
        assert http("DELETE", path_of(topic, "?force=true")).status == 204
        client.ping()
        assert producer.is_closed
        assert consumer.is_closed


def test_names_with_any_characters_survive_the_url(http, raw):
    """Percent-encoded, decoded once."""
    topic = "persistent://public/default/a b%2F+?ü#"
    path = f"/admin/v2/persistent/public/default/{quote('a b%2F+?ü#', safe='')}"
    raw.create_producer(topic).send(b"x")
    assert http("GET", f"{path}/stats").status == 200
    assert topic in http("GET", "/admin/v2/persistent/public/default").json


def test_partitioned_topics(http, raw, topic):
    """Make, grow, list, delete; wrong numbers and wrong kinds are refused."""
    assert http("GET", path_of(topic, "/partitions")).status == 404
    assert http("GET", path_of(topic, "/partitions?checkAllowAutoCreation=true")).json == {
        "partitions": 0,
        "deleted": False,
    }
    assert http("PUT", path_of(topic, "/partitions"), 0).status == 406
    assert http("PUT", path_of(topic, "/partitions"), 1_000_000).status == 406
    assert http("PUT", path_of(topic, "/partitions"), "many").status == 400
    assert http("PUT", path_of(topic, "/partitions"), raw_body=b" 2 ").status == 204
    assert http("PUT", path_of(topic, "/partitions"), 2).status == 409
    assert http("PUT", path_of(topic + "-partition-0", "/partitions"), 2).status == 412
    assert http("GET", path_of(topic, "/partitions")).json == {"partitions": 2, "deleted": False}
    assert topic in http("GET", "/admin/v2/persistent/public/default/partitioned").json
    assert http("POST", path_of(topic, "/partitions"), 1).status == 422
    assert http("POST", path_of(topic, "/partitions"), 3).status == 204
    assert raw.partitions(topic) == 3
    assert len(http("GET", path_of(topic, "/partitioned-stats")).json["partitions"]) == 3
    assert http("DELETE", path_of(topic)).status == 409
    producer = raw.create_producer(topic + "-partition-2")
    assert http("DELETE", path_of(topic, "/partitions")).status == 412
    producer.close()
    assert http("DELETE", path_of(topic, "/partitions")).status == 204
    assert http("GET", path_of(topic, "/partitions")).status == 404
    assert http("GET", path_of(topic + "-partition-0", "/stats")).status == 404


def test_a_partitioned_topic_asked_by_its_own_name(http, raw, topic):
    """What can be asked of all partitions is; what one log alone can answer is refused."""
    http("PUT", path_of(topic, "/partitions"), 2)
    parts = [f"{topic}-partition-{index}" for index in range(2)]
    assert http("GET", path_of(topic, "/subscriptions")).json == []
    start = {"ledgerId": -1, "entryId": -1}
    assert http("PUT", path_of(topic, "/subscription/s"), start).status == 204
    assert http("PUT", path_of(topic, "/subscription/s"), start).status == 409
    assert http("GET", path_of(topic, "/subscriptions")).json == ["s"]
    for part in parts:
        raw.create_producer(part).send(b"x")
        assert http("GET", path_of(part, "/subscriptions")).json == ["s"]

    def backlogs():
        rows = http("GET", path_of(topic, "/partitioned-stats")).json["partitions"]
        return [rows[part]["subscriptions"]["s"]["msgBacklog"] for part in parts]

    assert backlogs() == [1, 1]
    assert http("POST", path_of(topic, "/subscription/s/skip_all")).status == 204
    assert backlogs() == [0, 0]
    assert http("POST", path_of(topic, "/subscription/s/resetcursor/0")).status == 204
    assert backlogs() == [1, 1]
    for what in ("stats", "internalStats", "lastMessageId"):
        assert http("GET", path_of(topic, f"/{what}")).status == 404
    assert http("GET", path_of(topic, "/messageid/0")).status == 405
    assert http("POST", path_of(topic, "/subscription/s/skip/1")).status == 405
    assert http("POST", path_of(topic, "/subscription/s/resetcursor"), start).status == 405
    consumers = [raw.subscribe(part, "other") for part in parts]
    assert http("PUT", path_of(topic, "/unload")).status == 204
    raw.ping()
    assert all(consumer.is_closed for consumer in consumers)
    assert http("DELETE", path_of(topic, "/subscription/s")).status == 204
    assert http("DELETE", path_of(topic, "/subscription/s")).status == 404
    assert http("POST", path_of(topic, "/subscription/s/skip_all")).status == 404


def test_non_persistent_topics_are_made_by_name(http):
    """With and without partitions, once; looking for one that is absent makes nothing."""
    parts, plain = (f"/admin/v2/non-persistent/public/default/{name}" for name in ("np", "np1"))
    assert http("GET", f"{parts}/partitions").status == 404
    assert http("GET", f"{parts}/partitions").status == 404
    for status in (204, 409):
        assert http("PUT", f"{parts}/partitions", 2).status == status
        assert http("PUT", plain).status == status
    assert http("PUT", parts).status == 409
    assert http("GET", f"{parts}/partitions").json["partitions"] == 2
    assert http("GET", f"{plain}/partitions").json["partitions"] == 0
    for path in (f"{parts}/partitions", plain):
        assert http("DELETE", path).status == 204


def test_partitions_survive_a_restart(tmp_path, topic):
    """The number of partitions is in the catalog."""
    statuses = []
    for _ in range(2):
        with (
            running_broker(data_dir=tmp_path / "data") as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            statuses.append(put(broker, path_of(topic, "/partitions"), b"2"))
            assert client.partitions(topic) == 2
    assert statuses == [b"204", b"409"]


def put(broker, path, body):
    """The status of a PUT to any broker."""
    head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    return exchange(broker, head.encode() + b"Connection: close\r\n\r\n" + body)[9:12]


def test_stats_show_what_happened(http, raw, topic):
    """Counters, names, backlog."""
    producer = raw.create_producer(topic, producer_name="p")
    consumer = raw.subscribe(topic, "s", earliest=True, consumer_name="c")
    for _ in range(5):
        producer.send(b"x" * 100)
    consumer.flow(3)
    consumer.receive_many(3)
    stats = http("GET", path_of(topic, "/stats")).json
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (5, 3)
    assert 500 < stats["bytesInCounter"] <= stats["storageSize"]
    assert [publisher["producerName"] for publisher in stats["publishers"]] == ["p"]
    subscription = stats["subscriptions"]["s"]
    assert (
        subscription["type"],
        subscription["msgBacklog"],
        subscription["isDurable"],
    ) == ("Exclusive", 5, True)
    assert [(c["consumerName"], c["availablePermits"]) for c in subscription["consumers"]] == [
        ("c", 0)
    ]
    internal = http("GET", path_of(topic, "/internalStats?ownFigures=true")).json
    assert (internal["numberOfEntries"], internal["nextIndex"]) == (5, 5)
    assert {"s"} == set(internal["cursors"])


def test_the_message_at_a_time(http, raw, clock, topic):
    """messageid/{time}: the first entry at or after it; after the last, the next entry."""
    producer = raw.create_producer(topic)
    for n in range(3):
        clock.set(START_MS + 10_000_000 + n * 1000)
        receipt = producer.send(b"x")
    base = START_MS + 10_000_000
    found = [
        http("GET", path_of(topic, f"/messageid/{base + ms}")).json["entryId"]
        for ms in (-5, 0, 1, 2000, 2001)
    ]
    assert found == [0, 0, 1, 2, 3]
    last = http("GET", path_of(topic, "/lastMessageId")).json
    assert (receipt.ledger_id, 2) == (last["ledgerId"], last["entryId"])
    assert http("GET", path_of(topic, "/messageid/yesterday")).status == 404


def test_the_message_of_an_index(broker, http, topic):
    """getMessageIdByIndex (PIP-415): the id of each message, with its place in its batch."""
    client = pulsar.Client(broker.service_url)
    producer = client.create_producer(topic, batching_enabled=True)
    sent = []
    for number in range(3):
        producer.send_async(b"%d" % number, lambda _, place: sent.append(place))
    producer.flush()
    sent.append(client.create_producer(topic, batching_enabled=False).send(b"alone"))
    client.close()
    path = path_of(topic, "/getMessageIdByIndex?index=")
    found = [http("GET", f"{path}{index}").json for index in range(4)]
    names = ("ledgerId", "entryId", "batchIndex")
    assert [(place.ledger_id(), place.entry_id(), place.batch_index()) for place in sent] == [
        tuple(each[name] for name in names) for each in found
    ]
    assert found[3]["batchIndex"] == -1
    for outside in (-1, 4):
        assert http("GET", f"{path}{outside}").status == 404
    assert http("GET", path_of(topic, "/getMessageIdByIndex")).status == 404


# -- subscriptions --------------------------------------------------------------------------------


def entries_for(raw, topic, count):
    """The next entries of subscription "s"."""
    consumer = raw.subscribe(topic, "s")
    consumer.flow(count)
    entries = [m.message_id.entry_id for m in consumer.receive_many(count)]
    consumer.close()
    return entries


def test_a_subscriptions_life(http, raw, topic):
    """Create at an id or at the end, list, delete; deleting is refused with a consumer."""
    producer = raw.create_producer(topic)
    ids = [producer.send(b"x") for _ in range(4)]
    here = path_of(topic, "/subscription/s")
    body = {"ledgerId": ids[2].ledger_id, "entryId": ids[2].entry_id}
    assert http("PUT", here, body).status == 204
    assert http("PUT", here).status == 409
    assert http("PUT", path_of(topic, "/subscription/end")).status == 204
    assert http("GET", path_of(topic, "/subscriptions")).json == ["end", "s"]
    assert entries_for(raw, topic, 2) == [2, 3]
    consumer = raw.subscribe(topic, "s")
    assert http("DELETE", here).status == 412
    assert http("DELETE", here + "?force=true").status == 204
    raw.ping()
    assert consumer.is_closed
    assert http("DELETE", here).status == 404
    assert http("PUT", here, {"ledgerId": "1"}).status == 400


def test_a_subscription_is_moved(http, raw, clock, topic):
    """Resetcursor by time and by id, skip, skip_all; connected consumers are closed."""
    producer = raw.create_producer(topic)
    for n in range(5):
        clock.set(START_MS + 20_000_000 + n * 1000)
        last = producer.send(b"x")
    consumer = raw.subscribe(topic, "s")
    here = path_of(topic, "/subscription/s")
    assert http("POST", f"{here}/resetcursor/{START_MS + 20_001_500}").status == 204
    raw.ping()
    assert consumer.is_closed
    assert entries_for(raw, topic, 3) == [2, 3, 4]
    body = {"ledgerId": last.ledger_id, "entryId": 1}
    assert http("POST", f"{here}/resetcursor", body).status == 204
    assert http("POST", f"{here}/skip/2").status == 204
    assert entries_for(raw, topic, 2) == [3, 4]
    assert http("POST", f"{here}/skip_all").status == 204
    producer.send(b"x")
    assert entries_for(raw, topic, 1) == [5]
    assert http("POST", path_of(topic, "/subscription/nix/skip_all")).status == 404
    for count in ("-1", "0"):
        assert http("POST", f"{here}/skip/{count}").status == 204
    assert http("POST", f"{here}/skip/x").status == 404
    assert entries_for(raw, topic, 1) == [5]


def test_a_registered_schema_is_shown(http, client, topic):
    """Type, version and definition."""
    assert http("GET", f"/admin/v2/schemas/{topic.partition('://')[2]}/schema").status == 404
    client.create_producer(topic, schema=pulsar.schema.StringSchema())
    shown = http("GET", f"/admin/v2/schemas/{topic.partition('://')[2]}/schema").json
    assert (shown["type"], shown["version"]) == ("STRING", 0)
    first = http("GET", f"/admin/v2/schemas/{topic.partition('://')[2]}/schema/0").json
    assert shown == first
    assert http("GET", f"/admin/v2/schemas/{topic.partition('://')[2]}/schema/1").status == 404
    assert Schema.Type.Name(Schema.String).upper() == "STRING"


# -- HTTP itself ----------------------------------------------------------------------------------


def test_unknown_paths_and_methods(http):
    """404 and 405, with a reason as JSON that has no part of the path."""
    answer = http("GET", "/no/such/<b>")
    assert (answer.status, answer.content_type) == (404, "application/json")
    assert answer.json == {"reason": "Not Found"}
    assert http("DELETE", "/admin/v2/clusters").status == 405


def test_head_is_get_without_the_body(broker):
    """Load balancers ask with HEAD."""
    answer = exchange(broker, b"HEAD /status.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length: 2" in head.lower()
    assert body == b""


def test_a_body_may_come_in_chunks(broker, topic):
    """Transfer-Encoding: chunked, as Java's client sends it."""
    request = (
        f"PUT {path_of(topic, '/partitions')} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\n2\r\n0\r\n\r\n"
    )
    assert exchange(broker, request.encode()).startswith(b"HTTP/1.1 204")


def test_requests_in_a_row_on_one_connection(broker):
    """Keep-alive, also when the second request comes with the first."""
    first = b"GET /status.html HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = exchange(broker, first * 3 + last)
    assert answer.count(b"HTTP/1.1 200") == 4
    assert answer.endswith(b'["standalone"]')


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x00\x00\x00\x0f\x00\x00\x00\x0b\x08\x02" + bytes(20) + b"\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"x" * 100_000 + b"\r\n\r\n", b"431"),
        (
            b"PUT /admin/v2/tenants/big HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
            + b" " * 5000,
            b"413",
        ),
        (
            b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
            b"413",
        ),
        (
            b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{",
            b"400",
        ),
        (b"GET /%ff%fe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"400"),
    ],
)
def test_bad_requests_are_answered_and_closed(broker, request_bytes, status):
    """Not HTTP, headers or body too large, a body that is not JSON, a URL that is not text. A body
    that is announced as too large is not waited for.
    """
    answer = exchange(broker, request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.partition(b"\r\n\r\n")[2]


def test_an_illegal_header_is_not_repeated_in_the_answer(broker):
    """It may hold credentials, and proxies write an answer's first line into their logs."""
    answer = exchange(broker, b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer secret\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 illegal header line\r\n")
    assert b"secret" not in answer


def test_an_idle_connection_is_closed(broker):
    """Also one that begins a request and stops."""
    assert exchange(broker, b"") == b""
    assert exchange(broker, b"GET /sta") == b""


def test_more_connections_than_allowed_are_refused():
    """503, and the others go on."""
    with running_broker(max_http_connections=1) as broker:
        host, port = broker.http_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as first:
            first.sendall(b"GET /status.html HTTP/1.1\r\nHost: x\r\n\r\n")
            assert first.recv(1000).startswith(b"HTTP/1.1 200")
            assert exchange(broker, b"").startswith(b"HTTP/1.1 503")
            first.sendall(b"GET /status.html HTTP/1.1\r\nHost: x\r\n\r\n")
            assert first.recv(1000).startswith(b"HTTP/1.1 200")
