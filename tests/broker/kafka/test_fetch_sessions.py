"""Fetch sessions (KIP-227): epochs, what answers leave out, eviction and bounds."""

from __future__ import annotations

import time

import pytest
from kafka.protocol.consumer import FetchRequest

from pulsemark.broker.kafka.fetch_sessions import (
    EVICTABLE_AFTER_S,
    FIRST_WAIT_MS,
    MAX_WAIT_MS,
    REMEMBERED_S,
    FetchSession,
    FetchSessions,
    UnsentRecords,
    Wanted,
)
from pulsemark.broker.kafka.reading import Asked, Read
from pulsemark.kafka.errors import Code, KafkaError
from pulsemark.testing.raw_kafka import RawKafka, fetch_fields

from .conftest import create, record_set, records_of

_Forgotten = FetchRequest.ForgottenTopic
VERSIONS = range(7, 12)


def ask(client, version, session, asked, forgotten=(), wait_ms=0):
    """A Fetch in a session: its id and epoch; partitions as (topic, index, offset)."""
    fields = fetch_fields([(*each, 1 << 20, -1) for each in asked], wait_ms, 1, 1 << 20)
    fields["session_id"], fields["session_epoch"] = session
    fields["forgotten_topics_data"] = [
        _Forgotten(topic=topic, partitions=[index]) for topic, index in forgotten
    ]
    return client.call(FetchRequest, version, **fields)


