"""Java's properties, as Pulsar's configuration files are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.configuration.sources import PropertiesError, read_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# a\n  ! b = c\n\n   \n", {}),
        ("a=1", {"a": "1"}),
        ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a = 1 \n\tb : 2\nc 3", {"a": "1", "b": "2", "c": "3"}),
        ("a=\nb\n", {"a": "", "b": ""}),
        ("a==b=c", {"a": "=b=c"}),
        ("url=http://x:80/#top", {"url": "http://x:80/#top"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=x,\\\n   y,\\\n   z\nb=1", {"a": "x,y,z", "b": "1"}),
        ("a=x\\\\\nb=1", {"a": "x\\", "b": "1"}),
        ("a=x\\\n#y", {"a": "x#y"}),
        ("a=end\\", {"a": "end"}),
        ("# comment \\\na=1", {"a": "1"}),
        (r"a\=b\:c\ d=1", {"a=b:c d": "1"}),
        (r"a=\t\u00e9\q\\n", {"a": "\té" + "q" + "\\n"}),
        ("=1", {"": "1"}),
    ],
)
def test_what_a_file_says(text, found):
    """Comments, separators, joined lines and escapes mean what they mean to Java."""
    assert read_properties(text) == found


@pytest.mark.parametrize("text", ["a=1\nb=\\u12", "# c\n\\u00g0=1", "x=\\\n\n\ny=\\u"])
def test_a_broken_escape_names_its_line(text):
    """The one thing that a file of properties can get wrong."""
    with pytest.raises(PropertiesError) as caught:
        read_properties(text)
    assert caught.value.line_number == text.count("\n") + 1
    assert "\\u" in caught.value.reason


@given(st.text())
def test_any_text_is_read_or_refused(text):
    """No input ends in anything but properties or `PropertiesError`."""
    try:
        found = read_properties(text)
    except PropertiesError:
        return
    assert all(isinstance(part, str) for pair in found.items() for part in pair)


@given(st.dictionaries(st.text(), st.text().map(str.rstrip)))
def test_escaped_text_comes_back(properties):
    """Any key and value can be written with escapes alone."""

    def escaped(text):
        units = text.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

    plain = {k: v for k, v in properties.items() if max(k + v, default="") < "\U00010000"}
    text = "\n".join(f"{escaped(key)}={escaped(value)}" for key, value in plain.items())
    assert read_properties(text) == plain
