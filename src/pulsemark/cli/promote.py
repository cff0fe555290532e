"""`pulsemark promote --data-dir D`: make a follower's folder a leader's (docs/follow.md).

Each topic begins its next leader epoch. Then `pulsemark standalone --data-dir D` serves the folder,
and the old leader's folder can follow it.
"""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path

from ..ledger import LedgerError
from ..mirror import NotFollowerError, open_follower, promote
from .options import DEFAULT_DATA_DIR, add_data_dir, add_json
from .output import counted, json_line
from .parsing import CliError

ERRORS = (LedgerError, NotFollowerError, OSError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_data_dir(parser, why="the follower's folder")
    parser.add_argument(
        "--leader",
        metavar="NAME",
        help="the leader that the epochs' marks name (default: the host, and a random part)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Promote the folder."""
    folder: Path = args.data_dir or DEFAULT_DATA_DIR
    if not folder.is_dir():
        raise CliError(f"{folder} is not a folder: name the follower's with --data-dir")
    # Two leaders of one epoch are told apart by their names.
    leader = args.leader or f"{socket.gethostname()}-{os.urandom(4).hex()}"
    with open_follower(folder) as store:
        epochs = promote(store, leader)
    if args.json:
        for topic, epoch in epochs.items():
            print(json_line({"topic": topic, "epoch": epoch, "leader": leader}))
    else:
        print(f"promoted {folder}: {leader} leads {counted(len(epochs), 'topic')}")
    return 0
