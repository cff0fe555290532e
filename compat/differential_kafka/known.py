"""Differences from Kafka that are meant, each with its reason. docs/compatibility.md explains them.

A rule names the scenarios, the steps and the lines of a difference by regular expressions. The
first one that fits says why.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Known(NamedTuple):
    """What scenario, step and line of a difference match, and why it is meant."""

    scenario: str
    step: str
    line: str
    why: str


#: Lines of a set that Kafka stores and this broker refuses, and the reverse.
REFUSED = (
    r"error_code: (2|32|53|87), theirs 0$|base_offset: -1, theirs ('end|\d)"
    r"|^: None, theirs \{'error': (0|76),"
)
STORED = (
    r"error_code: 0, theirs (-1|2|87)$|base_offset: ('end|\d)|^: \{'error': (0|76),.* theirs None$"
)
TRANSACTIONS = "transactions|implicit-transactions|late-transactions|transaction-offsets"
SETS = f"conversion-matrix|bad-sets|missing-sets|mixed-log|idempotence|{TRANSACTIONS}"
KNOWN = [
    # Record sets
    Known(
        SETS,
        "magic 2 .*to format [01] ",
        r"(error_code: 0, theirs -1|base_offset: 'end)",
        "headers are left out for an old format",
    ),
    Known(SETS, "zstd", "error_code: 76, theirs", "zstd where it may not be is 76"),
    Known(SETS, "zstd", "base_offset: -1, theirs", "zstd where it may not be is 76"),
    Known(SETS, "", "error_message: '<text>', theirs None", "a refusal has a text"),
    Known(SETS, "", "log_start_offset: ", "a refusal has the log's start, or has it not"),
    Known(SETS, "", "error_code: 87, theirs -1", "a bad set is not an error in the broker"),
    Known(SETS, "size 20", "error_code: 2, theirs -1", "a bad set is not an error in the broker"),
    Known(
        SETS,
        "null records",
        "theirs '<closed>'$|error_code: 0, theirs -1$",
        "null records are 87, or an empty set; Kafka fails on them",
    ),
    Known(SETS, "wrapper of a cut set", REFUSED, "a wrapper with a cut message is refused"),
    Known(SETS, r"deltas \d, \d to", REFUSED, "plain records not numbered 0, 1, 2 are refused"),
    Known(SETS, r"deltas \d, \d, gzip", STORED, "compressed records are numbered anew (KIP-31)"),
    Known(SETS, "LogAppendTime", REFUSED, "a producer cannot say that it is the broker's time"),
    Known(SETS, "flag of KIP-87", r"records\[0\]\[3\]", "the flag makes the value null (KIP-87)"),
    Known(SETS, "to format 2", "bytes: ", "a null value of magic 0, 1 gets the flag (KIP-87)"),
    Known(
        f"idempotence|{TRANSACTIONS}",
        "repeated|again",
        "log_append_time_ms",
        "a repeated batch has no broker time",
    ),
    # Transactions
    Known("producer-ids", "features", "theirs None", "a feature that is younger than that Kafka"),
    Known("transactions", "add the same twice", "2: ", "what is named twice is answered once"),
    Known("transactions", "add no partition", "items", "a topic without partitions is left out"),
    Known(
        "transaction-offsets",
        "of another group",
        "error_code: 48, theirs 0$",
        "a group that was not added is refused, also if Kafka keeps it beside one that was",
    ),
    Known("implicit-transactions", "state open", "topics: ", "committed offsets are no topic"),
    Known(
        "late-transactions",
        "goes on|next|commit it|state committed|at the end",
        "theirs (90|47|-1|'CompleteAbort'|3|1000)$|^batches: ",
        "who was late may go on with its next epoch, as in 4.x",
    ),
    Known(TRANSACTIONS, "offset of 0", "timestamp: ", "times are the broker's"),
    Known(
        "mixed-log",
        "client of magic [01]",
        r"^\[\d+\]\[1\]: None, theirs -?\d+$",
        "after a rollback Kafka sends new formats to old clients: it goes by the topic's setting",
    ),
    # Fetch
    Known(
        "fetches", r"v[0123]\)", "records|complete", "a converted answer is not cut at old sizes"
    ),
    Known(
        "fetches",
        "at most (-1|0)|isolation level 9",
        r"theirs -1$|records: |aborted_transactions: ",
        "odd limits and levels are lenient",
    ),
    Known(
        "fetches|deletions",
        "partition|below the start|from ",
        "aborted_transactions",
        "no list of aborted transactions beside an error",
    ),
    # Offsets
    Known(
        "list-offsets|newest-times",
        r"time -3\b",
        r"offset: \d|timestamp: \d",
        "times are the broker's",
    ),
    Known(
        "list-offsets|newest-times",
        r"time -\d",
        r"error_code: 35, theirs 0$|(offset|timestamp): -1, theirs \d|leader_epoch: |old_style",
        "negative times are those of 4.x, not of 2.8",
    ),
    Known("list-offsets", "time 0", "timestamp|offset", "times are the broker's"),
    Known("list-offsets", "twice", "items", "a refused repetition is answered twice (4.x: once)"),
    Known(
        "list-offsets",
        "at most -1",
        "error_code: 0, theirs -1$",
        "a negative count of offsets is 0",
    ),
    # Topics and settings
    Known("topics", "the same twice", "items", "a topic that is named twice is answered once"),
    Known(
        "topics",
        "the same setting twice",
        "error_code: 40, theirs 0$|error_message",
        "a setting that is named twice is refused",
    ),
    Known(
        "topics",
        "null value|empty value",
        "error_code: 40, theirs 42$|error_message",
        "a setting without a value is refused",
    ),
    Known("topics|settings|each-setting", "", "error_message", "a refusal has a text"),
    Known(
        "topics",
        "assigned",
        "error_code: 39, theirs 0$|theirs '<nothing>'$|error_message",
        "assignments are checked strictly",
    ),
    Known(
        "settings",
        "bad|null|twice|illegal topic|append to",
        "error_code: (40|42|17), theirs (42|-1|0|3)$",
        "codes of settings are those of 3.x, not of 2.8",
    ),
    Known(
        "settings",
        "after",
        r"compact,compact'|config_source: 5, theirs 1|value: '-1', theirs '2'"
        r"|value: '', theirs 'compact'|value: 'delete', theirs 'compact,delete'",
        "2.8 appends a value that is there, and takes a setting twice",
    ),
    Known(
        "each-setting",
        "",
        r"error_code: 40, theirs (42|-1)$",
        "codes of settings are those of 3.x, not of 2.8",
    ),
    Known(
        "each-setting",
        r"message\.timestamp\.(before|after|difference)|local\.retention|compression\.gzip"
        r"|message\.downconversion|max\.message\.bytes|segment\.(index\.)?bytes|flush\.messages",
        r"error_code: (0, theirs 4[02]|40, theirs 0)$|configs: |config_source|value: ",
        "settings of all versions from 2.8 to 4.x, with the limits of 3.9",
    ),
    Known(
        "cluster", "bad one", "partition_id|error_code: (84, theirs 3|3, theirs 84)$", "an order"
    ),
    Known("cluster", "type 7", "theirs -1$|error_message", "2.8 fails on an unknown election"),
    Known(
        "cluster",
        "^replicas",
        "error_code: 3, theirs (39|85)$|error_message",
        "2.8's order of checks",
    ),
    Known(
        "each-setting",
        r"min\.insync\.replicas",
        "config_source: 5, theirs 3$",
        "Kafka 4.1 and later set min.insync.replicas for the cluster",
    ),
    Known("disks", "", r"topics: \d+ items", "2.8 names every topic, without partitions"),
    Known("settings", "v0", "is_default", "version 0 says which values are defaults"),
    Known(
        "settings",
        "operation 9",
        "error_code: 42, theirs -1$|error_message",
        "an unknown operation is 42",
    ),
    Known("settings", "none", "items", "Kafka has more settings"),
    Known("discovery", "coordinator", "error_message", "no text beside success"),
    Known(
        "discovery",
        "mechanism",
        "error_code: 33, theirs 34$",
        "SASL without a configured mechanism",
    ),
    # Groups
    Known("two-members", "", "members", "members have another order"),
    Known(
        "committed-offsets",
        r"\(v0\)",
        r"error_code: (0, theirs (-1|3|35)|12, theirs 35)$|committed_offset: |items",
        "version 0 of commits is like version 1",
    ),
    Known(
        "committed-offsets",
        "groups with offsets",
        "items, theirs",
        "version 0 of commits is like version 1",
    ),
    # The consumer protocol
    Known(
        "consumer-protocol",
        "an empty list",
        "member_epoch: 'epoch#0', theirs 'epoch#-1'$",
        "Kafka counts a subscription as a change of its own",
    ),
    Known(
        "consumer-protocol",
        "(commit|offsets),? old",
        "error_code: (113|22), theirs 0$",
        "offsets need the present epoch; 4.3 takes those of earlier ones, too (KIP-1251)",
    ),
    Known(
        "consumer-protocol",
        "left$|left .v",
        "^groups",
        "a group without members is forgotten, or a classic one with offsets",
    ),
    Known("consumer-protocol", "deleted", "error_message", "a refusal has a text"),
    # Bytes
    Known(
        "frames",
        "null|negative array",
        "theirs '<closed>'$|^.0.: '0+4d0+1.* theirs '0+4d0+1",
        "null lists are empty lists, null names are illegal",
    ),
    Known("frames", "length -2", "theirs '<closed>'$", "a negative length is null"),
    Known(
        "frames",
        "not UTF-8",
        "('<closed>'|None), theirs '0+4d",
        "text that is not UTF-8 ends the connection",
    ),
]


def reason_of(scenario: str, step: str, line: str) -> str | None:
    """Why a difference is meant; None if it is not."""
    for known in KNOWN:
        if (
            re.fullmatch(known.scenario, scenario)
            and re.search(known.step, step)
            and re.search(known.line, line)
        ):
            return known.why
    return None
