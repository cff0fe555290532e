"""Start and close of a broker, and its errors when it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pulsar
import pytest

from pulsemark.broker import Broker, BrokerConfig, BrokerStateError, BrokerThread, ConfigError
from pulsemark.broker.errors import PortInUseError
from pulsemark.client import ConnectionLostError
from pulsemark.ledger import FolderLockedError, ForeignFolderError
from pulsemark.proto.pulsar_api_pb2 import BaseCommand
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import Connection, Role, commands

GOOD = unbatched_message(b"x", publish_time_ms=1)


@pytest.fixture
def taken_port():
    """A port that is in use."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.mark.parametrize("field", ["port", "http_port", "grpc_port"])
def test_a_taken_port_is_named_and_nothing_is_left_behind(tmp_path, taken_port, field):
    """PortInUseError says host and port; the folder is free for the next broker."""
    with (
        pytest.raises(PortInUseError) as caught,
        running_broker(data_dir=tmp_path / "data", **{field: taken_port}),
    ):
        pass
    assert ("127.0.0.1", taken_port) == (caught.value.host, caught.value.port)
    assert isinstance(caught.value, OSError)
    with running_broker(data_dir=tmp_path / "data"):
        pass


def test_a_folder_in_use_is_refused(tmp_path):
    """Two brokers never share a data folder."""
    with running_broker(data_dir=tmp_path / "data") as broker:
        assert tmp_path / "data" == broker.data_dir
        with pytest.raises(FolderLockedError), running_broker(data_dir=tmp_path / "data"):
            pass


def test_a_folder_with_something_else_in_it_is_refused(tmp_path):
    """The ledger's own error passes through."""
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(ForeignFolderError), running_broker(data_dir=tmp_path):
        pass


def test_an_unknown_stamper_is_a_config_error():
    """Named with the field it stands in."""
    with pytest.raises(ConfigError) as caught, running_broker(stampers=("broker-time", "nix")):
        pass
    assert caught.value.field == "stampers"
    assert "nix" in str(caught.value)


def test_a_temporary_data_folder_is_removed():
    """Without data_dir nothing stays."""
    with running_broker() as broker:
        folder = broker.data_dir
        assert folder.is_dir()
    assert not folder.exists()


