"""The output of all benchmarks: a table with the ratio first, then one line of JSON."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, with its limit or peer from the same run.

    ``ratio`` compares ours with theirs; above 1 ours is better. None without a peer.
    """

    name: str
    ours: float
    peer: float | None
    ratio: float | None
    unit: str
    peer_name: str = ""


def higher(name: str, ours: float, peer: float | None, unit: str, peer_name: str = "") -> Figure:
    """A figure for which a higher value is better."""
    return Figure(name, ours, peer, ours / peer if peer else None, unit, peer_name)


def lower(name: str, ours: float, peer: float | None, unit: str, peer_name: str = "") -> Figure:
    """A figure for which a lower value is better."""
    return Figure(name, ours, peer, peer / ours if peer and ours else None, unit, peer_name)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(title: str, figures: Sequence[Figure]) -> None:
    """Print the table and the JSON line."""
    print(f"# {title}  (Python {platform.python_version()}, {platform.machine()})")
    width = max(len(f.name) for f in figures)
    print(f"{'ratio':>7}  {'job':<{width}}  {'pulsemark':>12}  {'limit/peer':>12}  unit")
    for f in figures:
        ratio = f"{f.ratio:.2f}x" if f.ratio is not None else "-"
        peer = f"{f.peer:,.4g}" if f.peer is not None else "-"
        note = f"  ({f.peer_name})" if f.peer_name else ""
        print(f"{ratio:>7}  {f.name:<{width}}  {f.ours:>12,.6g}  {peer:>12}  {f.unit}{note}")
    rows = [
        {"ratio": f.ratio, "name": f.name, "ours": f.ours, "peer": f.peer, "unit": f.unit}
        for f in figures
    ]
    print(json.dumps({"bench": title, "figures": rows}))
    sys.stdout.flush()
