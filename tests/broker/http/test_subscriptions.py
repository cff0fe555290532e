"""Subscriptions over HTTP, on a disk that fails."""

from __future__ import annotations

import errno
import time

import pytest

from pulsemark.ledger import LocalStore
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.faulty_files import FaultyFiles

TOPIC = "persistent://public/default/orders"
ROUTE = "/admin/v2/persistent/public/default/orders"


@pytest.fixture
def files(monkeypatch):
    """The files of the broker that is started next."""
    files, opened = FaultyFiles(), LocalStore.open
    monkeypatch.setattr(
        LocalStore, "open", lambda folder, **options: opened(folder, **{**options, "files": files})
    )
    return files


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
def test_a_subscription_that_could_not_be_stored_does_not_exist(
    tmp_path, files, http_of, operation
):
    """A failed creation is an error each time, no list has it, and a restart finds none."""
    with running_broker(data_dir=tmp_path / "data") as broker:
        http = http_of(broker)
        with RawClient.from_url(broker.service_url) as client:
            client.create_producer(TOPIC).send(b"x")
        for _ in range(2):
            files.fail(operation, error=errno.ENOSPC, times=None)
            assert http("PUT", f"{ROUTE}/subscription/failed").status == 503
            assert http("GET", f"{ROUTE}/subscriptions").json == []
            assert http("GET", f"{ROUTE}/stats").json["subscriptions"] == {}
            files.heal()
        made = f"{ROUTE}/subscription/made"
        while (status := http("PUT", made).status) == 503:
            time.sleep(0.01)  # a commit that was under way while the disk healed has failed, too
        assert (status, http("PUT", made).status) == (204, 409)
        properties = f"{ROUTE}/subscription/made/properties"
        assert http("PUT", properties, {"a": "1"}).status == 204
        files.fail(operation, error=errno.ENOSPC, times=None)
        assert http("PUT", properties, {"a": "2"}).status == 503
        assert http("GET", properties).json == {"a": "1"}
        files.heal()
    with running_broker(data_dir=tmp_path / "data") as broker:
        http = http_of(broker)
        assert http("GET", f"{ROUTE}/subscriptions").json == ["made"]
        assert http("PUT", f"{ROUTE}/subscription/failed").status == 204


def test_a_property_with_half_of_a_surrogate_pair_is_refused(http, raw, topic):
    """It is no text that the broker could send to a client: 400, and nothing has changed."""
    raw.subscribe(topic, "s")
    properties = f"/admin/v2/{topic.replace('://', '/')}/subscription/s/properties"
    for wrong in ({"a": "\ud800"}, {"\ud800": "a"}):
        assert http("PUT", properties, wrong).status == 400
    assert http("GET", properties).json == {}