def parts_of(answer):
    """Partition index and offsets of the records, in the order of the answer."""
    return [
        (part.partition_index, [offset for offset, _ in records_of(part.records)])
        for topic in answer.responses
        for part in topic.partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_answers_only_what_has_changed(raw, topic, version):
    """A request names changes; an answer has records and new ends of partitions only."""
    create(raw, topic, partitions=3)
    raw.produce(topic, record_set([b"a"]), partition=1)
    first = ask(raw, version, (0, 0), [(topic, n, 0) for n in range(3)])
    session = first.session_id
    assert session > 0
    assert parts_of(first) == [(0, []), (1, [0]), (2, [])]
    nothing = ask(raw, version, (session, 1), [(topic, 1, 1)])
    assert (nothing.error_code, nothing.session_id, nothing.responses) == (0, session, [])
    raw.produce(topic, record_set([b"b"]), partition=2)
    assert parts_of(ask(raw, version, (session, 2), [])) == [(2, [0])]
    # Not acknowledged by a new offset: it comes again, although nothing has changed.
    assert parts_of(ask(raw, version, (session, 3), [])) == [(2, [0])]
    assert parts_of(ask(raw, version, (session, 4), [(topic, 2, 1)])) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wrong_epoch_or_id_is_refused(raw, made, version):
    """71 for another epoch, 70 for an id that is not known; the session goes on."""
    session = ask(raw, version, (0, 0), [(made, 0, 0)]).session_id
    for wrong in ((session, 2), (session, 7), (session, 2**31 - 1), (session, -2)):
        answer = ask(raw, version, wrong, [(made, 0, 0)])
        assert (answer.error_code, answer.session_id, answer.responses) == (71, 0, [])
    for wrong in ((session - 1 or 5, 1), (0, 1), (-1, 1), (0, -2)):
        answer = ask(raw, version, wrong, [(made, 0, 0)])
        assert (answer.error_code, answer.session_id, answer.responses) == (70, 0, [])
    assert ask(raw, version, (session, 1), []).error_code == 0


@pytest.mark.parametrize(("epoch", "begins"), [(0, True), (-1, False)])
def test_a_full_request_ends_the_session_that_it_names(raw, made, epoch, begins):
    """Epoch 0 begins another one, -1 none; the old one is not known any more."""
    old = ask(raw, 11, (0, 0), [(made, 0, 0)]).session_id
    answer = ask(raw, 11, (old, epoch), [(made, 0, 0)])
    assert (answer.error_code, bool(answer.session_id)) == (0, begins)
    assert answer.session_id != old
    assert len(parts_of(answer)) == 1
    assert ask(raw, 11, (old, 1), []).error_code == 70


@pytest.mark.parametrize("version", [0, 3, 6])
def test_older_versions_have_no_sessions(kafka_broker, raw, made, version):
    """Nothing is kept for them."""
    sessions = kafka_broker.broker.kafka.fetch_sessions
    before = len(sessions)
    raw.fetch(made, 0, version=version)
    assert len(sessions) == before


def test_partitions_are_forgotten_and_added(raw, topic):
    """First a request's partitions are taken, then those that it forgets; new ones are answered."""
    create(raw, topic, partitions=3)
    session = ask(raw, 11, (0, 0), [(topic, 0, 0), (topic, 1, 0)]).session_id
    for partition in range(3):
        raw.produce(topic, record_set([b"v"]), partition=partition)
    answer = ask(raw, 11, (session, 1), [(topic, 2, 1)], forgotten=[(topic, 0), ("none", 9)])
    assert parts_of(answer) == [(1, [0]), (2, [])]
    both = ask(raw, 11, (session, 2), [(topic, 0, 0)], forgotten=[(topic, 0), (topic, 1)])
    assert parts_of(both) == []


def test_a_session_without_partitions_ends(kafka_broker, raw, made):
    """The answer has id 0, and its client starts again."""
    sessions = kafka_broker.broker.kafka.fetch_sessions
    before = len(sessions), sessions.partitions
    session = ask(raw, 11, (0, 0), [(made, 0, 0)]).session_id
    assert (len(sessions), sessions.partitions) == (before[0] + 1, before[1] + 1)
    last = ask(raw, 11, (session, 1), [], forgotten=[(made, 0)])
    assert (last.error_code, last.session_id, last.responses) == (0, 0, [])
    assert (len(sessions), sessions.partitions) == before
    assert ask(raw, 11, (session, 2), []).error_code == 70


def test_an_error_is_repeated_until_it_is_over(raw, made, topic):
    """A partition with an error is in every answer, and once more when it is well again."""
    later = f"{topic}-later"
    session = ask(raw, 11, (0, 0), [(made, 0, 0), (later, 0, 0)]).session_id
    for epoch in (1, 2):
        answer = ask(raw, 11, (session, epoch), [])
        assert [(t.topic, t.partitions[0].error_code) for t in answer.responses] == [(later, 3)]
    create(raw, later)
    answer = ask(raw, 11, (session, 3), [])
    assert [(t.topic, t.partitions[0].error_code) for t in answer.responses] == [(later, 0)]
    assert parts_of(ask(raw, 11, (session, 4), [])) == []


def test_a_new_start_of_the_log_is_answered(raw, made):
    """Also without records: DeleteRecords moved it."""
    from kafka.protocol.admin import DeleteRecordsRequest

    raw.produce(made, record_set([b"a", b"b"]))
    session = ask(raw, 11, (0, 0), [(made, 0, 2)]).session_id
    cut = DeleteRecordsRequest.DeleteRecordsTopic
    part = cut.DeleteRecordsPartition(partition_index=0, offset=1)
    raw.call(DeleteRecordsRequest, 1, topics=[cut(name=made, partitions=[part])], timeout_ms=1_000)
    answer = ask(raw, 11, (session, 1), [])
    assert [part.log_start_offset for part in answer.responses[0].partitions] == [1]


def test_partitions_that_gave_records_come_last(raw, topic):
    """So an answer with a limit serves all partitions in turn."""
    create(raw, topic, partitions=3)
    for partition in range(3):
        for _ in range(3):
            raw.produce(topic, record_set([b"v" * 1000]), partition=partition)
    fields = fetch_fields([(topic, n, 0, 1 << 20, -1) for n in range(3)], 0, 1, 1)
    first = raw.call(FetchRequest, 11, **fields | {"session_epoch": 0})
    orders, session = [], first.session_id
    more = fetch_fields([], 0, 1, 1)
    for epoch in range(1, 7):
        answer = raw.call(
            FetchRequest, 11, **more | {"session_id": session, "session_epoch": epoch}
        )
        orders.append([index for index, found in parts_of(answer) if found])
    assert orders == [[0], [1], [2], [0], [1], [2]]


def test_a_fetch_that_waits_is_answered_by_a_commit_to_any_partition_of_its_session(
    kafka_broker, raw, topic
):
    """The request itself names none."""
    create(raw, topic, partitions=2)
    with RawKafka.from_url(kafka_broker.kafka_url) as waiting:
        session = ask(waiting, 11, (0, 0), [(topic, 0, 0), (topic, 1, 0)]).session_id
        fields = fetch_fields([], 60_000, 1, 1 << 20)
        waiting.send(FetchRequest, 11, **fields | {"session_id": session, "session_epoch": 1})
        raw.produce(topic, record_set([b"v"]), partition=1)
        _, answer = waiting.receive(FetchRequest, 11)
    assert parts_of(answer) == [(1, [0])]


def test_a_later_request_overtakes_one_that_waits(kafka_broker, raw, made):
    """From another connection, as after a broken one: the first gets 71, the later goes on."""
    partition = kafka_broker.broker.kafka.partitions.get(made, 0)
    with RawKafka.from_url(kafka_broker.kafka_url) as waiting:
        session = ask(waiting, 11, (0, 0), [(made, 0, 0)]).session_id
        fields = fetch_fields([], 60_000, 1, 1 << 20)
        waiting.send(FetchRequest, 11, **fields | {"session_id": session, "session_epoch": 1})
        until_s = time.monotonic() + 30
        while not (partition or kafka_broker.broker.kafka.partitions.get(made, 0)).waiting:
            assert time.monotonic() < until_s, "the fetch did not begin to wait within 30 s"
        assert ask(raw, 11, (session, 2), []).error_code == 0
        raw.produce(made, record_set([b"v"]))
        _, overtaken = waiting.receive(FetchRequest, 11)
    assert (overtaken.error_code, overtaken.responses) == (71, [])
    assert parts_of(ask(raw, 11, (session, 3), [])) == [(0, [0])]


def test_a_session_outlives_its_connection(kafka_broker, raw, made):
    """A client that connects again goes on with the next epoch."""
    raw.produce(made, record_set([b"v"]))
    with RawKafka.from_url(kafka_broker.kafka_url) as first:
        session = ask(first, 11, (0, 0), [(made, 0, 0)]).session_id
    assert parts_of(ask(raw, 11, (session, 1), [])) == [(0, [0])]


def test_many_partitions_are_kept_in_turns(raw, topic):
    """Also above the number that is looked up at once: named, read, answered and forgotten."""
    create(raw, topic, partitions=450)
    answer = ask(raw, 11, (0, 0), [(topic, n, 0) for n in range(450)])
    assert len(parts_of(answer)) == 450
    raw.produce(topic, record_set([b"v"]), partition=449)
    assert parts_of(ask(raw, 11, (answer.session_id, 1), [])) == [(449, [0])]
    gone = [(topic, n) for n in range(449)]
    assert parts_of(ask(raw, 11, (answer.session_id, 2), [], gone)) == [(449, [0])]
    assert parts_of(ask(raw, 11, (answer.session_id, 3), [(topic, 0, 0)])) == [(449, [0]), (0, [])]


def test_the_same_partition_twice_is_read_once(raw, made):
    """What is said last holds, as in Kafka."""
    raw.produce(made, record_set([b"a"]))
    answer = ask(raw, 11, (0, 0), [(made, 0, 0), (made, 0, 1)])
    assert parts_of(answer) == [(0, [])]


# -- room -----------------------------------------------------------------------------------------

PLACE = Wanted(0, 1, -1)


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        """The time."""
        return self.at_s


@pytest.fixture
def clock():
    """A clock at 0."""
    return Clock()


def begin(sessions, *partitions, principal=None, topic="t"):
    """Begin a session; its id, 0 if there was no room."""
    wanted = {(topic, number): PLACE for number in partitions}
    context = sessions.context(principal, 0, 0, wanted, ())
    for key, _ in context.wanted:
        assert context.must_answer(key, Read(high_watermark=1, first_offset=0))
    return context.session_id()


def code_of(sessions, session, epoch=1, principal=None, wanted=()):
    """The error code of the next request of a session."""
    try:
        sessions.context(principal, session, epoch, dict.fromkeys(wanted, PLACE), ())
    except KafkaError as refusal:
        return refusal.code
    return Code.NONE


def test_without_room_a_client_gets_no_session(clock):
    """Young sessions make no room, whatever their size."""
    sessions = FetchSessions(clock.now_s, 2, 100)
    assert all(begin(sessions, 0, 1, 2) for _ in range(2))
    clock.at_s = EVICTABLE_AFTER_S
    assert begin(sessions, *range(50)) == 0
    assert (len(sessions), sessions.evictions) == (2, 0)


def test_the_session_that_was_not_used_for_longest_makes_room(clock):
    """Once it is not used for two minutes; one that is used stays."""
    sessions = FetchSessions(clock.now_s, 2, 100)
    used, silent = begin(sessions, 0), begin(sessions, 1)
    clock.at_s = EVICTABLE_AFTER_S
    assert code_of(sessions, used) is Code.NONE
    clock.at_s += 1
    assert begin(sessions, 2)
    assert code_of(sessions, silent) is Code.FETCH_SESSION_ID_NOT_FOUND
    assert code_of(sessions, used, 2) is Code.NONE
    assert sessions.evictions == 1


def test_an_old_session_makes_room_for_one_that_is_not_smaller(clock):
    """Also if it is used all the time, as in Kafka."""
    sessions = FetchSessions(clock.now_s, 1, 100)
    old = begin(sessions, 0, 1)
    clock.at_s = EVICTABLE_AFTER_S + 1
    assert code_of(sessions, old) is Code.NONE
    assert begin(sessions, 0) == 0
    assert begin(sessions, 0, 1) > 0
    assert code_of(sessions, old, 2) is Code.FETCH_SESSION_ID_NOT_FOUND


def test_the_partitions_of_all_sessions_are_bounded(clock):
    """A session with too many is not begun, and one that grows too large ends."""
    sessions = FetchSessions(clock.now_s, 10, 10)
    assert begin(sessions, *range(11)) == 0
    first, second = begin(sessions, *range(6)), begin(sessions, *range(4))
    assert first
    assert second
    assert begin(sessions, 0) == 0
    assert sessions.partitions == 10
    grown = code_of(sessions, second, wanted=[("t", 4)])
    assert grown is Code.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partitions) == (1, 6)
    assert code_of(sessions, first, wanted=[("t", 9)]) is Code.NONE
    assert sessions.partitions == 7


