"""`pulsemark standalone`: run a broker in this process until SIGINT or SIGTERM.

When the broker is ready, it prints one line with its addresses: text, or with `--json` one object
with service_url, http_url, grpc_url and kafka_url (null if not served), the same names with _tls,
data_dir (null in memory) and pid. Nothing else is written to stdout. So a program can start a
broker, read one line and continue. Logs go to stderr.

`--config FILE` reads Pulsar's `broker.conf` or `standalone.conf`, see
`broker.configuration.settings`. The command line overrides the file, and the file overrides the
defaults. Settings that this broker does not have are listed once on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..broker import Broker, BrokerConfig, BrokerError, new_event_loop
from ..broker.collector import Collector
from ..broker.configuration.bookkeeper_config import BookKeeperConfig
from ..broker.configuration.security_config import SecurityConfig
from ..finder.addresses import is_loopback
from ..ledger import LedgerError
from ..metadata.stamper_names import split_stamper_names
from .errors import CliError
from .options import DEFAULT_DATA_DIR, add_data_dir, add_json, json_line, port_number, positive

if TYPE_CHECKING:
    from ..broker.configuration.settings import FileSettings

# The ledger's errors: the folder is locked, is not a data folder, or has a newer format. OSError:
# the folder cannot be written, or the address does not belong to this machine.
ERRORS = (BrokerError, LedgerError, OSError)

LOG_LEVELS = ("debug", "info", "warning", "error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments. None means "not given": then the file or the default is used."""
    add_data_dir(parser, why="folder for all data; created if it does not exist")
    parser.add_argument(
        "--storage",
        choices=("files", "memory"),
        help="keep all data in the data folder, or in memory until the broker ends "
        "(default: files)",
    )
    _add_bookkeeper(parser)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings, in the format and with the names of Pulsar's broker.conf",
    )
    _add_addresses(parser)
    parser.add_argument("--cluster", metavar="NAME", help="cluster's name (default: standalone)")
    _add_storage(parser)
    parser.add_argument(
        "--expose-broker-entry-metadata",
        action=argparse.BooleanOptionalAction,
        help="send broker time and index to clients that ask for them (PIP-90)",
    )
    parser.add_argument(
        "--batch-index-acks",
        action=argparse.BooleanOptionalAction,
        help="keep acknowledgements of single messages of a batch",
    )
    parser.add_argument(
        "--audit",
        metavar="TAGS",
        help="count entries by time and these tags, separated by commas, such as producer "
        "(may be empty), and keep the counts; see docs/audit.md",
    )
    parser.add_argument("--max-message-size-bytes", type=positive, metavar="N")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="warning")
    add_json(parser)


def _add_bookkeeper(parser: argparse.ArgumentParser) -> None:
    """Where the store is, if it is in BookKeeper."""
    parser.add_argument(
        "--store",
        metavar="zk://HOST:PORT/ledgers",
        help="keep all data in Apache BookKeeper, whose ZooKeeper this is",
    )
    parser.add_argument(
        "--store-root",
        metavar="PATH",
        help="with --store: the store's own nodes in ZooKeeper (default: /pulsemark)",
    )


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    """Where the broker listens, and the address that it tells to clients."""
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--advertised-address", metavar="HOST", help="host that clients must connect to"
    )
    for option, default, what in (
        ("--port", "6650", "Pulsar's binary protocol"),
        ("--http-port", "8080", "lookup, admin and metrics over HTTP"),
        ("--grpc-port", "not served", "the seek service over gRPC"),
        ("--kafka-port", "not served", "Kafka's protocol"),
        ("--tls-port", "not served", "Pulsar's binary protocol with TLS"),
        ("--http-tls-port", "not served", "HTTP with TLS"),
        ("--grpc-tls-port", "not served", "the seek service with TLS"),
        ("--kafka-tls-port", "not served", "Kafka's protocol with TLS"),
    ):
        parser.add_argument(
            option,
            type=port_number,
            metavar="PORT",
            help=f"port of {what}, 0 picks a free port (default: {default})",
        )
    for option, what in (
        ("--tls-cert", "the broker's certificate chain, PEM"),
        ("--tls-key", "its private key, PEM"),
        ("--tls-trust-certs", "authorities of clients' certificates, PEM"),
    ):
        parser.add_argument(option, metavar="PATH", help=what)
    parser.add_argument(
        "--control-token-file",
        type=Path,
        metavar="PATH",
        help="file with the token of those who may append control entries over gRPC "
        "(default: no one may)",
    )


