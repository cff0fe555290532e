"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: settings of topics.

The broker's own settings are shown and cannot be changed over Kafka's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from kafka.protocol.admin import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
)

from ..access import Operation
from ..answering import PART_BYTES
from ..errors import MESSAGE_LENGTH, Code, KafkaError
from ..names import is_name
from ..session import Handler, KafkaSession, parts_of
from ..settings import CLEANUP_POLICY, SETTINGS, Setting, check_settings
from ..wire import Request

__all__ = ["HANDLERS"]

TOPIC, BROKER = 2, 4
OF_TOPIC, STATIC, DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = range(4)

#: What an answer says of one topic or broker at most, without and with what the settings are about.
SETTINGS_BYTES = sum(PART_BYTES + len(name) + len(each.default) for name, each in SETTINGS.items())
DOCUMENTED_BYTES = SETTINGS_BYTES + sum(len(each.about) for each in SETTINGS.values())

_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult


async def describe_configs(session: KafkaSession, request: Request) -> None:
    """Settings with their values, and where these come from."""
    results = []
    documented = request.version >= 3 and bool(request.body.include_documentation)
    described = _Described(session, documented=documented)
    settings_bytes = DOCUMENTED_BYTES if documented else SETTINGS_BYTES
    partitions_of = session.endpoint.ports.topics.partitions_of

    def answer_bytes(resource: Any) -> int:
        name = resource.resource_name or ""
        is_refused = resource.resource_type != BROKER and not partitions_of(name)
        # A refusal repeats the name, once in its text.
        about_bytes = PART_BYTES + min(len(name), MESSAGE_LENGTH) if is_refused else settings_bytes
        return PART_BYTES + len(name) + about_bytes

    async for resource in session.named(
        request.body.resources or (),
        answer_bytes,
        key=_resource,
    ):
        code, message, configs = Code.NONE, None, []
        try:
            configs = described.of(resource)
        except KafkaError as refusal:
            code, message = refusal.code, refusal.message
        results.append(
            _Result(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name or "",
                configs=configs,
            )
        )
    response = DescribeConfigsResponse(throttle_time_ms=0, results=results)
    await session.answer_by_size(request, response, sum(1 + len(each.configs) for each in results))


def _resource(resource: Any) -> tuple[int, str | None]:
    """What of a resource says that another one is the same."""
    return resource.resource_type, resource.resource_name


class _Described:
    """The settings that one answer shows. Topics with the same settings share them in memory."""

    def __init__(self, session: KafkaSession, *, documented: bool) -> None:
        self._session = session
        self._documented = documented
        self._of_topics: dict[frozenset[tuple[str, str]], list[Any]] = {}

    def of(self, resource: Any) -> list[Any]:
        """A resource's settings, or those that the request names. Raises KafkaError."""
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
        address = f"{session.security_protocol}://{session.options.host}:{session.port}"
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
    options = session.options
    return [
        ("auto.create.topics.enable", str(options.auto_create).lower()),
        ("num.partitions", str(options.default_partitions)),
        ("default.replication.factor", "1"),
        ("message.max.bytes", SETTINGS["max.message.bytes"].default),
        ("socket.request.max.bytes", str(options.max_request_bytes)),
        ("fetch.max.bytes", str(options.max_fetch_bytes)),
        ("group.max.size", str(options.max_group_members)),
        ("group.initial.rebalance.delay.ms", str(options.group_initial_rebalance_delay_ms)),
        ("group.min.session.timeout.ms", str(options.group_min_session_timeout_ms)),
        ("group.max.session.timeout.ms", str(options.group_max_session_timeout_ms)),
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
    port = session.endpoint.ports.topics
    if name is None or not is_name(name):
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, f"{name!r} is not a topic's name")
    if not port.partitions_of(name):
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return port.settings(name) or {}


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
        code, message = Code.NONE, None
        try:
            if others:
                raise KafkaError(Code.INVALID_REQUEST, "it is in the request more than once")
            before = _settings_of(session, kind, name)
            after = check_settings(change(before, resource.configs or ()))
            if not request.body.validate_only and after != before:
                await session.endpoint.ports.topics.set_settings(name or "", after)
        except KafkaError as refusal:
            code, message = refusal.code, refusal.message
        results.append(
            response.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=kind,
                resource_name=name or "",
            )
        )
    answer = response(throttle_time_ms=0, responses=results)
    await session.answer_by_size(request, answer, len(results))


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


def _parts(session: KafkaSession, request: Request) -> int:
    """Settings, as the answer has them."""
    return len(SETTINGS) * parts_of("resources")(session, request)


HANDLERS: dict[int, Handler] = {
    32: Handler(describe_configs, _parts),
    33: Handler(alter_configs, parts_of("resources", "configs")),
    44: Handler(incremental_alter_configs, parts_of("resources", "configs")),
}
