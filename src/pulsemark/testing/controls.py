"""Clock, faults and assertions over HTTP, for tests in any language: `--test-controls`.

    GET    /pulsemark/test                    what there is
    GET    /pulsemark/test/clock              {"now_ms": ..., "now": "2026-03-01T14:05:00Z"}
    PUT    /pulsemark/test/clock              {"now_ms": N} or {"now": "..."}
    POST   /pulsemark/test/clock/advance      {"days", "hours", "minutes", "seconds", "by_ms"}
    GET    /pulsemark/test/faults             those that are installed, with how often they struck
    POST   /pulsemark/test/faults             {"fault": "failing_sends", "topic": ..., "times": ...}
    DELETE /pulsemark/test/faults             all of them
    DELETE /pulsemark/test/faults/ID          one
    DELETE /pulsemark/test/connections        break all connections of clients
    POST   /pulsemark/test/fence?topic=T      take a topic from its producers
    GET    /pulsemark/test/messages?topic=T   what was published; ?value=, key=: those that fit
    POST   /pulsemark/test/assertions         {"topic", "value", "key", "properties", "count"}
    POST   /pulsemark/test/reset              forget topics, groups and faults; the machine's time
    POST   /pulsemark/test/kill               end the process as kill -9 does

An answer to a change of the clock comes when everything that is then due is done. A wrong option is
answered with 400 and {"reason": ...}, an assertion that fails with 417 and what the topic has; with
"timeout_ms" an assertion waits so long until it holds.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from ..broker import Broker
from ..broker.errors import RefusedError
from ..broker.http.messages import HttpError, Request, Response
from ..proto.pulsar_api_pb2 import ServerError
from ..wire import InvalidTopicNameError, TopicName
from .broker import before_clock_moves, clock_moved, messages_of_topic
from .clock import SettableClock
from .faults import (
    TEST_PATH,
    Crashing,
    DelayingSends,
    FailingDisk,
    FailingSends,
    Fault,
    FaultyBroker,
    LosingReceipts,
    PausingDelivery,
    RefusingConnections,
    kill_this_process,
)
from .inspection import StoredMessage, fitting, shown_last

POLL_S = 0.02
MAX_TIMEOUT_MS = 60_000
#: The end of the year 9998.
MAX_TIME_MS = 253_370_764_799_999
STEPS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000, "by_ms": 1}
#: The kind of JSON of each option of a fault.
KINDS: dict[str, tuple[type, ...]] = {
    "probability": (int, float), "times": (int,), "on_call": (int,), "delay_ms": (int,)
}  # fmt: skip

Handler = Callable[..., Awaitable[Response]]


def fault_kinds() -> dict[str, type[Fault]]:
    """The faults by name. Kafka's need kafka-python."""
    found: list[type[Fault]] = [
        Crashing, DelayingSends, FailingDisk, FailingSends, LosingReceipts, PausingDelivery,
        RefusingConnections,
    ]  # fmt: skip
    with suppress(ImportError):
        from .kafka_faults import FailingKafka, LosingKafkaAnswers

        found += [FailingKafka, LosingKafkaAnswers]
    return {kind.name: kind for kind in found}


def fault_of(wanted: dict[str, Any]) -> Fault:
    """Make the fault that JSON describes. Raises ValueError with the option and its value."""
    kinds = fault_kinds()
    options = dict(wanted)
    name = options.pop("fault", None)
    if name not in kinds:
        raise ValueError(f"fault={name!r}: must be one of {', '.join(sorted(kinds))}")
    known = kinds[name].options()
    for option, value in options.items():
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}; it has {', '.join(known)}")
        kind = KINDS.get(option, (str,))
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise ValueError(f"{option}={value!r}: must be {' or '.join(k.__name__ for k in kind)}")
    given = {option: value for option, value in options.items() if value is not None}
    return kinds[name](**given)


