"""A gRPC server's certificate, also after it was renewed."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

__all__ = ["ServerTls", "server_credentials"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The server's certificate chain and key (PEM files).

    With `client_ca`, only clients with a certificate from it are accepted. With `refresh_check_s`,
    files that have changed are read again, at a handshake, at most once in so many seconds.
    """

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    client_ca: str | os.PathLike[str] | None = None
    refresh_check_s: float | None = None


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """What gRPC needs of the files. Raises OSError, also for files that do not fit."""
    first = _configuration(tls)
    needs_certificate = tls.client_ca is not None
    if tls.refresh_check_s is not None:
        return grpc.dynamic_ssl_server_credentials(
            first, _renewing(tls, tls.refresh_check_s), needs_certificate
        )
    return grpc.ssl_server_credentials(
        [(Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())],
        root_certificates=None if tls.client_ca is None else Path(tls.client_ca).read_bytes(),
        require_client_auth=needs_certificate,
    )


def _configuration(tls: ServerTls) -> Any:
    # gRPC notices a key that does not fit only at the first handshake, and reports no error.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key, password="")
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
    return grpc.ssl_server_certificate_configuration(
        [(Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())],
        root_certificates=None if tls.client_ca is None else Path(tls.client_ca).read_bytes(),
    )


def _renewing(tls: ServerTls, interval_s: float) -> Callable[[], Any]:
    """Called by gRPC at each handshake, on threads of its own: the new files, or None."""
    marks, checked_at_s = _look(tls), time.monotonic()

    def renewed() -> Any:
        nonlocal marks, checked_at_s
        now_s = time.monotonic()
        if now_s - checked_at_s < interval_s:
            return None
        checked_at_s = now_s
        found = _look(tls)
        if found == marks:
            return None
        try:
            configuration = _configuration(tls)
        except OSError as error:
            log.warning("gRPC: the new TLS certificate is not used, the old one stays: %s", error)
            return None
        marks = found
        return configuration

    return renewed


def _look(tls: ServerTls) -> list[object]:
    marks: list[object] = []
    for path in (tls.certificate, tls.key, tls.client_ca):
        try:
            found = None if path is None else Path(path).stat()
        except OSError:
            found = None
        marks.append(found and (found.st_mtime_ns, found.st_size, found.st_ino))
    return marks
