"""BrokerThread: a start that a signal handler ends."""

from __future__ import annotations

import _thread
import asyncio
import signal
import threading

import pytest

from pulsemark.broker import Broker, BrokerConfig, BrokerThread, OwnLoopError, embed

PATIENCE_S = 30.0


def test_a_broker_whose_start_was_interrupted_ends(monkeypatch):
    """Whether its thread runs a loop by then or not: `close` returns, and nothing is served."""
    was_left = threading.Event()

    def interrupting() -> asyncio.AbstractEventLoop:
        _thread.interrupt_main()
        was_left.wait(PATIENCE_S)
        return asyncio.new_event_loop()

    monkeypatch.setattr(embed, "new_event_loop", interrupting)
    # A shell's background job, and all that it starts, ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    broker = BrokerThread(BrokerConfig(storage="memory", port=0, http_port=None))
    try:
        with pytest.raises(KeyboardInterrupt):
            broker.start()
    finally:
        signal.signal(signal.SIGINT, before)
    closing = threading.Thread(target=broker.close, daemon=True)
    closing.start()
    closing.join(0.2)  # it has found no loop by then
    was_left.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()


def test_a_call_on_the_brokers_own_loop_is_refused():
    """It would wait for itself; the broker goes on, and can be closed from another thread."""
    with BrokerThread(BrokerConfig(storage="memory", port=0, http_port=None)) as broker:

        async def calls(_: Broker) -> list[str]:
            said = []
            for call in (broker.close, lambda: broker.call(calls)):
                with pytest.raises(OwnLoopError) as caught:
                    call()
                said.append(caught.value.call)
            return said

        assert broker.call(calls) == ["BrokerThread.close", "BrokerThread.call"]
        assert broker.service_url