async def test_a_broker_is_a_context_manager_on_any_loop():
    """On asyncio's own loop, without uvloop and threads of its own."""
    async with Broker(BrokerConfig(port=0, http_port=0, grpc_port=0)) as broker:
        host, port = broker.service_url.removeprefix("pulsar://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(bytes.fromhex("00000009000000050812920100"))
        assert bytes.fromhex("00000009000000050813") == (await reader.readexactly(13))[:10]
        writer.close()
        await writer.wait_closed()
        assert broker.http_url.startswith("http://127.0.0.1:")
        assert broker.grpc_url.startswith("127.0.0.1:")
    with pytest.raises(BrokerStateError):
        await broker.start()


async def test_facts_are_there_only_while_it_runs():
    """A broker that was not started has no address."""
    broker = Broker(BrokerConfig(port=0))
    with pytest.raises(BrokerStateError) as caught:
        _ = broker.service_url
    assert (caught.value.needed, caught.value.actual) == ("running", "new")


def test_publishes_in_flight_are_answered_before_the_end(tmp_path, topic):
    """Closing waits for the receipts of all received publishes."""
    thread = BrokerThread(BrokerConfig(data_dir=tmp_path / "data", port=0, http_port=None))
    thread.start()
    with RawClient.from_url(thread.service_url) as client:
        producer = client.create_producer(topic)
        for _ in range(500):
            producer.post(GOOD)
        first = producer.receipts(1)
        closing = threading.Thread(target=thread.close)
        closing.start()
        receipts = [*first]
        with contextlib.suppress(ConnectionLostError):
            while True:
                receipts += producer.receipts(1)
        closing.join()
    with running_broker(data_dir=tmp_path / "data", http_port=None) as broker:

        async def stored(running):
            name = running.services.topics.parse(topic)
            opened = await running.services.topics.open(name, create=False)
            return opened.ledger.next_index

        assert len(receipts) == broker.call(stored)


def test_clients_that_are_connected_do_not_hold_up_the_end(make_client, topic):
    """Idle producers, consumers and readers are closed; the official client survives it.

    The broker would wait much longer than this test may for a connection that does not end.
    """
    with running_broker(shutdown_timeout_ms=600_000) as broker:
        client = make_client(broker.service_url)
        client.create_producer(topic).send(b"x")
        client.subscribe(topic, "s")
        client.create_reader(topic, pulsar.MessageId.earliest)
    assert broker.broker.services.sessions == set()


def test_a_client_that_does_not_read_does_not_hold_up_the_end(topic):
    """Its connection is cut after the time that closing has."""
    body = unbatched_message(bytes(500_000), publish_time_ms=1)
    with running_broker(http_port=None, shutdown_timeout_ms=200) as broker:
        client = RawClient.from_url(broker.service_url)
        client.create_producer(topic).send_many([body] * 20)
        consumer = client.subscribe(topic, "s", earliest=True)
        client.write(commands.flow(consumer.consumer_id, 100))

        async def has_unsent(running):
            return any(session.unsent_bytes() for session in running.services.sessions)

        while not broker.call(has_unsent):
            pass
    assert broker.broker.services.sessions == set()
    with client:
        client.wait_closed()


def test_closing_twice_and_closing_unstarted_do_nothing():
    """close() may be called at any time, and twice."""
    thread = BrokerThread(BrokerConfig(port=0, http_port=None))
    thread.close()
    thread.start()
    thread.close()
    thread.close()
    with pytest.raises(BrokerStateError):
        thread.start()


def test_a_broker_reached_by_any_address_advertises_a_name():
    """0.0.0.0 is no address to connect to; a configured one is taken as it is."""
    with running_broker(host="0.0.0.0", http_port=None) as broker:
        assert socket.gethostname() in broker.service_url
    with running_broker(advertised_address="broker.example", http_port=None) as broker:
        assert broker.service_url.startswith("pulsar://broker.example:")


def test_a_broker_imports_at_its_start_only_what_it_serves():
    """Neither HTTP nor gRPC, nor what the first client needs; in memory no engine on files."""
    late = (
        "grpc", "h11", "prometheus_client", "pyspark", "sqlite3", "ctypes", "email",
        "importlib.metadata", "pulsemark.ledger.local", "pulsemark.broker.handlers",
        "pulsemark.broker.topics.topic", "pulsemark.compaction", "pulsemark.broker.http.routing",
    )  # fmt: skip
    program = (
        "import asyncio, sys\n"
        "import pulsemark.cli.standalone\n"
        "from pulsemark.broker import Broker, BrokerConfig\n"
        "async def main():\n"
        "    async with Broker(BrokerConfig(port=0, http_port=0, storage='memory')):\n"
        f"        print([m for m in {late} if m in sys.modules])\n"
        "asyncio.run(main())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_a_relative_data_folder_works(tmp_path, monkeypatch):
    """Paths are taken from where the program stands."""
    monkeypatch.chdir(tmp_path)
    with running_broker(data_dir=Path("here"), http_port=None):
        assert (tmp_path / "here").is_dir()


def test_every_stored_entry_has_its_receipt_when_the_broker_ends_under_load(tmp_path, topic):
    """Input that is not read at the end does not cost receipts that the client has not read."""
    config = BrokerConfig(
        data_dir=tmp_path / "data",
        port=0,
        http_port=None,
        max_in_flight_publish_messages_per_connection=1,
    )
    thread = BrokerThread(config)
    thread.start()
    port = int(thread.service_url.rpartition(":")[2])
    with socket.socket() as link:
        # Few receipts fit on their way to the client: the rest waits in the broker's socket.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        link.connect(("127.0.0.1", port))
        link.settimeout(10)
        link.sendall(commands.connect("deaf") + commands.producer(topic, 1, 1))
        connection = Connection(Role.CLIENT)
        received(link, connection, until=BaseCommand.PRODUCER_SUCCESS)
        sends = b"".join(
            bytes(part) for n in range(5_000) for part in commands.send(1, n, GOOD)
        )  # fmt: skip
        sending = threading.Thread(target=send_until_the_end, args=(link, sends))
        sending.start()
        while thread.call(entries_of(topic)) < 1_000:
            pass
        closing = threading.Thread(target=thread.close)
        closing.start()
        receipts = received(link, connection).count(BaseCommand.SEND_RECEIPT)
        sending.join()
        closing.join()
    with running_broker(data_dir=tmp_path / "data", http_port=None) as broker:
        assert receipts == broker.call(entries_of(topic, opens=True))
    assert receipts >= 1_000


def send_until_the_end(link, data):
    """Send as much as the broker takes."""
    with contextlib.suppress(OSError):
        link.sendall(data)


def received(link, connection, *, until=None):
    """Read until a command of a type comes, or the broker's last byte; the types of all."""
    kinds = []
    while until not in kinds and (data := link.recv(65_536)):
        connection.receive_data(data)
        kinds += [event.type for event in connection.events()]
    return kinds


def entries_of(topic, *, opens=False):
    """How many messages a topic has."""

    async def count(running):
        topics = running.services.topics
        if opens:
            await topics.open(topics.parse(topic), create=False)
        opened = topics.open_topics.get(topic)
        return 0 if opened is None else opened.ledger.next_index

    return count


@pytest.mark.parametrize("after_turns", [1, 2, 3, 5, 10, 100])
async def test_a_start_that_is_cancelled_leaves_the_folder_free(tmp_path, after_turns):
    """Also while a thread opens the store: it is closed again, and another broker can start."""
    config = BrokerConfig(data_dir=tmp_path / "data", port=0, http_port=None)
    starting = asyncio.ensure_future(Broker(config).start())
    for _ in range(after_turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with Broker(config) as broker:
        assert broker.service_url
