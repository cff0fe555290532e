"""Several brokers: lookups, unloading, shared settings, a broker that was paused."""

import asyncio
import ssl
import threading
from contextlib import closing, contextmanager, suppress
from http.client import HTTPSConnection
from types import SimpleNamespace
from typing import cast

import pulsar
import pytest

from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.errors import RefusedError
from pulsemark.broker.ownership import NotOwnedError
from pulsemark.cluster.store import BundleStores
from pulsemark.ledger import TopicStore
from pulsemark.proto.pulsar_api_pb2 import ServerError
from pulsemark.wire import TopicName
from tests.support.secured import rest as secured_rest
from tests.support.secured import security, token_of

TOPIC = "persistent://public/default/orders"
BUNDLES = "/admin/v2/namespaces/public/default"


def test_all_brokers_name_the_same_owner(brokers, rest):
    """Lookups at any broker lead to one owner, the client works through each, and bundles are
    spread over the brokers.
    """
    first, second = brokers.start(), brokers.start()
    topics = [f"persistent://public/default/t-{number}" for number in range(16)]
    owners = {topic: brokers.owner(topic) for topic in topics}
    assert {id(owner) for owner in owners.values()} == {id(first), id(second)}
    writing, reading = brokers.client(first), brokers.client(second)
    for topic in topics:
        producer, consumer = writing.create_producer(topic), reading.subscribe(topic, "s")
        producer.send(topic.encode())
        assert consumer.receive(20_000).data() == topic.encode()
    for thread in (first, second):
        status, ids = rest(thread, "GET", "/admin/v2/brokers/standalone")
        assert (status, len(ids)) == (200, 2)
        assert rest(thread, "GET", "/admin/v2/namespaces/public/default/topics")[1] or True
        assert rest(thread, "GET", "/admin/v2/persistent/public/default")[1] == sorted(topics)
    owned = [
        set(rest(second, "GET", f"/admin/v2/brokers/standalone/{one}/ownedNamespaces")[1])
        for one in ids
    ]
    assert [len(bundles) for bundles in owned] == [2, 2]
    assert not owned[0] & owned[1]
    leaders = {
        rest(one, "GET", "/admin/v2/brokers/leaderBroker")[1]["brokerId"] for one in brokers.running
    }
    assert len(leaders) == 1


def test_http_redirects(brokers, rest):
    """A request about a topic is sent to its broker with 307, as Pulsar does; the same for the
    lookup of a topic that no broker has yet, to the broker that the leader chose.
    """
    brokers.start(), brokers.start()
    owner = brokers.owner(TOPIC)
    other = next(one for one in brokers.running if one is not owner)
    assert rest(other, "PUT", "/admin/v2/persistent/public/default/orders")[0] == 204
    path = "/admin/v2/persistent/public/default/orders/stats?getPreciseBacklog=true"
    status, location = rest(other, "GET", path, follow=False)
    assert (status, location) == (307, f"{owner.http_url}{path}&authoritative=false")
    status, stats = rest(other, "GET", path)
    assert (status, stats["msgInCounter"]) == (200, 0)
    assert rest(owner, "GET", path, follow=False)[0] == 200


