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
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ..client.errors import AdminError, UnreachableError
from ..finder import Found, IndexOutOfRangeError, IndexPlace, SearchMethod
from ..finder.errors import BindError, InvalidFieldError, NotPossibleError, SeekCallError
from ..finder.search import finder_of
from ..ledger import LedgerError, Position
from ..until_signal import stop_event
from ..wire import TopicName
from . import options, stores
from .brokers import DEFAULT_ADMIN_URL, REQUEST, seek_service
from .output import json_line
from .parsing import CliError, Command

if TYPE_CHECKING:
    from ..client.admin import AdminClient
    from ..finder.server import SeekServer, ServerOptions

Place: TypeAlias = Found | IndexPlace

# OSError: a token or certificate file cannot be read.
ERRORS = (
    LedgerError, SeekCallError, InvalidFieldError, NotPossibleError, AdminError, UnreachableError,
    OSError,
)  # fmt: skip


def _seek(args: argparse.Namespace) -> int:
    """Search and print what was found."""
    if (args.time is None) == (args.index is None):
        raise CliError("give either a TIME or --index N")
    topic = options.full_topic(args.topic)
    search, value = "index", args.index
    if args.index is None:
        search, value = "time", options.parse_time(args.time)
    show = _as_json if args.json else _as_text
    try:
        found = _answers(args, topic, search, value)
    except IndexOutOfRangeError as error:
        raise CliError(f"{topic}: {error}") from error
    print("\n".join(show(name, value, each) for name, each in found))
    return 0


def _answers(
    args: argparse.Namespace, topic: str, search: str, value: int
) -> Sequence[tuple[str, Place]]:
    """Search by time or index in the topic or each of its partitions."""
    method = SearchMethod[args.method.upper()]
    if args.url is not None and not args.url.startswith("http"):
        with seek_service(args, args.url) as client:
            return [(topic, getattr(client, f"by_{search}")(topic, value, method=method))]
    if method is SearchMethod.INDEX:
        asked = stores.from_broker(args, topic, partial(_over_http, search=search, value=value))
        if asked is not None:
            return asked
    elif args.url is not None:
        raise CliError("--method prefixes is for a folder or a gRPC service")
    with stores.reader_of(args) as reader:
        finders = (
            (name, finder_of(stores.log_in(reader, name)))
            for name in stores.names_in(reader, topic)
        )
        return [
            (name, getattr(finder, f"by_{search}")(value, method=method))
            for name, finder in finders
        ]


def _address(text: str) -> str:
    if text.startswith(("http:", "https:")):
        return text
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither of the form {DEFAULT_ADMIN_URL} nor HOST:PORT of a gRPC service"
        )
    return options.grpc_target(text)


def _over_http(admin: AdminClient, topic: str, *, search: str, value: int) -> Place:
    """Search over HTTP, where `reads` and `bytes_read` are not known: 0."""
    page = stores.entries_page(admin, topic, after="0", **{search: str(value)})
    place = page["found"]
    position = Position(place["ledgerId"], place["entryId"])
    if place.get("end"):
        after_last = page["nextIndex"]
        return Found(position, after_last, after_last, 0, 0, end=True, reads=0, bytes_read=0)
    entry = _whole(topic, page["entries"][-1])
    facts = entry["firstIndex"], entry["index"], entry["messageCount"], _time_of(entry)
    if search == "index":
        return IndexPlace(position, place["batchIndex"], *facts, reads=0, bytes_read=0)
    return Found(position, *facts, end=False, reads=0, bytes_read=0)


def _time_of(entry: dict[str, Any]) -> int:
    """An entry's time: the broker's, else the producer's."""
    stamped = entry.get("prefix", {}).get("broker_timestamp")
    return int(stamped or entry.get("publishTime") or entry["appendTime"])


def _whole(topic: str, entry: dict[str, Any]) -> dict[str, Any]:
    if "index" not in entry:
        position = f"{entry['ledgerId']}:{entry['entryId']}"
        raise CliError(f"{topic}: the entry at {position} is damaged: {entry.get('error')}")
    return entry


