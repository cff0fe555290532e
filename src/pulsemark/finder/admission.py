"""Asks before each call whether its caller may make it.

A program that has users of its own, such as the broker, gives the server an `Admit`. It is awaited
with the caller and the request, before the call begins. It says how long the caller's credentials
last: a call that outlives them is ended as UNAUTHENTICATED. Health checks are not asked about:
probes have no credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from . import rpc
from .service import CallContext

__all__ = ["AdmissionGate", "Admit", "CallRefusedError", "Caller"]

#: What gRPC calls the common name of a client's certificate.
COMMON_NAME = "x509_common_name"
#: What the paths of the service's calls begin with.
PREFIX = f"/{rpc.SERVICE_NAME}/"


@dataclass(frozen=True, slots=True)
class Caller:
    """The method and the caller, as the call states them."""

    #: Such as `SeekByTime`; the whole path for calls of other services.
    method: str
    #: The call's metadata, by names in lower case. One that came several times is left out.
    headers: Mapping[str, str]
    #: The common name of the client's certificate, which TLS verified.
    common_name: str | None


class CallRefusedError(Exception):
    """A call is refused with a status, and a text for the caller."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


#: The seconds until the caller's credentials expire; None: never. Raises CallRefusedError. The
#: request is None for calls of other services.
Admit: TypeAlias = Callable[[Caller, Any], Awaitable[float | None]]
Check: TypeAlias = Callable[[Any, CallContext], Awaitable[float | None]]
EXPIRED = "the credentials in 'authorization' expired during the call"


class AdmissionGate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets a call begin after `admit` has returned."""

    def __init__(self, admit: Admit, open_prefix: str) -> None:
        """`open_prefix`: calls whose path begins with it are not asked about."""
        self._admit = admit
        self._open_prefix = open_prefix

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """The call's handler, which asks first."""
        found = await continuation(details)
        if found is None or details.method.startswith(self._open_prefix):
            return found
        method, headers = details.method, _headers(details.invocation_metadata)
        method = method.removeprefix(PREFIX)

        async def check(request: Any, context: CallContext) -> float | None:
            caller = Caller(method, headers, _common_name(context))
            try:
                return await self._admit(caller, request)
            except CallRefusedError as refusal:
                await context.abort(refusal.code, refusal.text, ())

        return _guarded(found, check)


def _guarded(handler: grpc.RpcMethodHandler, check: Check) -> grpc.RpcMethodHandler:
    """The handler with a check before it. There are no calls of other kinds."""
    codec = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    if handler.unary_unary is not None:
        single = _awaited(handler.unary_unary, check)
        return grpc.unary_unary_rpc_method_handler(single, **codec)
    if handler.unary_stream is not None:
        # It writes to the context, and yields nothing.
        writing = _awaited(handler.unary_stream, check)
        return grpc.unary_stream_rpc_method_handler(writing, **codec)

    async def both_ways(requests: Any, context: CallContext) -> AsyncIterator[Any]:
        left_s = await check(None, context)
        try:
            async with asyncio.timeout(left_s):
                async for answer in handler.stream_stream(requests, context):
                    yield answer
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, EXPIRED, ())

    return grpc.stream_stream_rpc_method_handler(both_ways, **codec)


def _awaited(
    call: Callable[[Any, CallContext], Awaitable[Any]], check: Check
) -> Callable[[Any, CallContext], Awaitable[Any]]:
    async def checked(request: Any, context: CallContext) -> Any:
        left_s = await check(request, context)
        try:
            async with asyncio.timeout(left_s):
                return await call(request, context)
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, EXPIRED, ())

    return checked


def _headers(metadata: Any) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for name, value in metadata or ():
        if isinstance(value, str):
            found.setdefault(name.lower(), []).append(value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _common_name(context: CallContext) -> str | None:
    names = context.auth_context().get(COMMON_NAME, ())
    return names[-1].decode("utf-8", "replace") if names else None
