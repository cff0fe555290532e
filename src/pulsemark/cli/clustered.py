"""`pulsemark standalone` as several workers, or as one of several brokers on Apache BookKeeper."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..broker import BrokerConfig, ConfigError
from ..finder.arguments import is_loopback
from .errors import CliError
from .options import json_line, positive

if TYPE_CHECKING:
    from ..broker.server import Membership
    from ..cluster.supervisor import Supervisor

WORKER = re.compile(r"worker-\d+")
"""The name of one worker's folder."""


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--cluster", metavar="NAME", help="cluster's name (default: standalone)")
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="run N brokers that divide the topics among them, each with a part of the data "
        "folder; N never changes (see docs/cluster.md)",
    )
    parser.add_argument(
        "--store",
        metavar="zk://HOST:PORT/ledgers",
        help="keep ledgers in Apache BookKeeper, and share topics with all brokers that do so "
        "(see docs/cluster.md)",
    )
    parser.add_argument(
        "--session-timeout-ms",
        type=positive,
        metavar="N",
        help="with --store: how long the topics of a broker that has died wait for another one "
        "(default: 4000)",
    )


def membership_of(args: argparse.Namespace, config: BrokerConfig) -> Membership | None:
    """The broker's way into the cluster that `--store` names; None: it is alone.

    Raises CliError.
    """
    address = _store_address(args, config)
    if address is None:
        _refuse_session_timeout(args)
        _refuse_workers_folder(config)
        return None
    if args.data_dir is not None:
        raise CliError("--data-dir does not go with --store: nothing is kept on this machine")
    if args.storage is not None:
        raise CliError("--storage does not go with --store: all data are in BookKeeper")
    if config.store_options.sync_interval_ms:
        raise CliError(
            "--durability interval (pulsemarkSyncIntervalMs) does not go with --store: bookies "
            "sync entries before they acknowledge them"
        )
    _warn_of_hidden(config)
    from ..cluster.joining import bookkeeper_member

    try:
        return bookkeeper_member(address, session_timeout_ms=_session_timeout_ms(args, config))
    except ValueError as error:
        raise CliError(f"--store: {error}") from error


def _session_timeout_ms(args: argparse.Namespace, config: BrokerConfig) -> int:
    given = args.session_timeout_ms
    if given is None:
        return config.bookkeeper.zookeeper_session_timeout_ms
    try:
        replace(config.bookkeeper, zookeeper_session_timeout_ms=given)
    except ConfigError as error:
        raise CliError(f"--session-timeout-ms {given}: {error.reason}") from error
    return int(given)


def _store_address(args: argparse.Namespace, config: BrokerConfig) -> str | None:
    # An empty one is a mistake, such as a variable that is not set: it must not mean this machine.
    return config.bookkeeper.store_address if args.store is None else str(args.store)


def _warn_of_hidden(config: BrokerConfig) -> None:
    """Lookups at any broker send clients to the advertised address."""
    told = config.advertised_address
    if told is not None and is_loopback(config.host) and not is_loopback(told):
        print(
            f"pulsemark: warning: clients are sent to {told}, but this broker listens on "
            f"{config.host} only: give it --host (see docs/cluster.md)",
            file=sys.stderr,
        )


def _refuse_session_timeout(args: argparse.Namespace) -> None:
    if args.session_timeout_ms is not None:
        raise CliError("--session-timeout-ms is for brokers with --store: no other has a session")


def _refuse_workers_folder(config: BrokerConfig) -> None:
    if config.data_dir is None:
        return
    # Also one worker's own folder: a broker alone does not know the tenants that all share.
    folder = Path(config.data_dir).resolve()
    for each in (folder, folder.parent):
        if (each / "workers.json").exists() and (each == folder or WORKER.fullmatch(folder.name)):
            raise CliError(
                f"{each} has the topics of several workers: start it with --workers, as before"
            )


def run_workers(args: argparse.Namespace, config: BrokerConfig) -> int:
    """Run the workers until a signal arrives. Raises CliError."""
    if _store_address(args, config) is not None:
        raise CliError("--workers does not go with --store: start a broker for each processor core")
    _refuse_session_timeout(args)
    from ..cluster.errors import ClusterError
    from ..cluster.supervisor import Supervisor

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        level = config.log_level
        async with Supervisor(config, args.workers, log_level=level) as supervisor:
            _announce(supervisor, as_json=args.json)
            await stop.wait()

    try:
        asyncio.run(serve())
    except ClusterError as error:
        raise CliError(str(error)) from error
    return 0


def _announce(supervisor: Supervisor, *, as_json: bool) -> None:
    first, folder = supervisor.facts[0], supervisor.config.data_dir
    assert folder is not None
    if as_json:
        names = ("service_url", "http_url", "grpc_url", "kafka_url")
        ready = {
            **{f"{name}{tls}": first[f"{name}{tls}"] for name in names for tls in ("", "_tls")},
            "data_dir": str(Path(folder).resolve()),
            "pid": os.getpid(),
            "workers": supervisor.facts,
        }
        sys.stdout.write(json_line(ready) + "\n")
    else:
        places = ", ".join(_places(one) for one in supervisor.facts)
        count = len(supervisor.facts)
        text = f"pulsemark is ready: {count} workers: {places}, data in {Path(folder).resolve()}"
        sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _places(worker: dict[str, Any]) -> str:
    """Where one worker is, for people."""
    shown = [worker["service_url"], worker["http_url"]]
    shown += [f"{name} {url}" for name in ("grpc", "kafka") if (url := worker[f"{name}_url"])]
    return " ".join(filter(None, shown))
