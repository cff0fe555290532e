"""Reads over gRPC have the rows of reads of the folder: batches, entries, streams, errors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pulsemark.finder import SeekClient
from pulsemark.finder.errors import SeekCallError, ServerUnavailableError, UnauthenticatedError
from pulsemark.finder.server import ServerOptions, ServerTls
from pulsemark.ledger import FolderReader, TopicNotFoundError
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.pipeline import remote_log
from pulsemark.pipeline.columns import COLUMNS
from pulsemark.pipeline.errors import DataLossError, OptionError
from pulsemark.pipeline.options import ReadOptions, StreamOptions
from pulsemark.pipeline.stream import LedgerStreamReader


@pytest.fixture(scope="module")
def service(mixed: tuple[Path, list[str]], tools: Any) -> Iterator[str]:
    """The URL of a service over the mixed folder."""
    with tools.serving(mixed[0]) as target:
        yield f"grpc://{target}"


@pytest.mark.parametrize(
    "more",
    [
        {"columns": ",".join(COLUMNS)},
        {"columns": "__index,__tags"},
        {"minPartitions": 7},
        {"startingOffsets": 31, "endingOffsets": 64},
        {"startingTime": 1_700_003_600_000, "minPartitions": 3},
        {"endingOffsets": "earliest"},
    ],
)
def test_the_rows_are_those_of_the_folder(
    mixed: tuple[Path, list[str]], service: str, tools: Any, more: dict[str, object]
) -> None:
    """All columns, all depths, ranges by index and time, however many tasks there are."""
    path, topics = mixed
    names = ",".join([topics[0], topics[1], "parts"])
    found = tools.rows_of(None, grpcUrl=service, topics=names, **more)
    assert found == tools.rows_of(path, topics=names, **more)
    assert bool(found) == (more.get("endingOffsets") != "earliest")


def test_a_trimmed_topic_s_bounds_are_checked(
    mixed: tuple[Path, list[str]], service: str, tools: Any
) -> None:
    """As in a folder: an index that is gone is a loss, and left out if that is wished."""
    path, topics = mixed
    asked = {"topic": topics[2], "startingOffsets": 0, "columns": "__index"}
    with pytest.raises(DataLossError, match="the topic was trimmed"):
        tools.rows_of(None, grpcUrl=service, **asked)
    rows = tools.rows_of(None, grpcUrl=service, failOnDataLoss="false", **asked)
    assert rows == tools.rows_of(path, failOnDataLoss="false", **asked)


def test_damage_is_an_error_a_gap_or_a_row(tmp_path: Path, tools: Any) -> None:
    """The same rows as of the folder, with and without the column for errors."""
    folder = tools.Folder(tmp_path)
    topic = folder.topic("a")
    for number in range(9):
        topic.single(b"%d" % number * 50)
    folder.store.close()
    with FolderReader(tmp_path) as reader:
        segment = as_segment(reader.log(topic.name).segments()[0])
        ends = [segment.row(row).end_offset for row in (3, 4, 7)]
    data = bytearray(segment.path.read_bytes())
    for end in ends:
        data[end - 6] ^= 1
    segment.path.write_bytes(data)
    with tools.serving(tmp_path) as target:
        url = f"grpc://{target}"
        with pytest.raises(DataLossError, match="is damaged"):
            tools.rows_of(None, grpcUrl=url, topic="a")
        for more in ({"columns": "__entryId,value,__error"}, {"failOnDataLoss": "false"}):
            for parts in (1, 3):
                asked = {"topic": "a", "minPartitions": parts, **more}
                rows = tools.rows_of(None, grpcUrl=url, **asked)
                expected = tools.rows_of(tmp_path, **asked)
                by_entry = lambda row: row["__entryId"]  # noqa: E731
                assert sorted(rows, key=by_entry) == sorted(expected, key=by_entry)


def test_a_stream_follows_a_topic(tmp_path: Path, tools: Any) -> None:
    """Its offsets and rows are those of a stream of the folder, with a limit and while it grows."""
    folder = tools.Folder(tmp_path)
    topics = [folder.topic("parts", partition=number) for number in range(2)]
    with tools.serving(tmp_path) as target:
        for topic in topics:
            tools.fill(topic, folder.clock)
        streams = []
        for place in ({"grpcUrl": f"grpc://{target}"}, {"path": str(tmp_path)}):
            options = {"topic": "parts", "columns": "__index,value", "maxOffsetsPerTrigger": "33"}
            parsed = StreamOptions.parse({**options, **place, "startingOffsets": "earliest"})
            stream = LedgerStreamReader(parsed, tools.spark_schema(["__index", "value"]))
            streams.append(pickle.loads(pickle.dumps(stream)))
        offsets = [stream.initialOffset() for stream in streams]
        read: list[list[Any]] = [[], []]
        for step in range(12):
            if step == 2:
                topics[0].single(b"later")
            for number, stream in enumerate(streams):
                end = stream.latestOffset(offsets[number], ReadMaxRows(33))
                for part in stream.partitions(offsets[number], end):
                    read[number] += [b.to_pylist() for b in stream.read(part)]
                offsets[number] = end
        found = [[row for batch in batches for row in batch] for batches in read]
        expected = [{k: row[k] for k in ("__index", "value")} for t in topics for row in t.rows]
        assert len(expected) == len(found[0])
        by_row = lambda row: (row["__index"], row["value"] or b"")  # noqa: E731
        assert sorted(found[0], key=by_row) == sorted(found[1], key=by_row)
        indexes = [{t: place["index"] for t, place in offset.items()} for offset in offsets]
        assert indexes[0] == indexes[1]
        assert streams[0].latestOffset(offsets[0], ReadAllAvailable()) == offsets[0]
        for stream in streams:
            stream.stop()
    folder.store.close()


def test_a_log_that_gives_indexes_again_is_noticed(tmp_path: Path, tools: Any) -> None:
    """A topic that was created again is another one, also if it is longer by then."""
    folder = tools.Folder(tmp_path / "data")
    first = folder.topic("a")
    for _ in range(5):
        first.single(b"x")
    with tools.serving(folder.path) as target:
        options = {"grpcUrl": f"grpc://{target}", "topic": "a", "startingOffsets": "earliest"}
        parsed = StreamOptions.parse({**options, "columns": "__index"})
        stream = LedgerStreamReader(parsed, tools.spark_schema(["__index"]))
        start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        assert stream.latestOffset(start, ReadAllAvailable()) == start
        folder.store.delete_topic(first.name)
        again = folder.topic("a")
        for _ in range(9):
            again.single(b"y")
        with pytest.raises(DataLossError, match="gives indexes again"):
            stream.latestOffset(start, ReadAllAvailable())
        stream.stop()
    folder.store.close()


@pytest.mark.parametrize("number", [0, 3])
def test_a_lost_end_is_told_from_a_trimmed_one(
    tmp_path: Path, tools: Any, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A service over a folder without its first or last ledger: refused, as the folder itself is.

    A bound after the loss is read; a trimmed head is no loss.
    """
    folder = tools.Folder(tmp_path)
    topic, trimmed = folder.topic("a"), folder.topic("trimmed")
    for each in (topic, trimmed):
        for _ in range(4):
            folder.clock.advance(by_ms=1_000)
            each.single(b"x")
            each.ledger.roll()
    trimmed.ledger.trim(as_segment(trimmed.ledger.segments()[2]).first_position)
    gone = as_segment(topic.ledger.segments()[number])
    after_ms = folder.clock.now_ms() + 1
    folder.store.close()
    gone.path.unlink()
    with tools.serving(tmp_path) as target:

        def read(place: dict[str, Any], **more: Any) -> list[int] | str:
            asked = {"columns": "__index", "topic": "a", **place, **more}
            try:
                return [row["__index"] for row in tools.rows_of(asked.pop("path", None), **asked)]
            except DataLossError as error:
                return str(error)

        remote = {"grpcUrl": f"grpc://{target}"}
        bounds: tuple[dict[str, Any], ...] = (
            *({}, {"startingOffsets": "latest"}, {"startingOffsets": 1}, {"endingOffsets": 3}),
            *({"startingTime": 1_600_000_000_000}, {"startingTime": after_ms}),
            {"failOnDataLoss": "false"},
        )
        for more in bounds:
            assert read(remote, **more) == read({"path": tmp_path}, **more), more
        assert gone.path.name in str(read(remote))
        assert read(remote, topic="trimmed") == [2, 3]
        options = StreamOptions.parse({**remote, "topic": "a", "startingOffsets": "earliest"})
        stream = LedgerStreamReader(options, tools.spark_schema(["__index"]))
        with pytest.raises(DataLossError, match=gone.path.name):
            stream.partitions(stream.initialOffset(), stream.latestOffset({}, ReadAllAvailable()))
        stream.stop()


