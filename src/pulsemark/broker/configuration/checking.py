"""What is wrong with a configuration file, all of it at once: `check_file`.

An **error** keeps the broker from starting, or is a setting that there is not. A **warning** is a
setting that makes the broker less safe than it looks, or one that Pulsar has and this broker does
not, with another value than in Pulsar's own files. Settings that stand there as Pulsar ships them
are counted, not listed.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .config import BrokerConfig
from .settings import (
    PARTS,
    PATH_BEGINNINGS,
    SECRETS,
    FileSettings,
    SettingError,
    all_settings,
    parse_settings,
    pulsar_defaults,
)
from .sources import (
    ConfigFileError,
    Loaded,
    PropertiesError,
    meant,
    read_properties,
    read_toml,
    toml_value,
)

__all__ = ["CheckedFile", "Level", "Remark", "check_file"]


class Level(Enum):
    """How bad it is."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing about one setting."""

    level: Level
    setting: str
    value: str
    reason: str
    #: Where in the file, from 1; None: it is about the file as a whole.
    line: int | None = None


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What `check_file` has found."""

    path: Path
    remarks: tuple[Remark, ...]
    #: How many settings are used.
    used: int
    #: How many of Pulsar's settings stand there as Pulsar ships them, and have no effect here.
    unused: int

    @property
    def has_errors(self) -> bool:
        """Whether a broker would not start with it, or would not do what it says."""
        return any(each.level is Level.ERROR for each in self.remarks)


def check_file(path: Path) -> CheckedFile:
    """Everything that is wrong with a `broker.conf` or TOML file. Raises OSError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        remark = Remark(Level.ERROR, "", "", f"the file is not UTF-8 text: {error}")
        return CheckedFile(path, (remark,), 0, 0)
    is_toml = path.suffix == ".toml"
    try:
        values = read_toml(path, text) if is_toml else read_properties(text)
    except (ConfigFileError, PropertiesError) as error:
        line = getattr(error, "line_number", None)
        return CheckedFile(path, (Remark(Level.ERROR, "", "", error.reason, line),), 0, 0)
    loaded, unused = Loaded(), 0
    remarks: list[Remark] = []
    for key, value in values.items():
        check = _toml_remark if is_toml else _remark
        found = check(key, value, loaded)
        if found is not None:
            remarks.append(found)
        elif not is_toml and key not in all_settings():
            unused += 1
    remarks += _of_the_whole(loaded, path, values)
    lines = _lines(text)
    placed = [
        Remark(each.level, each.setting, each.value, each.reason, lines.get(each.setting))
        for each in remarks
    ]
    placed.sort(key=lambda each: (each.line or 0, each.setting))
    return CheckedFile(path, tuple(placed), len(loaded.origins), unused)


def _toml_remark(key: str, value: Any, loaded: Loaded) -> Remark | None:
    try:
        loaded.put(key, toml_value(key, value), key)
    except SettingError as error:
        return Remark(Level.ERROR, error.key, error.value, error.reason)
    return None


def _remark(key: str, value: str, loaded: Loaded) -> Remark | None:
    """What is wrong with one line of a broker.conf."""
    try:
        found = parse_settings({key: value})
    except SettingError as error:
        if error.key == "tlsEnabled":  # it depends on other lines; the whole file is checked later
            return None
        return Remark(Level.ERROR, key, _shown(key, error.value), error.reason)
    if key in all_settings():
        setting = all_settings()[key]
        if setting.field in found.parts[setting.part]:
            loaded.put(setting.field, found.parts[setting.part][setting.field], key)
        return None
    shipped = pulsar_defaults().get(key)
    if shipped is None:
        near = meant(key, [*all_settings(), *pulsar_defaults()])
        reason = f"there is no such setting, neither here nor in Pulsar{near}"
        return Remark(Level.ERROR if near else Level.WARNING, key, value, reason)
    if value and value not in shipped:
        reason = "this broker does not have this setting of Pulsar; it has no effect"
        return Remark(Level.WARNING, key, value, reason)
    return None


def _shown(key: str, value: str) -> str:
    return "***" if key in SECRETS else value


def _of_the_whole(loaded: Loaded, path: Path, values: Mapping[str, Any]) -> Iterator[Remark]:
    ports = (values.get("brokerServicePortTls"), values.get("webServicePortTls"))
    if str(values.get("tlsEnabled", "")).lower() == "true" and not any(ports):
        reason = "needs the port brokerServicePortTls or webServicePortTls"
        yield Remark(Level.ERROR, "tlsEnabled", "true", reason)
    try:
        config = FileSettings(loaded.parts, ()).config()
    except ConfigError as error:
        key = loaded.origins.get(error.field, error.field)
        yield Remark(Level.ERROR, key, str(error.value), error.reason)
        return
    for field, reason in _unsafe(config):
        if field in loaded.origins:
            part = next(part for part in PARTS if field in loaded.parts[part])
            value = loaded.parts[part][field]
            yield Remark(Level.WARNING, loaded.origins[field], str(value), reason)
    key = config.security.token_secret_key or ""
    is_readable = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    if key and not key.startswith(PATH_BEGINNINGS) and is_readable:
        reason = "the file holds the key itself, and other users may read the file"
        yield Remark(Level.WARNING, loaded.origins["token_secret_key"], "***", reason)


def _unsafe(config: BrokerConfig) -> Iterator[tuple[str, str]]:
    """Fields that make the broker less safe, and why."""
    security, store = config.security, config.store_options
    if not security.authentication_enabled and config.host not in ("127.0.0.1", "localhost", "::1"):
        yield "host", "all who can reach this address may use the broker: authentication is off"
    if security.authentication_enabled and not security.authorization_enabled:
        reason = "every role may do everything: authorization is off"
        yield "authentication_enabled", reason
    if security.authorization_enabled and not security.authentication_enabled:
        yield "authorization_enabled", "has no effect: authentication is off"
    if security.tls_allow_insecure_connection:
        yield "tls_allow_insecure_connection", "certificates of any authority are accepted"
    if store.sync_interval_ms:
        reason = (
            f"a power cut may lose the last {store.sync_interval_ms} ms of acknowledged messages"
        )
        yield "sync_interval_ms", reason
    if config.auto_skip_non_recoverable_data:
        yield "auto_skip_non_recoverable_data", "damaged entries are skipped, not reported"
    if "*" in config.http_allowed_hosts:
        yield "http_allowed_hosts", "web pages of any site may call this broker's REST interface"


def _lines(text: str) -> dict[str, int]:
    """The number of the line on which each key stands last."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        key = line.strip().replace(":", "=").partition("=")[0].strip().strip('"')
        if key and key[0] not in "#!":
            found[key] = number
            found[f"[{key.strip('[]')}]"] = number
    return found
