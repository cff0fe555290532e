"""Topics whose ledgers cannot be opened now."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pulsemark.client import RequestRefusedError
from pulsemark.ledger import CatalogError, TopicStore


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "too few bookies"), CatalogError(Path("list"), "cannot be read")]
)
def test_a_topic_that_cannot_be_opened_now(raw, topic, monkeypatch, caplog, error):
    """A producer and a consumer get PersistenceError, as from Pulsar, and no traceback is logged;
    when the ledger can be opened again, so can the topic.
    """

    def fail(*_):
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(TopicStore, "open_topic", fail)
        with pytest.raises(RequestRefusedError, match="PersistenceError"):
            raw.create_producer(topic)
        with pytest.raises(RequestRefusedError, match="PersistenceError"):
            raw.subscribe(topic, "s")
    raw.create_producer(topic)
    assert not [record for record in caplog.records if record.exc_info]
