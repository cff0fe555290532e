"""Options are parsed once, named in every error, and known by any way of writing them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.pipeline.columns import COLUMNS, DEFAULT_COLUMNS
from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.options import (
    EARLIEST,
    LATEST,
    STRATEGY,
    Bound,
    BoundKind,
    ReadOptions,
    TopicSelection,
    full_topic_name,
    parse_path,
    parse_time_ms,
    parse_topics_pattern,
    select_topics,
)

BASE = {"path": "/data", "topic": "x"}


def parse(**options: str) -> ReadOptions:
    """A read of topic x with these options more."""
    return ReadOptions.parse({**BASE, **options})


def by_topic(**options: str) -> dict[str, Bound]:
    """The starting bounds by local name, of a read of topics x and y."""
    read = ReadOptions.parse({"path": "/data", "topics": "x,y", **options})
    return {name.rsplit("/", 1)[1]: bound for name, bound in read.start.by_topic.items()}


def test_starts_by_topic() -> None:
    """Indexes and times as in Spark's source for Kafka; a partition's own place counts first."""
    given = '{"x": 7, "persistent://public/default/y": -1, "x-partition-3": -2}'
    assert by_topic(startingOffsets=given) == {
        "x": Bound(BoundKind.INDEX, 7),
        "y": LATEST,
        "x-partition-3": EARLIEST,
    }
    start = parse(startingOffsets='{"x": {"0": 3, "11": 4}}').start
    assert start.of("persistent://public/default/x-partition-11").value == 4
    with pytest.raises(OptionError, match=r"startingOffsets: does not name .*x-partition-1;"):
        start.of("persistent://public/default/x-partition-1")
    start = parse(startingOffsets='{"x": 7, "x-partition-1": 8}').start
    values = [start.of(f"persistent://public/default/x-partition-{n}").value for n in (0, 1)]
    assert values == [7, 8]
    times = by_topic(startingOffsetsByTimestamp='{"x": 1700000000000, "y": "2023-11-14"}')
    assert times["x"] == Bound(BoundKind.TIME, 1_700_000_000_000, must_match=True)
    assert times["y"].value == 1_699_920_000_000
    pattern = {"path": "/d", "topicsPattern": "(a|b-partition-.)"}
    read = ReadOptions.parse({**pattern, "endingOffsets": '{"a": 5, "b": 6}'})
    assert read.end.of("persistent://public/default/b-partition-4").value == 6


@pytest.mark.parametrize("strategy", ["error", "LATEST", None])
@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
def test_a_starting_timestamp_must_match(name: str, strategy: str | None) -> None:
    """Unless the strategy says otherwise; an ending one never."""
    options = {name: "1700000000000"}
    if strategy is not None and name == "endingTimestamp":
        options[STRATEGY] = strategy
        with pytest.raises(OptionError, match="needs startingTimestamp or startingOffsetsByTimest"):
            parse(**options)
        return
    read = parse(**options, **({} if strategy is None else {STRATEGY: strategy}))
    bound = read.start if name == "startingTimestamp" else read.end
    wanted = name == "startingTimestamp" and strategy != "LATEST"
    assert bound == Bound(BoundKind.TIME, 1_700_000_000_000, must_match=wanted)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("{}", "is not JSON by topic"),
        ('{"x": {}}', "is not JSON by topic"),
        ('{"x": [1]}', "is not JSON by topic"),
        ('{"x": 1, "x": 2}', "names persistent://public/default/x twice"),
        ('{"x": 1, "public/default/x": 2}', "twice"),
        ('{"x": {"0": 1}, "x-partition-0": 2}', "x-partition-0 twice"),
        ('{"x": {"first": 1}}', "not a whole number"),
        ('{"x": {"-1": 1}}', "between 0"),
        ('{"x": -3}', "-3 is neither an index, -1 \\(latest\\) or -2 \\(earliest\\)"),
        ('{"x": true}', "True is neither"),
        ('{"x": "earliest"}', "'earliest' is neither"),
        ('{"x": 1.5}', "1.5 is neither"),
        ('{"x": 9223372036854775808}', "is neither"),
        ('{"y": 1}', "names persistent://public/default/y, which is not read"),
        ('{"a/b": 1}', "'a/b' is not a topic's name"),
        ('{"": 1}', "is not a topic's name"),
    ],
)
def test_places_that_are_none(text: str, reason: str) -> None:
    """The error names the option, the value and what is wrong with it."""
    with pytest.raises(OptionError, match=reason) as raised:
        parse(startingOffsets=text)
    assert (raised.value.option, raised.value.value) == ("startingOffsets", text)


def test_ends_have_no_earliest_by_topic() -> None:
    """As in Spark; and a time in JSON is checked as any other."""
    with pytest.raises(OptionError, match=r"-2 is neither an index, or -1"):
        parse(endingOffsets='{"x": -2}')
    with pytest.raises(OptionError, match=r"startingOffsetsByTimestamp = .*for unix seconds"):
        parse(startingOffsetsByTimestamp='{"x": 1700000000}')
    for text in ("7", "[1]", "null"):
        with pytest.raises(OptionError, match="is not JSON by topic"):
            parse(startingOffsetsByTimestamp=text)
    with pytest.raises(OptionError, match=r"endingOffsetsByTimestamp = .*excludes endingTime"):
        parse(endingOffsetsByTimestamp='{"x": 1700000000000}', endingTime="1700000000000")


def test_a_plain_read_is_everything_of_a_topic() -> None:
    """From earliest to latest, the usual columns, failing on loss."""
    assert parse() == ReadOptions(
        path=Path("/data"),
        topics=TopicSelection(("persistent://public/default/x",)),
        start=EARLIEST,
        end=LATEST,
        columns=DEFAULT_COLUMNS,
        min_partitions=None,
        fail_on_data_loss=True,
    )


@pytest.mark.parametrize(
    "name", ["startingOffsets", "startingoffsets", "STARTING_OFFSETS", "starting_offsets"]
)
def test_names_are_known_by_any_way_of_writing(name: str) -> None:
    """Spark lower-cases them on some ways, Python's users write underscores."""
    assert parse(**{name: "5"}).start == Bound(BoundKind.INDEX, 5)


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, EARLIEST, LATEST),
        ({"startingOffsets": "Latest", "endingOffsets": "EARLIEST"}, LATEST, EARLIEST),
        (
            {"startingOffsets": " 0 ", "endingOffsets": "7"},
            Bound(BoundKind.INDEX, 0),
            Bound(BoundKind.INDEX, 7),
        ),
        (
            {"startingTime": "1700000000123", "endingTime": "2023-11-14T22:13:21Z"},
            Bound(BoundKind.TIME, 1_700_000_000_123),
            Bound(BoundKind.TIME, 1_700_000_001_000),
        ),
        (
            {"startingTime": "0", "endingOffsets": "7"},
            Bound(BoundKind.TIME, 0),
            Bound(BoundKind.INDEX, 7),
        ),
    ],
)
def test_ranges(options: dict[str, str], start: Bound, end: Bound) -> None:
    """Each end by words, index or time, mixed at will."""
    parsed = parse(**options)
    assert (parsed.start, parsed.end) == (start, end)


