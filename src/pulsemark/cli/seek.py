"""`pulsemark seek TOPIC TIME`: find the first entry at or after a time; `--index N`: a message.

It asks a broker over HTTP or gRPC (`--url`), or searches a data folder (`--data-dir`; a broker may
use it at the same time, but none is needed). Without these options it asks the broker on this
machine, if one runs and has the topic, else it searches ./pulsemark-data.

The answer is the first entry whose broker time is not before TIME. If there is no such entry, it
says so and prints the position of the next entry. With `--index N` the answer is the entry that
has the message of this index, and the message's place in its batch. A partitioned topic has an
answer for each partition, but not over gRPC.

`pulsemark finder serve` serves searches over gRPC for a data folder, without a broker. The server
only reads and takes no lock. A broker may use the folder at the same time: its entries are found as
soon as they are durable. On SIGINT or SIGTERM the server stops in an orderly way.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..client.errors import AdminError, UnreachableError
from ..finder import Found, IndexOutOfRangeError, IndexPlace, SearchMethod
from ..finder.errors import BindError, InvalidFieldError, NotPossibleError, SeekCallError
from ..finder.search import finder_of
from ..ledger import LedgerError, Position
from ..wire import TopicName
from .brokers import DEFAULT_ADMIN_URL, add_access, add_request_timeout, seek_service
from .options import (
    DEFAULT_DATA_DIR,
    add_data_dir,
    add_json,
    full_topic,
    grpc_target,
    not_negative,
    parse_time,
    port_number,
    read_token,
    show_time,
)
from .output import json_line
from .parsing import CliError, Command
from .stores import (
    add_store,
    entries_page,
    from_broker,
    log_in,
    names_in,
    open_store_reader,
    reader_of,
)

if TYPE_CHECKING:
    from ..client.admin import AdminClient
    from ..finder.server import SeekServer, ServerOptions

T = TypeVar("T")

# OSError: a token or certificate file cannot be read.
ERRORS = (
    LedgerError, SeekCallError, InvalidFieldError, NotPossibleError, AdminError, UnreachableError,
    OSError,
)  # fmt: skip


def _add_seek(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="short or full name")
    parser.add_argument(
        "time",
        nargs="?",
        metavar="TIME",
        help="unix milliseconds, ISO 8601, a clock time of today (14:05), or relative (-5m)",
    )
    parser.add_argument(
        "--index", type=not_negative, metavar="N", help="instead of TIME: the message of this index"
    )
    place = parser.add_mutually_exclusive_group()
    add_data_dir(place, why="folder to search in")
    add_store(place)
    place.add_argument(
        "--url",
        "--grpc",
        "--admin-url",
        dest="admin_url",
        type=_address,
        metavar="URL",
        help=f"the broker to ask: {DEFAULT_ADMIN_URL}, or HOST:PORT of its gRPC service",
    )
    add_request_timeout(parser)
    add_access(parser)
    parser.add_argument(
        "--method",
        choices=[method.name.lower() for method in SearchMethod],
        default=SearchMethod.INDEX.name.lower(),
        help="search by the time index, or by the entries' prefixes alone",
    )
    add_json(parser)


def _seek(args: argparse.Namespace) -> int:
    """Search and print what was found."""
    if (args.time is None) == (args.index is None):
        raise CliError("give either a TIME or --index N")
    topic = full_topic(args.topic)
    try:
        if args.index is not None:
            by_index = _answers(args, topic, _index_over_http, "by_index", args.index)
            show_index = _index_as_json if args.json else _index_as_text
            print("\n".join(show_index(name, args.index, found) for name, found in by_index))
        else:
            time_ms = parse_time(args.time)
            by_time = _answers(args, topic, _time_over_http, "by_time", time_ms)
            shown = _as_json if args.json else _as_text
            print("\n".join(shown(name, time_ms, found) for name, found in by_time))
    except IndexOutOfRangeError as error:
        raise CliError(f"{topic}: {error}") from error
    return 0


def _answers(
    args: argparse.Namespace,
    topic: str,
    over_http: Callable[[AdminClient, str, int], T],
    search: str,
    value: int,
) -> Sequence[tuple[str, T]]:
    """What is found in the topic, or in each of its partitions; ``search``: the finders' method."""
    method = SearchMethod[args.method.upper()]
    if args.admin_url is not None and not args.admin_url.startswith("http"):
        with seek_service(args, args.admin_url) as client:
            return [(topic, getattr(client, search)(topic, value, method=method))]
    if method is SearchMethod.INDEX:
        asked = from_broker(args, topic, lambda admin, name: over_http(admin, name, value))
        if asked is not None:
            return asked
    elif args.admin_url is not None:
        raise CliError("--method prefixes is for a folder or a gRPC service")
    with reader_of(args) as reader:
        return [
            (name, getattr(finder_of(log_in(reader, name)), search)(value, method=method))
            for name in names_in(reader, topic)
        ]


def _address(text: str) -> str:
    if text.startswith(("http:", "https:")):
        return text
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither of the form {DEFAULT_ADMIN_URL} nor HOST:PORT of a gRPC service"
        )
    return grpc_target(text)


def _index_over_http(admin: AdminClient, topic: str, index: int) -> IndexPlace:
    """The place of a message. `reads` and `bytes_read` are not told there: 0."""
    page = entries_page(admin, topic, index=str(index), after="0")
    place, entry = page["found"], _whole(topic, page["entries"][-1])
    return IndexPlace(
        Position(place["ledgerId"], place["entryId"]), place["batchIndex"], entry["firstIndex"],
        entry["index"], entry["messageCount"], _time_of(entry), reads=0, bytes_read=0,
    )  # fmt: skip