def _add_storage(parser: argparse.ArgumentParser) -> None:
    """The stamps of entries, and when entries are acknowledged."""
    parser.add_argument(
        "--stampers",
        metavar="NAMES",
        help="stampers of entries without a policy, separated by commas; empty for no stamps "
        "(default: broker-time,index)",
    )
    parser.add_argument(
        "--mirror-sources",
        metavar="CLUSTERS",
        help="clusters from which topics without a policy accept mirrors, separated by commas; "
        "* is every cluster (default: none)",
    )
    parser.add_argument(
        "--leader-epochs",
        action=argparse.BooleanOptionalAction,
        help="begin a leader epoch when the broker takes over a topic without a policy for it "
        "(default: no)",
    )
    parser.add_argument(
        "--durability",
        type=_durability,
        metavar="sync|interval=MS",
        help="acknowledge entries that are on disk (sync), or that will be within MS milliseconds "
        "(default: sync)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal arrives. An orderly shutdown is exit code 0."""
    logging.basicConfig(
        level=args.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    config = _config(args)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(config, as_json=args.json))
    except socket.gaierror as error:  # its text does not name the host
        raise CliError(f"cannot listen on {config.host!r}: {error.strerror}") from error
    return 0


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _durability(text: str) -> int:
    """The sync interval of a mode, in milliseconds."""
    mode, equals, interval = text.partition("=")
    if text == "sync":
        return 0
    if mode == "interval" and equals:
        return positive(interval)
    raise argparse.ArgumentTypeError(f"{text!r} is neither sync nor interval=MILLISECONDS")


def _tags(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text.strip() else ()


def _config(args: argparse.Namespace) -> BrokerConfig:
    found = None if args.config is None else _read_config(args.config)
    given = {
        "data_dir": args.data_dir,
        "storage": args.storage,
        "host": args.host,
        "port": args.port,
        "http_port": args.http_port,
        "grpc_port": args.grpc_port,
        "kafka_port": args.kafka_port,
        "grpc_control_token_file": args.control_token_file,
        "leader_epochs_enabled": args.leader_epochs,
        "advertised_address": args.advertised_address,
        "cluster": args.cluster,
        "stampers": None if args.stampers is None else split_stamper_names(args.stampers),
        "mirror_sources": _names(args.mirror_sources),
        "sync_interval_ms": args.durability,
        "exposing_broker_entry_metadata_to_client_enabled": args.expose_broker_entry_metadata,
        "acknowledgment_at_batch_index_level_enabled": args.batch_index_acks,
        "max_message_size_bytes": args.max_message_size_bytes,
        "audit_enabled": None if args.audit is None else True,
        "audit_tags": None if args.audit is None else _tags(args.audit),
    }
    overrides: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    _place(args, found, overrides)
    security = _security(args)
    if security:
        known = {} if found is None else found.parts["security"]
        overrides["security"] = SecurityConfig(**{**known, **security})
    config = BrokerConfig(**overrides) if found is None else found.config(**overrides)
    if config.data_dir is not None and config.data_dir.exists() and not config.data_dir.is_dir():
        raise CliError(f"data folder {config.data_dir} is a file, not a folder")
    if found is not None and found.ignored:
        _print_ignored(args.config, found)
    return config


def _place(
    args: argparse.Namespace, found: FileSettings | None, overrides: dict[str, Any]
) -> None:
    """Add where the data is: in BookKeeper, in memory, or in a folder."""
    in_file = {} if found is None else found.broker
    bookkeeper = _bookkeeper(args, {} if found is None else found.parts["bookkeeper"])
    if bookkeeper is not None:
        overrides["bookkeeper"] = bookkeeper
    if bookkeeper is not None and bookkeeper.store_address is not None:
        if not args.data_dir:
            overrides["data_dir"] = None  # a data folder in the file is for files only
    elif (args.storage or in_file.get("storage")) == "memory":
        overrides.setdefault("data_dir", None)  # likewise
    elif args.data_dir is None and "data_dir" not in in_file:
        overrides["data_dir"] = DEFAULT_DATA_DIR


def _bookkeeper(args: argparse.Namespace, in_file: dict[str, Any]) -> BookKeeperConfig | None:
    """Where the store in BookKeeper is; None: nothing says it."""
    given = {"store_address": args.store, "store_root": args.store_root}
    known = {**in_file, **{name: value for name, value in given.items() if value is not None}}
    return BookKeeperConfig(**known) if known else None


def _security(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `SecurityConfig` that are given."""
    given = {
        "tls_port": args.tls_port,
        "http_tls_port": args.http_tls_port,
        "grpc_tls_port": args.grpc_tls_port,
        "kafka_tls_port": args.kafka_tls_port,
        "tls_certificate_file": args.tls_cert,
        "tls_key_file": args.tls_key,
        "tls_trust_certs_file": args.tls_trust_certs,
    }
    return {name: value for name, value in given.items() if value is not None}


def _read_config(path: Path) -> FileSettings:
    from ..broker.configuration.properties import PropertiesError, read_properties
    from ..broker.configuration.settings import SettingError, parse_settings

    try:
        return parse_settings(read_properties(path.read_text(encoding="utf-8-sig")))
    except UnicodeDecodeError as error:
        raise CliError(f"{path} is not UTF-8 text: {error}") from error
    except (PropertiesError, SettingError) as error:
        raise CliError(f"{path}: {error}") from error


def _print_ignored(path: Path, found: FileSettings) -> None:
    names = ", ".join(found.ignored)
    print(f"pulsemark: {path}: settings that this broker ignores: {names}", file=sys.stderr)


async def _serve(config: BrokerConfig, *, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Set before the broker starts: a signal during the start must stop it in an orderly way too.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Broker(config) as broker, Collector(lambda: broker.services.is_idle):
        if not (is_loopback(config.host) or config.security.authentication_enabled):
            print(
                f"pulsemark: warning: all who can reach {config.host} may use this broker: "
                "authentication is off (see docs/security.md)",
                file=sys.stderr,
            )
        _announce(broker, as_json=as_json)
        await stop.wait()


def _announce(broker: Broker, *, as_json: bool) -> None:
    is_in_memory = broker.config.storage == "memory"
    store = broker.config.bookkeeper.store_address
    has_folder = not is_in_memory and store is None
    data_dir = str(Path(broker.data_dir).resolve()) if has_folder else None
    if as_json:
        ready = {
            "service_url": broker.service_url,
            "http_url": broker.http_url,
            "grpc_url": broker.grpc_url or None,
            "kafka_url": broker.kafka_url or None,
            "service_url_tls": broker.service_url_tls or None,
            "http_url_tls": broker.http_url_tls or None,
            "grpc_url_tls": broker.grpc_url_tls or None,
            "kafka_url_tls": broker.kafka_url_tls or None,
            "data_dir": data_dir,
            "store": store,
            "pid": os.getpid(),
        }
        print(json_line(ready), flush=True)
        return
    places = [broker.service_url, broker.service_url_tls, broker.http_url, broker.http_url_tls]
    if broker.grpc_url:
        places.append(f"grpc {broker.grpc_url}")
    if broker.kafka_url:
        places.append(f"kafka {broker.kafka_url}")
    if broker.grpc_url_tls:
        places.append(f"grpc with TLS {broker.grpc_url_tls}")
    if broker.kafka_url_tls:
        places.append(f"kafka with TLS {broker.kafka_url_tls}")
    where = f"{', '.join(filter(None, places))}, data in {data_dir or store or 'memory'}"
    print(f"pulsemark is ready: {where}", flush=True)