def test_a_lost_connection_is_made_again(
    mixed: tuple[Path, list[str]], service: str, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that breaks goes on where it was, and in the end gives up with the error."""
    path, topics = mixed
    whole = SeekClient.read_entries
    calls: list[Any] = []

    def breaking(client: SeekClient, *args: Any, **more: Any) -> Iterator[Any]:
        calls.append(more["start"])
        for number, entry in enumerate(whole(client, *args, **more)):
            if number == 5:
                raise ServerUnavailableError("UNAVAILABLE", "gone")
            yield entry

    monkeypatch.setattr(remote_log, "PAUSE_S", 0.0)
    monkeypatch.setattr(SeekClient, "read_entries", breaking)
    rows = tools.rows_of(None, grpcUrl=service, topic=topics[0])
    assert rows == tools.rows_of(path, topic=topics[0])
    assert len(calls) > 3
    assert calls == sorted(set(calls))

    def absent(*_: Any, **__: Any) -> Iterator[Any]:
        raise ServerUnavailableError("UNAVAILABLE", "gone")
        yield

    monkeypatch.setattr(SeekClient, "read_entries", absent)
    with pytest.raises(ServerUnavailableError):
        tools.rows_of(None, grpcUrl=service, topic=topics[0])


def test_what_is_not_there_is_reported(service: str, tools: Any) -> None:
    """A topic, and a service."""
    with pytest.raises(TopicNotFoundError):
        tools.rows_of(None, grpcUrl=service, topic="nobody")
    with pytest.raises(SeekCallError):
        tools.rows_of(None, grpcUrl="grpc://127.0.0.1:1", topic="a")


def test_tokens_and_tls(mixed: tuple[Path, list[str]], tools: Any, tmp_path: Path) -> None:
    """The token is given itself or in a file; the server's certificate is checked."""
    tools.make_certificate(tmp_path)
    path, topics = mixed
    tls = ServerTls(certificate=tmp_path / "ca.pem", key=tmp_path / "key.pem")
    (tmp_path / "token").write_text("s3cret\n")
    expected = tools.rows_of(path, topic=topics[0], columns="__index")
    with tools.serving(path, ServerOptions(tls=tls, token="s3cret")) as target:
        asked = {
            "grpcUrl": f"grpcs://{target}", "topic": topics[0], "columns": "__index",
            "tlsCa": tmp_path / "ca.pem", "tlsServerName": "seek.test",
        }  # fmt: skip
        for token in ({"token": "s3cret"}, {"tokenFile": tmp_path / "token"}):
            assert tools.rows_of(None, **asked, **token) == expected
        for wrong in ({}, {"token": "wrong"}):
            with pytest.raises(UnauthenticatedError):
                tools.rows_of(None, **asked, **wrong)
        with pytest.raises(SeekCallError):
            tools.rows_of(None, **{**asked, "tlsServerName": "other.test"}, token="s3cret")
        with pytest.raises(OptionError, match="cannot be called"):
            tools.rows_of(None, **{**asked, "tlsCa": tmp_path / "nothing.pem"}, token="s3cret")


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"grpcUrl": "127.0.0.1:6680"}, "grpcUrl"),
        ({"grpcUrl": "grpc://host"}, "grpcUrl"),
        ({"grpcUrl": "http://host:1"}, "grpcUrl"),
        ({"path": "/x"}, "path"),
        ({"token": "x", "tokenFile": "y"}, "tokenFile"),
        ({"tlsCa": "x"}, "tlsCa"),
        ({"valueSchema": "latest"}, "valueSchema"),
        ({"topicsPattern": ".*"}, "topicsPattern"),
    ],
)
def test_nonsense_is_refused(options: dict[str, str], option: str) -> None:
    """With the option's name."""
    given = {"grpcUrl": "grpc://host:1", "topic": "a", **options}
    if "topicsPattern" in options:
        del given["topic"]
    with pytest.raises(OptionError) as refused:
        ReadOptions.parse(given)
    assert refused.value.option == option


def test_a_service_s_options_need_a_service() -> None:
    """A token for a folder would be ignored; and the token is not in texts of the options."""
    with pytest.raises(OptionError, match="needs the option grpcUrl"):
        ReadOptions.parse({"path": "/x", "topic": "a", "token": "s3cret"})
    with pytest.raises(OptionError, match="maxBytesPerTrigger"):
        StreamOptions.parse({"grpcUrl": "grpc://h:1", "topic": "a", "maxBytesPerTrigger": "5"})
    parsed = ReadOptions.parse({"grpcUrl": "grpc://h:1", "topic": "a", "token": "s3cret"})
    assert "s3cret" not in repr(parsed)
    assert pickle.loads(pickle.dumps(parsed)) == parsed
