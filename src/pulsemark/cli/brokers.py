"""Access to the broker that a command calls: addresses, token, certificates, and calls.

Every command that calls a broker has `--url`: pulsar://HOST:PORT to publish and receive, HOST:PORT
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
from pathlib import Path
from typing import TYPE_CHECKING

from ..wire import TopicName, check_namespace
from .options import read_token
from .parsing import CliError

if TYPE_CHECKING:
    from ..client import Service
    from ..client.admin import AdminClient
    from ..finder import ClientTls, SeekClient


DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"
DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"
READ_TIMEOUT_S = 10.0
CHANGE_TIMEOUT_S = 30.0
TOKEN_VARIABLE = "PULSEMARK_TOKEN"  # noqa: S105 - a name, no token
CA_VARIABLE = "PULSEMARK_TLS_CA"
#: Actions of commands that change nothing.
READS = (None, "get", "list", "show")

# The options of commands that ask a broker.
ACCESS = f"""
--token-file PATH  file with the bearer token (default: the variable {TOKEN_VARIABLE})
--tls-ca, --tls-trust-certs PATH  use TLS, and trust this authority, PEM (default: the variable
    {CA_VARIABLE})
--tls-cert PATH  own certificate, PEM
--tls-key PATH  its private key, PEM
"""
SERVICE = f"""
--url, --service-url URL [{DEFAULT_SERVICE_URL}]  the broker (default: {DEFAULT_SERVICE_URL})
{ACCESS}"""
ADMIN_URL = f"--url, --admin-url URL  the broker's HTTP address (default: {DEFAULT_ADMIN_URL})\n"
REQUEST = f"""
--request-timeout SECONDS  how long the broker may take to answer (default: {READ_TIMEOUT_S:g}, and
    {CHANGE_TIMEOUT_S:g} for changes)
{ACCESS}"""
BROKER = ADMIN_URL + REQUEST


def service_of(args: argparse.Namespace) -> Service:
    """The brokers at `--url`. Raises CliError, OSError, ServiceUrlError."""
    from ..client import Service

    if not args.url.startswith(("pulsar:", "pulsar+ssl:")):
        raise CliError(
            f"--url {args.url!r} is not of the form {DEFAULT_SERVICE_URL}: this command"
            " speaks Pulsar's protocol"
        )
    access = access_of(args)
    context = access.context() if args.url.startswith("pulsar+ssl:") else None
    return Service(args.url, ssl_context=context, token=access.token)


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


@dataclass(frozen=True, slots=True)
class Access:
    """A command's credentials, and the authorities that it trusts; None: the default."""

    token: str | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """The TLS context of connections. Raises CliError."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None and self.key is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:
            files = [str(path) for path in (self.ca, self.certificate, self.key) if path]
            raise CliError(f"cannot use TLS with {', '.join(files)}: {error}") from error
        return context

    def grpc_tls(self) -> ClientTls | None:
        """The TLS files for gRPC; None without TLS."""
        from ..finder.client import ClientTls

        if self.ca is None and self.certificate is None:
            return None
        return ClientTls(ca=self.ca, certificate=self.certificate, key=self.key)


def access_of(args: argparse.Namespace) -> Access:
    """The access by options and environment. Raises CliError, OSError."""
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


def target_path(text: str) -> tuple[str, str]:
    """The target's full name, and its path in the admin interface."""
    from ..client.admin import namespace_path, topic_path

    if "://" not in text and text.count("/") == 1:
        check_namespace(text)
        return text, f"/admin/v2/namespaces/{namespace_path(text)}"
    return str(TopicName.parse(text)), f"/admin/v2/{topic_path(text)}"


def not_ours(answer: object, what: str) -> CliError:
    """The error for an answer that is not a pulsemark broker's."""
    return CliError(f"the answer {str(answer)[:80]!r} is not {what}; is this a pulsemark broker?")


def admin_client(args: argparse.Namespace, *, is_read: bool | None = None) -> AdminClient:
    """A client of the broker at `--url`, by default of this machine. Raises CliError, OSError.

    `is_read`: its calls change nothing, and get a shorter time. None: as the command's action
    implies.
    """
    from ..client.admin import AdminClient
    from ..client.errors import ServiceUrlError

    if is_read is None:
        is_read = getattr(args, "action", None) in READS
    access, url = access_of(args), args.url or DEFAULT_ADMIN_URL
    context = access.context() if url.startswith("https:") else None
    timeout_s = getattr(args, "request_timeout", None) or (
        READ_TIMEOUT_S if is_read else CHANGE_TIMEOUT_S
    )
    try:
        return AdminClient(url, token=access.token, ssl_context=context, timeout_s=timeout_s)
    except ServiceUrlError as error:
        raise CliError(
            f"--url {url!r} is not of the form {DEFAULT_ADMIN_URL}: this command asks the broker's"
            " HTTP interface"
        ) from error
