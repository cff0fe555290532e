"""`pulsemark standalone`: run a broker in this process until SIGINT or SIGTERM, or with
`--exit-on-stdin-close` until standard input ends.

When the broker is ready, it prints one line with its addresses: text, or with `--json` one object
with service_url, http_url, grpc_url and kafka_url (null if not served), the same names with _tls,
data_dir (null in memory) and pid. Nothing else is written to stdout. So a program can start a
broker, read one line and continue. Logs go to stderr.

Settings come from the command line, the environment (PULSEMARK_PORT...), a file (`--config`: TOML,
or Pulsar's `broker.conf`) and the defaults; the first one that says something wins. Settings that
this broker does not have are listed once on stderr. docs/configuration.md has the settings.

SIGHUP reads the file again. Rates, quotas and what is logged change at once; for other changes the
log says that they need a restart. A file with an error changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..broker import Broker, BrokerConfig, BrokerError, ConfigError, new_event_loop
from ..broker.configuration.declaration import NAMES
from ..broker.configuration.dynamic_settings import changed_fields
from ..broker.configuration.security_config import SecurityConfig
from ..broker.errors import NoDataFolderError
from ..broker.gc_tuning import Collector
from ..coordination import CoordinationError
from ..finder.arguments import is_loopback
from ..ledger import LedgerError
from ..metadata.stampers import split_stamper_names
from ..until_signal import stop_event
from .config import load_settings, with_default_folder
from .options import IN_DATA_DIR, JSON, declared, positive
from .output import json_line
from .parsing import CliError

if TYPE_CHECKING:
    from ..broker.server import Membership
    from ..cluster.supervisor import Supervisor


# The ledger's errors: the folder is locked, is not a data folder, or has a newer format. OSError:
# the folder cannot be written, or the address does not belong to this machine.
ERRORS = (BrokerError, CoordinationError, LedgerError, OSError)
#: A failing write does not name its file.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

log = logging.getLogger(__name__)

#: The broker's addresses, as `--json` names them, and as they are called for people.
ADDRESSES = {
    "service_url": "", "service_url_tls": "", "http_url": "", "http_url_tls": "",
    "grpc_url": "grpc ", "kafka_url": "kafka ", "schema_registry_url": "schema registry ",
    "grpc_url_tls": "grpc with TLS ", "kafka_url_tls": "kafka with TLS ",
}  # fmt: skip


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


_LISTENING = "--{} PORT  port of {}, 0 picks a free port (default: {})\n"
_PORTS = (
    ("port", "Pulsar's binary protocol", "6650"),
    ("http-port", "lookup, admin and metrics over HTTP", "8080"),
    ("grpc-port", "the seek service over gRPC", "not served"),
    ("kafka-port", "Kafka's protocol", "not served"),
    ("schema-registry-port", "the schema registry for Kafka's serializers", "not served"),
    ("tls-port", "Pulsar's binary protocol with TLS", "not served"),
    ("http-tls-port", "HTTP with TLS", "not served"),
    ("grpc-tls-port", "the seek service with TLS", "not served"),
    ("kafka-tls-port", "Kafka's protocol with TLS", "not served"),
)
#: Those of settings have the settings' names. None means "not given": then the file or the default
#: is used.
add_arguments = declared(
    f"""
--data-dir PATH  folder for all data; created if it does not exist {IN_DATA_DIR}
--storage {{files,memory}}  keep all data in the data folder, or in memory until the broker ends
    (default: files)
--config FILE  settings: TOML if the name ends in .toml, else Pulsar's broker.conf; read again on
    SIGHUP (default: the variable PULSEMARK_CONFIG)
--host HOST  address to listen on (default: 127.0.0.1)
--advertised-address HOST  host that clients must connect to
{"".join(_LISTENING.format(*port) for port in _PORTS)}
--tls-cert=tls_certificate_file PATH  the broker's certificate chain, PEM
--tls-key=tls_key_file PATH  its private key, PEM
--tls-trust-certs=tls_trust_certs_file PATH  authorities of clients' certificates, PEM
--control-token-file=grpc_control_token_file PATH  file with the token of those who may append
    control entries over gRPC (default: no one may)
--cluster NAME  cluster's name (default: standalone)
--workers N  run N brokers that divide the topics among them, each with a part of the data folder; N
    never changes (see docs/cluster.md)
--store zk://HOST:PORT/ledgers  keep ledgers in Apache BookKeeper, and share topics with all brokers
    that do so (see docs/cluster.md)
--session-timeout-ms N  with --store: how long the topics of a broker that has died wait for another
    one (default: 4000)
--stampers NAMES  stampers of entries without a policy, separated by commas; empty for no stamps
    (default: broker-time,index)
--mirror-sources CLUSTERS  clusters from which topics without a policy accept mirrors, separated by
    commas; * is every cluster (default: none)
--[no-]leader-epochs=leader_epochs_enabled  begin a leader epoch when the broker takes over a topic
    without a policy for it (default: no)
--durability=sync_interval_ms sync|interval=MS  acknowledge entries that are on disk (sync), or that
    will be within MS milliseconds (default: sync; an interval is not for --store)
