"""The sources of settings (file, environment, command line), and a check of files.

Later sources win: the defaults; a file (`broker.conf`, or TOML if its name ends in ``.toml``); the
environment; the command line.

A TOML file has the names of `BrokerConfig` at its top level, with values of their types; a list of
names is an array of strings; an empty string means "none" where a setting may have no value. The
environment has the same names in capitals after ``PULSEMARK_``, lists with commas, and ``none``. An
empty variable counts as one that is not set.

`check_file` finds all problems of a file at once. An **error** keeps the broker from starting, or
is an unknown setting. A **warning** is a setting that makes the broker less safe than it looks, or
one that Pulsar has and this broker does not, with another value than in Pulsar's own files.
Settings with the values that Pulsar ships are counted, not listed.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from ...records import FactsError, record
from ..errors import BrokerError, ConfigError
from . import settings
from .config import BrokerConfig

CONFIG_VARIABLE = f"{settings.ENVIRONMENT_PREFIX}CONFIG"
#: Variables of these names that are not settings of the broker.
_OTHER_VARIABLES = frozenset(
    settings.ENVIRONMENT_PREFIX + name for name in ("CONFIG", "TOKEN", "TLS_CA")
)
#: Kubernetes sets these for a service called pulsemark.
_KUBERNETES = re.compile(
    rf"{settings.ENVIRONMENT_PREFIX}(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)"
)
_KUBERNETES_PORT = re.compile(r"(tcp|udp)://.*")
NONE = "none"


class ConfigFileError(FactsError, BrokerError, ValueError, text="{path}: {reason}"):
    """A configuration file that cannot be read."""

    path: Path
    reason: str


def load(path: Path | None, environment: Mapping[str, str]) -> settings.Loaded:
    """The settings of a file, if one is named, and of the environment.

    Raises ConfigFileError, SettingError, OSError.
    """
    loaded = settings.Loaded() if path is None else read_file(path)
    take_environment(environment, loaded)
    return loaded


# -- files ----------------------------------------------------------------------------------------


def read_file(path: Path) -> settings.Loaded:
    """The settings of a `broker.conf` or TOML file.

    Raises ConfigFileError, SettingError (with the path), OSError.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigFileError(path, f"it is not UTF-8 text: {error}") from error
    try:
        if path.suffix == ".toml":
            return _toml(path, text)
        return settings.parse_settings(read_properties(text), f" in {path}")
    except (settings.SettingError, PropertiesError) as error:
        raise ConfigFileError(path, str(error)) from error


def _toml(path: Path, text: str) -> settings.Loaded:
    loaded = settings.Loaded()
    for name, value in read_toml(path, text).items():
        loaded.put(name, toml_value(name, value), f"{name} in {path}")
    return loaded


def read_toml(path: Path, text: str) -> dict[str, Any]:
    """The names and values of a TOML file. Raises ConfigFileError."""
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigFileError(path, f"it is not TOML: {error}") from error


def toml_value(name: str, value: Any) -> Any:
    """The value of a setting. Raises SettingError."""
    spec = settings.setting_fields().get(name)
    shown = toml_text(value)
    if isinstance(value, dict):
        reason = "settings must be at the top of the file, without tables"
        raise settings.SettingError(f"[{name}]", "...", reason)
    if spec is None:
        raise settings.SettingError(name, shown, f"there is no such setting{meant(name)}")
    if value == "" and spec.is_optional:
        return None
    if not _fits(spec, value):
        raise settings.SettingError(name, shown, f"must be a {spec.type_name}")
    if spec.type_name == "list of names":
        value = tuple(value)
    elif spec.type_name == "path":
        value = Path(value)
    return spec.check(name, shown, value)


def toml_text(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    return str(value)


def _fits(spec: settings.Setting, value: Any) -> bool:
    if spec.type_name == "list of names":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    wanted = {"true or false": bool, "whole number": int}.get(spec.type_name, str)
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))


def meant(name: str, known: Iterable[str] | None = None) -> str:
    """`; did you mean X?`, also for a name that a broker.conf has."""
    of_files = {spec.key: spec.name for spec in settings.setting_fields().values()}
    if known is None and name in of_files:
        return f"; in TOML it is called {of_files[name]}"
    import difflib

    near = difflib.get_close_matches(name, list(known or settings.setting_fields()), n=1)
    return f"; did you mean {near[0]}?" if near else ""


