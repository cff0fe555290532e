"""The pytest plugin, as another project's tests use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pulsemark

SOURCES = str(Path(pulsemark.__file__).parents[1])
"""The kit that is tested, which need not be the one that is installed."""

TESTS = """
import urllib.request

seen = []

def answers(broker):
    with urllib.request.urlopen(broker.http_url + "/admin/v2/clusters", timeout=10) as answer:
        return answer.read() == b'["standalone"]'

def test_shared_1(pulsar_broker):
    seen.append(pulsar_broker.service_url)
    assert answers(pulsar_broker)

def test_shared_2(pulsar_broker):
    assert seen == [pulsar_broker.service_url]

def test_own_1(pulsemark_broker):
    seen.append(pulsemark_broker.service_url)
    assert answers(pulsemark_broker)

def test_own_2(pulsemark_broker):
    assert pulsemark_broker.service_url not in seen
"""


def run(folder, *arguments):
    """pytest in a process of its own, with no plugin but ours."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "", "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_fixtures_give_brokers(tmp_path):
    """One for the session, or one for each test."""
    (tmp_path / "test_app.py").write_text(TESTS)
    result = run(tmp_path, "-p", "pulsemark.testing.plugin")
    assert "4 passed" in result.stdout, result.stdout + result.stderr


def test_the_plugin_costs_nothing_where_it_is_not_used(tmp_path):
    """Loading it imports neither broker nor protobuf."""
    (tmp_path / "test_app.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    heavy = ('google.protobuf', 'pulsemark.broker', 'uvloop', 'grpc', 'asyncio')\n"
        "    assert [name for name in heavy if name in sys.modules] == []\n"
    )
    result = run(tmp_path, "-p", "pulsemark.testing.plugin")
    assert "1 passed" in result.stdout, result.stdout + result.stderr


def test_the_fixtures_are_in_memory_unless_configured_otherwise(tmp_path):
    """`pulsemark_storage = files` gives both fixtures a data folder."""
    shown = (
        "\ndef test_storage(pulsar_broker, pulsemark_broker):\n"
        "    storages = [b.config.storage for b in (pulsar_broker, pulsemark_broker)]\n"
        "    assert storages == ['{0}', '{0}']\n"
    )
    (tmp_path / "test_app.py").write_text(TESTS + shown.format("memory"))
    result = run(tmp_path, "-p", "pulsemark.testing.plugin")
    assert "5 passed" in result.stdout, result.stdout + result.stderr
    (tmp_path / "pytest.ini").write_text("[pytest]\npulsemark_storage = files\n")
    (tmp_path / "test_app.py").write_text(TESTS + shown.format("files"))
    result = run(tmp_path, "-p", "pulsemark.testing.plugin")
    assert "5 passed" in result.stdout, result.stdout + result.stderr
    (tmp_path / "pytest.ini").write_text("[pytest]\npulsemark_storage = bogus\n")
    result = run(tmp_path, "-p", "pulsemark.testing.plugin")
    assert "ERROR: pulsemark_storage = bogus: must be memory or files" in result.stderr


NAMED = """
import pytest

names = []

@pytest.mark.parametrize("turn", [1, 2])
def test_names(turn, pulsar_namespace, pulsar_topic, pulsar_admin, pulsar_client):
    assert pulsar_topic.startswith(f"persistent://{pulsar_namespace}/")
    names.append(pulsar_namespace)
    assert len(set(names)) == turn
    assert pulsar_admin.topics(pulsar_namespace) == []
    pulsar_client.create_producer(pulsar_topic).send(b"x")
    assert pulsar_admin.topics(pulsar_namespace) == [pulsar_topic]
"""

WITH_KAFKA = """
import kafka

def test_both_see_it(kafka_bootstrap_servers, pulsar_broker):
    producer = kafka.KafkaProducer(bootstrap_servers=kafka_bootstrap_servers)
    producer.send("orders", b"value").get(30)
    producer.close()
    pulsar_broker.assert_published("orders", value=b"value")
"""

WITHOUT_KAFKA = """
import sys

def test_the_endpoint_is_not_started(pulsar_broker):
    assert pulsar_broker.kafka_url == ""
    assert "kafka" not in sys.modules
"""


def test_each_test_gets_names_of_its_own(tmp_path):
    """Namespaces and topics that no other test has; client and admin know them."""
    (tmp_path / "test_app.py").write_text(NAMED)
    result = run(tmp_path, "-p", "pulsemark.testing.plugin", "-W", "error")
    assert "2 passed" in result.stdout, result.stdout + result.stderr


def test_kafka_is_there_where_it_is_asked_for(tmp_path):
    """The session's broker has the endpoint if one of its tests wants it, and not otherwise."""
    for tests in (WITH_KAFKA, WITHOUT_KAFKA):
        (tmp_path / "test_app.py").write_text(tests)
        result = run(tmp_path, "-p", "pulsemark.testing.plugin")
        assert "1 passed" in result.stdout, result.stdout + result.stderr


def test_no_tool_warns_when_it_is_imported(tmp_path):
    """All names of the kit can be imported where warnings are errors."""
    pytest.importorskip("kafka")
    (tmp_path / "test_app.py").write_text(
        "import pulsemark.testing as kit\n"
        "def test_all_of_it():\n"
        "    assert all(getattr(kit, name) for name in kit.__all__)\n"
    )
    result = run(tmp_path, "-p", "pulsemark.testing.plugin", "-W", "error")
    assert "1 passed" in result.stdout, result.stdout + result.stderr
