"""The service URL of commands that publish and receive, and the connections to its brokers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .access import access_of, add_access
from .errors import CliError

if TYPE_CHECKING:
    from ..client import Service

DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"


def add_service(parser: argparse.ArgumentParser) -> None:
    """`--service-url`, and the options of access."""
    parser.add_argument(
        "--service-url",
        default=DEFAULT_SERVICE_URL,
        metavar="URL",
        help=f"the broker (default: {DEFAULT_SERVICE_URL})",
    )
    add_access(parser)


def service_of(args: argparse.Namespace) -> Service:
    """The brokers at `--service-url`. Raises CliError, OSError, ServiceUrlError."""
    from ..client import Service
    from ..client.service import authentication

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