# -- the environment ------------------------------------------------------------------------------


def take_environment(environment: Mapping[str, str], loaded: settings.Loaded) -> None:
    """Add the settings of the environment. Raises SettingError."""
    ours = sorted(key for key in environment if key.upper().startswith(settings.ENVIRONMENT_PREFIX))
    if not ours:
        return
    by_variable = {spec.variable: spec for spec in settings.setting_fields().values()}
    for key in ours:
        text = environment[key].strip()
        meant_key = key.upper()
        if key != meant_key and meant_key in by_variable and text:
            reason = f"there is no such variable of the environment; it is {meant_key}"
            raise settings.SettingError(key, "...", reason)
        if not key.startswith(settings.ENVIRONMENT_PREFIX) or key in _OTHER_VARIABLES or not text:
            continue
        spec = by_variable.get(key)
        if _KUBERNETES.fullmatch(key) and spec is None:
            continue
        if spec is None:
            near = meant(key, by_variable)
            loaded.warnings.append(f"the variable {key} is not a setting{near}")
        elif spec.name == "port" and _KUBERNETES_PORT.fullmatch(text):
            loaded.warnings.append(f"{key}={text} is ignored: Kubernetes has set it for a service")
        else:
            loaded.put(spec.name, _from_text(spec, key, text), f"{key} in the environment")


def _from_text(spec: settings.Setting, key: str, text: str) -> Any:
    if text.lower() == NONE and (spec.is_optional or spec.type_name == "list of names"):
        return None if spec.is_optional else ()
    kind = settings.STAMPERS_KIND if spec.name == "stampers" else spec.plain
    try:
        return spec.parsed(key, text, kind)
    except settings.SettingError as error:
        reason = f"{error.reason} (a variable of the environment)"
        raise settings.SettingError(key, text, reason) from error


# -- broker.conf: Java's properties ----------------------------------------------------------------

_LINE_END = re.compile(r"\r\n|\r|\n")
_SPACE = " \t\f"
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SPECIAL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
#: A key: any characters except separators; a separator after a backslash is a part of the key.
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)


class PropertiesError(FactsError, BrokerError, ValueError, text="line {line_number}: {reason}"):
    """A line of a properties file that is not valid; lines count from 1."""

    line_number: int
    reason: str


def read_properties(text: str) -> dict[str, str]:
    r"""The keys of a file in Java's format and their values, in the order of each key's first line.

        # a comment; ! begins one, too
        brokerServicePort=6650
        httpMaxRequestHeaderSize = 8192         spaces around the separator are ignored
        clusterName: standalone                 a colon, or spaces alone, separate as well
        brokerEntryMetadataInterceptors=a,\
            b                                   a backslash at the end joins lines
        path=C:\\data\u00e9                     \\, \t, \n, \r, \f, \uXXXX; otherwise \ is dropped

    If a key is given twice, its last value counts. Spaces at a value's end are ignored, as in
    Pulsar. Unlike Java's files, these are UTF-8. Raises `PropertiesError`.
    """
    found: dict[str, str] = {}
    for line_number, line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None, "a key may be empty, so something always matches"
        value = line[match.end() :].lstrip(_SPACE)
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(_SPACE)
        found[_unescape(match[0], line_number)] = _unescape(value, line_number).rstrip()
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are neither empty nor comments; a line ending in a backslash is joined."""
    begun: tuple[int, str] | None = None
    for line_number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_SPACE)
        if begun is None:
            if not line or line[0] in "#!":
                continue
            begun = (line_number, "")
        number, before = begun
        if _goes_on(line):
            begun = (number, before + line[:-1])
        else:
            yield number, before + line
            begun = None
    if begun is not None:
        yield begun


def _goes_on(line: str) -> bool:
    """Whether the line ends with an odd number of backslashes: the last one is not escaped."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str, line_number: int) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) > 1:
            return chr(int(escaped[1:], 16))
        if escaped == "u":
            raise PropertiesError(line_number, r"\u is not followed by four hexadecimal digits")
        return _SPECIAL.get(escaped, escaped)

    return _ESCAPE.sub(plain, text)


