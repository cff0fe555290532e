"""Topics and their settings: creating, deleting, adding partitions, describing, altering.

The broker's own settings are shown and cannot be changed over Kafka's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

from kafka.protocol.admin import (
    AlterConfigsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
)

from ....kafka.errors import MESSAGE_LENGTH, Code, KafkaError
from ....kafka.protocol import Request
from ....kafka.topic_settings import CLEANUP_POLICY, SETTINGS, Setting, check_settings, is_name
from ...topics.registry import MAX_PARTITIONS
from ..access import Operation
from ..endpoint import PART_BYTES, Handler, KafkaSession, parts_of, refusing

TOPIC, BROKER = 2, 4
OF_TOPIC, STATIC, DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = range(4)
#: The most bytes of an answer about a topic or broker, without and with documentation.
SETTINGS_BYTES = sum(PART_BYTES + len(name) + len(each.default) for name, each in SETTINGS.items())
DOCUMENTED_BYTES = SETTINGS_BYTES + sum(len(each.about) for each in SETTINGS.values())
_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult


async def create_topics(session: KafkaSession, request: Request) -> None:
    """Create topics with their settings; each is durable or refused."""
    only_check = request.version >= 1 and bool(request.body.validate_only)
    named = await session.gathered(request.body.topics or (), attrgetter("name"))
    results = []
    async for topic, *others in session.named(
        named.values(), lambda named: _answer_bytes(named[0].name), key=lambda named: named[0].name
    ):
        name = topic.name
        result = CreateTopicsResponse.CreatableTopicResult(name=name or "", error_message=None)
        results.append(result)
        with refusing(result):
            if others:
                raise KafkaError(Code.INVALID_REQUEST, f"{name} is in the request more than once")
            await _create(session, topic, only_check=only_check)
    await session.answer_by_size(request, CreateTopicsResponse(topics=results), len(results))


def _answer_bytes(name: str | None) -> int:
    """The largest answer about one topic, in bytes."""
    return PART_BYTES + MESSAGE_LENGTH + len(name or "")


async def _create(session: KafkaSession, topic: Any, *, only_check: bool) -> None:
    topics, name = session.endpoint.topics, topic.name
    session.access.check(Operation.ADMINISTER, name)
    if not is_name(name):
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, f"{name!r} is not a topic's name")
    if topics.partitions_of(name):
        raise KafkaError(Code.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
    partitions = _partitions_asked(session, topic)
    settings = check_settings({each.name or "": each.value for each in topic.configs or ()})
    if len(settings) < len(topic.configs or ()):
        raise KafkaError(Code.INVALID_CONFIG, "a setting has no value, or two")
    if not only_check:
        await topics.create(name, partitions, settings)


def _partitions_asked(session: KafkaSession, topic: Any) -> int:
    """The number of partitions of a new topic. Raises KafkaError."""
    partitions: int = topic.num_partitions
    replicas = topic.replication_factor
    if topic.assignments:
        if partitions != -1 or replicas != -1:
            raise KafkaError(
                Code.INVALID_REQUEST, "assignments go without partitions and replication factor"
            )
        indexes = sorted(each.partition_index for each in topic.assignments)
        _check_assignments(session, [each.broker_ids for each in topic.assignments])
        if indexes != list(range(len(indexes))):
            raise KafkaError(Code.INVALID_REPLICA_ASSIGNMENT, f"partitions {indexes[:20]}")
        partitions, replicas = len(indexes), 1
    elif partitions == -1:
        partitions = session.config.kafka_default_partitions
    _check_partitions(session, partitions)
    if replicas not in (-1, 1):
        raise KafkaError(
            Code.INVALID_REPLICATION_FACTOR, f"replication factor {replicas}: there is one broker"
        )
    return partitions


def _check_partitions(session: KafkaSession, partitions: int) -> None:
    most = MAX_PARTITIONS
    if not 0 < partitions <= most:
        raise KafkaError(
            Code.INVALID_PARTITIONS, f"{partitions} partitions: from 1 to {most} are possible"
        )


def _check_assignments(session: KafkaSession, assignments: list[list[int]]) -> None:
    node_id = session.endpoint.cluster.node_id
    for replicas in assignments:
        if replicas != [node_id]:
            raise KafkaError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"replicas {replicas[:20]}: the broker is {node_id}",
            )


async def delete_topics(session: KafkaSession, request: Request) -> None:
    """Delete topics with their data and the offsets committed for them."""
    endpoint = session.endpoint
    results = []
    async for name in session.named(request.body.topic_names or (), _answer_bytes):
        result = DeleteTopicsResponse.DeletableTopicResult(name=name or "")
        results.append(result)
        with refusing(result):
            session.access.check(Operation.ADMINISTER, name)
            if not endpoint.cluster.coordinates():  # the offsets have to go, too
                raise KafkaError(Code.NOT_CONTROLLER, "another broker deletes topics")
            if not is_name(name) or not endpoint.topics.partitions_of(name):
                raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            await endpoint.topics.delete(name)
            await endpoint.offsets.drop_topic(name)
    await session.answer_by_size(request, DeleteTopicsResponse(responses=results), len(results))


async def create_partitions(session: KafkaSession, request: Request) -> None:
    """Give topics more partitions."""
    results = []
    async for topic in session.named(
        request.body.topics or (), lambda topic: _answer_bytes(topic.name), key=attrgetter("name")
    ):
        kind = CreatePartitionsResponse.CreatePartitionsTopicResult
        result = kind(name=topic.name or "", error_message=None)
        results.append(result)
        with refusing(result):
            await _add_partitions(session, topic, only_check=bool(request.body.validate_only))
    await session.answer_by_size(request, CreatePartitionsResponse(results=results), len(results))


async def _add_partitions(session: KafkaSession, topic: Any, *, only_check: bool) -> None:
    topics, name = session.endpoint.topics, topic.name
    session.access.check(Operation.ADMINISTER, name)
    count = topics.partitions_of(name) if is_name(name) else 0
    if not count:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    if topic.count <= count:
        raise KafkaError(
            Code.INVALID_PARTITIONS, f"{name} has {count} partitions, {topic.count} are not more"
        )
    _check_partitions(session, topic.count)
    if topic.assignments is not None:
        if len(topic.assignments) != topic.count - count:
            raise KafkaError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"{len(topic.assignments)} assignments for {topic.count - count} new partitions",
            )
        _check_assignments(session, [each.broker_ids for each in topic.assignments])
    if not only_check:
        await topics.add_partitions(name, topic.count)


async def describe_configs(session: KafkaSession, request: Request) -> None:
    """Settings with their values, and where these come from."""
    results = []
    documented = request.version >= 3 and bool(request.body.include_documentation)
    described = _Described(session, documented=documented)
    settings_bytes = DOCUMENTED_BYTES if documented else SETTINGS_BYTES
    partitions_of = session.endpoint.topics.partitions_of

    def answer_bytes(resource: Any) -> int:
        name = resource.resource_name or ""
        is_refused = resource.resource_type != BROKER and not partitions_of(name)
        # A refusal repeats the name, once in its text.
        about_bytes = PART_BYTES + min(len(name), MESSAGE_LENGTH) if is_refused else settings_bytes
        return PART_BYTES + len(name) + about_bytes

    async for resource in session.named(request.body.resources or (), answer_bytes, key=_resource):
        kind, name = resource.resource_type, resource.resource_name or ""
        result = _Result(error_message=None, resource_type=kind, resource_name=name, configs=[])
        results.append(result)
        with refusing(result):
            result.configs = described.of(resource)
    response = DescribeConfigsResponse(results=results)
    await session.answer_by_size(request, response, sum(1 + len(each.configs) for each in results))


def _resource(resource: Any) -> tuple[int, str | None]:
    """The type and name of a resource, its identity."""
    return resource.resource_type, resource.resource_name


class _Described:
    """The settings of one answer. Topics with the same settings share them in memory."""

    def __init__(self, session: KafkaSession, *, documented: bool) -> None:
        self._session = session
        self._documented = documented
        self._of_topics: dict[frozenset[tuple[str, str]], list[Any]] = {}

    def of(self, resource: Any) -> list[Any]:
        """A resource's settings, all or those that are named. Raises KafkaError."""
        keys = resource.configuration_keys
        if resource.resource_type == BROKER:
            shown = self._of_broker(resource)
        else:
            kind, name = resource.resource_type, resource.resource_name
            shown = self._of_topic(_settings_of(self._session, kind, name))
        if not keys:
            return shown
        wanted = frozenset(keys)
        return [config for config in shown if config.name in wanted]

    def _of_broker(self, resource: Any) -> list[Any]:
        session = self._session
        session.access.check_broker()
        shown = [
            _config(name, value, STATIC, None) for name, value in _of_broker(session, resource)
        ]
        address = f"{session.security_protocol}://{session.endpoint.host}:{session.port}"
        return [*shown, _config("advertised.listeners", address, DEFAULT, None)]

    def _of_topic(self, settings: Mapping[str, str]) -> list[Any]:
        known = frozenset(settings.items())
        if known not in self._of_topics:
            self._of_topics[known] = [
                _config(
                    name,
                    settings.get(name, setting.default),
                    OF_TOPIC if name in settings else DEFAULT,
                    setting,
                    setting.about if self._documented else None,
                )
                for name, setting in SETTINGS.items()
            ]
        return self._of_topics[known]


