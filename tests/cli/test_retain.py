"""`pulsemark retain`: retention applied now, to a broker and to a folder."""

from __future__ import annotations

from pulsemark.testing import SettableClock, running_broker

TOPIC = "persistent://public/default/orders"


def aged(broker, clock, pulsemark, topic="orders"):
    """Ten messages two hours ago and one now; all are acknowledged, but no round came since."""
    connect = ("--service-url", broker.service_url)
    assert pulsemark("produce", topic, "-m", "old", "-n", "10", *connect).status == 0
    broker.admin.create_subscription(TOPIC.replace("orders", topic), "s", at="earliest")
    clock.advance(by_ms=2 * 3_600_000)
    assert pulsemark("produce", topic, "-m", "new", *connect).status == 0
    broker.admin.skip_all(TOPIC.replace("orders", topic), "s")


def keep_an_hour(broker):
    """Set the retention of the namespace."""
    policy = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
    broker.admin.request("POST", "namespaces/public/default/retention", policy)


def test_a_brokers_topics(pulsemark):
    """A dry run shows what the run then removes; the second run has nothing to remove."""
    clock = SettableClock()
    with running_broker(storage="memory", clock=clock) as broker:
        keep_an_hour(broker)
        broker.admin.create_topic("persistent://public/default/other")
        aged(broker, clock, pulsemark)
        admin = ("--admin-url", broker.http_url)
        other, dry = sorted(
            pulsemark("retain", "--dry-run", "--json", *admin).json(),
            key=lambda row: row["entries"],
        )
        assert (dry["topic"], dry["entries"], dry["messages"]) == (TOPIC, 10, 10)
        assert (other["entries"], dry["is_dry_run"]) == (0, True)
        assert len(broker.messages("orders")) == 11
        (done,) = pulsemark("retain", "orders", "--json", *admin).json()
        assert done == {**dry, "is_dry_run": False}
        assert len(broker.messages("orders")) == 1
        assert pulsemark("retain", *admin).out == "nothing was removed from 2 topics\n"


def test_a_folder(tmp_path, pulsemark):
    """A folder is cleaned by the policies stored in it; one in use is refused with what to do."""
    clock = SettableClock()
    with running_broker(data_dir=tmp_path / "data", clock=clock) as broker:
        keep_an_hour(broker)
        clock.advance(by_ms=-4 * 3_600_000)
        aged(broker, clock, pulsemark)
        error = pulsemark("retain", "--data-dir", tmp_path / "data").error()
        assert "in use" in error
        assert "--admin-url" in error
    dry = pulsemark("retain", "--data-dir", tmp_path / "data", "--dry-run", "--json").json()
    (done,) = pulsemark("retain", "--data-dir", tmp_path / "data", "--json").json()
    assert [{**done, "is_dry_run": True}] == dry
    assert done["entries"] == 11  # two hours old, by the machine's clock
    ran = pulsemark("retain", "orders", "--data-dir", tmp_path / "data")
    assert ran.out.splitlines()[1].split() == [TOPIC, "0", "0", "0"]


def test_wrong_arguments(tmp_path, pulsemark):
    """Options that do not go together, and topics that do not exist."""
    assert "--data-dir" in pulsemark("retain", "--config", "x").error()
    assert "not a folder" in pulsemark("retain", "--data-dir", tmp_path / "no").error()
    (tmp_path / "empty").mkdir()
    assert "orders" in pulsemark("retain", "orders", "--data-dir", tmp_path / "empty").error()