class Level(Enum):
    """The severity of a remark."""

    ERROR = "error"
    WARNING = "warning"


@record(frozen=True)
class Remark:
    """A problem of one setting."""

    level: Level
    setting: str
    value: str
    reason: str
    #: The line in the file, from 1; None: the problem is with the whole file.
    line: int | None = None


@record(frozen=True)
class CheckedFile:
    """The result of `check_file`."""

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
    """Find all problems of a `broker.conf` or TOML file. Raises OSError."""
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
    loaded = settings.Loaded()
    remarks: list[Remark] = []
    for key, value in values.items():
        try:
            if is_toml:
                loaded.put(key, toml_value(key, value), key)
            else:
                settings.take(key, value, loaded)
        except settings.SettingError as error:
            shown = "***" if key in settings.SECRETS else error.value
            remarks.append(Remark(Level.ERROR, error.key, shown, error.reason))
    ignored = list(filter(None, (_of_ignored(key, values[key]) for key in loaded.ignored)))
    remarks += [*ignored, *_of_the_whole(loaded, path, values)]
    lines = _lines(text)
    placed = [replace(each, line=lines.get(each.setting)) for each in remarks]
    placed.sort(key=lambda each: (each.line or 0, each.setting))
    unused = len(loaded.ignored) - len(ignored)
    return CheckedFile(path, tuple(placed), len(loaded.origins), unused)


def _of_ignored(key: str, value: str) -> Remark | None:
    """The problem of a line of a broker.conf that has no effect, or None."""
    shipped = settings.pulsar_defaults().get(key)
    if shipped is None:
        near = meant(key, [*settings.all_settings(), *settings.pulsar_defaults()])
        reason = f"there is no such setting, neither here nor in Pulsar{near}"
        return Remark(Level.ERROR if near else Level.WARNING, key, value, reason)
    # Whether `tlsEnabled` holds depends on other lines (`_of_the_whole`).
    if value and value not in shipped and key != "tlsEnabled":
        reason = "this broker does not have this setting of Pulsar; it has no effect"
        return Remark(Level.WARNING, key, value, reason)
    return None


def _of_the_whole(
    loaded: settings.Loaded, path: Path, values: Mapping[str, Any]
) -> Iterator[Remark]:
    reason = settings.tls_refusal(values)
    if reason is not None:
        yield Remark(Level.ERROR, "tlsEnabled", "true", reason)
    try:
        config = loaded.made()
    except ConfigError as error:
        key = loaded.origins.get(error.field, error.field)
        yield Remark(Level.ERROR, key, str(error.value), error.reason)
        return
    for name, reason in _unsafe(config):
        if name in loaded.origins:
            value = str(loaded.values[name])
            yield Remark(Level.WARNING, loaded.origins[name], value, reason)
    key = config.security.token_secret_key or ""
    is_readable = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    if key and not key.startswith(settings.PATH_BEGINNINGS) and is_readable:
        reason = "the file holds the key itself, and other users may read the file"
        yield Remark(Level.WARNING, loaded.origins["token_secret_key"], "***", reason)


def _unsafe(config: BrokerConfig) -> Iterator[tuple[str, str]]:
    """Fields that make the broker less safe, and why."""
    security, store = config.security, config.store_options
    if not security.authentication_enabled and config.host not in ("127.0.0.1", "localhost", "::1"):
        yield "host", "all who can reach this address may use the broker: authentication is off"
    if security.authentication_enabled and not security.authorization_enabled:
        yield "authentication_enabled", "every role may do everything: authorization is off"
    if security.authorization_enabled and not security.authentication_enabled:
        yield "authorization_enabled", "has no effect: authentication is off"
    if security.tls_allow_insecure_connection:
        yield "tls_allow_insecure_connection", "certificates of any authority are accepted"
    if store.sync_interval_ms:
        lost = f"the last {store.sync_interval_ms} ms of acknowledged messages"
        yield "sync_interval_ms", f"a power cut may lose {lost}"
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