def test_names_that_no_topic_can_have_count_for_their_memory(clock):
    """Sessions keep names as they were sent."""
    sessions = FetchSessions(clock.now_s, 10, 100)
    assert begin(sessions, 0, topic="x" * 25_600) == 0
    assert begin(sessions, 0, topic="x" * 12_800) > 0
    assert sessions.partitions == 51


def test_a_session_belongs_to_its_client(clock):
    """Another principal can neither go on with it nor end it."""
    sessions = FetchSessions(clock.now_s, 10, 100)
    mine = begin(sessions, 0, principal="me")
    assert code_of(sessions, mine, principal="you") is Code.FETCH_SESSION_ID_NOT_FOUND
    sessions.context("you", mine, -1, {("t", 0): PLACE}, ())
    assert code_of(sessions, mine, principal="me") is Code.NONE


def test_epochs_begin_again_after_the_last_number(clock):
    """2^31 - 1 is followed by 1: 0 begins a session."""
    sessions = FetchSessions(clock.now_s, 10, 100)
    session = FetchSession(epoch=2**31 - 1)
    session.update({("t", 0): PLACE}, ())
    assert sessions.add(session)
    assert code_of(sessions, session.id, 2**31 - 1) is Code.NONE
    assert code_of(sessions, session.id, 1) is Code.NONE


