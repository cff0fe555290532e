"""Replays of known folders to a broker: what arrives, and how often."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.pipeline.errors import JobFailedError, OptionError, ReplayError
from pulsemark.pipeline.replay.checkpoint import Checkpoint
from pulsemark.testing.raw_messages import BatchMember

T = "persistent://public/default/"


def test_untouched_entries_arrive_as_they_were(
    folder: Any, tools: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """Batches, compressions, encryption, chunks, keys: a reader of the target gets equal rows."""
    topics = [folder.topic(name) for name in ("a", "b", "c")]
    for topic in topics:
        tools.fill(topic, folder.clock)
    spark = kit.TasksHere()
    done = kit.replayed(folder.path, target.service_url, tmp_path / "cp", spark=spark)
    target.close()
    assert len(spark.tasks) == 2
    assert sorted(n for numbers in spark.tasks for n in numbers) == [0, 1, 2]
    for topic, result in zip(topics, done.topics, strict=True):
        expected = kit.bodies(folder.path, topic.name)
        assert kit.bodies(tmp_path / "target", topic.name) == expected
        assert (result.topic, result.target_topic) == (topic.name, topic.name)
        assert (result.messages, result.entries) == (len(topic.rows), len(expected))
        assert result.size_bytes == sum(map(len, expected))
        assert result.deduplicates
        same = [n for n in topic.rows[0] if n not in _OF_THE_BROKER]
        options = {"topic": topic.name, "columns": ",".join(same)}
        assert tools.rows_of(tmp_path / "target", **options) == tools.only(topic.rows, same)


_OF_THE_BROKER = {
    *("__messageId", "__index", "__brokerPublishTime", "__ledgerId", "__entryId", "__tags"),
}


def test_again_nothing_is_sent(
    folder: Any, tools: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """A replay that is done says so again; it has the plan of its first run, though more came."""
    topic = folder.topic("a")
    tools.fill(topic, folder.clock)
    first = kit.replayed(folder.path, target.service_url, tmp_path / "cp", topic.name)
    topic.single(b"later")
    spark = kit.TasksHere()
    second = kit.replayed(folder.path, target.service_url, tmp_path / "cp", topic.name, spark=spark)
    assert second == first
    assert spark.tasks == []
    third = kit.replayed(folder.path, target.service_url, tmp_path / "cp2", topic.name)
    assert third.messages == first.messages + 1


def test_a_range_to_another_topic(
    folder: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """Times and indexes choose entries as in a read; partitions keep their numbers."""
    topic = folder.topic("a", partition=1)
    times = []
    for number in range(20):
        folder.clock.advance(by_ms=1000)
        times.append(folder.clock.now_ms())
        topic.single(b"%d" % number)
    run = {"target_topic": "copy"}
    kit.replayed(
        folder.path,
        target.service_url,
        tmp_path / "1",
        starting_time=times[3],
        ending_time=times[5],
        **run,
    )
    kit.replayed(
        folder.path,
        target.service_url,
        tmp_path / "2",
        starting_offsets=15,
        ending_offsets=17,
        **run,
    )
    target.close()
    expected = kit.bodies(folder.path, topic.name)
    found = kit.bodies(tmp_path / "target", f"{T}copy-partition-1")
    assert found == [*expected[3:5], *expected[15:17]]


def test_a_bound_inside_an_entry_is_refused(
    folder: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """An entry goes as a whole or not at all, and the error says which index works."""
    topic = folder.topic("a")
    topic.single(b"first")
    topic.batch([BatchMember(payload=b"x%d" % n) for n in range(10)])
    url, cp = target.service_url, tmp_path / "cp"
    with pytest.raises(ReplayError, match=r"startingOffsets 4 is inside an entry.*take 1"):
        kit.replayed(folder.path, url, cp, starting_offsets=4)
    with pytest.raises(ReplayError, match=r"endingOffsets 10 is inside an entry.*take 1"):
        kit.replayed(folder.path, url, cp, ending_offsets=10)
    done = kit.replayed(folder.path, url, cp, starting_offsets=1, ending_offsets=11)
    assert done.messages == 10


def test_a_topic_without_deduplication_is_refused(folder: Any, kit: Any, tmp_path: Path) -> None:
    """It says so, and how to go on; allowed later, the same replay stores no entry twice."""
    topic = folder.topic("a")
    for number in range(20):
        topic.single(b"%d" % number)
    with BrokerThread(BrokerConfig(data_dir=tmp_path / "t", port=0, http_port=0)) as broker:
        run = (folder.path, broker.service_url, tmp_path / "cp")
        for _ in range(2):
            with pytest.raises(ReplayError, match=r"does not deduplicate.*set-deduplication"):
                kit.replayed(*run)
        done = kit.replayed(*run, without_deduplication=True)
    assert done.topics[0].deduplicates is False
    assert kit.bodies(tmp_path / "t", topic.name) == kit.bodies(folder.path, topic.name)


def test_another_replay_s_checkpoint_is_refused(
    folder: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """The error names what differs; a lock keeps a second run of the same replay out."""
    from pulsemark.pipeline.replay.checkpoint import Checkpoint

    folder.topic("a").single(b"x")
    run = (folder.path, target.service_url, tmp_path / "cp")
    kit.replayed(*run)
    for more in ({"target_topic": "b"}, {"starting_offsets": 0}):
        name = {"starting_offsets": "startingOffsets", "target_topic": "targetTopic"}
        (key,) = more
        with pytest.raises(OptionError, match=f"is of a replay with {name.get(key, key)} = None"):
            kit.replayed(*run, **more)
    with (
        Checkpoint(tmp_path / "cp").lock(),
        pytest.raises(OptionError, match="another replay is using it"),
    ):
        kit.replayed(*run)
    (tmp_path / "cp" / "plan.json").write_text("{")
    with pytest.raises(OptionError, match=r"plan\.json is damaged"):
        kit.replayed(*run)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"messages_per_s": 0.0}, "messagesPerSecond = '0'"),
        ({"bytes_per_s": -1.0}, "bytesPerSecond = '-1'"),
        ({"reconnect_s": -1.0}, "reconnectS = '-1'"),
        ({"target_topic": "a/b"}, "targetTopic = 'a/b'"),
        ({"starting_offsets": 5, "ending_offsets": 2}, "endingOffsets"),
    ],
)
def test_nonsense_is_refused_by_name(
    folder: Any, kit: Any, tmp_path: Path, arguments: Any, message: str
) -> None:
    """Before anything is written or connected."""
    folder.topic("a").single(b"x")
    with pytest.raises(OptionError, match=message):
        kit.replayed(folder.path, "pulsar://127.0.0.1:1", tmp_path / "cp", **arguments)
    assert not (tmp_path / "cp").exists()


def test_a_checkpoint_is_a_folder_of_its_own(folder: Any, kit: Any, tmp_path: Path) -> None:
    """Not the data folder, nor one in it, nor a file."""
    folder.topic("a").single(b"x")
    (tmp_path / "file").touch()
    for place, reason in (
        (folder.path, "is inside the data folder"),
        (folder.path / "x", "is inside the data folder"),
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "x", "is below a file"),
    ):
        with pytest.raises(OptionError, match=f"option checkpoint = .*{reason}"):
            kit.replayed(folder.path, "pulsar://127.0.0.1:1", place)
    assert not (folder.path / "x").exists()


def test_a_target_that_is_not_there(folder: Any, kit: Any, tmp_path: Path) -> None:
    """One error with its address, and no plan: the next run may go elsewhere."""
    folder.topic("a").single(b"x")
    with pytest.raises(JobFailedError, match=r"127\.0\.0\.1:1"):
        kit.replayed(folder.path, "pulsar://127.0.0.1:1", tmp_path / "cp")
    assert not (tmp_path / "cp" / "plan.json").exists()


def test_the_name_of_a_partitioned_topic_is_refused(
    folder: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """Which partition an entry of another topic belongs to is not known."""
    import urllib.request

    folder.topic("a").single(b"x")
    request = urllib.request.Request(
        f"{target.http_url}/admin/v2/persistent/public/default/p/partitions",
        b"3",
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=10).close()
    with pytest.raises(OptionError, match=r"targetTopic = .*/p': has 3 partitions"):
        kit.replayed(folder.path, target.service_url, tmp_path / "cp", target_topic="p")


def test_nothing_to_replay(folder: Any, target: BrokerThread, kit: Any, tmp_path: Path) -> None:
    """A folder without topics, and a range without messages, are done at once."""
    assert kit.replayed(folder.path, target.service_url, tmp_path / "1").topics == ()
    folder.topic("a").single(b"x")
    done = kit.replayed(folder.path, target.service_url, tmp_path / "2", starting_offsets=1)
    assert done.messages == 0


def test_a_target_that_lost_what_was_replayed(
    folder: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """A topic that was deleted between two runs is not filled from the middle on."""
    topic = folder.topic("a")
    for number in range(10):
        topic.single(b"%d" % number)
    kit.replayed(folder.path, target.service_url, tmp_path / "cp")
    checkpoint = Checkpoint(tmp_path / "cp")
    plan = checkpoint.load()
    assert plan is not None
    progress = checkpoint.progress(0, plan.parts[0])
    checkpoint.save(0, replace(progress, done=False, next_index=5, last=(10**6, 0)))
    import urllib.request

    request = urllib.request.Request(
        f"{target.http_url}/admin/v2/persistent/public/default/a?force=true", method="DELETE"
    )
    urllib.request.urlopen(request, timeout=10).close()
    with pytest.raises(ReplayError, match=r"no longer has entry.*from index 5 on"):
        kit.replayed(folder.path, target.service_url, tmp_path / "cp")


def test_a_source_topic_that_was_created_again(
    folder: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """Its messages are others, though their indexes are the same."""
    topic = folder.topic("a")
    topic.single(b"x")
    kit.replayed(folder.path, target.service_url, tmp_path / "cp")
    plan = Checkpoint(tmp_path / "cp").load()
    assert plan is not None
    parts = (replace(plan.parts[0], log_id=plan.parts[0].log_id + 1),)
    Checkpoint(tmp_path / "cp").begin(replace(plan, parts=parts))
    (tmp_path / "cp" / "progress-0.json").unlink()
    with pytest.raises(ReplayError, match="was deleted in the source and created again"):
        kit.replayed(folder.path, target.service_url, tmp_path / "cp")


def test_a_record_set_is_refused(
    folder: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """Kafka's bytes are no entry for Pulsar's clients; the error says what works."""
    folder.topic("a").single(b"x")
    folder.topic("a").raw(bytes(40))
    with pytest.raises(ReplayError, match=r"message 1 was written by a Kafka client.*the sink"):
        kit.replayed(folder.path, target.service_url, tmp_path / "cp")


def test_a_checkpoint_of_a_replay_with_a_function(
    folder: Any, target: BrokerThread, kit: Any, tmp_path: Path
) -> None:
    """Earlier versions mapped messages: such a replay does not go on untouched."""
    folder.topic("a").single(b"x")
    run = (folder.path, target.service_url, tmp_path / "cp")
    kit.replayed(*run)
    place = Checkpoint(tmp_path / "cp")
    plan = place.load()
    assert plan is not None
    place.begin(replace(plan, settings={**plan.settings, "function": None}))
    kit.replayed(*run)
    place.begin(replace(plan, settings={**plan.settings, "function": "maps:loud"}))
    with pytest.raises(OptionError, match="is of a replay with function = 'maps:loud', not None"):
        kit.replayed(*run)
