"""`pulsemark finder serve`: serve searches over gRPC for a data folder, without a broker.

The server only reads and takes no lock. A broker may use the folder at the same time: its entries
are found as soon as they are durable. On SIGINT or SIGTERM the server stops in an orderly way.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from ..finder.errors import BindError
from ..ledger import LedgerError
from ..wire import TopicName
from .options import DEFAULT_DATA_DIR, add_data_dir, add_json, port_number, read_token
from .output import json_line
from .parsing import CliError
from .stores import add_store, open_store_reader

if TYPE_CHECKING:
    from ..finder.server import SeekServer, ServerOptions

# OSError: a certificate or token file cannot be read.
ERRORS = (LedgerError, BindError, OSError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
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


def run(args: argparse.Namespace) -> int:
    """Serve. An orderly stop is exit code 0."""
    from ..compaction.current_view import log_of_folder
    from ..finder.server import serve_folder

    folder = args.data_dir or DEFAULT_DATA_DIR
    options = _options(args)

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
        asyncio.run(
            serve_folder(source, options, normalise=_full_name, log_of=log_of, on_started=announce)
        )
    except ssl.SSLError as error:  # its text does not name the file
        files = [str(path) for path in (args.tls_cert, args.tls_key, args.tls_client_ca) if path]
        raise CliError(f"cannot serve TLS with {', '.join(files)}: {error}") from error
    return 0


def _options(args: argparse.Namespace) -> ServerOptions:
    from ..finder.server import ServerOptions, ServerTls

    if (args.tls_cert is None) != (args.tls_key is None):
        raise CliError("--tls-cert and --tls-key must be given together")
    tls = None
    if args.tls_cert is not None:
        tls = ServerTls(certificate=args.tls_cert, key=args.tls_key, client_ca=args.tls_client_ca)
    elif args.tls_client_ca is not None:
        raise CliError("--tls-client-ca needs --tls-cert and --tls-key")
    return ServerOptions(host=args.host, port=args.port, tls=tls, token=read_token(args.token_file))


def _full_name(topic: str) -> str:
    """The full name of a short name; a bad name raises a ValueError, as the server expects."""
    return str(TopicName.parse(topic))
