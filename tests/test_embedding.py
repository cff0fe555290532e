"""pulsemark inside another program: its guide, own providers, several brokers, any thread."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsemark import (
    BrokerConfig,
    BrokerThread,
    ConfigError,
    CorruptEntryError,
    MemoryStore,
    SecurityConfig,
    entries_of,
)
from pulsemark.broker.configuration.settings import SettingError, parse_settings
from pulsemark.client import AdminClient, AdminError
from pulsemark.ledger import EARLIEST, Entry, Position
from pulsemark.testing import RawClient, running_broker

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
TOPIC = "persistent://public/default/orders"
WAIT_S = 60

PROVIDERS = """
from pulsemark.broker import Authenticated, AuthenticationFailed

class Door:
    method = "door"
    is_slow = False
    def __init__(self, config, now_ms):
        self.now_ms = now_ms
    def authenticate(self, data, peer_certificate):
        role, _, word = data.decode(errors="replace").partition(":")
        if word != "sesame":
            raise AuthenticationFailed("door", "wrong word")
        return Authenticated(role, None, "door")
    def http_credentials(self, headers, peer_certificate):
        value = headers.get("x-door")
        return None if value is None else value.encode()

class Rules:
    def __init__(self, config):
        self.config = config
    def allows(self, role, need, target):
        if role == "fault":
            raise RuntimeError("out of order")
        if need.operation == "PRODUCE" and role == "writer":
            return target.namespace == "public/default"
        return False if role == "outcast" else None

class Nothing:
    def __init__(self, *arguments):
        pass

def broken(*arguments):
    raise RuntimeError("no key")
"""

ENTRY_POINTS = """
[pulsemark.authentication]
door = doors_for_tests:Door
nothing = doors_for_tests:Nothing
broken = doors_for_tests:broken

[pulsemark.authorization]
rules = doors_for_tests:Rules
nothing = doors_for_tests:Nothing
broken = doors_for_tests:broken
gone = doors_for_tests:Gone
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with providers, as pip leaves it on the path."""
    (tmp_path / "doors_for_tests.py").write_text(PROVIDERS)
    facts = tmp_path / "doors_for_tests-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: doors-for-tests\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("doors_for_tests", None)


def security(**settings: object) -> SecurityConfig:
    """Authentication by the provider `door`, with one super user."""
    fields = {
        "authentication_enabled": True,
        "authentication_providers": ("door",),
        "authorization_enabled": True,
        "super_user_roles": ("boss",),
        **settings,
    }
    return SecurityConfig(**fields)  # type: ignore[arg-type]


def statuses(url: str, *roles: str) -> list[int]:
    """The status of creating a topic over REST, for each role; 0: no error."""
    found = []
    for role in roles:
        headers = {"X-Door": f"{role}:sesame"} if role else {"X-Door": "anna:wrong"}
        found.append(create_status(url, headers, f"of-{role or 'none'}"))
    return found


def create_status(url: str, headers: dict[str, str], name: str) -> int:
    """The status of one PUT of a topic."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(
        f"{url}/admin/v2/persistent/public/default/{name}", method="PUT", headers=headers
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)


def test_the_guides_examples_run(tmp_path: Path) -> None:
    """All Python blocks of docs/embedding.md run in their order, as one program."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    program = tmp_path / "guide.py"
    program.write_text("\n".join(blocks))
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("pulsar://127.0.0.1:") == 2
    assert "2 " in ran.stdout
    assert "customer-2 b'order 2'" in ran.stdout


@pytest.mark.usefixtures("installed")
def test_own_authentication_gives_roles() -> None:
    """The provider's role counts; a refused client gets 401, another role's rights 403."""
    with running_broker(security=security()) as broker:
        assert statuses(broker.http_url, "boss", "anna", "") == [204, 403, 401]


@pytest.mark.usefixtures("installed")
def test_own_rules_come_before_pulsars(caplog: pytest.LogCaptureFixture) -> None:
    """True and False decide, None leaves it to permissions, and a failing provider refuses."""
    rules = security(authorization_provider="rules")
    with running_broker(security=rules) as broker:
        authorizer = broker.broker.services.authorizer
        from pulsemark.broker.security.authentication import Principal
        from pulsemark.broker.security.authorization import Target
        from pulsemark.broker.security.needs import topic
        from pulsemark.broker.security.permissions import Action
        from pulsemark.wire import TopicName

        def allows(role: str, operation: str, name: str = TOPIC) -> bool:
            target = Target.of_topic(TopicName.parse(name))
            return authorizer.allows(Principal(role), topic(operation), target)

        assert allows("writer", "PRODUCE")
        assert not allows("writer", "PRODUCE", "persistent://public/other/orders")
        assert not allows("writer", "CONSUME")
        assert allows("boss", "CONSUME")
        assert not allows("outcast", "PRODUCE")
        assert authorizer.allows_somewhere(Principal("writer"), Action.PRODUCE, "public/default")
        assert not authorizer.allows_somewhere(Principal("writer"), Action.PRODUCE, "public/other")
        assert not allows("fault", "PRODUCE")
        assert "out of order" in caplog.text
        assert statuses(broker.http_url, "fault", "boss") == [403, 204]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("settings", "field", "reason"),
    [
        ({"authentication_providers": ("nowhere",)}, "authentication_providers", "there are"),
        ({"authentication_providers": ("nothing",)}, "authentication_providers", "has no method"),
        ({"authentication_providers": ("broken",)}, "authentication_providers", "no key"),
        ({"authorization_provider": "nowhere"}, "authorization_provider", "rules"),
        ({"authorization_provider": "nothing"}, "authorization_provider", "has no method allows"),
        ({"authorization_provider": "broken"}, "authorization_provider", "no key"),
        ({"authorization_provider": "gone"}, "authorization_provider", "Gone"),
        (
            {"authorization_provider": "rules", "authorization_enabled": False},
            "authorization_provider",
            "authorization_enabled",
        ),
    ],
)
def test_a_provider_that_cannot_be_used_stops_the_start(
    settings: dict[str, object], field: str, reason: str
) -> None:
    """The error names the setting, its value and what is wrong; nothing is served."""
    config = BrokerConfig(storage="memory", port=0, http_port=None, security=security(**settings))
    with pytest.raises(ConfigError, match=field) as caught:
        BrokerThread(config).start()
    assert reason in str(caught.value)


@pytest.mark.usefixtures("installed")
def test_a_file_names_providers_too() -> None:
    """Pulsar's names of the settings take an installed provider, and nothing else."""
    found = parse_settings({"authenticationProviders": "door", "authorizationProvider": "rules"})
    assert found.values["authorization_provider"] == "rules"
    assert found.values["authentication_providers"] == ("door",)
    pulsars = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"
    assert parse_settings({"authorizationProvider": pulsars}).values == {
        "authorization_provider": None
    }
    with pytest.raises(SettingError, match="rules"):
        parse_settings({"authorizationProvider": "com.example.Own"})


