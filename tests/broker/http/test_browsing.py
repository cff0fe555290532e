"""Entries around a time, an index or a position, and a topic's timeline."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest


def ask(broker, topic, route):
    """Status and JSON of an answer."""
    url = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}{route}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture
def filled(raw, topic):
    """A topic with ten messages and a batch of three after them."""
    producer = raw.create_producer(topic, producer_name="p")
    for number in range(10):
        producer.send(b"m%d" % number, key=f"k{number}", properties={"n": str(number)})
    producer.send_batch([b"a", b"b", b"c"])
    return topic


def test_an_index_gives_the_entry_and_those_around_it(broker, filled):
    """With the decoded prefix, key, properties and payload; a batch says which message it is."""
    status, found = ask(broker, filled, "/entries?index=4&before=2&after=1")
    assert status == 200
    assert (found["firstIndex"], found["nextIndex"]) == (0, 13)
    assert [entry["index"] for entry in found["entries"]] == [2, 3, 4, 5]
    middle = found["entries"][2]
    assert (middle["entryId"], middle["prefix"]["index"]) == (found["found"]["entryId"], 4)
    assert middle["prefix"]["broker_timestamp"] == middle["appendTime"]
    assert middle["prefixHex"].startswith("0e02")
    assert middle["messages"] == [
        {"key": "k4", "properties": {"n": "4"}, "sizeBytes": 2, "text": "m4"}
    ]
    _, found = ask(broker, filled, "/entries?index=11&before=0&after=0")
    assert found["found"]["batchIndex"] == 1
    assert [one["text"] for one in found["entries"][0]["messages"]] == ["a", "b", "c"]


def test_a_time_and_a_position_give_the_same_entry(broker, filled):
    """A time before all gives the first entry; one after all gives the end, and the last ones."""
    _, first = ask(broker, filled, "/entries?time=0&after=0")
    assert [entry["index"] for entry in first["entries"]] == [0]
    _, end = ask(broker, filled, "/entries?time=99999999999999&before=2")
    assert end["found"]["end"]
    assert [entry["index"] for entry in end["entries"]] == [9, 12]
    place = first["entries"][0]
    route = f"/entries?position={place['ledgerId']}:{place['entryId']}&after=0"
    assert ask(broker, filled, route) == (200, first)


@pytest.mark.parametrize(
    ("route", "status", "reason"),
    [
        ("/entries", 400, "exactly one of"),
        ("/entries?time=1&index=1", 400, "exactly one of"),
        ("/entries?time=-1", 400, "time must be a number"),
        ("/entries?time=99999999999999999999", 400, "time must be a number"),
        ("/entries?index=x", 400, "index must be a number"),
        ("/entries?index=13", 404, "index 13 is outside [0, 13)"),
        ("/entries?index=1&before=51", 400, "before must be a number from 0 to 50"),
        ("/entries?position=1", 400, "position must be LEDGER:ENTRY"),
        ("/timeline?points=501", 400, "points must be a number from 0 to 500"),
    ],
)
def test_wrong_arguments_are_named(broker, filled, route, status, reason):
    """An error names the argument and what it may be."""
    found, body = ask(broker, filled, route)
    assert found == status
    assert reason in body["reason"]


def test_an_absent_and_a_partitioned_topic_are_refused(broker, raw, topic):
    """An absent topic is 404; a partitioned one has several logs."""
    assert ask(broker, f"{topic}-absent", "/entries?index=0")[0] == 404
    url = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    with urllib.request.urlopen(urllib.request.Request(url, b"2", method="PUT"), timeout=30):
        pass
    for route in ("/entries?index=0", "/timeline"):
        assert ask(broker, topic, route)[0] == 405


def test_a_timeline_is_spread_over_the_topic(broker, filled, raw, topic):
    """From the first entry to the last one, with both clocks, and no more points than asked for."""
    _, found = ask(broker, filled, "/timeline?points=3")
    assert [point["index"] for point in found["points"]] == [0, 5, 12]
    assert (found["entries"], found["isComplete"]) == (11, True)
    assert all({"time", "publishTime"} <= point.keys() for point in found["points"])
    raw.create_producer(f"{topic}-empty")
    assert ask(broker, f"{topic}-empty", "/timeline")[1]["points"] == []
    assert ask(broker, f"{topic}-empty", "/entries?time=5")[1]["entries"] == []


def test_an_answer_reads_only_so_much(broker, filled, monkeypatch):
    """After `MAX_READ_BYTES` no further entry is read, and the timeline says so."""
    monkeypatch.setattr("pulsemark.broker.http.web_page.MAX_READ_BYTES", 1)
    _, found = ask(broker, filled, "/entries?index=4")
    assert [entry["index"] for entry in found["entries"]] == [4]
    _, found = ask(broker, filled, "/timeline")
    assert (len(found["points"]), found["isComplete"]) == (1, False)