class TestControls:
    """The routes of one broker, for requests with `Authorization: Bearer TOKEN`, if it is set."""

    __test__ = False  # pytest: this is no test
    path = TEST_PATH

    def __init__(self, broker: FaultyBroker, token: str | None = None) -> None:
        self._broker = broker
        self._token = token
        #: The clock is moved, and all is forgotten, by one request at a time.
        self._moving, self._resetting = asyncio.Lock(), asyncio.Lock()
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", ""): self._get_all,
            ("GET", "clock"): self._get_clock,
            ("PUT", "clock"): self._set_clock,
            ("POST", "clock/advance"): self._advance,
            ("GET", "faults"): self._get_faults,
            ("POST", "faults"): self._install,
            ("DELETE", "faults"): self._remove_all,
            ("DELETE", "connections"): self._drop,
            ("POST", "fence"): self._fence,
            ("GET", "messages"): self._get_messages,
            ("POST", "assertions"): self._assert,
            ("POST", "reset"): self._reset,
            ("POST", "kill"): self._kill,
        }

    async def __call__(self, request: Request) -> Response:
        """Answer a request below `TEST_PATH`. Raises HttpError."""
        if self._token is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                raise HttpError(401, "the test controls need their token: Authorization: Bearer")
        parts = request.segments[2:]
        if len(parts) == 2 and parts[0] == "faults" and request.method == "DELETE":
            return self._remove(parts[1])
        path = "/".join(parts)
        handler = self._routes.get((request.method, path))
        if handler is None:
            methods = [method for method, known in self._routes if known == path]
            if methods:
                raise HttpError(405, f"{TEST_PATH}/{path} has {', '.join(methods)}")
            raise HttpError(
                404, f"{TEST_PATH}/{path}: there is no such route; GET {TEST_PATH} lists them"
            )
        try:
            return await handler(request)
        except (ValueError, TypeError, OverflowError, InvalidTopicNameError) as error:
            raise HttpError(400, str(error)) from error

    async def _get_all(self, _: Request) -> Response:
        routes = [f"{method} {TEST_PATH}/{path}".rstrip("/") for method, path in self._routes]
        faults = {name: kind.options() for name, kind in fault_kinds().items()}
        routes.append(f"DELETE {TEST_PATH}/faults/ID")
        return Response.of_json({"routes": sorted(routes), "faults": faults})

    # -- clock ----------------------------------------------------------------------------------

    @property
    def _clock(self) -> SettableClock:
        clock = self._broker.config.clock
        assert isinstance(clock, SettableClock)
        return clock

    def _time(self) -> Response:
        now = self._clock.now()
        text = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return Response.of_json({"now_ms": self._clock.now_ms(), "now": text})

    async def _get_clock(self, _: Request) -> Response:
        return self._time()

    async def _set_clock(self, request: Request) -> Response:
        given = _object(request, {"now_ms": int, "now": str})
        if len(given) != 1:
            raise ValueError(
                "the body must have now_ms (milliseconds since 1970) or now (ISO 8601)"
            )
        now = given.get("now_ms")
        if now is None:
            now = datetime.fromisoformat(given["now"])
            if now.tzinfo is None:
                raise ValueError(f"now={given['now']!r}: has no time zone, such as Z")
        now_ms = now if isinstance(now, int) else round(now.timestamp() * 1000)
        return await self._moved(lambda: now_ms)

    async def _advance(self, request: Request) -> Response:
        given = _object(request, dict.fromkeys(STEPS, (int, float)))
        if not given:
            raise ValueError(f"the body must have one or more of {', '.join(STEPS)}")
        step_ms = round(sum(value * STEPS[unit] for unit, value in given.items()))
        return await self._moved(lambda: self._clock.now_ms() + step_ms)

    async def _moved(self, to_ms: Callable[[], int]) -> Response:
        async with self._moving:
            await before_clock_moves(self._broker.services)
            now_ms = to_ms()
            if not 0 <= now_ms <= MAX_TIME_MS:
                raise ValueError(f"{now_ms} ms since 1970: must be from 0 to {MAX_TIME_MS}")
            self._clock.set(now_ms)
            await clock_moved(self._broker.services)
        return self._time()

    # -- faults ---------------------------------------------------------------------------------

    async def _get_faults(self, _: Request) -> Response:
        return Response.of_json([_shown(*each) for each in self._broker.installed.items()])

    async def _install(self, request: Request) -> Response:
        fault = fault_of(_object(request, None))
        number = self._broker.install(fault)
        return Response.of_json(_shown(number, fault), 201)

    async def _remove_all(self, _: Request) -> Response:
        for number in tuple(self._broker.installed):
            self._broker.remove(number)
        return Response()

    def _remove(self, text: str) -> Response:
        if not text.isascii() or not text.isdigit() or int(text) not in self._broker.installed:
            raise HttpError(404, f"there is no fault {text!r}")
        self._broker.remove(int(text))
        return Response()

    async def _drop(self, _: Request) -> Response:
        return Response.of_json({"dropped": self._broker.drop_connections()})

    async def _fence(self, request: Request) -> Response:
        await self._broker.fence_producers(str(TopicName.parse(_topic(request))))
        return Response()

    async def _kill(self, _: Request) -> Response:
        kill_this_process()
        return Response()

    # -- looking --------------------------------------------------------------------------------

    async def _get_messages(self, request: Request) -> Response:
        query = request.query
        found = await messages_of_topic(self._broker, _topic(request))
        fits = fitting(found, query.get("value"), query.get("key"), {})
        return Response.of_json([_message(each) for each in fits])

    async def _assert(self, request: Request) -> Response:
        kinds = {"topic": str, "value": str, "key": str, "properties": dict, "count": int}
        given = _object(request, kinds | {"timeout_ms": int})
        topic, count = given.get("topic"), given.get("count")
        if topic is None:
            raise ValueError("the body must have a topic")
        timeout_ms = given.get("timeout_ms", 0)
        if not 0 <= timeout_ms <= MAX_TIMEOUT_MS:
            raise ValueError(f"timeout_ms={timeout_ms!r}: must be from 0 to {MAX_TIMEOUT_MS}")
        ends_at_s = time.monotonic() + timeout_ms / 1000
        while True:
            found = await messages_of_topic(self._broker, topic)
            fits = fitting(found, given.get("value"), given.get("key"), given.get("properties"))
            if (count is None and fits) or len(fits) == count:
                return Response.of_json([_message(each) for each in fits])
            if time.monotonic() >= ends_at_s:
                break
            await asyncio.sleep(POLL_S)
        wanted = "no message" if count is None else f"{len(fits)} messages, not {count},"
        reason = f"{topic!r} has {wanted} like this\n{shown_last(found)}"
        return Response.of_error(417, reason)

    async def _reset(self, request: Request) -> Response:
        """Delete what tests have created. Clients must connect again."""
        async with self._resetting:
            await self._remove_all(request)
            self._broker.drop_connections()
            await forget_all(self._broker)
            return await self._moved(lambda: time.time_ns() // 1_000_000)


async def forget_all(broker: Broker) -> None:
    """Delete all topics, with their subscriptions, and the offsets of Kafka's groups."""
    topics, kafka = broker.services.topics, broker.kafka
    for namespace in tuple(topics.namespaces):
        for text in topics.partitioned.in_namespace(namespace):
            await _gone(topics.delete_partitioned(TopicName.parse(text), force=True))
    for text in tuple(topics.names.snapshot()):
        await _gone(topics.delete(TopicName.parse(text), force=True))
    if kafka is not None:
        await asyncio.gather(*(kafka.offsets.drop(name, None) for name in kafka.offsets.groups()))


async def _gone(deleting: Awaitable[None]) -> None:
    """Delete a topic, unless a client has deleted it meanwhile."""
    try:
        await deleting
    except RefusedError as refusal:
        if refusal.code != ServerError.TopicNotFound:
            raise


def _object(request: Request, kinds: dict[str, Any] | None) -> dict[str, Any]:
    """Parse the body: an object with these fields of these kinds."""
    given = request.json()
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise ValueError("the body must be an object in JSON")
    for name, value in given.items() if kinds is not None else ():
        assert kinds is not None
        if name not in kinds:
            raise ValueError(f"{name!r}: the body may have {', '.join(kinds)}")
        if isinstance(value, bool) or not isinstance(value, kinds[name]):
            raise ValueError(f"{name}={value!r}: is of the wrong kind")
    return given


def _topic(request: Request) -> str:
    topic = request.query.get("topic")
    if not topic:
        raise ValueError("the query must have a topic")
    return topic


def _shown(number: int, fault: Fault) -> dict[str, Any]:
    counts = {each: getattr(fault, each) for each in ("calls", "hits") if hasattr(fault, each)}
    return {"id": number, **fault.to_json(), **counts}


def _message(stored: StoredMessage) -> dict[str, Any]:
    value = stored.value
    try:
        text = None if value is None else value.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "topic": stored.topic,
        "index": stored.index,
        "position": str(stored.position),
        "broker_time_ms": stored.broker_time_ms,
        "key": stored.key,
        "properties": stored.properties,
        "value": text,
        "value_base64": None if value is None else base64.b64encode(value).decode(),
    }
