"""A broker that stores nothing: its cost is only that of client, protocol and loopback.

bench_client.py starts it as a separate process. It prints its port. Every SEND gets its receipt at
once, every FLOW gets the same entry again and again. It is the limit with which a real broker is
compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pulsemark.broker import new_event_loop
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.raw_messages import batched_message, unbatched_message
from pulsemark.wire import Command, Connection, Role, Send, commands

SMALL_BYTES, LARGE_BYTES = 100, 128 * 1024
BATCH_MESSAGES = 1000
MAX_MESSAGE_SIZE_BYTES = 5 * 1024 * 1024
_T = pb.BaseCommand.Type


def entry_of(topic: str) -> tuple[bytes, int]:
    """The entry that a consumer of the topic gets, and the number of its messages."""
    if topic.endswith("large"):
        return unbatched_message(bytes(LARGE_BYTES), publish_time_ms=1), 1
    return batched_message([bytes(SMALL_BYTES)] * BATCH_MESSAGES, publish_time_ms=1), BATCH_MESSAGES


class NullSession(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, service_url: Callable[[], str]) -> None:
        self._service_url = service_url
        self._connection = Connection(Role.SERVER, max_message_size_bytes=MAX_MESSAGE_SIZE_BYTES)
        self._entries: dict[int, tuple[bytes, int]] = {}
        self._permits: dict[int, int] = {}
        self._next_entry_id = 0
        self._can_write = True

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport

    def pause_writing(self) -> None:
        """The consumer reads too slowly: stop sending."""
        self._can_write = False

    def resume_writing(self) -> None:
        """Go on sending while there are permits."""
        self._can_write = True
        for consumer_id in self._permits:
            self._deliver(consumer_id)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Answer all commands that arrived."""
        self._connection.buffer_updated(nbytes)
        answers: list[bytes] = []
        for event in self._connection.events():
            if isinstance(event, Send):
                command = event.command
                answers.append(
                    commands.send_receipt(
                        command.producer_id, command.sequence_id, 1, self._next_entry_id
                    )
                )
                self._next_entry_id += 1
            elif isinstance(event, Command):
                answers.append(self._answer(event.type, event.body))
        self._transport.write(b"".join(answers))

    def _answer(self, kind: int, body: Any) -> bytes:
        if kind == _T.CONNECT:
            return commands.connected("null", commands.PROTOCOL_VERSION, MAX_MESSAGE_SIZE_BYTES)
        if kind == _T.PARTITIONED_METADATA:
            return commands.partitioned_metadata_response(body.request_id, 0)
        if kind == _T.LOOKUP:
            return commands.lookup_response(body.request_id, self._service_url())
        if kind == _T.PRODUCER:
            return commands.producer_success(body.request_id, "null")
        if kind == _T.SUBSCRIBE:
            self._entries[body.consumer_id] = entry_of(body.topic)
            self._permits[body.consumer_id] = 0
            return commands.success(body.request_id)
        if kind == _T.FLOW:
            self._permits[body.consumer_id] += body.messagePermits
            self._deliver(body.consumer_id)
            return b""
        if kind == _T.PING:
            return commands.PONG
        if kind == _T.CLOSE_CONSUMER:
            self._permits.pop(body.consumer_id, None)
        return commands.success(body.request_id) if hasattr(body, "request_id") else b""

    def _deliver(self, consumer_id: int) -> None:
        entry, count = self._entries[consumer_id]
        while self._can_write and self._permits.get(consumer_id, 0) > 0:
            self._transport.writelines(
                commands.message_frame(consumer_id, 1, self._next_entry_id, 0, (), [entry])
            )
            self._next_entry_id += 1
            self._permits[consumer_id] -= count

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to do."""
        self._can_write = False


async def main() -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    url = ""
    server = await loop.create_server(lambda: NullSession(lambda: url), "127.0.0.1", 0)
    url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(url, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
