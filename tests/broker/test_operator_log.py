"""What an operator reads in the log about starting and stopping."""

from __future__ import annotations

import logging
import shutil

import pytest

from pulsemark.broker import Broker, BrokerConfig
from pulsemark.broker.connection.accepting import _bind
from pulsemark.broker.errors import CannotListenError
from pulsemark.ledger import LocalStore


def test_recovery_says_what_came_from_the_journal(tmp_path, caplog):
    """A copy of a folder in use is recovered with a line in the log; a closed one has none."""
    caplog.set_level(logging.INFO, "pulsemark.ledger")
    store = LocalStore.open(tmp_path / "live")
    store.open_topic("persistent://public/default/orders").append(b"x" * 100).commit.wait()
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    store.close()
    LocalStore.open(tmp_path / "live").close()
    assert "recovered" not in caplog.text
    LocalStore.open(tmp_path / "copy").close()
    (line,) = [each.getMessage() for each in caplog.records if "recovered" in each.getMessage()]
    assert "blocks of the journal" in line
    assert " s" in line
    assert "orderly: 0 bytes" not in line


async def test_stopping_is_logged_with_its_time(caplog):
    """A broker that ran says how long it took to stop, once."""
    caplog.set_level(logging.INFO, "pulsemark.broker")
    broker = Broker(BrokerConfig(storage="memory", port=0, http_port=None))
    await broker.start()
    await broker.close()
    await broker.close()
    assert sum("broker stopped after" in each.getMessage() for each in caplog.records) == 1


def test_an_address_of_another_machine_is_named():
    """[Errno 99] has the host and the port in its text."""
    with pytest.raises(CannotListenError, match=r"cannot listen on 192.0.2.1 port 7650") as caught:
        _bind("192.0.2.1", 7650)
    assert isinstance(caught.value, OSError)
