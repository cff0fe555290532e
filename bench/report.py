"""The output of all benchmarks: a table with the ratio first, then one line of JSON.

The variable BENCH_RESULTS names a folder in which that line is kept, too, as TITLE.json. Those of
bench/results are drawn by tools/draw_results.py.

A figure of several rounds is their median, in brackets the lowest and the highest; a figure without
brackets was measured once. A ratio is that of the medians.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rounds import Measured, Sample


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, with its limit or peer from the same run.

    ``ratio`` compares ours with theirs; above 1 ours is better. None without a peer.
    """

    name: str
    ours: Sample
    peer: Sample | None
    ratio: float | None
    unit: str
    peer_name: str = ""


def higher(
    name: str, ours: Measured, peer: Measured | None, unit: str, peer_name: str = ""
) -> Figure:
    """A figure for which a higher value is better."""
    mine, theirs = _samples(ours, peer)
    ratio = mine.median / theirs.median if theirs and theirs.median else None
    return Figure(name, mine, theirs, ratio, unit, peer_name)


def lower(
    name: str, ours: Measured, peer: Measured | None, unit: str, peer_name: str = ""
) -> Figure:
    """A figure for which a lower value is better."""
    mine, theirs = _samples(ours, peer)
    ratio = theirs.median / mine.median if theirs and theirs.median and mine.median else None
    return Figure(name, mine, theirs, ratio, unit, peer_name)


def _samples(ours: Measured, peer: Measured | None) -> tuple[Sample, Sample | None]:
    return Sample.of(ours), None if peer is None else Sample.of(peer)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie, such as the p50 of a round."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(title: str, figures: Sequence[Figure]) -> None:
    """Print the table and the JSON line."""
    print(f"# {title}  (Python {platform.python_version()}, {platform.machine()})")
    rows = [("ratio", "job", "pulsemark", "limit/peer", "unit")]
    rows += [
        (
            f"{f.ratio:.2f}x" if f.ratio is not None else "-",
            f.name,
            f.ours.text(),
            f.peer.text() if f.peer is not None else "-",
            f"{f.unit}  ({f.peer_name})" if f.peer_name else f.unit,
        )
        for f in figures
    ]
    first, job, ours, peer, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    for ratio, name, mine, theirs, unit in rows:
        print(f"{ratio:>{first}}  {name:<{job}}  {mine:>{ours}}  {theirs:>{peer}}  {unit}")
    write_json(title, figures)


def write_json(title: str, figures: Sequence[Figure]) -> None:
    """Print the JSON line, and keep it if BENCH_RESULTS says where."""
    line = json.dumps({"bench": title, "figures": [asdict(figure) for figure in figures]})
    print(line, flush=True)
    if folder := os.environ.get("BENCH_RESULTS"):
        path = Path(folder) / f"{title.replace(' ', '_')}.json"
        path.write_text(line.replace('{"name"', '\n{"name"') + "\n", encoding="utf-8")