--[no-]expose-broker-entry-metadata=exposing_broker_entry_metadata_to_client_enabled  send broker
    time and index to clients that ask for them (PIP-90)
--[no-]batch-index-acks=acknowledgment_at_batch_index_level_enabled  keep acknowledgements of single
    messages of a batch
--audit=audit_tags TAGS  count entries by time and these tags, separated by commas, such as producer
    (may be empty), and keep the counts; see docs/audit.md
--max-message-size-bytes N
--test-controls {{loopback,everywhere}}?  for tests only: let HTTP move the clock, make faults and
    delete everything, below /pulsemark/test; on loopback only, or wherever the broker listens
    (default: no)
--test-controls-token-file PATH  file with the token that these requests must have (needed with
    authentication)
--exit-on-stdin-close  stop when standard input ends, which it does however the program that started
    the broker ends (default: SIGINT and SIGTERM stop it)
--log-level {{debug,info,warning,error}}  (default: warning)
--log-format {{text,json}}  json: an object per line (default: text)
{JSON}""",
    stampers=split_stamper_names,
    mirror_sources=NAMES.parse,
    audit_tags=_tags,
    sync_interval_ms=_durability,
    tls_certificate_file=str,
    tls_key_file=str,
    tls_trust_certs_file=str,
)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal arrives. An orderly shutdown is exit code 0."""
    config = _config(args)
    set_up_logs(config.log_level, config.log_format)
    try:
        if args.workers is not None and args.test_controls is not None:
            raise CliError("--test-controls is for one broker, not for --workers")
        if args.workers is not None:
            return _run_workers(args, config)
        membership = _membership_of(args, config)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(config, membership, args))
    except socket.gaierror as error:  # its text does not name the host
        raise CliError(f"cannot listen on {config.host!r}: {error.strerror}") from error
    except OSError as error:
        if error.errno not in DISK_ERRORS or error.filename is not None:
            raise
        raise CliError(f"{config.data_dir or 'the data folder'}: {error.strerror}") from error
    return 0


def _config(args: argparse.Namespace) -> BrokerConfig:
    found = load_settings(args.config)
    given = {name: value for name, value in vars(args).items() if value is not None}
    overrides, security = (
        {each.name: given[each.name] for each in fields(kind) if each.name in given}
        for kind in (BrokerConfig, SecurityConfig)
    )
    if "audit_tags" in overrides:
        overrides["audit_enabled"] = True
    if security:
        overrides["security"] = SecurityConfig(**{**found.of("security"), **security})
    config = with_default_folder(found, overrides)
    if found.ignored:
        names = ", ".join(found.ignored)
        path = args.config or os.environ.get("PULSEMARK_CONFIG")
        print(f"pulsemark: {path}: settings that this broker ignores: {names}", file=sys.stderr)
    for warning in found.warnings:
        print(f"pulsemark: warning: {warning}", file=sys.stderr)
    return config


def _reload(broker: Broker, args: argparse.Namespace) -> None:
    """Read the settings again, and apply those that may change (SIGHUP)."""
    services = broker.services
    before = services.config
    try:
        configured = replace(_config(args), clock=before.clock)
    except (CliError, BrokerError, OSError) as error:
        log.error(
            "the configuration has an error, so no setting was changed; "
            "correct it and send SIGHUP again: %s",
            error,
        )
        return
    left = services.settings.configure(configured)
    set_up_logs(services.config.log_level, services.config.log_format)
    changed = changed_fields(before, services.config)
    log.warning("the configuration was read again; changed: %s", ", ".join(changed) or "nothing")
    if left:
        log.warning("these settings have changed and need a restart: %s", ", ".join(left))


async def _serve(
    config: BrokerConfig, membership: Membership | None, args: argparse.Namespace
) -> None:
    # Before the broker starts: a signal during the start must stop it in an orderly way too.
    stop = _stop_event(args)
    loop = asyncio.get_running_loop()
    async with (
        make_broker(config, membership, args) as broker,
        Collector(lambda: broker.services.is_idle),
    ):
        if not (is_loopback(config.host) or config.security.authentication_enabled):
            print(
                f"pulsemark: warning: all who can reach {config.host} may use this broker: "
                "authentication is off (see docs/security.md)",
                file=sys.stderr,
            )
        loop.add_signal_handler(signal.SIGHUP, _reload, broker, args)
        _announce_broker(broker, as_json=args.json)
        await stop.wait()


def _stop_event(args: argparse.Namespace) -> asyncio.Event:
    """Set by SIGINT, by SIGTERM, and with `--exit-on-stdin-close` by the end of standard input."""
    stop = stop_event()
    loop = asyncio.get_running_loop()

    def read_stdin() -> None:
        with suppress(OSError):  # it was never open
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(stop.set)

    if args.exit_on_stdin_close:
        # A thread, since a loop cannot wait for every kind of file.
        threading.Thread(target=read_stdin, name="pulsemark-stdin", daemon=True).start()
    return stop


