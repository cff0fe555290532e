"""The picture: client publish time and broker time over the index, and searches in both.

The upper part shows both times of every message over its index: broker time is one rising line,
client times are one line for each clock. The lower part enlarges the last minute: for each moment
that was searched it shows the result by broker time (on the line) and by client time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .answers import MomentRow, Stored, first_at_or_after

BLUE, ORANGE, GREY, RED, GREEN = "#1f5fbf", "#e07b00", "#8a8f98", "#c22f2f", "#1a8a4a"
CLOCK_COLOURS = {"right clock": GREY, "fast clock": ORANGE, "slow clock": RED}


def clock_of(sender: str) -> str:
    """The kind of clock that a sender uses; there are three."""
    return sender if sender in CLOCK_COLOURS else "right clock"


def draw(path: Path, stored: Stored, moments: Sequence[MomentRow], killed_at_ms: int) -> None:
    """Write the picture as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(12.5, 8.6), sharex=True, height_ratios=(1, 1.2), layout="constrained"
    )
    start_ms = stored.broker_times_ms[0]
    _draw_times(above, stored, start_ms)
    _draw_searches(below, stored, moments, start_ms, killed_at_ms)
    figure.suptitle("One clock stamps all messages; their clients have clocks of their own")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_times(axes: Any, stored: Stored, start_ms: int) -> None:
    indexes = range(len(stored.keys))
    for clock, colour in CLOCK_COLOURS.items():
        mine = [i for i in indexes if clock_of(stored.keys[i][1]) == clock]
        minutes = [(stored.client_times_ms[i] - start_ms) / 60_000 for i in mine]
        axes.plot(mine, minutes, ".", markersize=7, color=colour, label=f"publish time, {clock}")
    minutes = [(time_ms - start_ms) / 60_000 for time_ms in stored.broker_times_ms]
    axes.plot(indexes, minutes, color=BLUE, linewidth=1.5, label="broker time")
    axes.set_ylabel("minutes since the first message")
    axes.set_title("Client publish time and broker time of every message", loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)


def _draw_searches(
    axes: Any, stored: Stored, moments: Sequence[MomentRow], start_ms: int, killed_at_ms: int
) -> None:
    seconds = [(time_ms - start_ms) / 1_000 for time_ms in stored.broker_times_ms]
    axes.plot(range(len(seconds)), seconds, color=BLUE, linewidth=1.8, label="broker time")
    killed_index = first_at_or_after(stored.broker_times_ms, killed_at_ms)
    axes.axvline(killed_index, color=GREY, linestyle=":", label="kill -9 and restart")
    levels = [(row.moment_ms - start_ms) / 1_000 for row in moments]
    for level, row in zip(levels, moments, strict=True):
        places = [row.by_client_time_index, row.true_index]
        axes.plot(places, [level] * 2, color=RED, alpha=0.35, linewidth=1)
    landed = [row.by_client_time_index for row in moments]
    axes.plot(landed, levels, "X", color=RED, markersize=9, label="searched by client time")
    found = [row.grpc_index for row in moments]
    axes.plot(found, levels, "o", color=GREEN, markersize=8, label="searched by broker time")
    axes.set_ylabel("seconds since the first message")
    axes.set_xlabel("index of the message in the topic")
    axes.set_title(
        "Where a search for each moment lands; the first message after it is on the line",
        loc="left",
        fontsize=11,
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
