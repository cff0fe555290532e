"""BrokerThread: a start that a signal handler ends."""

from __future__ import annotations

import _thread
import asyncio
import signal
import threading

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread, embed

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
