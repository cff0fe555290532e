"""The schema registry's paths, codes and ids; Confluent's clients are in tests/kafka."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from pulsar.schema import AvroSchema, Integer, Record

from pulsemark.broker.http import schema_registry
from pulsemark.broker.http.schema_registry import CONTENT_TYPE
from pulsemark.proto.pulsar_api_pb2 import Schema
from pulsemark.testing import RawClient, running_broker
from tests.support.secured import secured_broker, set_up, token_of

RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
ONE = json.dumps(RECORD)
B, C = {"name": "b", "type": "int", "default": 1}, {"name": "c", "type": "int"}
TWO = json.dumps({**RECORD, "fields": [*RECORD["fields"], B]})
UNFIT = json.dumps({**RECORD, "fields": [*RECORD["fields"], B, C]})
VALUE = "/subjects/t-value"
PROGRAM = """
import asyncio, sys, pathlib
from pulsemark.broker import Broker, BrokerConfig

async def main():
    ports = {"port": 0, "http_port": None, "schema_registry_port": 0}
    async with Broker(BrokerConfig(data_dir=pathlib.Path(sys.argv[1]), **ports)) as broker:
        print(broker.schema_registry_url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


class Registry:
    """Requests to a registry; answers are status and JSON."""

    def __init__(self, url, authorization=None):
        self._url, self._authorization = url, authorization

    def __call__(self, method, path, body=None):
        """Status and answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": CONTENT_TYPE}
        if self._authorization:
            headers["Authorization"] = self._authorization
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, kind, text = answer.status, answer.headers["content-type"], answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, kind, text = error.code, error.headers["content-type"], error.read()
        assert kind == CONTENT_TYPE
        return status, json.loads(text)

    def get(self, path):
        """The answer of a GET that is answered with 200."""
        status, answer = self("GET", path)
        assert status == 200, answer
        return answer

    def register(self, subject, text, **fields):
        """The id of a schema that is registered."""
        status, answer = self("POST", f"/subjects/{subject}/versions", {"schema": text, **fields})
        assert status == 200, answer
        return answer["id"]

    def code(self, method, path, body=None):
        """Status and error code of a request that is refused."""
        status, answer = self(method, path, body)
        assert isinstance(answer["message"], str)
        return status, answer["error_code"]


@pytest.fixture
def broker():
    """A broker in memory with a registry."""
    with running_broker(storage="memory", schema_registry_port=0) as running:
        yield running


@pytest.fixture
def registry(broker):
    """Its registry."""
    return Registry(broker.schema_registry_url)


def test_two_settings_of_a_subject_at_once_are_both_kept(registry):
    """Its level and its mode are stored as one value."""
    registry("POST", "/subjects/other/versions", {"schema": ONE})
    asks = {"/config/other": {"compatibility": "FULL"}, "/mode/other": {"mode": "READONLY"}}
    with ThreadPoolExecutor(2) as both:
        for _ in range(30):
            told = [both.submit(registry, "PUT", path, body) for path, body in asks.items()]
            assert {each.result()[0] for each in told} == {200}
            assert registry.get("/config/other") == {"compatibilityLevel": "FULL"}
            assert registry.get("/mode/other") == {"mode": "READONLY"}
            for path in asks:
                registry("DELETE", path)


def test_a_schema_has_one_id_under_every_subject(registry):
    """Versions count from 1 in each subject; an id leads to all of them."""
    assert registry.register("t-value", ONE) == 1
    assert registry.register("t-value", TWO) == 2
    assert registry.register("t-key", json.dumps(RECORD, indent=2)) == 1
    assert registry.register("t-value", ONE) == 1
    assert registry.get("/subjects") == ["t-key", "t-value"]
    assert registry.get("/subjects?subjectPrefix=t-v&limit=5") == ["t-value"]
    assert registry.get("/subjects?offset=1&limit=1") == ["t-value"]
    assert registry.get(f"{VALUE}/versions") == [1, 2]
    shown = {"subject": "t-value", "version": 2, "id": 2, "schema": TWO}
    assert registry.get(f"{VALUE}/versions/latest") == shown
    assert registry.get(f"{VALUE}/versions/2/schema") == json.loads(TWO)
    assert registry("POST", VALUE, {"schema": TWO}) == (200, shown)
    assert registry.get("/schemas/ids/1?fetchMaxId=true") == {"schema": ONE, "maxId": 2}
    everything = registry.get("/schemas")
    assert [(each["subject"], each["version"], each["id"]) for each in everything] == [
        ("t-key", 1, 1), ("t-value", 1, 1), ("t-value", 2, 2),
    ]  # fmt: skip
    assert everything[2] == shown
    assert registry.get("/schemas?latestOnly=true&subjectPrefix=t-v") == [shown]
    assert registry.get("/schemas?offset=1&limit=1") == everything[1:2]
    assert registry.get("/schemas/ids/1/schema") == RECORD
    assert registry.get("/schemas/ids/1/subjects") == ["t-key", "t-value"]
    assert registry.get("/schemas/ids/2/versions") == [{"subject": "t-value", "version": 2}]
    assert registry.get("/schemas/types") == ["JSON", "PROTOBUF", "AVRO"]


def test_refusals_have_the_registrys_codes(registry):
    """For what is missing, not valid, or does not fit."""
    registry.register("t-value", ONE)
    versions = f"{VALUE}/versions"
    for method, path, body, code in (
        ("GET", "/subjects/none/versions", None, (404, 40401)),
        ("GET", f"{versions}/7", None, (404, 40402)),
        ("GET", f"{versions}/0", None, (422, 42202)),
        ("GET", f"{versions}/x", None, (422, 42202)),
        ("GET", f"{versions}/2147483648", None, (422, 42202)),
        ("GET", "/schemas/ids/7", None, (404, 40403)),
        ("GET", "/schemas/ids/next", None, (404, 40403)),
        ("POST", VALUE, {"schema": TWO}, (404, 40403)),
        ("POST", versions, {"schema": UNFIT}, (409, 409)),
        ("POST", versions, {"schema": '{"type":"object"}', "schemaType": "JSON"}, (409, 409)),
        ("POST", versions, {"schema": "{"}, (422, 42201)),
        ("POST", versions, {"schema": "[" * 100_000}, (422, 42201)),
        ("POST", versions, {"schema": ""}, (422, 42201)),
        ("POST", versions, {"schema": ONE, "schemaType": "XML"}, (422, 42201)),
        ("POST", versions, {"schema": ONE, "ruleSet": {"domainRules": []}}, (422, 42201)),
        ("POST", versions, {"schema": ONE, "references": [1]}, (422, 42201)),
        ("POST", versions, {"schema": "1", "schemaType": "JSON"}, (422, 42201)),
        ("POST", versions, {"schema": "x", "schemaType": "PROTOBUF"}, (422, 42201)),
        ("POST", versions, [], (400, 400)),
        ("POST", f"/subjects/{'x' * 513}/versions", {"schema": ONE}, (422, 42208)),
        ("POST", "/subjects/a%00b/versions", {"schema": ONE}, (422, 42208)),
        ("PUT", "/config", {"compatibility": "SOME"}, (422, 42203)),
        ("PUT", "/mode", {"mode": "IMPORT"}, (422, 42204)),
        ("GET", "/config/t-value", None, (404, 40408)),
        ("GET", "/mode/t-value", None, (404, 40409)),
        ("GET", "/subjects?limit=x", None, (400, 400)),
        ("GET", "/subjects?offset=-1", None, (400, 400)),
        ("GET", "/nothing", None, (404, 404)),
        ("DELETE", "/subjects", None, (405, 405)),
    ):
        assert registry.code(method, path, body) == code, (method, path)


def test_what_is_deleted_comes_back_until_it_is_deleted_for_good(registry):
    """First hidden, then gone; numbers and ids are not used again."""
    for text in (ONE, TWO):
        registry.register("t-value", text)
    one = f"{VALUE}/versions/1"
    assert registry.code("DELETE", f"{one}?permanent=true") == (404, 40407)
    assert registry("DELETE", one) == (200, 1)
    assert registry.code("DELETE", one) == (404, 40406)
    assert registry.get(f"{VALUE}/versions") == [2]
    assert registry.get(f"{VALUE}/versions?deleted=true") == [1, 2]
    assert registry.get(f"{VALUE}/versions?deletedOnly=true") == [1]
    assert registry.get("/schemas/ids/1/schema") == RECORD
    assert registry("DELETE", f"{one}?permanent=true") == (200, 1)
    assert registry.code("GET", "/schemas/ids/1") == (404, 40403)
    assert registry.get(f"{VALUE}/versions?deleted=true") == [2]
    assert registry.code("DELETE", f"{VALUE}?permanent=true") == (404, 40405)
    assert registry("DELETE", VALUE) == (200, [2])
    assert registry.code("DELETE", VALUE) == (404, 40404)
    assert (registry.get("/subjects"), registry.get("/subjects?deleted=true")) == ([], ["t-value"])
    assert registry.register("t-value", TWO) == 2
    assert registry.get(f"{VALUE}/versions") == [3]
    assert registry("DELETE", VALUE) == (200, [3])
    assert registry("DELETE", f"{VALUE}?permanent=true") == (200, [2, 3])
    assert registry.register("t-value", ONE) == 3


def test_compatibility_and_mode_are_pulsars_policies(broker, registry):
    """Of the namespace, and of a topic that exists; another subject has its own."""
    assert registry.get("/config") == {"compatibilityLevel": "FULL"}
    url = f"{broker.http_url}/admin/v2/namespaces/public/default/schemaCompatibilityStrategy"
    assert registry("PUT", "/config", {"compatibility": "none"}) == (200, {"compatibility": "NONE"})
    assert json.load(urllib.request.urlopen(url)) == "ALWAYS_COMPATIBLE"
    registry.register("t-value", ONE)
    registry.register("t-value", UNFIT)
    assert registry("DELETE", "/config") == (200, {"compatibilityLevel": "NONE"})
    assert registry.code("PUT", "/config/t-value", {"compatibility": "FORWARD"}) == (404, 40401)
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer("persistent://public/default/t")
    for subject in ("t-value", "other"):
        registry.register("other", ONE)
        level = {"compatibility": "FORWARD"}
        assert registry("PUT", f"/config/{subject}", level) == (200, level)
        assert registry.get(f"/config/{subject}") == {"compatibilityLevel": "FORWARD"}
        assert registry("DELETE", f"/config/{subject}") == (200, {"compatibilityLevel": "FORWARD"})
        shown = {"compatibilityLevel": "FULL"}
        assert registry.get(f"/config/{subject}?defaultToGlobal=true") == shown
    for place, named in (("", "new"), ("/other", "other")):
        read_only = {"mode": "READONLY"}
        assert registry("PUT", f"/mode{place}", read_only) == (200, read_only)
        assert registry.get(f"/mode{place}") == read_only
        body = {"schema": TWO}
        assert registry.code("POST", f"/subjects/{named}/versions", body) == (422, 42205)
        assert registry.code("DELETE", "/subjects/other") == (422, 42205)
        assert registry.code("DELETE", "/subjects/other/versions/1") == (422, 42205)
        assert registry("PUT", f"/mode{place}", {"mode": "READWRITE"})[0] == 200
        registry.register(named, TWO)


@pytest.mark.parametrize("body", [{}, {"compatibility": None}, {"compatibilityLevel": "FULL"}])
def test_a_level_that_is_not_said_changes_nothing(registry, body):
    """NONE, which lets every schema in, has to be asked for by its name."""
    registry.register("other", ONE)
    for place in ("/config", "/config/other"):
        assert registry.code("PUT", place, body) == (422, 42203)
    assert registry.get("/config") == {"compatibilityLevel": "FULL"}


def test_compatibility_can_be_asked_for(registry):
    """With one version, or with those that count."""
    registry.register("t-value", ONE)
    path = "/compatibility/subjects/t-value/versions"
    for place in (path, f"{path}/latest", f"{path}/1"):
        assert registry("POST", place, {"schema": TWO}) == (200, {"is_compatible": True})
        status, answer = registry("POST", f"{place}?verbose=true", {"schema": UNFIT})
        assert (status, answer["is_compatible"], len(answer["messages"])) == (200, False, 1)
    assert registry.code("POST", f"{path}/2", {"schema": TWO}) == (404, 40402)


class Row(Record):  # type: ignore[misc]
    """A schema of a Pulsar client."""

    b = Integer()


def test_the_topics_schema_is_the_subjects(broker, registry):
    """What a Pulsar producer registers has an id, and what the registry takes is the topic's."""
    schema = Schema(name="", type=Schema.Avro, schema_data=ONE.encode())
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer("persistent://public/default/t", schema=schema)
        assert registry.get("/subjects") == ["t-value"]
        assert registry.register("t-value", ONE) == 1
        registry.register("t-value", TWO)
        schema.schema_data = TWO.encode()
        again = client.create_producer("persistent://public/default/t", schema=schema)
        assert again.schema_version == (1).to_bytes(8, "big")
        # What Pulsar has no type for is not a schema of the topic's.
        registry.register("j-value", '{"type":"object"}', schemaType="JSON")
        assert not client.create_producer("persistent://public/default/j").schema_version
        data = AvroSchema(Row).schema_info().schema().encode()
        other = Schema(name="", type=Schema.Json, schema_data=data)
        client.create_producer("persistent://public/default/o", schema=other)
        # Its last version is Pulsar's alone: the subject cannot be removed below it.
        registry.register("p-value", ONE)
        assert registry("DELETE", "/subjects/p-value") == (200, [1])
        client.create_producer("persistent://public/default/p", schema=other)
    assert registry.code("DELETE", "/subjects/p-value?permanent=true") == (404, 40405)
    assert registry.code("GET", "/subjects/o-value/versions") == (404, 40401)
    assert registry.code("POST", "/subjects/o-value/versions", {"schema": ONE}) == (409, 409)
    url = f"{broker.http_url}/admin/v2/persistent/public/default/t?force=true"
    urllib.request.urlopen(urllib.request.Request(url, method="DELETE")).close()
    assert registry.code("GET", "/schemas/ids/2") == (404, 40403)


def test_schemas_from_before_the_registry_get_ids(tmp_path):
    """Also those of topics that no client asks for by name."""
    schema = Schema(name="", type=Schema.Avro, schema_data=ONE.encode())
    with (
        running_broker(data_dir=tmp_path) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        client.create_producer("persistent://public/default/t", schema=schema)
    with running_broker(data_dir=tmp_path, schema_registry_port=0) as broker:
        registry = Registry(broker.schema_registry_url)
        assert registry.get("/subjects") == ["t-value"]
        assert registry.get("/schemas/ids/1/subjects") == ["t-value"]


def test_ids_are_those_before_after_kill_9(tmp_path):
    """What was answered is durable."""
    program = [sys.executable, "-c", PROGRAM, tmp_path]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        registry = Registry(process.stdout.readline().strip())
        ids = [registry.register(*each) for each in (("t-value", ONE), ("k", TWO))]
        process.send_signal(signal.SIGKILL)
    with running_broker(data_dir=tmp_path, schema_registry_port=0) as broker:
        registry = Registry(broker.schema_registry_url)
        assert registry.get("/subjects") == ["k", "t-value"]
        assert registry.get("/schemas/ids/2") == {"schema": TWO}
        assert [registry.register(*each) for each in (("k", ONE), ("t-value", TWO))] == ids


def test_ids_are_bounded():
    """A schema above the limit is refused; the same one under another subject is not new."""
    settings = {"storage": "memory", "schema_registry_port": 0, "max_registered_schemas": 1}
    with running_broker(**settings) as broker:
        registry = Registry(broker.schema_registry_url)
        assert registry.register("a", ONE) == registry.register("b", ONE)
        assert registry.code("POST", "/subjects/c/versions", {"schema": TWO}) == (422, 42201)
        for subject in ("a", "b"):
            registry("DELETE", f"/subjects/{subject}")
            registry("DELETE", f"/subjects/{subject}?permanent=true")
        assert registry.register("c", TWO) == 2


def test_the_registry_has_the_topics_permissions():
    """The same tokens, as bearer or as the password of Basic, and the permissions of the topic."""
    with secured_broker(schema_registry_port=0, kafka_namespace="acme/ns") as broker:
        set_up(broker)
        url = broker.schema_registry_url

        def basic(role, password):
            return "Basic " + base64.b64encode(f"{role}:{password}".encode()).decode()

        admin = Registry(url, f"Bearer {token_of('admin')}")
        writer = Registry(url, basic("writer", f"token:{token_of('writer')}"))
        reader = Registry(url, basic("reader", f"token:{token_of('reader')}"))
        stranger = Registry(url, basic("stranger", f"token:{token_of('stranger')}"))
        for wrong in (None, basic("writer", f"token:{token_of('reader')}"), basic("a", "b"), "X"):
            assert Registry(url, wrong).code("GET", "/subjects") == (401, 401)
        assert writer.register("t-value", ONE) == 1
        assert reader.get(f"{VALUE}/versions") == [1]
        denied = (403, 40301)
        body = {"schema": TWO}
        for client, method, path in (
            (reader, "POST", f"{VALUE}/versions"),
            (reader, "POST", "/subjects/some.Record/versions"),
            (writer, "DELETE", VALUE),
            (writer, "PUT", "/config"),
            (writer, "PUT", "/mode/t-value"),
            (stranger, "GET", f"{VALUE}/versions"),
            (stranger, "GET", "/schemas/ids/1"),
        ):
            given = body if method == "POST" else {"compatibility": "NONE", "mode": "READONLY"}
            assert client.code(method, path, None if method == "GET" else given) == denied, path
        assert stranger.get("/subjects") == []
        assert admin("DELETE", VALUE) == (200, [1])


def test_references_and_lists_are_bounded(registry, monkeypatch):
    """Their number, and all definitions together: each is read for every registration."""
    large = json.dumps({**RECORD, "name": "Large", "doc": "x" * 600_000})
    for subject in ("l1", "l2"):
        registry.register(subject, large)
    fields = [{"name": "large", "type": "Large"}]
    uses = {"schema": json.dumps({**RECORD, "fields": fields}), "references": [
        {"name": "Large", "subject": subject, "version": 1} for subject in ("l1", "l2")
    ]}  # fmt: skip
    assert registry.code("POST", VALUE + "/versions", uses) == (422, 42201)
    uses["references"] = [{"name": "Large", "subject": "l1", "version": -1}]
    assert registry("POST", VALUE + "/versions", uses)[0] == 200
    assert registry.get("/subjects/l1/versions/1/referencedby") == [2]
    assert registry.code("DELETE", "/subjects/l1") == (422, 42206)
    (shown,) = registry.get("/schemas?subjectPrefix=t-")
    assert shown["schema"] == uses["schema"]
    (resolved,) = registry.get("/schemas?subjectPrefix=t-&format=resolved")
    assert json.loads(resolved["schema"])["fields"][0]["type"]["name"] == "Large"
    monkeypatch.setattr(schema_registry, "MAX_LISTED_BYTES", 1_000_000)
    assert registry.code("GET", "/schemas") == (413, 413)
    assert len(registry.get("/schemas?limit=1")) == 1
    many = {"schema": ONE, "references": [uses["references"][0]] * 101}
    assert registry.code("POST", VALUE + "/versions", many) == (422, 42201)


def test_two_at_once_get_one_id_each(broker):
    """However many register the same and other schemas at the same time."""
    registry = Registry(broker.schema_registry_url)
    texts = [json.dumps({**RECORD, "name": f"R{number % 5}"}) for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda each: registry.register(f"s{each[0] % 4}", each[1]),
                                 enumerate(texts)))  # fmt: skip
    assert len(set(zip(texts, found, strict=True))) == 5
    assert sorted(set(found)) == [1, 2, 3, 4, 5]
