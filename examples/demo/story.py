"""The demo's steps, in order. Each step prints what it does, and checks the result."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar

from pulsemark.finder import SeekClient

from . import checks
from .answers import MomentRow, RoundRow, Stored, by_client_time, first_at_or_after
from .ask import (
    official_client,
    read_everything,
    read_stamps,
    search_by_time,
    seek_with_client,
)
from .audit import ask_broker, audit_folder, offload_folder, spark_session
from .broker import BrokerProcess
from .plot import draw
from .publish import SENDERS, TOPIC, WRONG_CLOCKS, Publishers
from .report import audit_table, moments_table, rounds_table
from .truth import Truth, now_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 6
KILL_IN_ROUND = 3


class Story:
    """One run of the demo over an empty data folder."""

    def __init__(self, folder: Path, plot_path: Path, message_count: int) -> None:
        self._folder = folder
        self._plot_path = plot_path
        self._per_round = -(-message_count // ROUNDS)
        self._broker = BrokerProcess(folder / "data")
        self._truth = Truth()
        self._killed_at_ms = 0
        self._started = time.perf_counter()

    def run(self) -> None:
        """Run all steps; raises CheckError at the first difference from the truth."""
        with self._broker:
            self._say(
                f"broker serves {self._broker.service_url}, http {self._broker.http_url}, "
                f"grpc {self._broker.grpc_url} after {self._broker.start_ms:.0f} ms"
            )
            with official_client(self._broker.service_url, self._folder / "client.log") as client:
                start_ms = now_ms()
                self._publish(client)
                stored = self._read_back(client, start_ms, now_ms())
                moments = self._search(client, stored)
            rounds = self._count_rounds(stored)
            with spark_session(self._folder / "spark.log") as spark:
                audits = self._audit(spark, len(stored.keys))
                self._offload(spark, stored)
            self._stop()
        self._say(f"drawing {self._plot_path}")
        draw(self._plot_path, stored, moments, self._killed_at_ms)
        print(f"\nThe first message after each moment\n\n{moments_table(moments)}")
        print(f"\nThe messages between two moments\n\n{rounds_table(rounds)}")
        print(f"\nThe audit by producer\n\n{audits}")

    def _say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self._started:5.1f} s] {text}", flush=True)

    def _publish(self, client: pulsar.Client) -> None:
        clocks = ", ".join(f"{c.name} {c.offset_ms / 60_000:+.0f} min" for c in WRONG_CLOCKS)
        self._say(
            f"publishing {ROUNDS} rounds of {self._per_round:,} messages: "
            f"{', '.join(s.name for s in SENDERS)}; {clocks}"
        )
        publishers = Publishers(client, self._broker.service_url, self._truth)
        for number in range(ROUNDS):
            self._truth.add_moment()
            before = time.perf_counter()
            under_way = publishers.start_round(number, self._per_round)
            if number == KILL_IN_ROUND:
                self._kill_and_restart()
            under_way.finish(self._truth)
            sent, acknowledged = self._truth.counts()
            seconds = time.perf_counter() - before
            self._say(
                f"round {number + 1}: {acknowledged:,} of {sent:,} acknowledged, {seconds:.1f} s"
            )
        self._truth.add_moment()
        publishers.close()

    def _kill_and_restart(self) -> None:
        """Kill the broker when half of the round is acknowledged, and start it again."""
        half = self._per_round * (2 * KILL_IN_ROUND + 1) // 2
        while self._truth.counts()[1] < half:
            time.sleep(0.005)
        acknowledged = set(self._truth.acknowledged)
        self._killed_at_ms = now_ms()
        self._broker.kill()
        self._truth.under_way_at_kill = self._truth.sent.keys() - acknowledged
        self._say(
            f"kill -9 with {len(acknowledged):,} acknowledged and "
            f"{len(self._truth.under_way_at_kill):,} under way"
        )
        self._broker.start()
        self._say(f"broker is back after {self._broker.start_ms:.0f} ms")

    def _read_back(self, client: pulsar.Client, start_ms: int, end_ms: int) -> Stored:
        self._say("reading everything back with an official reader")
        read = read_everything(client)
        truth = self._truth
        keys = checks.payloads_are_what_was_sent(truth.sent, read.payloads)
        checks.nothing_acknowledged_is_lost(truth.acknowledged, keys)
        twice = checks.nothing_is_stored_twice(keys, truth.under_way_at_kill)
        checks.senders_keep_their_order(keys)
        self._say(
            f"{len(keys):,} payloads equal what was sent, none of {len(truth.acknowledged):,} "
            f"acknowledged is lost, {twice} were sent again after the kill"
        )
        with SeekClient(self._broker.grpc_url) as finder:
            stamps = read_stamps(finder)
        checks.indexes_are_gapless(stamps.indexes, len(keys))
        checks.broker_times_are_true(stamps.entry_times_ms, start_ms, end_ms)
        self._say(
            f"{len(stamps.indexes):,} entries carry indexes 0 to {len(keys) - 1:,} without a gap, "
            "and broker times that never fall"
        )
        return Stored(keys, read.client_times_ms, stamps.message_times_ms())

    def _search(self, client: pulsar.Client, stored: Stored) -> list[MomentRow]:
        self._say(f"asking for {len(self._truth.moments)} moments: gRPC and client.seek")
        rows = []
        index_by_key = {key: index for index, key in reversed(list(enumerate(stored.keys)))}
        with SeekClient(self._broker.grpc_url) as finder:
            finder.is_serving()
            for number, moment_ms in enumerate(self._truth.moments):
                true_index = checks.first_index_of_round(stored.keys, number)
                grpc_index, grpc_ms = search_by_time(finder, moment_ms)
                checks.search_finds_the_moment("gRPC", grpc_index, true_index)
                payload = seek_with_client(client, moment_ms)
                (key,) = (
                    checks.payloads_are_what_was_sent(self._truth.sent, [payload])
                    if payload is not None
                    else [None]
                )
                seek_index = len(stored.keys) if key is None else index_by_key[key]
                checks.search_finds_the_moment("client.seek", seek_index, true_index)
                by_client = first_at_or_after(stored.client_times_ms, moment_ms)
                rows.append(
                    MomentRow(moment_ms, true_index, grpc_index, grpc_ms, seek_index, by_client)
                )
        return rows

    def _count_rounds(self, stored: Stored) -> list[RoundRow]:
        self._say("counting the rounds between the moments: gRPC range")
        rows = []
        moments = self._truth.moments
        with SeekClient(self._broker.grpc_url) as finder:
            for number, (from_ms, to_ms) in enumerate(pairwise(moments)):
                true_count = sum(key[0] == number for key in stored.keys)
                counted = finder.range(TOPIC, from_ms, to_ms).count
                checks.range_counts_the_round(number, counted, true_count)
                found, missed, foreign = by_client_time(stored, number, from_ms, to_ms)
                rows.append(RoundRow(number, true_count, counted, found, missed, foreign))
        checks.client_time_misses_something(sum(row.missed for row in rows))
        return rows

    def _audit(self, spark: SparkSession, message_count: int) -> str:
        """The table of both audits by producer."""
        self._say("auditing the data folder with Spark, while the broker has it open")
        count, missing, by_spark = audit_folder(spark, self._broker.data_dir)
        checks.audit_is_complete(count, missing, message_count)
        by_broker = ask_broker(self._broker.http_url)
        checks.audits_agree(by_broker, by_spark)
        self._say(
            f"audit: {count:,} messages, {missing} missing; the broker's own audit has the same "
            f"{len(by_broker)} rows"
        )
        return audit_table(by_broker, by_spark)

    def _offload(self, spark: SparkSession, stored: Stored) -> None:
        self._say("copying the topic to Parquet files with Spark, and what is new once more")
        target = self._folder / "archive"
        copied = offload_folder(spark, self._broker.data_dir, target)
        sent = [self._truth.sent[key] for key in stored.keys]
        checks.offload_is_complete(copied.values_by_index, copied.rows, sent)
        checks.second_offload_copies_nothing(copied.rows_of_second_run, copied.problems)
        self._say(
            f"offload: {copied.rows:,} messages in {copied.files} files of "
            f"{copied.size_bytes / 1e6:.1f} MB, equal to what was sent; the second run copied none"
        )

    def _stop(self) -> None:
        status = self._broker.stop()
        if status:
            raise checks.CheckError(f"the broker ended with {status} on SIGTERM")
        self._say("broker stopped in order")
