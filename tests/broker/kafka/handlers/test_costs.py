"""What one request may cost: every kind that is served has its bound, shown with its worst case."""

from __future__ import annotations

import pytest

from pulsemark.broker import cooperative
from pulsemark.broker.cooperative import Turns
from pulsemark.broker.kafka import endpoint
from pulsemark.broker.kafka.endpoint import MANY_PARTS, one_part
from pulsemark.broker.kafka.handlers import HANDLERS
from pulsemark.kafka import protocol
from tests.support.kafka_worst_cases import worst_cases

#: More than a request may name without counting as large.
COUNT = MANY_PARTS + 500
CASES = worst_cases("worst", COUNT)
MOST_BYTES = 16 * 1024


def test_every_request_has_a_worst_case_or_names_one_thing():
    """A new kind of request fails here until it has one."""
    named_once = {key for key, handler in HANDLERS.items() if handler.parts is one_part}
    assert set(CASES) | named_once == set(HANDLERS)
    assert not set(CASES) & named_once


@pytest.mark.parametrize("key", sorted(CASES), ids=lambda key: CASES[key].request.__name__)
def test_a_request_that_names_one_thing_very_often(raw, monkeypatch, key):
    """It counts as large, takes turns, and is answered once for each thing."""
    assert key in HANDLERS
    case = worst_cases(f"worst-{key}", COUNT)[key]
    raw.produce(f"worst-{key}", None)
    large, turns = [], []
    handle, waited = endpoint.KafkaSession.handle_large_now, Turns.next

    async def counted(self, request):
        large.append(request.api.key)
        await handle(self, request)

    async def counted_turn(self):
        turns.append(1)
        await waited(self)

    monkeypatch.setattr(endpoint.KafkaSession, "handle_large_now", counted)
    monkeypatch.setattr(Turns, "next", counted_turn)
    monkeypatch.setattr(cooperative, "SLICE_S", 0)
    # It is the number of its parts that makes it large, not its bytes.
    monkeypatch.setattr(protocol, "DECODED_AT_ONCE_BYTES", 1 << 30)
    monkeypatch.setattr(protocol, "DECODED_AT_ONCE_SETS", 1 << 30)
    raw.send(case.request, case.version, **case.fields)
    answer = raw.receive_frame()
    assert large == [key]
    if case.is_once:
        assert len(answer) <= MOST_BYTES
    if case.takes_turns:
        assert len(turns) >= COUNT - 2


def test_an_answer_that_would_be_too_large_ends_the_connection(raw, monkeypatch, caplog):
    """Its size is known before it is made; the log says it."""
    monkeypatch.setattr(endpoint, "MAX_ANSWER_BYTES", 50_000)
    case = worst_cases("too-large", 1_000, repeated=False)[3]
    with pytest.raises(ConnectionError), caplog.at_level("INFO"):
        raw.call(case.request, case.version, **case.fields)
    assert "at most 50000 are sent" in caplog.text
