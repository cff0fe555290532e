"""Who the user of a command is to the broker that it asks, and whom the command trusts.

The token comes from `--token-file`, or from the environment's PULSEMARK_TOKEN. A token is no
argument itself: other users of the machine can read a process' arguments. `--tls-ca`, or
PULSEMARK_TLS_CA, is the authority to trust; `--tls-cert` and `--tls-key` are an own certificate.
"""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CliError
from .options import read_token

if TYPE_CHECKING:
    from ..finder import ClientTls, SeekClient

__all__ = ["Access", "access_of", "add_access", "seek_service"]

TOKEN_VARIABLE = "PULSEMARK_TOKEN"  # noqa: S105 - a name, no token
CA_VARIABLE = "PULSEMARK_TLS_CA"


@dataclass(frozen=True, slots=True)
class Access:
    """What a command shows to a broker, and what it trusts. None: nothing, or the default."""

    token: str | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """For connections with TLS. Raises CliError."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None and self.key is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:
            files = [str(path) for path in (self.ca, self.certificate, self.key) if path]
            raise CliError(f"cannot use TLS with {', '.join(files)}: {error}") from error
        return context

    def grpc_tls(self) -> ClientTls | None:
        """For gRPC; None without TLS."""
        from ..finder.requests import ClientTls

        if self.ca is None and self.certificate is None:
            return None
        return ClientTls(ca=self.ca, certificate=self.certificate, key=self.key)


def add_access(parser: argparse._ActionsContainer) -> None:
    """The options of commands that ask a broker."""
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="PATH",
        help=f"file with the bearer token (default: the variable {TOKEN_VARIABLE})",
    )
    parser.add_argument(
        "--tls-ca",
        "--tls-trust-certs",
        type=Path,
        metavar="PATH",
        help=f"use TLS, and trust this authority, PEM (default: the variable {CA_VARIABLE})",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="PATH", help="own certificate, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="PATH", help="its private key, PEM")


def access_of(args: argparse.Namespace) -> Access:
    """What the options and the environment say. Raises CliError, OSError."""
    if (args.tls_cert is None) != (args.tls_key is None):
        raise CliError("--tls-cert and --tls-key must be given together")
    token = read_token(args.token_file) or os.environ.get(TOKEN_VARIABLE) or None
    ca = args.tls_ca or (Path(os.environ[CA_VARIABLE]) if os.environ.get(CA_VARIABLE) else None)
    return Access(token, ca, args.tls_cert, args.tls_key)


@contextmanager
def seek_service(args: argparse.Namespace) -> Iterator[SeekClient]:
    """The seek service of `--grpc`. Errors of its calls name its address.

    Raises CliError, OSError, and what the calls raise.
    """
    from ..finder import SeekCallError, SeekClient

    access = access_of(args)
    with SeekClient(args.grpc, token=access.token, tls=access.grpc_tls()) as client:
        try:
            yield client
        except SeekCallError as error:
            raise type(error)(error.code, f"{args.grpc}: {error.details}") from error
