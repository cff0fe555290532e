"""Runs commands in Pulsar's pulsar-shell, and compares what they print.

pulsar-shell runs many commands of pulsar-admin and pulsar-client in one Java process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Outcome", "difference", "environment", "is_different", "normalized", "run_shell"]

LIMIT_S = 1_800.0
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
MARKS = re.compile(r"\[\d+/\d+\] (Executing|\S) ")
BEGINS = re.compile(r"^\[(\d+)/(\d+)\] Executing (.*)$")
#: The shell's marks of what is done; they do not say whether it succeeded.
DONE = re.compile(r"^\[\d+/\d+\] \S ")
FAILED = re.compile(r"^Reason: |Exception\b|^Error|^Usage: ")
#: A line of a log, of a Java stack trace, or of pulsar-client's figures of the connection.
NOISE = re.compile(
    r"^\d{4}-\d\d-\d\dT|^\tat |^\s*\.\.\. \d+ more|^(INFO|WARN)|^Nov |^WARNING|^Goodbye!"
)
REPLACED = (
    (re.compile(r"(localhost|127\.0\.0\.1|\[::1\]):\d+"), "<address>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]+(Z|[+-]\d\d:?\d\d)"), "<time>"),
    (re.compile(r"\b1[5-9]\d{11}\b"), "<ms>"),
    (re.compile(r'("ledgerId" : |"cursors?Ledger(Id|LastEntry)?" : )-?\d+'), r"\1<ledger>"),
    (re.compile(r"\b\d+:(-?\d+)(:-?\d+)*\b"), r"<ledger>:\1"),
    # Names of producers, and so the sizes of entries, differ from broker to broker.
    (
        re.compile(r'("(\w*[sS]ize|sizeInBytes|\w*Latency|bytes\w*Counter)" : )-?[\d.]+'),
        r"\1<bytes>",
    ),
    (re.compile(r'"reqId":\d+'), '"reqId":<id>'),
    (re.compile(r"ServletContainer-\w+"), "ServletContainer"),
    (re.compile(r"\b\d+\.\d+(E-?\d+)?\b"), "<float>"),
)


@dataclass(slots=True)
class Outcome:
    """What one command did: whether it succeeded, and the lines that it printed."""

    command: str
    succeeded: bool
    lines: list[str]


def environment(folder: Path | str) -> Mapping[str, str]:
    """The variables of one of the distribution's programs, which keeps its files in a folder."""
    options = {"PULSAR_EXTRA_OPTS": f"-Duser.home={folder}", "PULSAR_MEM": "-Xmx256m"}
    return {**os.environ, **options}


def run_shell(home: Path, admin_url: str, service_url: str, commands: list[str]) -> list[Outcome]:
    """Have pulsar-shell run the commands. Raises `RuntimeError` if it did not run them all."""
    with tempfile.TemporaryDirectory() as folder:
        settings, script = Path(folder, "client.conf"), Path(folder, "commands")
        settings.write_text(f"webServiceUrl={admin_url}\nbrokerServiceUrl={service_url}\n")
        script.write_text("\n".join(commands) + "\n")
        finished = subprocess.run(
            [home / "bin" / "pulsar-shell", "-c", settings, "-f", script],
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    text = finished.stdout.decode(errors="replace")
    outcomes = outcomes_in(text)
    if [outcome.command for outcome in outcomes] != commands:
        print(text[-5000:], file=sys.stderr)
        raise RuntimeError(f"pulsar-shell ran {len(outcomes)} of {len(commands)} commands")
    return outcomes


def outcomes_in(text: str) -> list[Outcome]:
    """The outcome of each command in pulsar-shell's output."""
    found: list[Outcome] = []
    # Some commands print no end of line.
    plain = MARKS.sub(r"\n\g<0>", COLOURS.sub("", text))
    for raw in plain.splitlines():
        line = raw.rstrip()
        begins = BEGINS.match(line)
        if begins is not None:
            found.append(Outcome(begins[3], succeeded=True, lines=[]))
        elif found and line and not NOISE.match(line) and not DONE.match(line):
            found[-1].lines.append(normalized(line))
            found[-1].succeeded &= FAILED.search(line) is None
    return found


def normalized(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, replacement in REPLACED:
        line = pattern.sub(replacement, line)
    return line


def is_different(ours: Outcome, theirs: Outcome) -> bool:
    """Whether outcomes differ; the order of lines does not count, Pulsar's lists have none."""
    return ours.succeeded != theirs.succeeded or bool(_only(ours.lines, theirs.lines))


def _only(ours: list[str], theirs: list[str]) -> list[str]:
    left, right = sorted(map(_bare, ours)), sorted(map(_bare, theirs))
    missing, more = list(right), []
    for line in left:
        if line in missing:
            missing.remove(line)
        else:
            more.append(f"ours   {line}")
    return more + [f"theirs {line}" for line in missing]


def _bare(line: str) -> str:
    return line.strip().removesuffix(",")


def difference(ours: Outcome, theirs: Outcome) -> list[str]:
    """What is different, in lines."""
    words = {True: "succeeded", False: "failed"}
    found = []
    if ours.succeeded != theirs.succeeded:
        found.append(f"ours {words[ours.succeeded]}, theirs {words[theirs.succeeded]}")
    return found + _only(ours.lines, theirs.lines)[:30]