def test_two_brokers_in_one_process_share_nothing(tmp_path: Path) -> None:
    """Each has its own topics, settings and end."""
    configs = [
        BrokerConfig(data_dir=tmp_path / name, port=0, http_port=0, cluster=name)
        for name in ("north", "south")
    ]
    north, south = (BrokerThread(config) for config in configs)
    with south:
        with north:
            with RawClient.from_url(north.service_url) as client:
                client.create_producer(TOPIC).send(b"here only")
            assert AdminClient(north.http_url).topics() == [TOPIC]
            assert AdminClient(south.http_url).topics() == []
        with RawClient.from_url(south.service_url) as client:
            assert client.create_producer(TOPIC).send(b"alone").entry_id == 0
        with pytest.raises((AdminError, OSError)):
            AdminClient(north.http_url).topics()


def test_any_thread_may_close_a_broker(tmp_path: Path) -> None:
    """Eight threads close it at once: each returns after the end, and the folder opens again."""
    config = BrokerConfig(data_dir=tmp_path / "data", port=0, http_port=None)
    broker = BrokerThread(config)
    broker.start()
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer(TOPIC).send(b"kept")
    port = broker.broker.port
    refused: list[bool] = []
    ready = threading.Barrier(8)

    def close() -> None:
        ready.wait(WAIT_S)
        broker.close()
        try:
            socket.create_connection(("127.0.0.1", port), WAIT_S).close()
        except ConnectionRefusedError:
            refused.append(True)

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert refused == [True] * 8
    with BrokerThread(config) as again, RawClient.from_url(again.service_url) as client:
        assert client.create_producer(TOPIC).send(b"next").entry_id == 0


class Damaged:
    """A log of four entries, of which the second is damaged."""

    def __init__(self) -> None:
        self.asked: list[Position] = []

    def read(self, start: Position, *, max_entries: int = 100) -> list[Entry]:
        """One entry at a time."""
        self.asked.append(start)
        at = Position(1, 0) if start == EARLIEST else start
        if at == Position(1, 1):
            error = CorruptEntryError.__new__(CorruptEntryError)
            error.next_position = Position(1, 2)
            raise error
        return [_Place(at)] if at.entry_id < 4 else []  # type: ignore[list-item]


class _Place:
    def __init__(self, position: Position) -> None:
        self.position = position


def test_iteration_stops_at_damage_or_passes_it() -> None:
    """By default damage is an error; with skip_damaged only the damaged entry is missing."""
    with pytest.raises(CorruptEntryError):
        list(entries_of(Damaged()))
    passed = entries_of(Damaged(), skip_damaged=True)
    assert [entry.position.entry_id for entry in passed] == [0, 2, 3]


def test_iteration_has_bounds() -> None:
    """`start` is included, `end` is not, and an empty log has no entries."""
    with MemoryStore.open() as store:
        log = store.open_topic(TOPIC)
        assert list(entries_of(log)) == []
        places = [log.append(b"%d" % number) for number in range(500)]
        places[-1].commit.wait()
        assert [entry.index for entry in entries_of(log)] == list(range(500))
        part = entries_of(log, places[210].position, end=places[420].position)
        assert [entry.index for entry in part] == list(range(210, 420))
