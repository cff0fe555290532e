"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: settings of topics.

The broker's own settings are shown and cannot be changed over Kafka's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.admin import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
)

from ..access import Operation
from ..errors import Code, KafkaError
from ..names import is_name
from ..session import Handler, KafkaSession
from ..settings import CLEANUP_POLICY, SETTINGS, Setting, check_settings
from ..wire import Request

__all__ = ["HANDLERS"]

TOPIC, BROKER = 2, 4
OF_TOPIC, STATIC, DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = range(4)

_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult


def describe_configs(session: KafkaSession, request: Request) -> None:
    """Settings with their values, and where these come from."""
    results = []
    for resource in request.body.resources or ():
        code, message, configs = Code.NONE, None, []
        try:
            configs = _describe(session, resource)
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
    session.answer(request, DescribeConfigsResponse(throttle_time_ms=0, results=results))


def _describe(session: KafkaSession, resource: Any) -> list[Any]:
    keys = resource.configuration_keys
    if resource.resource_type == BROKER:
        session.access.check_broker()
        shown = [
            _config(name, value, STATIC, None) for name, value in _of_broker(session, resource)
        ]
        address = f"{session.security_protocol}://{session.options.host}:{session.port}"
        shown.append(_config("advertised.listeners", address, DEFAULT, None))
    else:
        settings = _settings_of(session, resource.resource_type, resource.resource_name)
        shown = [
            _config(
                name,
                settings.get(name, setting.default),
                OF_TOPIC if name in settings else DEFAULT,
                setting,
            )
            for name, setting in SETTINGS.items()
        ]
    return [config for config in shown if config.name in keys] if keys else shown


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


def _config(name: str, value: str, source: int, setting: Setting | None) -> Any:
    return _Config(
        name=name,
        value=value,
        read_only=setting is None,
        is_default=source == DEFAULT,
        config_source=source,
        is_sensitive=False,
        synonyms=[],
        config_type=2 if setting is None else setting.kind,
        documentation=None if setting is None else setting.about,
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
    for resource in request.body.resources or ():
        code, message = Code.NONE, None
        kind, name = resource.resource_type, resource.resource_name
        try:
            before = _settings_of(session, kind, name)
            after = check_settings(change(before, resource.configs or ()))
            if not request.body.validate_only and after != before:
                await session.endpoint.ports.topics.set_settings(name, after)
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
    session.answer(request, response(throttle_time_ms=0, responses=results))


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
    32: describe_configs,
    33: alter_configs,
    44: incremental_alter_configs,
}