@pytest.mark.parametrize(
    ("options", "name", "value", "reason"),
    [
        ({"startingTime": "yesterday"}, "startingTime", "yesterday", "ISO-8601"),
        ({"endingTime": "-1"}, "endingTime", "-1", "between"),
        ({"endingTime": "99999999999999999999"}, "endingTime", "9" * 20, "whole number"),
        ({"startingTime": "1969-12-31"}, "startingTime", "1969-12-31", "1970"),
        ({"startingOffsets": "-2"}, "startingOffsets", "-2", "neither an index"),
        ({"endingOffsets": ""}, "endingOffsets", "", "neither an index"),
        ({"startingOffsets": "5", "endingOffsets": "4"}, "endingOffsets", "4", "before 5"),
        (
            {"startingTime": "1700000000001", "endingTime": "1700000000000"},
            "endingTime",
            "1700000000000",
            "before 1700000000001",
        ),
        ({"startingTime": "0", "startingOffsets": "4"}, "startingOffsets", "4", "excludes"),
        ({"startingTime": "20260301"}, "startingTime", "20260301", "1970-01-01T05:37Z"),
        ({"endingTime": "1772323200"}, "endingTime", "1772323200", "for unix seconds add three"),
        ({"maxMessagesPerEntry": "0"}, "maxMessagesPerEntry", "0", "between 1"),
        ({"maxPropertiesPerEntry": "-1"}, "maxPropertiesPerEntry", "-1", "between 0"),
        ({"maxUncompressedBytes": "2000000000"}, "maxUncompressedBytes", "2000000000", "between"),
        ({"minPartitions": "0"}, "minPartitions", "0", "between 1 and"),
        ({"minPartitions": "many"}, "minPartitions", "many", "whole number"),
        ({"minPartitions": "1000000"}, "minPartitions", "1000000", "between"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss", "yes", "true nor false"),
        ({"columns": "value,__offset"}, "columns", "value,__offset", "'__offset' is not a column"),
        ({"columns": "value,"}, "columns", "value,", "without empty"),
        ({"columns": "value,VALUE"}, "columns", "value,VALUE", "twice"),
        ({"maxUncompressedBytes": "1g"}, "maxUncompressedBytes", "1g", "whole number"),
        ({"topics": "y"}, "topics", "y", "excludes topic"),
        ({"startingTimes": "5"}, "startingTimes", "5", "did you mean startingTime?"),
        ({"wood": "oak"}, "wood", "oak", "not an option"),
        ({"topic ": "y"}, "topic ", "y", "not an option"),
        ({"TOPIC": "y"}, "TOPIC", "y", "also given as topic"),
        ({"path": "  "}, "path", "  ", "not a path"),
        ({"path": "s3://bucket/data"}, "path", "s3://bucket/data", "file system"),
        ({"topic": "a//b"}, "topic", "a//b", "topic's name"),
    ],
)
def test_errors_name_option_and_value(
    options: dict[str, str], name: str, value: str, reason: str
) -> None:
    """As attributes, and in the text, which is all that survives Spark."""
    with pytest.raises(OptionError, match=r"option") as raised:
        parse(**options)
    assert (raised.value.option, raised.value.value) == (name, value)
    assert reason in raised.value.reason
    assert name in str(raised.value)
    assert repr(value) in str(raised.value)


@pytest.mark.parametrize(
    ("missing", "options"), [("path", {"topic": "x"}), ("topic", {"path": "/data"})]
)
def test_path_and_topics_are_required(missing: str, options: dict[str, str]) -> None:
    """An error without a value names what is missing."""
    with pytest.raises(OptionError, match="required") as raised:
        ReadOptions.parse(options)
    assert (raised.value.option, raised.value.value) == (missing, None)


def test_columns_are_found_in_any_case_and_keep_their_order() -> None:
    """`columns` narrows and orders; opt-in columns come by name only."""
    assert parse(columns="__INDEX, value").columns == ("__index", "value")
    assert set(COLUMNS) - set(DEFAULT_COLUMNS) == {
        "__encrypted",
        "__chunkUuid",
        "__chunkId",
        "__chunkCount",
        "__producerName",
        "__sequenceId",
        "__tags",
        "__error",
        "__schemaId",
    }


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14 22:13:20.001", 1_700_000_000_001),
        ("2023-11-14T22:13:20.000001Z", 1_700_000_000_001),
        ("1970-01-01", 0),
        ("0", 0),
    ],
)
def test_times(text: str, time_ms: int) -> None:
    """UTC unless they say otherwise; between two milliseconds the later one."""
    assert parse_time_ms(text) == time_ms


