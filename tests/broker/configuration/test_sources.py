"""Settings from files, the environment and the command line: which wins, and what errors say."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker import ConfigError
from pulsemark.broker.configuration.settings import Loaded, SettingError, setting_fields
from pulsemark.broker.configuration.sources import (
    ConfigFileError,
    PropertiesError,
    load,
    read_properties,
    take_environment,
    toml_value,
)


@pytest.fixture
def toml(tmp_path):
    """Write a TOML file; returns its path."""

    def write(text: str) -> Path:
        path: Path = tmp_path / "pulsemark.toml"
        path.write_text(text)
        return path

    return write


def test_every_setting_can_be_said_in_all_three_ways(toml):
    """A TOML file and an environment with every default make the default configuration."""
    from pulsemark.broker import BrokerConfig
    from pulsemark.testing import SettableClock

    clock, lines, variables = SettableClock(), [], {}
    for spec in setting_fields().values():
        if spec.default is None:
            continue
        value = spec.default
        if isinstance(value, tuple):
            lines.append(f"{spec.name} = [{', '.join(repr(each) for each in value)}]")
            variables[spec.variable] = ",".join(value) or "none"
        elif isinstance(value, bool):
            lines.append(f"{spec.name} = {str(value).lower()}")
            variables[spec.variable] = str(value)
        else:
            lines.append(f"{spec.name} = {value!r}")
            variables[spec.variable] = str(value)
    default = BrokerConfig(clock=clock)
    assert load(toml("\n".join(lines)), {}).config(clock=clock) == default
    assert load(None, variables).config(clock=clock) == default
    assert len(load(None, variables).origins) > 150


def test_which_source_wins(toml):
    """The environment overrides the file, and an override of the program both."""
    path = toml('port = 1\nhttp_port = 1\nhost = "a"\n')
    loaded = load(path, {"PULSEMARK_PORT": "2", "PULSEMARK_HOST": "b"})
    config = loaded.config(host="c")
    assert (config.http_port, config.port, config.host) == (1, 2, "c")
    assert loaded.origins["http_port"] == f"http_port in {path}"
    assert loaded.origins["port"] == "PULSEMARK_PORT in the environment"


def test_a_broker_conf_and_the_environment(tmp_path):
    """Pulsar's names in the file, ours in the environment, of the store and of security, too."""
    path = tmp_path / "broker.conf"
    path.write_text("brokerServicePort=7000\nmanagedLedgerMaxSizePerLedgerMbytes=1\nzk=3\n")
    variables = {"PULSEMARK_SEGMENT_SIZE_BYTES": "4096", "PULSEMARK_SUPER_USER_ROLES": "a, b"}
    loaded = load(path, variables)
    config = loaded.config()
    assert (config.port, config.store_options.ledger_size_bytes) == (7000, 1 << 20)
    assert config.store_options.segment_size_bytes == 4096
    assert config.security.super_user_roles == ("a", "b")
    assert loaded.ignored == ("zk",)
    assert loaded.origins["port"] == f"brokerServicePort in {path}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("portt = 3", "portt=3: there is no such setting; did you mean port?"),
        ("brokerServicePort = 3", "in TOML it is called port"),
        ('port = "6650"', 'port="6650": must be a whole number'),
        ("port = true", "port=true: must be a whole number"),
        ("port = 6.5", "must be a whole number"),
        ("port = 70000", "port=70000: must be a port number from 0 to 65535"),
        ('stampers = "index"', "must be a list of names"),
        ("leader_epochs_enabled = 1", "must be a true or false"),
        ("[server]\nport = 3", "without tables"),
        ("port = ", "it is not TOML"),
        ('log_level = "loud"', "must be one of debug, info, warning, error"),
    ],
)
def test_errors_of_a_toml_file(toml, line, said):
    """Each names the file, the setting and its value, and the closest name."""
    path = toml(line)
    with pytest.raises(ConfigFileError) as raised:
        load(path, {})
    assert str(raised.value).startswith(f"{path}: ")
    assert said in str(raised.value)


def test_no_value(toml):
    """An empty text, and `none` in the environment, switch off what may be off."""
    loaded = load(None, {"PULSEMARK_HTTP_PORT": "None", "PULSEMARK_STAMPERS": "none"})
    assert (loaded.config().http_port, loaded.config().stampers) == (None, ())
    assert load(toml('http_port = ""'), {}).config().http_port is None
    assert load(None, {"PULSEMARK_HTTP_PORT": ""}).config().http_port == 8080


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("PULSEMARK_PORT", "x", "PULSEMARK_PORT=x: must be a whole number"),
        ("PULSEMARK_MAX_TOPICS", "0", "PULSEMARK_MAX_TOPICS=0: must be a whole number of at least"),
        ("PULSEMARK_AUDIT_ENABLED", "yes", "must be true or false"),
        ("Pulsemark_Port", "1", "no such variable of the environment; it is PULSEMARK_PORT"),
    ],
)
def test_errors_of_the_environment(key, value, said):
    """Each names the variable, its value, and that it is one of the environment."""
    with pytest.raises(SettingError) as raised:
        load(None, {key: value})
    assert said in str(raised.value)
    assert "environment" in str(raised.value)


def test_an_error_of_two_settings_names_the_source(toml):
    """A value that is wrong only together with others says where it comes from."""
    path = toml('storage = "memory"\ndata_dir = "d"\n')
    with pytest.raises(ConfigError, match=r"data_dir in .*pulsemark\.toml"):
        load(path, {}).config()


def test_other_variables():
    """A misspelt name is warned of; what Kubernetes and our commands use is left alone."""
    loaded = Loaded()
    take_environment(
        {
            "PULSEMARK_PROT": "1",
            "PULSEMARK_TOKEN": "secret",
            "PULSEMARK_SERVICE_HOST": "10.0.0.1",
            "PULSEMARK_SERVICE_PORT_HTTP": "8080",
            "PULSEMARK_PORT_6650_TCP_ADDR": "10.0.0.1",
            "PULSEMARK_PORT": "tcp://10.0.0.1:6650",
        },
        loaded,
    )
    port, misspelt = loaded.warnings
    assert misspelt == "the variable PULSEMARK_PROT is not a setting; did you mean PULSEMARK_PORT?"
    assert "Kubernetes" in port
    assert loaded.origins == {}


# -- Java's properties


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


def test_the_example_is_valid():
    """The TOML on the page is taken as it is."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "configuration.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]
    assert all(toml_value(name, value) is not None for name, value in tomllib.loads(text).items())
