"""The seek service inside a broker: its start, if a port is configured.

`seek_service` is the service over the broker's topics, and decides who may call. It imports grpc,
so the broker imports it only if a port is configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..connection.accepting import url_host
from ..connection.services import Services
from ..errors import ConfigError, PortInUseError
from ..ownership import GrpcPlace

if TYPE_CHECKING:
    from ...finder.server import SeekServer


async def start_seek_server(
    services: Services, advertised_host: str, *, has_others: bool
) -> SeekServer | None:
    """Serve; None without a port. Raises ConfigError, PortInUseError, OSError.

    `has_others`: the broker is one of a cluster, whose others send calls to it by that host.
    """
    config = services.config
    port, tls_port = config.grpc_port, config.security.grpc_tls_port
    if port is None and tls_port is None:
        if config.grpc_control_token_file is not None:
            path = str(config.grpc_control_token_file)
            raise ConfigError("grpc_control_token_file", path, "needs grpc_port, which is not set")
        return None
    # It imports grpc, which most brokers do not need.
    from ...finder.errors import BindError
    from .seek_service import make_seek_server

    server = make_seek_server(services, config.host, has_others=has_others)
    try:
        await server.start()
    except BindError as error:
        raise PortInUseError(error.host, error.port) from error
    host = url_host(advertised_host)
    services.grpc_place = GrpcPlace(
        "" if port is None else f"{host}:{server.port}",
        "" if tls_port is None else f"{host}:{server.tls_port}",
    )
    return server