def test_a_request_by_tls_is_redirected_to_tls(brokers, tls):
    """Else its credentials would cross the network in clear, and a certificate be lost."""
    for _ in range(2):
        brokers.start(security=SecurityConfig(**tls))
    owner = brokers.owner(TOPIC)
    other = next(one for one in brokers.running if one is not owner)
    path = f"/admin/v2/{TOPIC.replace('://', '/')}/stats"
    context = ssl.create_default_context(cafile=tls["tls_certificate_file"])
    address = other.http_url_tls.removeprefix("https://")
    with closing(HTTPSConnection(address, context=context)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        location = f"{owner.http_url_tls}{path}?authoritative=false"
        assert (answer.status, answer.headers["location"]) == (307, location)


@pytest.mark.parametrize("path", ["", "/{bundle}"])
def test_unloading(brokers, rest, eventually, path):
    """An unloaded bundle, or namespace, gets an owner again, and clients go on where they were."""
    first, second = brokers.start(), brokers.start()
    client = brokers.client()
    producer = client.create_producer(TOPIC)
    consumer = client.subscribe(TOPIC, "s")
    stats = "/admin/v2/persistent/public/default/orders/stats"

    def backlog():
        return rest(first, "GET", stats)[1]["subscriptions"]["s"]["msgBacklog"]

    producer.send(b"1")
    consumer.acknowledge(consumer.receive(20_000))
    bundle = rest(first, "GET", "/lookup/v2/topic/persistent/public/default/orders/bundle")[1]
    for number in range(2, 5):
        path = path.format(bundle=bundle)
        eventually(lambda: backlog() == 0, "the client has sent its acknowledgement")
        assert rest(second, "PUT", f"{BUNDLES}{path}/unload")[0] == 204
        producer.send(str(number).encode())
        message = consumer.receive(20_000)
        assert message.data() == str(number).encode()
        consumer.acknowledge(message)
    assert brokers.owner(TOPIC).broker.services.topics.open_topics[TOPIC].ledger.next_index == 4


def slowed(monkeypatch, name):
    """A method of stores waits from now on: events that say that it has begun, and may go on."""
    began, may_go, plain = threading.Event(), threading.Event(), getattr(TopicStore, name)

    def slowly(*arguments):
        began.set()
        assert may_go.wait(30)
        return plain(*arguments)

    monkeypatch.setattr(TopicStore, name, slowly)
    return began, may_go


def test_a_topic_that_is_opened_while_its_bundle_is_given_away(
    brokers, rest, eventually, monkeypatch
):
    """The bundle leaves after the topic has been opened and closed again: no topic of a closed
    store stays open, so the next owner, here the same broker, serves it.
    """
    only = brokers.start()
    brokers.owner(TOPIC)
    began, may_go = slowed(monkeypatch, "open_topic")
    client, opened = brokers.client(), []

    def open_producer():
        opened.append(client.create_producer(TOPIC, send_timeout_millis=20_000))

    opening = threading.Thread(target=open_producer)
    opening.start()
    assert began.wait(30)
    unloading = threading.Thread(target=rest, args=(only, "PUT", f"{BUNDLES}/unload"))
    unloading.start()
    eventually(lambda: only.member.ownership.leaving, "the bundle leaves")
    may_go.set()
    unloading.join(30)
    assert not unloading.is_alive()
    opening.join(30)
    opened[0].send(b"x")


def test_a_partitioned_topic_is_deleted_while_its_bundles_are_given_away(
    brokers, rest, eventually, monkeypatch
):
    """Neither waits for the other for ever, and the topic is gone."""
    only = brokers.start()
    parts = "/admin/v2/persistent/public/default/parts/partitions"
    assert rest(only, "PUT", parts, 8)[0] == 204
    began, may_go = slowed(monkeypatch, "delete_topic")
    deleting = threading.Thread(target=rest, args=(only, "DELETE", parts))
    unloading = threading.Thread(target=rest, args=(only, "PUT", f"{BUNDLES}/unload"))
    deleting.start()
    assert began.wait(30)
    unloading.start()
    eventually(lambda: only.member.ownership.leaving, "the bundles leave")
    may_go.set()
    for thread in (deleting, unloading):
        thread.join(30)
        assert not thread.is_alive()
    eventually(lambda: rest(only, "GET", parts)[0] == 404, "the topic is gone")


def test_settings_are_shared(brokers, rest, eventually):
    """Tenants, namespaces, policies of namespaces and topics, schemas and partitioned topics that
    are made at one broker are in force at the others.
    """
    first, second = brokers.start(), brokers.start()
    assert (
        rest(first, "PUT", "/admin/v2/tenants/acme", {"allowedClusters": ["standalone"]})[0] == 204
    )
    eventually(lambda: "acme" in rest(second, "GET", "/admin/v2/tenants")[1], "the tenant")
    assert rest(second, "PUT", "/admin/v2/namespaces/acme/shop", {})[0] == 204
    eventually(
        lambda: rest(first, "GET", "/admin/v2/namespaces/acme")[1] == ["acme/shop"], "the namespace"
    )
    assert rest(first, "POST", "/admin/v2/namespaces/acme/shop/messageTTL", 77)[0] == 204
    eventually(
        lambda: rest(second, "GET", "/admin/v2/namespaces/acme/shop/messageTTL")[1] == 77, "the TTL"
    )
    parts = "/admin/v2/persistent/acme/shop/parts"
    assert rest(second, "PUT", f"{parts}/partitions", 6)[0] == 204
    eventually(
        lambda: rest(first, "GET", f"{parts}/partitions")[1]["partitions"] == 6, "the partitions"
    )
    assert rest(first, "POST", f"{parts}/messageTTL?messageTTL=55")[0] == 204
    eventually(lambda: rest(second, "GET", f"{parts}/messageTTL")[1] == 55, "the topic's TTL")
    schema = {"type": "STRING", "schema": "", "properties": {}}
    assert rest(first, "POST", "/admin/v2/schemas/acme/shop/parts/schema", schema)[0] == 200
    eventually(
        lambda: rest(second, "GET", "/admin/v2/schemas/acme/shop/parts/schema")[0] == 200, "schema"
    )


def test_partitioned_topics(brokers, rest, eventually):
    """Partitions are spread over the brokers; stats add them up at any broker, and deleting the
    partitioned topic deletes all of them.
    """
    first, second = brokers.start(), brokers.start()
    parts = "/admin/v2/persistent/public/default/parts"
    assert rest(first, "PUT", f"{parts}/partitions", 8)[0] == 204
    eventually(lambda: rest(second, "GET", f"{parts}/partitions")[1]["partitions"] == 8, "parts")
    names = [f"persistent://public/default/parts-partition-{index}" for index in range(8)]
    assert {id(brokers.owner(name)) for name in names} == {id(first), id(second)}
    client = brokers.client()
    producer = client.create_producer("persistent://public/default/parts")
    consumer = client.subscribe("persistent://public/default/parts", "s")
    for number in range(40):
        producer.send(str(number).encode(), partition_key=str(number))
    got = {consumer.receive(20_000).data() for _ in range(40)}
    assert got == {str(number).encode() for number in range(40)}
    for one in (first, second):
        stats = rest(one, "GET", f"{parts}/partitioned-stats")[1]
        assert (stats["msgInCounter"], len(stats["partitions"])) == (40, 8)
        for spelled in (parts, parts.replace("parts", "p%61rts")):
            assert rest(one, "GET", f"{spelled}/subscriptions") == (200, ["s"])
    client.close()
    assert rest(second, "DELETE", f"{parts}/partitions?force=true")[0] == 204
    for one in (first, second):
        eventually(
            lambda one=one: rest(one, "GET", "/admin/v2/persistent/public/default")[1] == [], "none"
        )


def spread(brokers, names):
    """Have the first two brokers serve the topics' bundles in turn."""
    for number, name in enumerate(names):
        one = brokers.running[number % 2]
        with suppress(NotOwnedError):
            one.call(lambda _, one=one, name=name: one.member.serve(TopicName.parse(name)))
    parts = [TopicName.parse(name) for name in names]
    owned = [{each for each in parts if one.member.owns(each)} for one in brokers.running[:2]]
    assert all(owned)
    assert owned[0] | owned[1] == set(parts)


@pytest.mark.parametrize("force", ["true", "false"])
def test_with_authentication_each_broker_deletes_its_partitions(brokers, eventually, force):
    """The brokers have no credentials for one another, and need none for this."""
    first, second = (brokers.start(security=security()) for _ in range(2))
    admin, parts = token_of("admin"), "/admin/v2/persistent/public/default/parts"
    names = [f"persistent://public/default/parts-partition-{index}" for index in range(8)]
    assert secured_rest(first, "PUT", f"{parts}/partitions", admin, 8).status == 204
    spread(brokers, names)
    gone = secured_rest(second, "DELETE", f"{parts}/partitions?force={force}", admin)
    assert gone.status == 204, gone
    for one in (first, second):
        topics = one.broker.services.topics
        eventually(lambda topics=topics: not len(topics.names), "no topic")
    assert secured_rest(second, "PUT", f"{parts}/partitions", admin, 2).status == 204


def test_a_deletion_that_stopped_half_way_is_finished_by_the_next_one(brokers, rest, eventually):
    """A broker that was asked once and did not delete its partitions is asked once more."""
    first, second = (brokers.start() for _ in range(2))
    parts = "/admin/v2/persistent/public/default/parts"
    names = [f"persistent://public/default/parts-partition-{index}" for index in range(8)]
    assert rest(first, "PUT", f"{parts}/partitions", 8)[0] == 204
    spread(brokers, names)
    name = TopicName.parse("persistent://public/default/parts")
    topics = second.broker.services.topics
    eventually(lambda: topics.partitioned.count_of(name) == 8, "the partitions")
    plain, topics.delete = topics.delete, refusing_deletion
    first.call(lambda _: first.broker.services.topics.partitioned.retire(name))
    eventually(lambda: topics.partitioned.half_deleted() == [name], "the first request")
    topics.delete = plain
    assert rest(first, "DELETE", f"{parts}/partitions?force=true")[0] == 204
    assert rest(first, "GET", "/admin/v2/persistent/public/default")[1] == []


async def refusing_deletion(name, *, force=False):
    """A broker whose disk fails."""
    raise RefusedError(ServerError.PersistenceError, f"{name}: the disk failed")


def test_nothing_is_deleted_if_a_partition_elsewhere_is_in_use(brokers, rest):
    """Without force, the broker that is asked looks at all partitions before it deletes any."""
    first, _ = (brokers.start() for _ in range(2))
    parts = "/admin/v2/persistent/public/default/parts"
    names = [f"persistent://public/default/parts-partition-{index}" for index in range(8)]
    assert rest(first, "PUT", f"{parts}/partitions", 8)[0] == 204
    spread(brokers, names)
    elsewhere = next(name for name in names if not first.member.owns(TopicName.parse(name)))
    consumer = brokers.client().subscribe(elsewhere, "s")
    assert rest(first, "DELETE", f"{parts}/partitions")[0] == 412
    assert rest(first, "GET", "/admin/v2/persistent/public/default")[1] == names
    consumer.close()
    assert rest(first, "DELETE", f"{parts}/partitions")[0] == 204
    assert rest(first, "GET", "/admin/v2/persistent/public/default")[1] == []


def test_a_partitioned_topic_that_no_broker_serves_is_deleted(brokers, rest):
    """Deleting a partitioned topic deletes its partitions also where no broker owns their bundles
    yet: whose turn it is, that one takes them over for it.
    """
    first, second = brokers.start(), brokers.start()
    for number, thread in enumerate((first, second)):
        path = f"/admin/v2/persistent/public/default/parts-{number}/partitions"
        assert rest(first, "PUT", path, 8)[0] == 204
        assert rest(thread, "DELETE", f"{path}?force=true")[0] == 204
        assert rest(first, "GET", "/admin/v2/persistent/public/default")[1] == []
        for one in (first, second):
            for bundle in one.member.ownership.bundles():
                one.call(lambda _, one=one, bundle=bundle: one.member.ownership.give(bundle))


def test_two_changes_at_once(brokers, rest):
    """Of two brokers that change one namespace at the same time both changes are kept, or the
    second is refused: none is lost without a word.
    """
    first, second = brokers.start(), brokers.start()
    path = "/admin/v2/namespaces/public/default"
    kept: dict[str, int | None] = {}
    for number in range(20):
        one = rest(first, "POST", f"{path}/messageTTL", 100 + number)[0]
        two = rest(second, "POST", f"{path}/maxProducersPerTopic", 200 + number)[0]
        assert one in (204, 409, 503), one
        assert two in (204, 409, 503), two
        kept["ttl"] = 100 + number if one == 204 else kept.get("ttl")
        kept["most"] = 200 + number if two == 204 else kept.get("most")
    third = brokers.start()
    assert rest(third, "GET", f"{path}/messageTTL")[1] == kept["ttl"]
    assert rest(third, "GET", f"{path}/maxProducersPerTopic")[1] == kept["most"]


@contextmanager
def held(store):
    """Inside the block the store commits nothing."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold():
        with store.committer.between_batches():
            is_held.set()
            is_over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(30), "the store goes on committing"
    try:
        yield
    finally:
        is_over.set()
        thread.join(30)


def test_a_receipt_waits_for_its_own_bundles_store(brokers, eventually):
    """A client publishes to topics of two bundles over one connection, and one bundle's store is
    slow: only what the other one stored is acknowledged, until the slow one has stored its part.
    """
    thread = brokers.start()
    names = [f"persistent://public/default/t-{number}" for number in range(16)]
    client = brokers.client()
    producers = {name: client.create_producer(name, batching_enabled=False) for name in names}
    topics = thread.broker.services.topics.open_topics
    slow = topics[names[0]].ledger.store
    other = next(name for name in names if topics[name].ledger.store is not slow)
    done = []
    with held(slow):
        producers[names[0]].send_async(b"slow", lambda result, _: done.append(result))
        for _ in range(3):
            producers[other].send(b"fast")
        assert done == []
        assert topics[names[0]].ledger.next_index == 0
    eventually(lambda: done == [pulsar.Result.Ok], "the slow store's receipt")
    assert topics[names[0]].ledger.next_index == 1


def test_each_broker_cleans_its_own_topics(brokers, rest, caplog):
    """Rounds of cleaning leave out the topics of other brokers, without a warning for each."""
    brokers.start(), brokers.start()
    client = brokers.client()
    for number in range(8):
        client.create_producer(f"persistent://public/default/t-{number}").send(b"x")
    retention = {"retentionTimeInMinutes": 5, "retentionSizeInMB": 1}
    path = "/admin/v2/namespaces/public/default/retention"
    assert rest(brokers.running[0], "POST", path, retention)[0] == 204
    for thread in brokers.running:
        thread.call(lambda broker: broker.services.cleaning.clean_now())
    assert "was not cleaned" not in caplog.text


def test_a_topic_that_another_broker_has_just_created(brokers, rest):
    """A broker that does not know the topic yet sends the request on; the owner's 404 counts."""
    brokers.start(), brokers.start()
    owner = brokers.owner(TOPIC)
    other = next(one for one in brokers.running if one is not owner)
    path = "/admin/v2/persistent/public/default/orders/stats"
    status, location = rest(other, "GET", path, follow=False)
    assert (status, location) == (307, f"{owner.http_url}{path}?authoritative=false")
    status, body = rest(other, "GET", path)
    assert status == 404
    assert f"Topic {TOPIC} not found" in body


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/v2/brokers"),
        ("GET", "/admin/v2/brokers/leaderBroker"),
        ("GET", "/admin/v2/brokers/standalone/127.0.0.1:1/ownedNamespaces"),
        ("GET", "/lookup/v2/topic/persistent/public/default/orders"),
        ("PUT", f"{BUNDLES}/unload"),
        ("PUT", f"{BUNDLES}/0x00000000_0x40000000/unload"),
        ("GET", "/admin/v2/persistent/public/default/orders/stats"),
    ],
)
def test_requests_without_the_coordination_service(brokers, rest, caplog, method, path):
    """What needs the other brokers is refused with 503 while ZooKeeper does not answer: it is no
    error of the broker, whose log has no traceback.
    """
    only = brokers.start()
    session = only.member.session
    only.call(_cutting(session))
    status, said = rest(only, method, path)
    assert (status, "metadata cannot be reached" in said) == (503, True)
    assert not any(record.exc_info for record in caplog.records)


def _cutting(session):
    async def work(_broker):
        session.cut()

    return work


async def test_no_bundles_store_is_waited_for_by_the_event_loop():
    """Each store is told so in the loop's thread, though it is opened in another one."""
    told = []
    store = SimpleNamespace(never_wait_here=lambda: told.append(threading.get_ident()))
    stores = BundleStores(lambda bundle: cast("TopicStore", store), asyncio.to_thread)
    await stores.open("public/default/0x0_0xffffffff")
    assert told == [threading.get_ident()]
