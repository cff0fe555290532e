"""Where settings come from, and which source wins.

In this order, the later ones win: the defaults; a file (`broker.conf`, or TOML if its name ends in
``.toml``); the environment; the command line.

A TOML file has the names of `BrokerConfig` at its top level, with values of their types; a list of
names is an array of strings; an empty string means "none" where a setting may have no value. The
environment has the same names in capitals after ``PULSEMARK_``, lists with commas, and ``none``. An
empty variable counts as one that is not set.

`Loaded` keeps the source of each value, so that an error, and `pulsemark config show`, can name it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BrokerError, ConfigError
from .config import BrokerConfig
from .reference import ENVIRONMENT_PREFIX, SettingField, setting_fields
from .setting_kinds import BOOLEAN, INTEGER
from .settings import PARTS, STAMPERS_KIND, FileSettings, SettingError, all_settings, parse_settings

__all__ = [
    "CONFIG_VARIABLE",
    "ConfigFileError",
    "Loaded",
    "PropertiesError",
    "load",
    "read_file",
    "read_properties",
    "take_environment",
]

CONFIG_VARIABLE = f"{ENVIRONMENT_PREFIX}CONFIG"
#: Variables of these names that are not settings of the broker.
_OTHER_VARIABLES = frozenset(ENVIRONMENT_PREFIX + name for name in ("CONFIG", "TOKEN", "TLS_CA"))
#: Kubernetes sets these for a service called pulsemark.
_KUBERNETES = re.compile(
    rf"{ENVIRONMENT_PREFIX}(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)"
)
_KUBERNETES_PORT = re.compile(r"(tcp|udp)://.*")
NONE = "none"


class ConfigFileError(BrokerError, ValueError):
    """A configuration file that cannot be read: `path` and `reason`."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(slots=True)
class Loaded:
    """Settings from all sources, by part and field, and the source of each."""

    parts: dict[str, dict[str, Any]] = field(default_factory=lambda: {part: {} for part in PARTS})
    #: Source and name in that source, by field.
    origins: dict[str, str] = field(default_factory=dict)
    #: Keys of the file that this broker does not have.
    ignored: tuple[str, ...] = ()
    #: Remarks for the user, in sentences.
    warnings: list[str] = field(default_factory=list)

    @property
    def broker(self) -> dict[str, Any]:
        """Fields of `BrokerConfig` itself."""
        return self.parts[""]

    def put(self, name: str, value: Any, origin: str) -> None:
        """Set a field; it wins over what was there."""
        self.parts[setting_fields()[name].part][name] = value
        self.origins[name] = origin

    def config(self, **overrides: Any) -> BrokerConfig:
        """The configuration. Raises ConfigError, whose message names the value's source."""
        try:
            return FileSettings(self.parts, self.ignored).config(**overrides)
        except ConfigError as error:
            origin = self.origins.get(error.field)
            if origin is None or error.field in overrides:
                raise
            raise ConfigError(error.field, error.value, f"{error.reason} ({origin})") from error


def load(path: Path | None, environment: Mapping[str, str]) -> Loaded:
    """The settings of a file, if one is named, and of the environment.

    Raises ConfigFileError, SettingError, OSError.
    """
    loaded = Loaded() if path is None else read_file(path)
    take_environment(environment, loaded)
    return loaded


# -- files ----------------------------------------------------------------------------------------


def read_file(path: Path) -> Loaded:
    """The settings of a `broker.conf` or TOML file.

    Raises ConfigFileError, SettingError (with the path), OSError.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigFileError(path, f"it is not UTF-8 text: {error}") from error
    try:
        return _toml(path, text) if path.suffix == ".toml" else _properties(path, text)
    except SettingError as error:
        raise ConfigFileError(path, str(error)) from error
    except PropertiesError as error:
        raise ConfigFileError(path, str(error)) from error


def _properties(path: Path, text: str) -> Loaded:
    properties = read_properties(text)
    found = parse_settings(properties)
    loaded = Loaded(found.parts, ignored=found.ignored)
    for key, setting in all_settings().items():
        if key in properties and setting.field in found.parts[setting.part]:
            loaded.origins[setting.field] = f"{key} in {path}"
    return loaded


def _toml(path: Path, text: str) -> Loaded:
    loaded = Loaded()
    for name, value in read_toml(path, text).items():
        loaded.put(name, toml_value(name, value), f"{name} in {path}")
    return loaded


def read_toml(path: Path, text: str) -> dict[str, Any]:
    """The names and values of a TOML file. Raises ConfigFileError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigFileError(path, f"it is not TOML: {error}") from error


