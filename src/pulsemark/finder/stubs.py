"""What both seek clients hold: a channel to the server, and a stub for each call."""

from __future__ import annotations

from typing import Any, ClassVar

from . import requests, rpc
from .errors import ClientClosedError
from .requests import ClientTls

__all__ = ["SeekStubs"]


class SeekStubs:
    """A channel with a stub for each call of the seek service."""

    #: The module that makes channels: `grpc` or `grpc.aio`.
    _grpc: ClassVar[Any]

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        tls: ClientTls | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._timeout_s = timeout_s
        self._is_closed = False
        self._metadata = (("authorization", rpc.bearer(token)),) if token is not None else ()
        self._channel = self._open_channel(requests.checked_target(target), tls)
        self._by_time = self._unary("SeekByTime")
        self._by_index = self._unary("SeekByIndex")
        self._range = self._unary("Range")
        self._reset_cursor = self._unary("ResetCursor")
        self._append_control = self._unary("AppendControl")
        self._epochs = self._unary("Epochs")
        self._audit = self._unary("Audit")
        self._read_entries = self._channel.unary_stream(
            rpc.path("ReadEntries"), **rpc.client_codec("ReadEntries")
        )

    def _open_channel(self, target: str, tls: ClientTls | None) -> Any:
        options = requests.channel_options(tls)
        if tls is None:
            return self._grpc.insecure_channel(target, options)
        return self._grpc.secure_channel(target, requests.channel_credentials(tls), options)

    def _started(self, call: Any, request: Any, timeout_s: float | None) -> Any:
        """Start a call. Raises ClientClosedError."""
        if self._is_closed:
            raise ClientClosedError
        try:
            return call(request, timeout=timeout_s, metadata=self._metadata)
        except ValueError as error:  # grpc's, if another thread has closed the client meanwhile
            if self._is_closed:
                raise ClientClosedError from error
            raise

    def _unary(self, method: str) -> Any:
        return self._channel.unary_unary(rpc.path(method), **rpc.client_codec(method))