def _of_broker(session: KafkaSession, resource: Any) -> list[tuple[str, str]]:
    node_id = session.endpoint.cluster.node_id
    if resource.resource_name not in ("", str(node_id)):
        raise KafkaError(
            Code.INVALID_REQUEST, f"broker {resource.resource_name!r}: this one is {node_id}"
        )
    config = session.config
    return [
        ("auto.create.topics.enable", str(config.allow_auto_topic_creation).lower()),
        ("num.partitions", str(config.kafka_default_partitions)),
        ("default.replication.factor", "1"),
        ("message.max.bytes", SETTINGS["max.message.bytes"].default),
        ("socket.request.max.bytes", str(config.max_kafka_request_bytes)),
        ("fetch.max.bytes", str(config.max_kafka_fetch_bytes)),
        ("group.max.size", str(config.max_kafka_group_members)),
        ("group.initial.rebalance.delay.ms", str(config.kafka_group_initial_rebalance_delay_ms)),
        ("group.min.session.timeout.ms", str(config.kafka_group_min_session_timeout_ms)),
        ("group.max.session.timeout.ms", str(config.kafka_group_max_session_timeout_ms)),
    ]


def _config(
    name: str, value: str, source: int, setting: Setting | None, about: str | None = None
) -> Any:
    return _Config(
        name=name,
        value=value,
        read_only=setting is None,
        is_default=source == DEFAULT,
        config_source=source,
        is_sensitive=False,
        synonyms=[],
        config_type=2 if setting is None else setting.kind,
        documentation=about,
    )


