"""The life of a test's broker: what it has made is gone in the end, however it ended."""

from __future__ import annotations

import gc
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker.errors import BrokerStateError, PortInUseError
from pulsemark.testing import BrokerProcess, BrokerProcessError, PulsarBroker, running_broker

Maker = Callable[[], Any]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port that another one listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_broker_that_cannot_start_leaves_nothing(temporary: Path, busy_port: int) -> None:
    """Neither folder nor warning, with a `with` block and without, in a thread or a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        makers: list[tuple[Maker, type[Exception]]] = [
            (lambda: running_broker(port=busy_port), PortInUseError),
            (lambda: running_broker(http_port=busy_port), PortInUseError),
            (lambda: BrokerProcess("--frobnicate"), BrokerProcessError),
        ]
        for make, error in makers:
            made = make()
            with pytest.raises(error):
                made.start()
            assert list(temporary.iterdir()) == []
            with pytest.raises(error), make():
                pass
            assert list(temporary.iterdir()) == []
            del made
            gc.collect()


def test_a_broker_that_never_ran_has_no_folder(temporary: Path) -> None:
    """It need not even be closed."""
    for made in (running_broker(), BrokerProcess(), PulsarBroker(storage="files")):
        assert list(temporary.iterdir()) == []
        made.close()
    with pytest.raises(BrokerStateError):
        _ = BrokerProcess().data_dir


def test_a_restart_that_fails_keeps_the_data(temporary: Path) -> None:
    """The folder belongs to a broker that ran: the next start finds its data."""
    with running_broker() as broker:
        broker.admin.create_topic("persistent://public/default/kept")
        folder, port = broker.data_dir, int(broker.service_url.rpartition(":")[2])
        broker.stop()
        with socket.create_server(("127.0.0.1", port)), pytest.raises(PortInUseError):
            broker.start()
        assert folder.is_dir()
        broker.start()
        assert broker.data_dir == folder
        assert broker.admin.topics() == ["persistent://public/default/kept"]
    assert list(temporary.iterdir()) == []


def test_two_lives(temporary: Path) -> None:
    """A closed broker may be started again, with a new folder."""
    broker = running_broker()
    for _ in range(2):
        with broker:
            broker.restart()
            assert [broker.data_dir] == list(temporary.iterdir())
        assert list(temporary.iterdir()) == []
