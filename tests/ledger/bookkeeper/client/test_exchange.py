"""Answers to adds, in any order and in any pieces: who hears of what."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.ledger.bookkeeper.client.adds import AddEncoder, AddRun
from pulsemark.ledger.bookkeeper.client.connection import Exchange, Numbers
from pulsemark.ledger.bookkeeper.client.errors import (
    BookieProtocolError,
    BookieRefusedError,
    BookieTimeoutError,
    BookKeeperError,
    ClientClosedError,
)
from pulsemark.ledger.bookkeeper.client.frames import FrameReader
from pulsemark.proto.bookkeeper_wire_pb2 import Response


class Bookie:
    """Runs of adds that wait for a bookie's answers, and what their callers hear."""

    def __init__(self, *counts: int, timeout_ms: int = 1000) -> None:
        self.exchange, numbers = Exchange("b", Numbers()), Numbers()
        numbers.take(120)  # some numbers of theirs have one byte, others two
        self.runs: list[AddRun] = []
        self.heard: list[list[int | BookKeeperError]] = []
        self.reader = FrameReader(1000)
        for ledger_id, count in enumerate(counts):
            encoder = AddEncoder(ledger_id, b"k" * 20, timeout_ms=timeout_ms)
            run = encoder.encode(125, numbers.take(count), [[b"x"]] * count)
            self.runs.append(run)
            self.heard.append([])
            self.exchange.begin_adds(run, self.heard[-1].append, float(ledger_id))

    def receive(self, data: bytes) -> None:
        """Bytes of the bookie arrive."""
        for frame in self.reader.feed(data, self.exchange.take_adds):
            self.exchange.receive(frame)

    def counts(self, run: int) -> list[int]:
        """How many adds were held, each time that a caller heard of it."""
        return [one for one in self.heard[run] if isinstance(one, int)]

    def good(self, run: int, place: int) -> bytes:
        """The frame of the good answer to an add."""
        ends = self.runs[run].answer_ends
        return self.runs[run].answers[ends[place] : ends[place + 1]]

    def answer(self, run: int, place: int, **changed: int) -> bytes:
        """The same with some fields changed."""
        response = Response.FromString(self.good(run, place)[4:])
        for name, value in changed.items():
            part = next(
                one
                for one in (response, response.header, response.addResponse)
                if name in one.DESCRIPTOR.fields_by_name
            )
            setattr(part, name, value)
        data = response.SerializeToString()
        return struct.pack(">I", len(data)) + data


@given(data=st.data(), counts=st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_any_order_and_any_pieces(data: st.DataObject, counts: list[int]) -> None:
    """A caller hears of the first entries as soon as all of them are answered, and of no others,
    whatever order answers have, whichever come twice, and however their bytes are cut.
    """
    bookie = Bookie(*counts)
    every = [(run, place) for run, count in enumerate(counts) for place in range(count)]
    if data.draw(st.booleans()):
        every = data.draw(st.permutations(every))
    order = [*every]
    for twice in data.draw(st.lists(st.sampled_from(every), max_size=5)):
        order.insert(data.draw(st.integers(0, len(order))), twice)
    answers = b"".join(bookie.good(*one) for one in order)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answers)), max_size=6)))
    for start, end in zip([0, *cuts], [*cuts, len(answers)], strict=True):
        bookie.receive(answers[start:end])
        whole = {one for one in order if answers[:end].find(bookie.good(*one)) >= 0}
        for run, count in enumerate(counts):
            places = range(count)
            held = next((place for place in places if (run, place) not in whole), count)
            assert (bookie.heard[run] or [0])[-1] == held
            assert bookie.counts(run) == sorted(set(bookie.counts(run)))
    assert (len(bookie.exchange), bookie.exchange.waiting_bytes) == (0, 0)


@given(order=st.permutations([(run, place) for run in range(2) for place in range(4)]))
def test_an_error_ends_its_run_only(order: list[tuple[int, int]]) -> None:
    """An add that a bookie refused fails its run, once; the other run's answers are counted."""
    bookie = Bookie(4, 4)
    for run, place in order:
        status = 505 if (run, place) == (0, 2) else 0
        bookie.receive(bookie.answer(run, place, status=status))
    counts, error = bookie.counts(0), bookie.heard[0][-1]
    assert isinstance(error, BookieRefusedError)
    assert (error.status, error.ledger_id, error.entry_id) == (505, 0, 127)
    assert len(counts) == len(bookie.heard[0]) - 1
    assert counts == sorted(set(counts))
    assert max([0, *counts]) <= 2
    assert bookie.heard[1][-1] == 4
    assert (len(bookie.exchange), bookie.exchange.waiting_bytes) == (0, 0)


@pytest.mark.parametrize(
    "changed", [{"ledgerId": 5}, {"entryId": 9}, {"operation": 1}, {"version": 2}, {"txnId": 999}]
)
def test_an_answer_to_something_else(changed: dict[str, int]) -> None:
    """Facts that are not the request's are no answer, and nothing is confirmed by them."""
    bookie = Bookie(3)
    bookie.receive(bookie.good(0, 0))
    with pytest.raises(BookieProtocolError):
        bookie.receive(bookie.answer(0, 1, **changed))
    assert bookie.heard[0][0] == 1
    assert bookie.counts(0) == [1]


def test_an_answer_without_its_part() -> None:
    """An answer that says OK, but not to what, is no answer."""
    bookie = Bookie(3)
    response = Response.FromString(bookie.good(0, 0)[4:])
    response.ClearField("addResponse")
    data = response.SerializeToString()
    with pytest.raises(BookieProtocolError, match="addResponse"):
        bookie.receive(struct.pack(">I", len(data)) + data)


def test_time_limits() -> None:
    """Of two runs the one that is due fails with its first entry that is not answered."""
    bookie = Bookie(3, 3, timeout_ms=1000)
    bookie.receive(bookie.good(0, 0) + bookie.good(0, 2) + bookie.good(1, 0))
    assert bookie.exchange.next_deadline_s() == 1.0
    assert not bookie.exchange.expire(1.5, 1.2)
    assert bookie.heard[0][0] == 1
    error = bookie.heard[0][1]
    assert isinstance(error, BookieTimeoutError)
    assert (error.ledger_id, error.entry_id) == (0, 126)
    bookie.receive(bookie.good(0, 1) + bookie.good(1, 1) + bookie.good(1, 2))
    assert (len(bookie.heard[0]), bookie.heard[1][-1]) == (2, 3)
    assert bookie.exchange.next_deadline_s() is None
    silent = Bookie(3)
    assert silent.exchange.expire(2.0, 0.0)


def test_the_end_of_a_connection() -> None:
    """Every run fails that is not answered as a whole."""
    bookie = Bookie(1, 2)
    bookie.receive(bookie.good(0, 0) + bookie.good(1, 0))
    bookie.exchange.fail_all(ClientClosedError(bookie="b"))
    assert bookie.heard[0] == [1]
    assert bookie.heard[1][0] == 1
    assert isinstance(bookie.heard[1][1], ClientClosedError)
    assert len(bookie.exchange) == 0