def _as_json(topic: str, asked: int, found: Place) -> str:
    fields, place = asdict(found), found.position._asdict()
    del fields["position"]
    if isinstance(found, IndexPlace):
        return json_line({"topic": topic, "asked_index": asked, **place, **fields})
    fields["time_ms"] = None if found.end else found.time_ms
    return json_line({"topic": topic, "asked_ms": asked, "end": found.end, **place, **fields})


def _as_text(topic: str, asked: int, found: Place) -> str:
    time = f"time      {options.show_time(found.time_ms)} ({found.time_ms})"
    position, count = f"position  {found.position}", found.message_count
    if isinstance(found, IndexPlace):
        message = f"message   {found.batch_index + 1} of {count}"
        return "\n".join((f"{topic} index {asked}", position, message, time))
    lines = [f"{topic} from {options.show_time(asked)} ({asked})"]
    if found.end:
        lines.append("no entry is at or after this time; the next entry will get this place:")
        return "\n".join((*lines, position, f"index     {found.index}"))
    which = f"{found.index}"
    if count > 1:
        which = f"{found.first_index} to {found.index} ({count} messages)"
    return "\n".join((*lines, position, f"index     {which}", time))


# -- the server ------------------------------------------------------------------------------------


def _serve(args: argparse.Namespace) -> int:
    """Serve. An orderly stop is exit code 0."""
    from ..compaction.current_view import log_of_folder
    from ..finder.server import folder_server

    folder, served = args.data_dir or options.DEFAULT_DATA_DIR, _server_options(args)

    def announce(server: SeekServer) -> None:
        where = args.store or str(folder.resolve())
        if args.json:
            ready = {"grpc_url": server.target, "data_dir": where, "pid": os.getpid()}
            print(json_line(ready), flush=True)
        else:
            print(f"pulsemark finder is ready: grpc {server.target}, data in {where}", flush=True)

    try:
        source = folder if args.store is None else stores.open_store_reader(args.store)
        log_of = log_of_folder if args.store is None else None

        def full(topic: str) -> str:
            return str(TopicName.parse(topic))  # raises a ValueError, as the server expects

        async def serve() -> None:
            stop = stop_event()
            async with folder_server(source, served, normalise=full, log_of=log_of) as server:
                announce(server)
                await stop.wait()

        asyncio.run(serve())
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
    return ServerOptions(
        host=args.host, port=args.port, tls=tls, token=options.read_token(args.token_file)
    )


_SEEK = options.declared(
    f"""{options.TOPIC}
time TIME?  unix milliseconds, ISO 8601, a clock time of today (14:05), or relative (-5m)
--index N  instead of TIME: the message of this index
either:
--data-dir PATH  folder to search in {options.IN_DATA_DIR}
{stores.STORE}
--url, --grpc, --admin-url URL  the broker to ask: {DEFAULT_ADMIN_URL}, or HOST:PORT of its gRPC
    service
and:
{REQUEST}
--method {{index,prefixes}} [index]  search by the time index, or by the entries' prefixes alone
{options.JSON}""",
    index=options.not_negative,
    url=_address,
)
_FINDER = options.declared(f"""
serve: serve until SIGINT or SIGTERM
either:
--data-dir PATH  folder to search in {options.IN_DATA_DIR}
{stores.STORE}
and:
--host HOST [127.0.0.1]  address to listen on
--port PORT [6680]  0 picks a free port
--token-file PATH  file with the token that callers must send
--tls-cert PATH  certificate chain, PEM
--tls-key PATH  its private key, PEM
--tls-client-ca PATH  accept only clients that it certifies
{options.JSON}""")
COMMANDS = {
    "seek": Command(ERRORS, _SEEK, _seek),
    # OSError: a certificate or token file cannot be read.
    "finder": Command((LedgerError, BindError, OSError), _FINDER, _serve),
}
