"""For commands that run until a signal: what the signals do, and figures for Prometheus."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector


@contextmanager
def ended_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call ``stop``; a second one has its usual effect."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, _: object) -> None:
        stop()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT, as long as the running loop lives."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def serve_metrics(host: str, port: int, collector: Collector) -> int:
    """Serve the figures that an object collects over HTTP; returns the port. Raises OSError."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    server, _ = start_http_server(port, host, registry)
    return int(server.server_port)


def by_topic(name: str, text: str, values: Mapping[str, float], kind: str = "gauge") -> Metric:
    """A figure of each topic, or with the kind ``counter`` one that only grows."""
    from prometheus_client import Metric

    metric = Metric(name, text, kind)
    sample = f"{name}_total" if kind == "counter" else name
    for topic, value in values.items():
        metric.add_sample(sample, {"topic": topic}, value)
    return metric
