"""The broker that a command asks: its addresses, the user's token, whom to trust, and calls.

Every command that asks a broker has `--url`: pulsar://HOST:PORT to publish and receive, HOST:PORT
for gRPC, else http://HOST:PORT. Its other names are `--service-url`, `--grpc` and `--admin-url`.

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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from ..wire import TopicName, check_namespace
from .options import read_token, seconds
from .parsing import CliError

if TYPE_CHECKING:
    from ..client import Service
    from ..client.admin import AdminClient
    from ..finder import ClientTls, SeekClient


DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"


def add_service(parser: argparse.ArgumentParser) -> None:
    """`--url`, and the options of access."""
    parser.add_argument(
        "--url",
        "--service-url",
        dest="service_url",
        default=DEFAULT_SERVICE_URL,
        metavar="URL",
        help=f"the broker (default: {DEFAULT_SERVICE_URL})",
    )
    add_access(parser)


def service_of(args: argparse.Namespace) -> Service:
    """The brokers at `--url`. Raises CliError, OSError, ServiceUrlError."""
    from ..client import Service
    from ..client.service import authentication

    if not args.service_url.startswith(("pulsar:", "pulsar+ssl:")):
        raise CliError(
            f"--url {args.service_url!r} is not of the form {DEFAULT_SERVICE_URL}: this command"
            " speaks Pulsar's protocol"
        )
    access = access_of(args)
    context = access.context() if args.service_url.startswith("pulsar+ssl:") else None
    return Service(args.service_url, ssl_context=context, **authentication(access.token))


def logs_of(service: Service, topic: str, *, create: bool) -> list[str]:
    """The topic itself, or its partitions.

    `create` allows the broker to create the topic, if its policies do. Raises CliError where it is
    not allowed and the topic does not exist, and what the broker's refusal raises.
    """
    from ..client.errors import RequestRefusedError
    from ..metadata.partition_names import partition_name
    from ..proto.pulsar_api_pb2 import ServerError

    try:
        partitions = service.first().partitions(topic, create=create)
    except RequestRefusedError as refusal:
        if refusal.error == ServerError.TopicNotFound:
            raise CliError(f"{topic} does not exist, and the broker does not create it") from None
        raise
    return [partition_name(topic, number) for number in range(partitions)] or [topic]


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
        from ..finder.client import ClientTls

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
def seek_service(args: argparse.Namespace, address: str) -> Iterator[SeekClient]:
    """The seek service at an address, which its errors name. Raises CliError, OSError."""
    from ..finder import SeekCallError, SeekClient

    access = access_of(args)
    with SeekClient(address, token=access.token, tls=access.grpc_tls()) as client:
        try:
            yield client
        except SeekCallError as error:
            raise type(error)(error.code, f"{address}: {error.details}") from error


DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"
READ_TIMEOUT_S = 10.0
CHANGE_TIMEOUT_S = 30.0
#: A day. A socket takes no timeout of any length.
MAX_TIMEOUT_S = 86_400.0
#: Actions of commands that change nothing.
READS = (None, "get", "list", "show")


def add_admin_url(
    parser: argparse._ActionsContainer, default: str | None = DEFAULT_ADMIN_URL
) -> None:
    """`--url` of the HTTP interface."""
    parser.add_argument(
        "--url",
        "--admin-url",
        dest="admin_url",
        default=default,
        metavar="URL",
        help=f"the broker's HTTP address (default: {DEFAULT_ADMIN_URL})",
    )


def add_broker(parser: argparse.ArgumentParser) -> None:
    """`--url`, `--request-timeout`, and the options of access."""
    add_admin_url(parser)
    add_request_timeout(parser)
    add_access(parser)


def add_request_timeout(parser: argparse.ArgumentParser) -> None:
    """`--request-timeout`: how long a broker may be silent."""
    parser.add_argument(
        "--request-timeout",
        type=partial(seconds, most=MAX_TIMEOUT_S),
        metavar="SECONDS",
        help="how long the broker may take to answer"
        f" (default: {READ_TIMEOUT_S:g}, and {CHANGE_TIMEOUT_S:g} for changes)",
    )


def target_path(text: str) -> tuple[str, str]:
    """The target's full name, and its path in the admin interface."""
    if "://" not in text and text.count("/") == 1:
        tenant, namespace = check_namespace(text)
        return text, f"/admin/v2/namespaces/{_quoted(tenant, namespace)}"
    topic = TopicName.parse(text)
    parts = (topic.domain, topic.tenant, topic.namespace_local, topic.local)
    return str(topic), f"/admin/v2/{_quoted(*parts)}"


def _quoted(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def _admin_url(text: str) -> str:
    """The address of `--url`, without a slash at its end. Raises CliError."""
    try:
        url = urlsplit(text)
        fits = url.scheme in ("http", "https") and url.hostname and not (url.query or url.fragment)
        _ = url.port
    except ValueError as error:
        raise CliError(f"--url {text!r}: {error}") from error
    if not fits:
        raise CliError(
            f"--url {text!r} is not of the form {DEFAULT_ADMIN_URL}: this command asks the broker's"
            " HTTP interface"
        )
    return text.rstrip("/")


def not_ours(answer: object, what: str) -> CliError:
    """The error for an answer that no pulsemark broker gives."""
    return CliError(f"the answer {str(answer)[:80]!r} is not {what}; is this a pulsemark broker?")


def admin_client(args: argparse.Namespace, *, is_read: bool | None = None) -> AdminClient:
    """A client of the broker at `--url`, by default of this machine. Raises CliError, OSError.

    `is_read`: whether its calls change nothing, so that they take less time. None: as the command's
    action says.
    """
    from ..client.admin import AdminClient

    if is_read is None:
        is_read = getattr(args, "action", None) in READS
    access, url = access_of(args), _admin_url(args.admin_url or DEFAULT_ADMIN_URL)
    context = access.context() if url.startswith("https:") else None
    timeout_s = getattr(args, "request_timeout", None) or (
        READ_TIMEOUT_S if is_read else CHANGE_TIMEOUT_S
    )
    return AdminClient(url, token=access.token, ssl_context=context, timeout_s=timeout_s)