def _settings_of(session: KafkaSession, kind: int, name: str | None) -> Mapping[str, str]:
    """A topic's own settings. Raises KafkaError."""
    if kind == BROKER:
        session.access.check_broker()
    else:
        session.access.check(Operation.ADMINISTER, name)
    if kind != TOPIC:
        raise KafkaError(
            Code.INVALID_REQUEST, f"resources of type {kind} have no settings that can be changed"
        )
    topics = session.endpoint.topics
    if name is None or not is_name(name):
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, f"{name!r} is not a topic's name")
    if not topics.partitions_of(name):
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return topics.settings(name) or {}


async def alter_configs(session: KafkaSession, request: Request) -> None:
    """Replace a topic's settings: those that are not named get their defaults."""
    await _alter(session, request, AlterConfigsResponse, _replaced)


async def incremental_alter_configs(session: KafkaSession, request: Request) -> None:
    """Change some of a topic's settings."""
    await _alter(session, request, IncrementalAlterConfigsResponse, _changed)


async def _alter(session: KafkaSession, request: Request, response: Any, change: Any) -> None:
    results = []
    named = await session.gathered(request.body.resources or (), _resource)
    async for (kind, name), (resource, *others) in session.named(
        named.items(),
        lambda item: PART_BYTES + MESSAGE_LENGTH + len(item[0][1] or ""),
        key=itemgetter(0),
    ):
        result = response.AlterConfigsResourceResponse(
            error_message=None, resource_type=kind, resource_name=name or ""
        )
        results.append(result)
        with refusing(result):
            if others:
                raise KafkaError(Code.INVALID_REQUEST, "it is in the request more than once")
            before = _settings_of(session, kind, name)
            revise = partial(_revised, change, resource.configs or ())
            if revise(before) != before and not request.body.validate_only:
                await session.endpoint.topics.revise_settings(name or "", revise)
    await session.answer_by_size(request, response(responses=results), len(results))


def _revised(change: Any, configs: Any, before: Mapping[str, str]) -> dict[str, str]:
    return check_settings(change(before, configs))


def _replaced(before: Mapping[str, str], configs: Any) -> dict[str, str | None]:
    _check_once(configs)
    for each in configs:
        if each.value is None:
            raise KafkaError(Code.INVALID_REQUEST, f"{each.name} has no value")
    return {each.name or "": each.value for each in configs}


def _check_once(configs: Any) -> None:
    names = [each.name for each in configs]
    if len(set(names)) < len(names):
        raise KafkaError(Code.INVALID_REQUEST, "a setting is in the request more than once")


def _changed(before: Mapping[str, str], configs: Any) -> dict[str, str | None]:
    _check_once(configs)
    settings: dict[str, str | None] = dict(before)
    for each in configs:
        name, operation = each.name or "", each.config_operation
        if operation == DELETE:
            settings.pop(name, None)
        elif operation not in (SET, APPEND, SUBTRACT) or each.value is None:
            raise KafkaError(
                Code.INVALID_REQUEST, f"operation {operation} on {name[:100]!r}: {each.value!r}"
            )
        elif operation == SET:
            settings[name] = each.value
        elif name == CLEANUP_POLICY:
            settings[name] = _list_changed(settings.get(name), each.value, operation)
        else:
            raise KafkaError(Code.INVALID_CONFIG, f"{name[:100]!r} is not a list")
    return settings


def _list_changed(value: str | None, change: str, operation: int) -> str | None:
    stated = SETTINGS[CLEANUP_POLICY].default if value is None else value
    names = [name for name in stated.split(",") if name]
    if operation == APPEND:
        names += [name for name in change.split(",") if name not in names]
    else:
        names = [name for name in names if name not in change.split(",")]
    return ",".join(names)


HANDLERS: dict[int, Handler] = {
    19: Handler(create_topics, parts_of("topics")),
    20: Handler(delete_topics, parts_of("topic_names")),
    37: Handler(create_partitions, parts_of("topics")),
    32: Handler(
        describe_configs, lambda _, request: len(SETTINGS) * len(request.body.resources or ())
    ),
    33: Handler(alter_configs, parts_of("resources", "configs")),
    44: Handler(incremental_alter_configs, parts_of("resources", "configs")),
}