def make_broker(
    config: BrokerConfig, membership: Membership | None, args: argparse.Namespace
) -> Broker:
    """The broker; with `--test-controls` one with a clock that moves, and faults."""
    token_file = args.test_controls_token_file
    if args.test_controls is None:
        if token_file is not None:
            raise CliError("--test-controls-token-file needs --test-controls")
        return Broker(config, membership)
    if membership is not None:
        raise CliError("--test-controls is for one broker, not for --store or --workers")
    if config.security.authentication_enabled and token_file is None:
        raise CliError("with authentication, --test-controls needs --test-controls-token-file")
    if args.test_controls == "loopback" and not is_loopback(config.host):
        raise CliError(
            f"--test-controls would be open to all who can reach {config.host}; "
            "if you want that, write --test-controls everywhere"
        )
    if config.http_port is None and config.security.http_tls_port is None:
        raise CliError("--test-controls needs an HTTP port")
    from ..testing.clock import SettableClock
    from ..testing.controls import TestControls
    from ..testing.faults import FaultyBroker

    token = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
    if token == "":
        raise CliError(f"{token_file}: the file with the test controls' token is empty")
    broker = FaultyBroker(replace(config, clock=SettableClock(running=True)))
    broker.test_controls = TestControls(broker, token)
    text = "pulsemark: warning: TEST CONTROLS ARE ON: HTTP below /pulsemark/test moves the clock, "
    print(f"{text}makes faults and deletes everything; never in production", file=sys.stderr)
    return broker


def _announce_broker(broker: Broker, *, as_json: bool) -> None:
    data_dir, kept = None, "memory" if broker.config.storage == "memory" else broker.store.name
    with suppress(NoDataFolderError):
        data_dir = kept = str(broker.data_dir.resolve())
    facts = {name: getattr(broker, name) for name in ADDRESSES}
    _announce({**facts, "data_dir": data_dir}, _places(facts), kept, as_json=as_json)


def _announce(facts: dict[str, Any], places: str, kept: str, *, as_json: bool) -> None:
    """Say that all is ready, in one line."""
    if as_json:
        ready = {name: value or None for name, value in facts.items()}
        print(json_line({**ready, "pid": os.getpid()}), flush=True)
    else:
        print(f"pulsemark is ready: {places}, data in {kept}", flush=True)


def _places(facts: dict[str, Any]) -> str:
    """A broker's addresses, for people."""
    return ", ".join(f"{what}{facts[name]}" for name, what in ADDRESSES.items() if facts[name])


TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """The object, in one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(fields)


def set_up_logs(level: str, form: str) -> None:
    """Log to stderr from now on, from this level up. May be called again to change both."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    handler = next((each for each in root.handlers if getattr(each, "is_ours", False)), None)
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.is_ours = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT_FORMAT))


# Several workers (`--workers`), or one of several brokers on Apache BookKeeper (`--store`).

WORKER = re.compile(r"worker-\d+")
"""The name of one worker's folder."""


def _membership_of(args: argparse.Namespace, config: BrokerConfig) -> Membership | None:
    """The membership in the cluster that `--store` names; None: no cluster. Raises CliError."""
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
    from ..cluster.member import bookkeeper_member

    given, bookkeeper = args.session_timeout_ms, config.bookkeeper
    try:
        if given is not None:
            bookkeeper = replace(bookkeeper, zookeeper_session_timeout_ms=given)
        timeout_ms = bookkeeper.zookeeper_session_timeout_ms
        return bookkeeper_member(address, session_timeout_ms=timeout_ms)
    except ConfigError as error:
        raise CliError(f"--session-timeout-ms {given}: {error.reason}") from error
    except ValueError as error:
        raise CliError(f"--store: {error}") from error


def _store_address(args: argparse.Namespace, config: BrokerConfig) -> str | None:
    # An empty one is a mistake, such as a variable that is not set: it must not mean this machine.
    return config.bookkeeper.store_address if args.store is None else str(args.store)


def _warn_of_hidden(config: BrokerConfig) -> None:
    """Warn of an advertised address that other machines cannot reach."""
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


def _run_workers(args: argparse.Namespace, config: BrokerConfig) -> int:
    """Run the workers until a signal arrives. Raises CliError."""
    if _store_address(args, config) is not None:
        raise CliError("--workers does not go with --store: start a broker for each processor core")
    _refuse_session_timeout(args)
    from ..cluster.supervisor import Supervisor, WorkersError

    async def serve() -> None:
        stop = _stop_event(args)
        level = config.log_level
        async with Supervisor(config, args.workers, log_level=level) as supervisor:
            _announce_workers(supervisor, as_json=args.json)
            await stop.wait()

    try:
        asyncio.run(serve())
    except WorkersError as error:
        raise CliError(str(error)) from error
    return 0


def _announce_workers(supervisor: Supervisor, *, as_json: bool) -> None:
    """The addresses in JSON are those of the first one, which has the ports that were chosen."""
    workers, folder = supervisor.facts, supervisor.config.data_dir
    assert folder is not None
    kept = str(Path(folder).resolve())
    places = f"{len(workers)} workers: {'; '.join(map(_places, workers))}"
    facts = {name: workers[0][name] for name in ADDRESSES}
    _announce({**facts, "data_dir": kept, "workers": workers}, places, kept, as_json=as_json)