@given(text=st.text(max_size=30))
def test_no_text_breaks_the_parsers(text: str) -> None:
    """Whatever a user types is parsed, or is an OptionError."""
    names = ("startingTime", "endingOffsets", "startingOffsetsByTimestamp", "columns", "path")
    for name in (*names, "topicsPattern", "x" + text):
        try:
            ReadOptions.parse({"path": "/d", name: text})
        except OptionError as error:
            assert error.option in (name, "topic")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b%20c", "/a/b c"),
        ("file://localhost/a", "/a"),
    ],
)
def test_paths(text: str, path: str) -> None:
    """Plain ones, and the URIs that Spark's users write."""
    assert parse_path(text) == Path(path)


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may stand elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert parse_path("data") == tmp_path / "data"


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("x", "persistent://public/default/x"),
        ("t/n/x", "persistent://t/n/x"),
        ("persistent://t/n/x ", "persistent://t/n/x "),
        (" x ", "persistent://public/default/ x "),
        ("a,b", "persistent://public/default/a,b"),
    ],
)
def test_topic_names(name: str, full: str) -> None:
    """Short forms are completed as Pulsar completes them; blanks and commas are characters."""
    assert full_topic_name(name) == full
    assert parse(topic=name).topics.names == (full,)


def test_a_list_of_names_with_commas_is_json() -> None:
    """Names that a list with commas cannot hold: each as it is, outer blanks included."""
    given = json.dumps(["a,b", " c ", "[d", "a,b"])
    options = ReadOptions.parse({"path": "/d", "topics": given})
    expected = ("a,b", " c ", "[d")
    assert options.topics.names == tuple(f"persistent://public/default/{n}" for n in expected)