def _time_over_http(admin: AdminClient, topic: str, time_ms: int) -> Found:
    """The answer over HTTP. `reads` and `bytes_read` are not told there: 0."""
    page = entries_page(admin, topic, time=str(time_ms), after="0")
    place = page["found"]
    position = Position(place["ledgerId"], place["entryId"])
    if place["end"]:
        after_last = page["nextIndex"]
        return Found(position, after_last, after_last, 0, 0, end=True, reads=0, bytes_read=0)
    entry = _whole(topic, page["entries"][-1])
    return Found(
        position, entry["firstIndex"], entry["index"], entry["messageCount"], _time_of(entry),
        end=False, reads=0, bytes_read=0,
    )  # fmt: skip


def _time_of(entry: dict[str, Any]) -> int:
    """An entry's time: the broker's, else the producer's."""
    stamped = entry.get("prefix", {}).get("broker_timestamp")
    return int(stamped or entry.get("publishTime") or entry["appendTime"])


def _whole(topic: str, entry: dict[str, Any]) -> dict[str, Any]:
    if "index" not in entry:
        position = f"{entry['ledgerId']}:{entry['entryId']}"
        raise CliError(f"{topic}: the entry at {position} is damaged: {entry.get('error')}")
    return entry


def _fields(found: IndexPlace | Found) -> dict[str, Any]:
    fields = asdict(found)
    ledger_id, entry_id = fields.pop("position")
    return {"ledger_id": ledger_id, "entry_id": entry_id, **fields}


def _index_as_json(topic: str, index: int, found: IndexPlace) -> str:
    return json_line({"topic": topic, "asked_index": index, **_fields(found)})


def _index_as_text(topic: str, index: int, found: IndexPlace) -> str:
    return "\n".join(
        (
            f"{topic} index {index}",
            f"position  {found.position}",
            f"message   {found.batch_index + 1} of {found.message_count}",
            f"time      {show_time(found.time_ms)} ({found.time_ms})",
        )
    )


def _as_json(topic: str, time_ms: int, found: Found) -> str:
    asked = {"topic": topic, "asked_ms": time_ms, "end": found.end}
    fields = {**_fields(found), **({"time_ms": None} if found.end else {})}
    return json_line({**asked, **fields})


def _as_text(topic: str, time_ms: int, found: Found) -> str:
    lines = [f"{topic} from {show_time(time_ms)} ({time_ms})"]
    if found.end:
        lines.append("no entry is at or after this time; the next entry will get this place:")
    lines.append(f"position  {found.position}")
    if found.end or found.message_count == 1:
        lines.append(f"index     {found.index}")
    else:
        count = found.message_count
        lines.append(f"index     {found.first_index} to {found.index} ({count} messages)")
    if not found.end:
        lines.append(f"time      {show_time(found.time_ms)} ({found.time_ms})")
    return "\n".join(lines)


# -- the server ------------------------------------------------------------------------------------


def _add_finder(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="serve until SIGINT or SIGTERM")
    place = serve.add_mutually_exclusive_group()
    add_data_dir(place, why="folder to search in")
    add_store(place)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on")
    serve.add_argument(
        "--port", type=port_number, default=6680, metavar="PORT", help="0 picks a free port"
    )
    serve.add_argument(
        "--token-file", type=Path, metavar="PATH", help="file with the token that callers must send"
    )
    serve.add_argument("--tls-cert", type=Path, metavar="PATH", help="certificate chain, PEM")
    serve.add_argument("--tls-key", type=Path, metavar="PATH", help="its private key, PEM")
    serve.add_argument(
        "--tls-client-ca", type=Path, metavar="PATH", help="accept only clients that it certifies"
    )
    add_json(serve)


def _serve(args: argparse.Namespace) -> int:
    """Serve. An orderly stop is exit code 0."""
    from ..compaction.current_view import log_of_folder
    from ..finder.server import serve_folder

    folder = args.data_dir or DEFAULT_DATA_DIR
    options = _server_options(args)

    def announce(server: SeekServer) -> None:
        where = args.store or str(folder.resolve())
        if args.json:
            ready = {"grpc_url": server.target, "data_dir": where, "pid": os.getpid()}
            print(json_line(ready), flush=True)
        else:
            print(f"pulsemark finder is ready: grpc {server.target}, data in {where}", flush=True)

    try:
        source = folder if args.store is None else open_store_reader(args.store)
        log_of = log_of_folder if args.store is None else None

        def full(topic: str) -> str:
            return str(TopicName.parse(topic))  # raises a ValueError, as the server expects

        asyncio.run(
            serve_folder(source, options, normalise=full, log_of=log_of, on_started=announce)
        )
    except ssl.SSLError as error:  # its text does not name the file
        files = [str(path) for path in (args.tls_cert, args.tls_key, args.tls_client_ca) if path]
        raise CliError(f"cannot serve TLS with {', '.join(files)}: {error}") from error
    return 0


def _server_options(args: argparse.Namespace) -> ServerOptions:
    from ..finder.server import ServerOptions, ServerTls

    if (args.tls_cert is None) != (args.tls_key is None):
        raise CliError("--tls-cert and --tls-key must be given together")
    tls = None
    if args.tls_cert is not None:
        tls = ServerTls(certificate=args.tls_cert, key=args.tls_key, client_ca=args.tls_client_ca)
    elif args.tls_client_ca is not None:
        raise CliError("--tls-client-ca needs --tls-cert and --tls-key")
    return ServerOptions(host=args.host, port=args.port, tls=tls, token=read_token(args.token_file))


COMMANDS = {
    "seek": Command(ERRORS, _add_seek, _seek),
    # OSError: a certificate or token file cannot be read.
    "finder": Command((LedgerError, BindError, OSError), _add_finder, _serve),
}