# -- Fetches of clients that have not fetched all of their partitions yet


LONG_MS = 20_000


def asked_for(*indexes):
    """Partitions of a request."""
    return [Asked("t", index, 0, 1, -1) for index in indexes]


def after_an_answer(*indexes):
    """After an answer that leaves out some of the partitions 0 to 3."""
    made = UnsentRecords()
    reads = [Read(parts=[b"x"], has_more=index in indexes) for index in range(4)]
    made.answered(asked_for(*range(4)), reads, 0.0)
    return made


def test_a_fetch_that_asks_for_all_that_was_left_out_waits_as_long_as_it_says():
    """Also one after an answer that left out nothing."""
    assert after_an_answer().wait_ms(asked_for(0), LONG_MS, 0.0) == LONG_MS
    assert after_an_answer(1, 2).wait_ms(asked_for(0, 1, 2), LONG_MS, 0.0) == LONG_MS


def test_short_waits_grow_and_end():
    """A client that has not asked for what was left out by then has paused it."""
    made, waits = after_an_answer(3), []
    for number in range(10):
        waits.append(made.wait_ms(asked_for(0, 1), 500, 0.01 * number))
        made.answered(asked_for(0, 1), [Read(), Read()], 0.01 * number)
    assert (waits[0], waits[-1]) == (FIRST_WAIT_MS, MAX_WAIT_MS)
    assert waits == sorted(waits)
    assert made.wait_ms(asked_for(0, 1), 10, 1.0) == 10
    assert made.wait_ms(asked_for(0, 1), 500, REMEMBERED_S + 1) == 500


