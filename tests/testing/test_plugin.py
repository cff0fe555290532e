"""The pytest plugin, as another project's tests use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_the_fixtures_need_no_disk_where_pytest_is_told_so(tmp_path):
    """`pulsemark_storage = memory` gives both fixtures a broker without a data folder."""
    (tmp_path / "pytest.ini").write_text("[pytest]\npulsemark_storage = memory\n")
    (tmp_path / "test_app.py").write_text(
        TESTS + "\ndef test_in_memory(pulsar_broker, pulsemark_broker):\n"
        "    storages = [b.broker.config.storage for b in (pulsar_broker, pulsemark_broker)]\n"
        "    assert storages == ['memory', 'memory']\n"
    )
    result = run(tmp_path, "-p", "pulsemark.testing.plugin")
    assert "5 passed" in result.stdout, result.stdout + result.stderr