def toml_value(name: str, value: Any) -> Any:
    """The value of a setting. Raises SettingError."""
    spec = setting_fields().get(name)
    shown = toml_text(value)
    if isinstance(value, dict):
        reason = "settings must be at the top of the file, without tables"
        raise SettingError(f"[{name}]", "...", reason)
    if spec is None:
        raise SettingError(name, shown, f"there is no such setting{meant(name)}")
    if value == "" and spec.is_optional:
        return None
    if not _fits(spec, value):
        raise SettingError(name, shown, f"must be a {spec.type_name}")
    if spec.type_name == "list of names":
        value = tuple(value)
    elif spec.type_name == "path":
        value = Path(value)
    return checked(spec, name, shown, value)


def toml_text(value: Any) -> str:
    """A value as a TOML file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    return str(value)


def _fits(spec: SettingField, value: Any) -> bool:
    if spec.type_name == "list of names":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    wanted = {"true or false": bool, "whole number": int}.get(spec.type_name, str)
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))


def checked(spec: SettingField, key: str, text: str, value: Any) -> Any:
    """The value, if the setting can have it. Raises SettingError with key and text."""
    try:
        PARTS[spec.part](**{spec.name: value})
    except ConfigError as error:
        raise SettingError(key, text, error.reason) from error
    except ValueError as error:
        raise SettingError(key, text, str(error)) from error
    return value


def meant(name: str, known: Iterable[str] | None = None) -> str:
    """`; did you mean X?`, also for a name that a broker.conf has."""
    of_files = {spec.file_name: spec.name for spec in setting_fields().values()}
    if known is None and name in of_files:
        return f"; in TOML it is called {of_files[name]}"
    near = difflib.get_close_matches(name, list(known or setting_fields()), n=1)
    return f"; did you mean {near[0]}?" if near else ""


# -- the environment ------------------------------------------------------------------------------


def take_environment(environment: Mapping[str, str], loaded: Loaded) -> None:
    """Add the settings of the environment. Raises SettingError."""
    by_variable = {spec.variable: spec for spec in setting_fields().values()}
    for key in sorted(environment):
        text = environment[key].strip()
        meant_key = key.upper()
        if key != meant_key and meant_key in by_variable and text:
            raise SettingError(
                key, "...", f"there is no such variable of the environment; it is {meant_key}"
            )
        if not key.startswith(ENVIRONMENT_PREFIX) or key in _OTHER_VARIABLES or not text:
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


def _from_text(spec: SettingField, key: str, text: str) -> Any:
    if spec.is_optional and text.lower() == NONE:
        return None
    value: Any = text
    try:
        if spec.name == "stampers":
            value = () if text.lower() == NONE else STAMPERS_KIND.parse(text)
        elif spec.type_name == "list of names":
            names = [each.strip() for each in text.split(",")]
            value = () if text.lower() == NONE else tuple(filter(None, names))
        elif spec.type_name == "whole number":
            value = INTEGER.parse(text)
        elif spec.type_name == "true or false":
            value = BOOLEAN.parse(text)
        elif spec.type_name == "path":
            value = Path(text)
    except ValueError as error:
        raise SettingError(key, text, f"{error} (a variable of the environment)") from error
    try:
        return checked(spec, key, text, value)
    except SettingError as error:
        reason = f"{error.reason} (a variable of the environment)"
        raise SettingError(key, text, reason) from error


# -- broker.conf: Java's properties ----------------------------------------------------------------

_LINE_END = re.compile(r"\r\n|\r|\n")
_SPACE = " \t\f"
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SPECIAL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
#: A key: any characters except separators; a separator after a backslash is a part of the key.
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)


class PropertiesError(BrokerError, ValueError):
    """A line that is not valid in a properties file.

    `line_number` counts from 1, `reason` is what is wrong.
    """

    def __init__(self, line_number: int, reason: str) -> None:
        super().__init__(f"line {line_number}: {reason}")
        self.line_number = line_number
        self.reason = reason


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
    Pulsar.
    Unlike Java's files, these are UTF-8.

    Raises `PropertiesError`.
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
