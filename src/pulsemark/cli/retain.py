"""`pulsemark retain [TOPIC ...]`: apply retention now, instead of waiting for the broker's round.

    pulsemark retain --dry-run
    pulsemark retain --data-dir /var/lib/pulsemark --config broker.conf

It asks a running broker (`--admin-url`), or opens a data folder that no broker uses (`--data-dir`).
What may be removed is what the policies say: of the topic, of its namespace, or of the broker
(`--config`, for a folder). `--dry-run` removes nothing, and shows what would be removed.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..broker.errors import BrokerError, RefusedError
from ..client.errors import AdminError, UnreachableError
from ..ledger import FolderLockedError, LedgerError
from ..wire import InvalidTopicNameError, check_namespace
from .brokers import ADMIN_URL, REQUEST, admin_client, not_ours, target_path
from .options import IN_DATA_DIR, JSON, declared, full_topic
from .output import counted, print_rows
from .parsing import CliError

if TYPE_CHECKING:
    from ..broker import BrokerConfig

ERRORS = (
    AdminError, UnreachableError, BrokerError, RefusedError, LedgerError, InvalidTopicNameError,
    OSError,
)  # fmt: skip
COLUMNS = ("topic", "entries", "messages", "size_bytes")


add_arguments = declared(f"""
topics TOPIC*  short or full names (default: all topics)
either:
{ADMIN_URL}
--data-dir PATH  folder to clean, which no broker may be using; instead of a broker {IN_DATA_DIR}
and:
--config FILE  with --data-dir: the broker's settings
--namespace TENANT/NAMESPACE  of a broker's topics, if none are named (default: all namespaces)
--dry-run  remove nothing, show the figures
{REQUEST}{JSON}""")


def run(args: argparse.Namespace) -> int:
    """Clean, and print what was removed of each topic."""
    wanted = [full_topic(text) for text in args.topics]
    if args.data_dir is None:
        if args.config is not None:
            raise CliError("--config needs --data-dir: a broker has its own settings")
        rows = [row for topic in wanted or _topics(args) for row in _asked(args, topic)]
    else:
        rows = _in_folder(args, wanted)
    if wanted or args.json:
        shown = rows
    else:  # of all topics, only those that retention concerns
        shown = [row for row in rows if row["entries"]]
    if not shown and not args.json:
        what = "would be removed" if args.dry_run else "was removed"
        print(f"nothing {what} from {counted(len(rows), 'topic')}")
        return 0
    print_rows([{**row, "is_dry_run": args.dry_run} for row in shown], COLUMNS, as_json=args.json)
    return 0


def _topics(args: argparse.Namespace) -> Iterator[str]:
    admin = admin_client(args)
    if args.namespace:
        check_namespace(args.namespace)
    namespaces = [args.namespace] if args.namespace else [
        each for tenant in admin.tenants() for each in admin.namespaces(tenant)
    ]  # fmt: skip
    for namespace in sorted(namespaces):
        yield from sorted(t for t in admin.topics(namespace) if t.startswith("persistent:"))


def _asked(args: argparse.Namespace, topic: str) -> list[dict[str, Any]]:
    query = {"dryRun" if args.dry_run else "figures": "true"}
    admin = admin_client(args, is_read=False)
    answer = admin.request("POST", f"{target_path(topic)[1]}/trim", **query)
    if not isinstance(answer, list):
        raise not_ours(answer, "such figures")
    return answer


def _in_folder(args: argparse.Namespace, wanted: list[str]) -> list[dict[str, Any]]:
    from ..broker import new_event_loop

    if args.namespace is not None:
        raise CliError("--namespace is for a broker; with --data-dir name topics")
    if not args.data_dir.is_dir():
        raise CliError(f"{args.data_dir} is not a folder")
    config = _config(args)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_clean(config, wanted, is_dry_run=args.dry_run))
    except FolderLockedError as error:
        raise CliError(f"{error}: ask that broker with --admin-url") from error


def _config(args: argparse.Namespace) -> BrokerConfig:
    """The configuration of a broker on the folder that only this machine can reach."""
    from ..broker.configuration.security_config import SecurityConfig
    from .config import load_settings

    found = load_settings(args.config)
    closed = {
        "data_dir": args.data_dir, "storage": "files", "host": "127.0.0.1", "port": 0,
        "http_port": None, "grpc_port": None, "kafka_port": None, "advertised_address": None,
        "grpc_control_token_file": None, "security": SecurityConfig(),
    }  # fmt: skip
    return found.config(**closed)


async def _clean(
    config: BrokerConfig, wanted: list[str], *, is_dry_run: bool
) -> list[dict[str, Any]]:
    from ..broker import Broker
    from ..wire import TopicName

    rows = []
    async with Broker(config) as broker:
        topics = broker.services.topics
        for name in wanted or sorted(topics.names.snapshot()):
            parsed = TopicName.parse(name)
            parts = range(topics.partitioned.count_of(parsed))
            for each in [parsed.partition(number) for number in parts] or [parsed]:
                opened = await topics.open(each, create=False)
                done = await broker.services.cleaning.trim(opened, is_dry_run=is_dry_run)
                rows.append({"topic": opened.name, **asdict(done)})
    return rows
