"""`check_file`: everything that is wrong with a configuration file, at once."""

from __future__ import annotations

import pytest

from pulsemark.broker.configuration.settings import pulsar_defaults
from pulsemark.broker.configuration.sources import Level, check_file


@pytest.fixture
def check(tmp_path):
    """Check a file with this text."""

    def run(text: str, name: str = "broker.conf"):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o644)
        return check_file(path)

    return run


def test_a_file_as_pulsar_ships_it_has_no_errors(check):
    """All of Pulsar's settings with its values: those that have no effect are only counted."""
    lines = [f"{name}={min(values)}" for name, values in pulsar_defaults().items()]
    found = check("\n".join(lines))
    assert not found.has_errors
    assert found.unused > 300
    assert {each.setting for each in found.remarks} <= {"bindAddress"}


@pytest.mark.parametrize(
    ("line", "level", "said"),
    [
        ("brokerServicePort=x", Level.ERROR, "must be a whole number"),
        ("pulsemarkDataDirr=x", Level.ERROR, "did you mean pulsemarkDataDir?"),
        ("brokerServicePrt=6650", Level.ERROR, "did you mean brokerServicePort?"),
        ("AuthenticationEnabled=true", Level.ERROR, "it is authenticationEnabled"),
        ("maxConcurrentLookupRequest=9", Level.ERROR, "does not have this limit"),
        ("zzzzzzzz=1", Level.WARNING, "neither here nor in Pulsar"),
        ("numIOThreads=99", Level.WARNING, "it has no effect"),
        ("encryptionRequireOnProducer=true", Level.ERROR, "does not have this protection"),
        ("tlsEnabled=true", Level.ERROR, "needs the port"),
        ("bindAddress=0.0.0.0", Level.WARNING, "authentication is off"),
        ("authorizationEnabled=true", Level.WARNING, "has no effect: authentication is off"),
        ("pulsemarkSyncIntervalMs=50", Level.WARNING, "50 ms of acknowledged messages"),
        ("autoSkipNonRecoverableData=true", Level.WARNING, "damaged entries are skipped"),
        ("tlsAllowInsecureConnection=true", Level.WARNING, "any authority"),
    ],
)
def test_one_line(check, line, level, said):
    """Each remark names setting and line, and what is wrong."""
    found = check(f"# a comment\n\n{line}\n")
    (remark,) = found.remarks
    assert (remark.level, remark.line) == (level, 3)
    assert remark.setting == line.partition("=")[0]
    assert said in remark.reason


def test_all_errors_at_once_in_the_order_of_the_file(check):
    """The first error does not hide the others."""
    found = check('portt = 1\nmax_topics = "3"\n[x]\na = 1\n', "p.toml")
    assert [each.line for each in found.remarks] == [1, 2, 3]
    assert found.has_errors


def test_secrets_are_not_shown(check):
    """A key in a file that others may read is warned of, without the key."""
    found = check("tokenSecretKey=data:;base64,c2VjcmV0\n")
    (remark,) = found.remarks
    assert remark.value == "***"
    assert "other users may read the file" in remark.reason


def test_files_that_cannot_be_read(check, tmp_path):
    """A line or a file that is not text ends in one error."""
    assert check("a = ", "p.toml").has_errors
    assert check("a=\\u12", "broker.conf").remarks[0].line == 1
    path = tmp_path / "x.conf"
    path.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in check_file(path).remarks[0].reason
