"""The options of a read over gRPC: where the service is, and how to authenticate.

Spark's own redaction hides the values of options whose names contain ``token`` in its plans and
pages. With ``tokenFile`` the token itself is not in the options at all; the file is read on each
machine that opens a connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..errors import OptionError
from ..option_values import Given

if TYPE_CHECKING:
    from ...finder.client import SeekClient

_NEED_A_SERVICE = ("token", "tokenFile", "tlsCa", "tlsCertificate", "tlsKey", "tlsServerName")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """A seek service and how to call it."""

    target: str
    """host:port"""
    tls: bool = False
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def client(self) -> SeekClient:
        """A client; close it after use.

        Raises:
            OptionError: the token or a file of TLS cannot be used.
        """
        from ...finder.client import SeekClient
        from ...finder.requests import ClientTls

        tls = None
        try:
            if self.tls:
                tls = ClientTls(
                    ca=self.ca,
                    certificate=self.certificate,
                    key=self.key,
                    server_name=self.server_name,
                )
            token = self.token
            if self.token_file is not None:
                token = self.token_file.read_text(encoding="utf-8").strip()
            return SeekClient(self.target, token=token, tls=tls)
        except (OSError, ValueError) as error:
            raise OptionError("grpcUrl", self.target, f"cannot be called: {error}") from error


def service_of(given: Given) -> ServiceOptions | None:
    """The service that the options name; None if the read is of a folder.

    Raises:
        OptionError: an option is malformed, or needs another one.
    """
    service = given.get("grpcUrl", _parse_url, None)
    given.only_one("token", "tokenFile")
    parsed = ServiceOptions(
        "" if service is None else service[0],
        tls=service is not None and service[1],
        token=given.get("token", _text, None),
        token_file=given.get("tokenFile", Path, None),
        ca=given.get("tlsCa", Path, None),
        certificate=given.get("tlsCertificate", Path, None),
        key=given.get("tlsKey", Path, None),
        server_name=given.get("tlsServerName", _text, None),
    )
    if service is None:
        given.refuse(_NEED_A_SERVICE, "needs the option grpcUrl")
        return None
    given.refuse(("path", "store"), "excludes grpcUrl: a read is of a folder or of a service")
    given.refuse(("topicsPattern",), "needs a folder: a service does not list its topics")
    given.refuse(("valueSchema",), "needs a folder: a service does not have the schemas")
    given.refuse(("maxBytesPerTrigger",), "needs a folder: a service does not tell sizes")
    if not parsed.tls:
        given.refuse(_NEED_A_SERVICE[2:], "needs a URL with grpcs://")
    return parsed


def _parse_url(text: str) -> tuple[str, bool]:
    uri = urlsplit(text.strip())
    try:
        port = uri.port
    except ValueError:
        port = None
    plain = not uri.path.strip("/") and not uri.query and uri.username is None
    if uri.scheme not in ("grpc", "grpcs") or not uri.hostname or port is None or not plain:
        raise ValueError("is not grpc://HOST:PORT or grpcs://HOST:PORT")
    return uri.netloc, uri.scheme == "grpcs"


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text.strip()
