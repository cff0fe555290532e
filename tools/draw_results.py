"""Draw docs/latency.svg and docs/throughput.svg of the results kept in bench/results.

A point is the median of the rounds, a line goes from the lowest to the highest of them. Programs of
bench/ keep their results there with BENCH_RESULTS=bench/results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
OURS, PEER = "#1f5fbf", "#8a8f98"
#: For pictures that are the same when they are drawn again.
SETTINGS: Any = {"svg.hashsalt": "pulsemark", "svg.fonttype": "none", "font.size": 10}


def figures_of(name: str) -> list[dict[str, Any]]:
    """The figures of one result that have a peer."""
    text = (RESULTS / f"{name}.json").read_text(encoding="utf-8")
    return [figure for figure in json.loads(text)["figures"] if figure["peer"]]


def text_of(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def spread(
    axes: Any, samples: Sequence[dict[str, float]], places: Sequence[float],
    scales: Sequence[float], *, colour: str, label: str, across: bool,
) -> None:  # fmt: skip
    """The points and lines of one side; each sample is divided by its scale."""
    rows = list(zip(samples, scales, strict=True))
    middles = [sample["median"] / scale for sample, scale in rows]
    below = [(sample["median"] - sample["lowest"]) / scale for sample, scale in rows]
    above = [(sample["highest"] - sample["median"]) / scale for sample, scale in rows]
    look = {"fmt": "o", "color": colour, "label": label, "capsize": 3}
    if across:
        axes.errorbar(middles, places, xerr=(below, above), **look)
    else:
        axes.errorbar(places, middles, yerr=(below, above), **look)


def draw_latency(axes: Any) -> None:
    """Quantiles of durable appends beside those of the bare system calls."""
    figures = [each for each in figures_of("append") if ", p" in each["name"]]
    for side, label, colour, shift in (
        ("ours", "pulsemark", OURS, -0.1), ("peer", "pwrite + fdatasync", PEER, 0.1),
    ):  # fmt: skip
        samples = [figure[side] for figure in figures]
        places = [number + shift for number in range(len(figures))]
        spread(axes, samples, places, [1] * len(figures), colour=colour, label=label, across=False)
        for place, sample in zip(places, samples, strict=True):
            where = (12 if shift > 0 else -12, 0)
            axes.annotate(
                text_of(sample["median"]), (place, sample["median"]), where, color=colour,
                textcoords="offset points", ha="left" if shift > 0 else "right", va="center",
            )  # fmt: skip
    axes.set_xticks(range(len(figures)), [each["name"].rpartition(", ")[2] for each in figures])
    axes.set_xlim(-0.5, len(figures) - 0.5)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("ms from the append to its sync")
    axes.set_title("Appends of 100 B that wait for their syncs", loc="left")


def draw_throughput(axes: Any) -> None:
    """Rates beside those of Apache Pulsar, whose median is 1."""
    figures = [each for each in figures_of("compare_pulsar") if each["unit"] in ("/s", " MB/s")]
    figures.reverse()
    scales = [figure["peer"]["median"] for figure in figures]
    for side, label, colour, shift in (
        ("ours", "pulsemark", OURS, 0.14), ("peer", "Apache Pulsar", PEER, -0.14),
    ):  # fmt: skip
        samples = [figure[side] for figure in figures]
        places = [number + shift for number in range(len(figures))]
        spread(axes, samples, places, scales, colour=colour, label=label, across=True)
    names = [f"{f['name']}\n{text_of(f['ours']['median'])}{f['unit']}" for f in figures]
    axes.set_yticks(range(len(figures)), names)
    axes.axvline(1, color=PEER, linewidth=0.8)
    axes.set_xlabel("times Apache Pulsar's median; below each job the rate of pulsemark")
    axes.set_title("Rates beside Apache Pulsar's", loc="left")


def draw_all(folder: Path) -> None:
    """Draw both into a folder."""
    mpl.use("Agg")
    for name, size, draw in (
        ("latency", (7, 4), draw_latency), ("throughput", (9, 7.5), draw_throughput),
    ):  # fmt: skip
        with mpl.rc_context(SETTINGS):
            figure, axes = plt.subplots(figsize=size, layout="constrained")
            draw(axes)
            axes.grid(alpha=0.25)
            axes.legend()
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    draw_all(ROOT / "docs")
