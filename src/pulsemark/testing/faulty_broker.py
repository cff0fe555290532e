"""A broker whose sends and connections fail on request. `testing.faults` has the requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

from ..broker import Broker, BrokerConfig
from ..broker.connection.session import Session
from ..broker.handlers import handle_sends
from ..broker.services import Services
from ..metadata.partition_names import partition_of
from ..proto.pulsar_api_pb2 import ServerError
from ..wire import Sends, commands
from .faulty_files import FaultyFiles

__all__ = ["FaultyBroker", "SendFault", "SendFaults"]


@dataclass(eq=False, slots=True)
class SendFault:
    """What happens to the messages of a topic, or of all topics."""

    topic: str | None
    """A full name, which partitions of a topic match, too; None: all topics."""
    error: int | None = None
    """Messages are refused with this ServerError."""
    loses_receipt: bool = False
    """Messages are stored, and then the connection is closed without a receipt."""
    times: int | None = None
    """After so many messages it is over; None: it goes on."""
    lost: set[tuple[str, str, bytes]] = field(default_factory=set)
    """Topic, producer and bytes of messages whose receipt was lost. When they are sent again,
    their receipt arrives: a client whose every receipt is lost sends for ever."""

    def takes(self, topic: str, message: tuple[str, str, bytes]) -> bool:
        """Whether it holds for a message of this topic; counts it."""
        if self.times == 0 or self.topic not in (None, topic, partition_of(topic)[0]):
            return False
        if message in self.lost:
            return False
        if self.loses_receipt:
            self.lost.add(message)
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(eq=False, slots=True)
class SendFaults:
    """The faults of one broker. Changed on the broker's loop only."""

    active: list[SendFault] = field(default_factory=list)
    delay_s: float | None = None
    """What a client with producers sends is handled so much later."""
    waiting: set[FaultySession] = field(default_factory=set)
    refuses_connections: bool = False

    def end(self, fault: SendFault) -> None:
        """A fault is over."""
        if fault in self.active:
            self.active.remove(fault)

    def release(self) -> None:
        """Handle what was delayed."""
        self.delay_s = None
        for session in tuple(self.waiting):
            session.go_on()


#: How the version of a client begins; the errors of a SEND_ERROR that make its `send` fail, the
#: first in place of all others. For any other error these clients connect again and send again, and
#: each new connection begins their send timeout anew: `send` would never return.
FINAL_ERRORS = {
    "Pulsar-CPP": (ServerError.ChecksumError,),
    "Pulsar-Java": (ServerError.NotAllowedError, ServerError.TopicTerminatedError),
}


class FaultySession(Session):
    """A client's connection, with the broker's faults."""

    def __init__(self, services: Services, faults: SendFaults) -> None:
        super().__init__(services)
        self._faults = faults
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it again if connections are refused."""
        super().connection_made(transport)
        if self._faults.refuses_connections:
            self.abort()

    def take_turn(self) -> None:
        """Handle the input, at once or later."""
        delay_s = self._faults.delay_s
        if delay_s is None or not self.producers or self.is_closed:
            super().take_turn()
        elif self._waiting is None:
            self.throttling.throttle()
            self._faults.waiting.add(self)
            loop = asyncio.get_running_loop()
            self._waiting = loop.call_later(delay_s, self.go_on)

    def go_on(self) -> None:
        """The delay is over."""
        self._faults.waiting.discard(self)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            if not self.is_closed:
                super().take_turn()
                self.throttling.unthrottle()

    def close_state(self) -> None:
        """The connection ends; what was delayed is never handled."""
        self._faults.waiting.discard(self)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        super().close_state()

    def handle_sends(self, event: Sends) -> None:
        """Messages: store each, or do what a fault says."""
        if not self._faults.active:
            handle_sends(self, event)
            return
        for number in range(len(event)):
            if not self.is_closed:
                self._handle_one(event.alone(number))

    def _handle_one(self, event: Sends) -> None:
        entry = self.producers.get(event.producer_id)
        if entry is None:
            handle_sends(self, event)
            return
        producer, opened = entry
        message = opened.name, producer.name, bytes(event.bodies[0])
        fault = next((f for f in self._faults.active if f.takes(opened.name, message)), None)
        if fault is not None and fault.error is not None:
            self.receipts.answer_in_turn(producer, self._refusal(event, fault.error))
            return
        handle_sends(self, event)
        if fault is not None:
            self.abort()

    def _refusal(self, event: Sends, error: int) -> bytes:
        """A SEND_ERROR after which the client gives the message up."""
        name = ServerError.Name(cast("ServerError", error))
        sequence_id = event.sequence_ids[0]
        for client, final in FINAL_ERRORS.items():
            if self.client_version.startswith(client):
                error = error if error in final else final[0]
        if self.client_version.startswith("Pulsar-Java"):
            # It knows a batch by its last message.
            sequence_id = max(sequence_id, event.highest_sequence_ids[0])
        return commands.send_error(
            event.producer_id,
            sequence_id,
            cast("ServerError", error),
            f"a test lets sends fail with {name}",
        )


class FaultyBroker(Broker):
    """A broker of the test kit."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        super().__init__(config)
        self.send_faults = SendFaults()
        self.files: FaultyFiles | None = None
        if self.config.storage == "files":
            self.files = FaultyFiles()

    def make_session(self) -> Session:
        """A connection that obeys the faults."""
        return FaultySession(self.services, self.send_faults)

    async def kill(self) -> None:
        """End as a crash looks to clients: no answer, no goodbye; then give the store back."""
        for session in tuple(self.services.sessions):
            session.abort()
        for connection in tuple(self.services.http_connections):
            connection.close()
        await self.close()
