r"""The file format of Pulsar's `broker.conf`: Java's properties.

    # a comment; ! begins one, too
    brokerServicePort=6650
    httpMaxRequestHeaderSize = 8192         spaces around the separator are ignored
    clusterName: standalone                 a colon, or spaces alone, separate as well
    brokerEntryMetadataInterceptors=a,\
        b                                   a backslash at the end joins lines
    path=C:\\data\u00e9                     \\, \t, \n, \r, \f, \uXXXX; otherwise \ is dropped

If a key is given twice, its last value counts. Spaces at a value's end are ignored, as in Pulsar.
Unlike Java's files, these are UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import BrokerError

__all__ = ["PropertiesError", "read_properties"]

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
    """The keys of a file and their values, in the order of each key's first line.

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
