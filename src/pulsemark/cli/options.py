"""Arguments that several commands share, and the parsers of their values."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from .errors import CliError

DEFAULT_DATA_DIR = Path("pulsemark-data")
HIGHEST_PORT = 65_535


def add_data_dir(parser: argparse._ActionsContainer, *, why: str) -> None:
    """`--data-dir`, by default ./pulsemark-data."""
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="PATH",
        help=f"{why} (default: ./{DEFAULT_DATA_DIR})",
    )


def add_json(parser: argparse._ActionsContainer) -> None:
    """`--json`: output for programs instead of people."""
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def port_number(text: str) -> int:
    """A port; 0 picks a free port."""
    if not (text.isascii() and text.isdigit()) or int(text) > HIGHEST_PORT:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port number from 0 to {HIGHEST_PORT} (0 picks a free port)"
        )
    return int(text)


def grpc_target(text: str) -> str:
    """HOST:PORT of a gRPC service; an IPv6 address in brackets."""
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= HIGHEST_PORT
    if not (is_port and host and host.isascii() and host.isprintable() and "/" not in host):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form HOST:PORT, for gRPC")
    return text


def positive(text: str) -> int:
    """A whole number from 1 up."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def not_negative(text: str) -> int:
    """A whole number from 0 up."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def full_topic(text: str) -> str:
    """The topic's full name, e.g. persistent://public/default/x for x.

    Raises:
        CliError: the text is not a valid topic name.
    """
    from ..wire import InvalidTopicNameError, TopicName

    try:
        return str(TopicName.parse(text))
    except InvalidTopicNameError as error:
        raise CliError(str(error)) from error


def read_token(path: Path | None) -> str | None:
    """The bearer token in a file, without the white space around it.

    Raises:
        CliError: the file does not hold a token (printable ASCII without spaces).
        OSError: the file cannot be read.
    """
    if path is None:
        return None
    from ..finder.arguments import TokenFileError
    from ..finder.arguments import read_token as read

    try:
        return read(path)
    except TokenFileError as error:
        raise CliError(str(error)) from error


def json_line(fields: object) -> str:
    """One line of JSON. Only what an output without UTF-8 could not show is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return json.dumps(fields, ensure_ascii=not is_utf8, separators=(",", ":"))


def escaped(text: str) -> str:
    """Text for people, in one line: what a terminal would act on is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def counted(number: int, what: str) -> str:
    """A count for people: 1 entry, 2,000 entries."""
    if number != 1:
        what = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"
    return f"{number:,} {what}"


def tags_text(tags: Mapping[str, object]) -> str:
    """Tags for people, in one line."""
    return " ".join(escaped(f"{name}={value}") for name, value in tags.items())