def test_records_that_come_meanwhile_do_not_make_short_waits_last_longer():
    """But the next wait is the shortest again."""
    made = after_an_answer(3)
    for number in range(5):
        made.wait_ms(asked_for(0), LONG_MS, 0.01 * number)
    made.answered(asked_for(0), [Read(parts=[b"x"])], REMEMBERED_S - 1)
    assert made.wait_ms(asked_for(0), LONG_MS, REMEMBERED_S - 1) == FIRST_WAIT_MS
    assert made.wait_ms(asked_for(0), LONG_MS, REMEMBERED_S + 1) == LONG_MS


def test_a_client_that_reads_part_by_part_never_waits_for_its_time_to_be_over(raw, topic):
    """As Kafka's Java client: it fetches used up partitions while it still has to fetch others."""
    create(raw, topic, partitions=4)
    for partition in range(4):
        raw.produce(topic, record_set([b"%d" % partition * 1_000]), partition=partition)
    size = len(record_set([b"0" * 1_000]))
    found: list[bytes] = []
    offsets = dict.fromkeys(range(4), 0)

    def fetch(partitions):
        asked = [(topic, index, offsets[index], 1 << 20, -1) for index in partitions]
        answer = raw.call(FetchRequest, 11, **fetch_fields(asked, 10 * LONG_MS, 1, 2 * size))
        for part in answer.responses[0].partitions:
            got = records_of(part.records)
            offsets[part.partition_index] += len(got)
            found.extend(value[:1] for _, value in got)

    while len(found) < 4:
        fetch(range(4))
        used_up = [index for index, offset in offsets.items() if offset]
        if len(found) < 4:
            before = len(found)
            fetch(used_up)  # answered without records, or it would wait for longer than the test
            assert len(found) == before
    assert sorted(found) == [b"0", b"1", b"2", b"3"]