@pytest.mark.parametrize("text", ["[", "[]", "[1]", '["a",]', '["a", ""]', "[" * 100_000])
def test_a_list_that_is_no_json(text: str) -> None:
    """The error names the option."""
    with pytest.raises(OptionError) as raised:
        ReadOptions.parse({"path": "/d", "topics": text})
    assert raised.value.option == "topics"


@pytest.mark.parametrize("name", ["", "a/b", "t/n/x/y", "non-persistent://t/n/x", "persistent://x"])
def test_names_that_are_none(name: str) -> None:
    """Including topics that are stored nowhere."""
    with pytest.raises(ValueError, match="topic's name"):
        full_topic_name(name)


TOPICS = [
    "persistent://public/default/a",
    "persistent://public/default/b",
    "persistent://public/default/b-partition-0",
    "persistent://public/default/b-partition-10",
    "persistent://public/default/bb",
    "persistent://t/n/a",
]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", [0]),
        ("b.*", [1, 2, 3, 4]),
        ("a|bb", [0, 4]),
        ("t/n/.*", [5]),
        (".*/a", [0, 5]),
        ("persistent://.*/b", [1]),
        ("nothing", []),
        ("(?i)B.", [4]),
        ("(?x) b b  # two", [4]),
        ("(?is)T/N/.*", [5]),
    ],
)
def test_a_pattern_is_matched_as_a_whole(pattern: str, expected: list[int]) -> None:
    """Without tenant it means public/default; `b` does not mean `bb`."""
    selection = TopicSelection(pattern=parse_topics_pattern(pattern))
    assert select_topics(selection, TOPICS) == ([TOPICS[n] for n in expected], [])


@pytest.mark.parametrize("text", ["(", "a(?i)b", "a)(b", "(?L)a", "(?au)x", "a{99999999999}", "[/"])
def test_an_invalid_pattern_names_its_option(text: str) -> None:
    """Whatever is wrong with it, also once it is completed."""
    with pytest.raises(OptionError) as raised:
        ReadOptions.parse({"path": "/d", "topicsPattern": text})
    assert (raised.value.option, raised.value.value) == ("topicsPattern", text)


def test_names_are_found_by_one_look_at_each() -> None:
    """Selecting 2,000 of 2,000 topics compares no name with all others."""
    looks = 0

    class Counting(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looks
            looks += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = tuple(Counting(f"persistent://public/default/t{n}") for n in range(2000))
    found, absent = select_topics(TopicSelection(names), [str(name) for name in names])
    assert (len(found), absent) == (2000, [])
    assert looks < 20_000


def test_a_name_means_its_partitions_too() -> None:
    """Partitioned topics are read as one; unknown names are reported."""
    names = tuple(full_topic_name(name) for name in ("b", "a", "c"))
    found, absent = select_topics(TopicSelection(names), reversed(TOPICS))
    assert found == TOPICS[:4]
    assert absent == ["persistent://public/default/c"]


def test_several_topics_are_listed_once_each() -> None:
    """In a list, repeated, in different forms."""
    options = ReadOptions.parse({"path": "/d", "topics": "a, public/default/a,b"})
    assert options.topics.names == (TOPICS[0], TOPICS[1])
