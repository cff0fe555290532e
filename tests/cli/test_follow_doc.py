"""docs/follow.md: its commands are accepted, and its table names the metrics that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from pulsemark.cli import _parser
from pulsemark.cli.mirror import FollowMetrics
from pulsemark.finder.following import EARLY_KINDS, LATE_KINDS
from pulsemark.mirror import FollowReport
from pulsemark.mirror.follow import Lag

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "follow.md").read_text(encoding="utf-8")
#: What a follower makes itself, or does not need.
OWN_KINDS = {
    "topic", "audit", "audit-received", "broker", "control-entries", "retention-seen", "deleting",
    "transactions", "pulsar-transactions", "pending-acks",
    "follows",
}  # fmt: skip


def test_its_commands_are_accepted() -> None:
    """Each command line of the page has options that exist."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert {line[1] for line in lines} == {"standalone", "follow", "promote"}
    for line in lines:
        assert _parser(line[1]).parse_args(line[1:]).command == line[1]


def test_its_metrics_are_there() -> None:
    """The table has exactly the metrics that a follower serves."""
    report = FollowReport(lambda _: None)
    report.of("t")
    report.lags["t"], report.truncated["t"] = Lag(3, 2500), 1
    samples = {
        sample.name: sample.value
        for metric in FollowMetrics(report).collect()
        for sample in metric.samples
    }
    assert set(re.findall(r"`(pulsemark_follow_\w+)`", TEXT)) == set(samples)
    assert samples["pulsemark_follow_lag_entries"] == 3
    assert samples["pulsemark_follow_lag_seconds"] == 2.5
    assert samples["pulsemark_follow_truncated_entries_total"] == 1


def test_every_kind_of_value_is_followed_or_known_not_to_be() -> None:
    """A new kind of the catalog's values is not forgotten by followers."""
    table = (DOCS / "formats.md").read_text(encoding="utf-8")
    table = table.split("| kind | key | value |")[1].split("\n\n")[0]
    kinds = set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE))
    assert kinds == {*EARLY_KINDS, *LATE_KINDS, *OWN_KINDS}
