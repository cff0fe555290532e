"""What the programs of bench/ share: rounds in turns, and their median with the spread."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))
try:
    import report
    import spark_report
    from rounds import Sample, add_rounds, in_turns
finally:
    sys.path.remove(str(BENCH))

VALUES = st.lists(st.floats(0.001, 1e9), min_size=1, max_size=20)


@given(VALUES, st.randoms())
def test_a_sample_is_median_lowest_and_highest(values: list[float], order: object) -> None:
    """At most half of the rounds lie on each side of the median; their order means nothing."""
    sample = Sample.of(values)
    below = sum(value < sample.median for value in values)
    above = sum(value > sample.median for value in values)
    assert max(below, above) <= len(values) / 2
    assert {sample.lowest, sample.highest} <= set(values)
    assert all(sample.lowest <= value <= sample.highest for value in [*values, sample.median])
    assert sample.rounds == len(values)
    order.shuffle(values)  # type: ignore[attr-defined]
    assert Sample.of(values) == sample


def test_a_sample_as_text() -> None:
    """The spread is shown if there are several rounds; three digits, or all before the point."""
    assert Sample.of([12345.6, 2.34567, 0.0123]).text(" us") == "2.35 us (0.0123 to 12,346)"
    assert Sample.of(7).text("/s") == "7/s"
    assert Sample.of([2, 4]).text() == "3 (2 to 4)"
    with pytest.raises(ValueError, match="no round"):
        Sample.of([])


@given(VALUES, VALUES)
def test_a_ratio_is_that_of_the_medians(ours: list[float], peer: list[float]) -> None:
    """Above 1 ours is better, whether more or less is wanted; without a peer there is none."""
    mine, theirs = Sample.of(ours).median, Sample.of(peer).median
    more, less = report.higher("a", ours, peer, "/s"), report.lower("a", ours, peer, "us")
    assert more.ratio == pytest.approx(mine / theirs)
    assert less.ratio == pytest.approx(theirs / mine)
    assert (more.ours, more.peer) == (less.ours, less.peer) == (Sample.of(ours), Sample.of(peer))
    assert report.higher("a", ours, None, "/s").ratio is None


def test_rounds_take_turns() -> None:
    """Each round calls every measure once, every second round in the opposite order."""
    calls: list[str] = []

    def measure(name: str) -> str:
        calls.append(name)
        return f"{name}{len(calls)}"

    taken = in_turns(3, *(lambda name=name: measure(name) for name in "abc"))
    assert calls == [*"abc", *"cba", *"abc"]
    assert taken == [["a1", "a6", "a7"], ["b2", "b5", "b8"], ["c3", "c4", "c9"]]


def test_table_and_json_have_the_spread_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    """The table of a bench and its line of JSON give median, lowest and highest of both sides."""
    report.show("t", [report.higher("job", [3, 1, 8], [2, 1, 1.5], "/s", "a peer")])
    *_, row, line = capsys.readouterr().out.splitlines()
    assert row.split("  ")[-5:] == ["job", "3 (1 to 8)", "1.5 (1 to 2)", "/s", "(a peer)"]
    (figure,) = json.loads(line)["figures"]
    assert figure["ours"] == {"median": 3.0, "lowest": 1, "highest": 8, "rounds": 3}
    assert figure["peer"] == {"median": 1.5, "lowest": 1, "highest": 2, "rounds": 3}
    assert figure["ratio"] == 2.0


def test_spark_rows_have_the_spread_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    """A row of Spark's benches gives rates and processor time of all rounds, of both sides."""
    ours = [spark_report.Cost(wall_s, wall_s * 2) for wall_s in (1.0, 4.0, 2.0)]
    peer = [spark_report.Cost(wall_s, wall_s) for wall_s in (4.0, 2.0, 1.0)]
    spark_report.show("scan", [spark_report.Job("a", 4_000_000, ours, peer)], "Parquet")
    spark_report.show("scan", [spark_report.Job("b", 4_000_000, ours[:1])], "Parquet")
    rows = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\| [ab] ", line)]
    assert rows == [
        "| a | 2 (1 to 4) | 2 (1 to 4) | 1.00x | 1 us (0.5 to 2) | 0.5 us (0.25 to 1) |",
        "| b | 4 | - | - | 0.5 us | - |",
    ]


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", ""])
def test_rounds_are_a_number_from_1_on(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Other rounds are refused, with the text that was given; without the option it is three."""
    parser = argparse.ArgumentParser()
    add_rounds(parser)
    assert parser.parse_args([]).rounds == 3
    assert parser.parse_args(["--rounds", "7"]).rounds == 7
    with pytest.raises(SystemExit):
        parser.parse_args([f"--rounds={text}"])
    assert repr(text) in capsys.readouterr().err


def test_medians_are_made_in_one_place() -> None:
    """No other program of bench/ imports statistics or reads --rounds by itself.

    The one exception has a number of rounds for each of its scales.
    """
    found = {
        path.name
        for path in BENCH.glob("*.py")
        if re.search(r"\bstatistics\b|\"--rounds\", type=", path.read_text(encoding="utf-8"))
    }
    assert found == {"rounds.py", "bench_bookkeeper.py"}


def test_results_are_kept_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has what the line of JSON has; without the variable there is none."""
    figures = [report.higher("job", [3, 1, 8], None, "/s")]
    monkeypatch.delenv("BENCH_RESULTS", raising=False)
    report.show("a b", figures)
    monkeypatch.setenv("BENCH_RESULTS", str(tmp_path))
    report.show("a b", figures)
    (path,) = tmp_path.iterdir()
    assert path.name == "a_b.json"
    line = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(path.read_text()) == json.loads(line)


def test_the_pictures_are_those_of_the_results(tmp_path: Path) -> None:
    """docs/*.svg show the medians of bench/results: drawn again, they have the same texts."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import draw_results
    finally:
        sys.path.remove(str(ROOT / "tools"))
    draw_results.draw_all(tmp_path)
    for path in tmp_path.iterdir():
        drawn, kept = path.read_text(), (ROOT / "docs" / path.name).read_text()
        assert re.findall(r"<text .*?</text>", drawn) == re.findall(r"<text .*?</text>", kept)
