"""Faults of requests of Kafka's clients: errors in place of answers, and lost answers.

An answer with an error is made from the request: every part that the request names, such as a
partition, has the error. So it works for all requests whose answers have errors (`FAILING_APIS`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import kafka.errors

from ..broker.kafka.endpoint import Handler, KafkaSession
from ..kafka.errors import Code
from ..kafka.protocol import APIS, PRODUCE, Request
from .faults import (
    Crashing,
    DelayingSends,
    RefusingConnections,
    Some,
    check_option,
    full_name,
    kill_this_process,
)

if TYPE_CHECKING:
    from .faults import FaultyBroker

#: The errors of Kafka's protocol by name.
ERRORS: dict[str, int] = {
    each.message: each.errno
    for each in cast("dict[str, Any]", vars(kafka.errors)).values()
    if isinstance(getattr(each, "errno", None), int)
}
ERRORS |= {code.name: int(code) for code in Code}
del ERRORS["NONE"]

#: Where an answer repeats what a request names under another name.
REPEATED = {
    "responses": ("topic_data", "topics"),
    "results": ("topics",),
    "partition_responses": ("partition_data",),
    "partitions": ("partition_indexes",),
    "partition_index": ("index", "partition"),
    "index": ("partition",),
    "topic": ("name",),
    "group_id": ("key",),
}
FAILING_APIS = {
    api.name: api.key
    for api in APIS.values()
    if api.name
    in {
        "Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch",
        "FindCoordinator", "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup", "CreateTopics",
        "InitProducerId", "OffsetForLeaderEpoch", "CreatePartitions", "DeleteRecords",
    }
}  # fmt: skip


@dataclass(eq=False, slots=True, kw_only=True)
class KafkaFault(Some):
    """A fault of one kind of request."""

    api: str = ""
    """The request's name, such as "Produce"."""

    def __post_init__(self) -> None:
        super(KafkaFault, self).__post_init__()
        check_option("api", self.api, FAILING_APIS)

    def takes_request(self, request: Request) -> bool:
        """Whether this request fails; counts it."""
        if request.api.name != self.api:
            return False
        topics = {self.topic} & set(topics_of(request.body)) if self.topic else {""}
        return any(self.takes(topic or "", request.client_id) for topic in topics)


@dataclass(eq=False, slots=True, kw_only=True)
class FailingKafka(KafkaFault):
    """Requests are answered with an error, and nothing else is done for them."""

    name = "failing_kafka"

    error: str = "UNKNOWN_SERVER_ERROR"
    """The error's name in Kafka's protocol."""

    def __post_init__(self) -> None:
        super(FailingKafka, self).__post_init__()
        check_option("error", self.error, ERRORS)


@dataclass(eq=False, slots=True, kw_only=True)
class LosingKafkaAnswers(KafkaFault):
    """Requests are carried out, and the connection breaks in place of the answer."""

    name = "losing_kafka_answers"


def topics_of(body: Any) -> Iterator[str]:
    """The full names of the topics that a request names."""
    for field in ("topics", "topic_data"):
        for each in getattr(body, field, None) or ():
            name = each if isinstance(each, str) else getattr(each, "name", None) or each.topic
            if name:
                yield str(full_name(name))


def refusal(request: Request, code: int) -> Any:
    """The answer to a request with this error, in every part that the request names."""
    return _alike(request.api.response, request.body, code)


def _alike(kind: Any, asked: Any, code: int) -> Any:
    if isinstance(asked, int):
        asked = SimpleNamespace(partition_index=asked)
    values: dict[str, Any] = {}
    for name, field in kind.fields.items():
        sources = (name, *REPEATED.get(name, ()))
        found = next((each for each in sources if getattr(asked, each, None) is not None), None)
        if field.is_struct_array():
            items = getattr(asked, found) if found else ()
            inner = field.data_class
            values[name] = [_alike(inner, each, code) for each in items if _has_error(inner)]
        elif found and name != "error_code":
            values[name] = getattr(asked, found)
    if "error_code" in kind.fields and not any(isinstance(v, list) and v for v in values.values()):
        values["error_code"] = code
    return kind(**values)


def _has_error(kind: Any) -> bool:
    """Whether a part of an answer has errors, itself or in its own parts."""
    return "error_code" in kind.fields or any(
        each.is_struct_array() and _has_error(each.data_class) for each in kind.fields.values()
    )


class _Silent:
    """A session whose client gets no answer: it breaks, or the process ends, at that moment."""

    __slots__ = ("_crashes", "_session")

    def __init__(self, session: KafkaSession, *, crashes: bool) -> None:
        object.__setattr__(self, "_session", session)
        object.__setattr__(self, "_crashes", crashes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._session, name, value)

    def answer(self, *_: object) -> None:
        """Break the connection, or kill the process, in place of the answer."""
        if self._crashes:
            kill_this_process()
        self._session.abort()

    answer_frame = answer_nothing = answer

    async def answer_by_size(self, *_: object) -> None:
        """Break the connection, or kill the process, in place of the answer."""
        self.answer()


def faulty_handlers(broker: FaultyBroker, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """The handlers of requests, with the broker's faults."""
    return {
        key: replace(handler, run=partial(_run, broker, handler))
        for key, handler in handlers.items()
    }


def _run(
    broker: FaultyBroker, handler: Handler, session: KafkaSession, request: Request
) -> Coroutine[Any, Any, None] | None:
    if not broker.installed:
        return handler.run(session, request)
    if broker.active(RefusingConnections):
        session.abort()
        return None
    delays = broker.active(DelayingSends) if request.api.key == PRODUCE else []
    if delays:
        return _run_later(broker, handler, session, request, delays[0])
    return _run_now(broker, handler, session, request)


async def _run_later(
    broker: FaultyBroker,
    handler: Handler,
    session: KafkaSession,
    request: Request,
    delay: DelayingSends,
) -> None:
    await delay.wait()
    work = _run_now(broker, handler, session, request)
    if work is not None:
        await work


def _run_now(
    broker: FaultyBroker, handler: Handler, session: KafkaSession, request: Request
) -> Coroutine[Any, Any, None] | None:
    fault = next((each for each in broker.active(Some) if _takes(each, request)), None)
    if fault is None:
        return handler.run(session, request)
    if isinstance(fault, FailingKafka):
        if request.api.key == PRODUCE and not request.body.acks:
            session.answer_nothing(request)
        else:
            session.answer(request, refusal(request, ERRORS[fault.error]))
        return None
    if isinstance(fault, Crashing) and fault.point == "before_append":
        kill_this_process()
    silent: Any = _Silent(session, crashes=isinstance(fault, Crashing))
    return handler.run(silent, request)


def _takes(fault: Some, request: Request) -> bool:
    if isinstance(fault, KafkaFault):
        return fault.takes_request(request)
    if not isinstance(fault, Crashing) or request.api.key != PRODUCE:
        return False
    return any(fault.takes(topic, request.client_id) for topic in set(topics_of(request.body)))
