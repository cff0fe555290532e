"""Run clients of Kafka that others have made against this broker.

    python compat/run_kafka_clients.py [--only NAME ...] [--bootstrap HOST:PORT]

The console tools of Kafka's releases from 0.8.2 to 4.x (Java), kcat, three clients in Go and one in
JavaScript. What is not on the machine comes from Maven Central, the Go module proxy and npm into
``~/.cache/pulsemark-kafka-clients`` (PULSEMARK_KAFKA_CLIENTS); what cannot be had is passed over
and said. Prints a table, client by action; the last column counts the fetch sessions (KIP-227) that
a client began. Exit code 1 if an action failed.

Without ``--bootstrap`` a broker is started, whose topics' first messages come from each client by
itself; at the end all clients, with every magic from 0 to 2, have written to one topic, and those
that can read it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pulsemark.broker import BrokerConfig, BrokerThread

sys.path.insert(0, str(Path(__file__).parent))
from kafka_clients import java_tools, others
from kafka_clients.java_tools import FailedError, JavaTools
from kafka_clients.sources import MissingError

SHARED = "shared-by-all"
Actions = dict[str, Callable[[], None]]


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", metavar="NAME", help="clients, such as java-2.8.2")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs")
    args = parser.parse_args()
    results: dict[str, dict[str, str]] = {}
    with _broker(args.bootstrap) as (bootstrap, begun):
        clients = _clients(bootstrap)
        chosen = args.only or list(clients)
        sessions = dict.fromkeys(chosen, 0)
        for name in chosen:
            before = begun()
            results[name] = {
                action: _outcome(name, action, run) for action, run in clients[name].items()
            }
            sessions[name] += begun() - before
        for name in chosen:
            before = begun()
            results[name]["shared"] = _outcome(name, "shared", _shared_reader(name, bootstrap))
            results[name]["sessions"] = str(sessions[name] + begun() - before)
    print(_table(results))
    return int(any(each == "FAILED" for row in results.values() for each in row.values()))


@contextmanager
def _broker(given: str | None) -> Iterator[tuple[str, Callable[[], int]]]:
    """Its address, and a count of the fetch sessions that began; 0 if it is not ours."""
    if given is not None:
        yield given, lambda: 0
        return
    with tempfile.TemporaryDirectory() as folder:
        config = BrokerConfig(
            data_dir=Path(folder), port=0, http_port=None, kafka_port=0,
            kafka_group_initial_rebalance_delay_ms=0,
        )  # fmt: skip
        with BrokerThread(config) as broker:
            kafka = broker.broker.kafka
            assert kafka is not None
            yield broker.kafka_url, lambda: kafka.fetch_sessions.begun


def _clients(bootstrap: str) -> dict[str, Actions]:
    clients: dict[str, Actions] = {}
    for version in java_tools.VERSIONS:
        tools = JavaTools(version, bootstrap)
        actions: Actions = {name: partial(run, tools) for name, run in java_tools.ACTIONS.items()}
        clients[f"java-{version}"] = actions | {"write": partial(tools.shared_write, SHARED)}
    return clients | others.clients(bootstrap, SHARED)


def _shared_reader(name: str, bootstrap: str) -> Callable[[], None]:
    if name.startswith("java-"):
        return partial(others.read_shared_with_java, name.removeprefix("java-"), bootstrap, SHARED)
    return others.shared_reader(name, bootstrap, SHARED)


def _outcome(client: str, action: str, run: Callable[[], None]) -> str:
    try:
        run()
    except NotImplementedError:
        return "-"
    except MissingError as reason:
        print(f"{client} {action}: skipped: {reason}", flush=True)
        return "skipped"
    except FailedError as failure:
        print(f"{client} {action}: FAILED: {failure}", flush=True)
        return "FAILED"
    return "ok"


def _table(results: dict[str, dict[str, str]]) -> str:
    columns = list(dict.fromkeys(action for row in results.values() for action in row))
    widths = [max(len(column), 7) for column in columns]
    first = max(map(len, results), default=6)
    heads = [column.ljust(width) for column, width in zip(columns, widths, strict=True)]
    lines = [f"{'client':{first}} | " + " ".join(heads)]
    for name, row in results.items():
        cells = [row.get(c, "").ljust(w) for c, w in zip(columns, widths, strict=True)]
        lines.append(f"{name:{first}} | " + " ".join(cells))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
