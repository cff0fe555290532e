"""`pulsemark token`: keys and tokens as a broker takes them."""

from __future__ import annotations

import io
import json
import stat

import pytest

from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.security.token import TokenProvider

NOW_MS = 1_800_000_000_000


@pytest.fixture
def say(monkeypatch):
    """Put a text into stdin."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_secret_key_and_its_tokens(pulsemark, tmp_path, say, algorithm):
    """The broker takes the token; the key's file is for its owner only, and is kept."""
    key = tmp_path / "secret.key"
    assert (
        pulsemark("token", "create-secret-key", "--output", str(key), "-a", algorithm).status == 0
    )
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    again = pulsemark("token", "create-secret-key", "--output", str(key))
    assert (again.status, key.read_bytes()) == (2, before)
    made = pulsemark(
        "token", "create", "--secret-key", str(key), "--subject", "ann", "-a", algorithm,
        "--expiry-time", "1d", "--audience", "b",
    )  # fmt: skip
    token = made.out.strip()
    provider = TokenProvider(SecurityConfig(token_secret_key=f"file://{key}"), lambda: 0)
    found = provider.authenticate(token.encode(), None)
    assert found.role == "ann"
    assert found.expires_at_ms is not None
    say(token)
    header, line, claims = pulsemark("token", "show").out.splitlines()
    assert (json.loads(header)["alg"], line) == (algorithm, "---")
    assert json.loads(claims)["aud"] == "b"
    say(token)
    assert pulsemark("token", "validate", "--secret-key", str(key)).out == "ann\n"
    say(token[:-8] + "AAAAAAAA")
    assert pulsemark("token", "validate", "--secret-key", str(key)).status == 2


@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "ES256", "ES512"])
def test_a_pair_of_keys_and_its_tokens(pulsemark, tmp_path, say, algorithm):
    """Signed with the private key, checked with the public one."""
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    pulsemark(
        "token", "create-key-pair", "--output-private-key", str(private),
        "--output-public-key", str(public), "-a", algorithm,
    )  # fmt: skip
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    made = pulsemark("token", "create", "--private-key", str(private), "-s", "ann", "-a", algorithm)
    say(made.out)
    checked = pulsemark("token", "validate", "--public-key", str(public), "-a", algorithm)
    assert checked.out == "ann\n"
    wrong = "ES384" if algorithm[0] == "E" else "ES256"
    refused = pulsemark("token", "create", "--private-key", str(private), "-s", "ann", "-a", wrong)
    assert (refused.status, "the key is for" in refused.err) == (2, True)


def test_a_key_in_base64_goes_into_a_data_url(pulsemark, say):
    """Without a file, it is printed as base64."""
    key = pulsemark("token", "create-secret-key").out.strip()
    url = f"data:;base64,{key}"
    say(pulsemark("token", "create", "--secret-key", url, "-s", "ann").out)
    assert pulsemark("token", "validate", "--secret-key", url).out == "ann\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "--subject", "ann"),
        ("create", "--subject", "", "--secret-key", f"data:,{'x' * 32}"),
        ("create", "--subject", "ann", "--secret-key", "/nowhere/key"),
        ("create", "--subject", "ann", "--secret-key", "data:;base64,AAAA"),
        ("create", "--subject", "ann", "--secret-key", "x", "--private-key", "y"),
        ("create", "--subject", "ann", "--private-key", "data:;base64,AAAA"),
        ("create", "--secret-key", "data:;base64,AAAA", "-s", "a", "--expiry-time", "0d"),
        ("show",),
        ("validate", "--secret-key", "data:;base64,AAAA"),
        ("create-secret-key", "--output", "/nowhere/key"),
    ],
)
def test_bad_input_is_one_line(pulsemark, say, arguments):
    """Exit code 2, and no traceback."""
    say("no token")
    ran = pulsemark("token", *arguments)
    assert (ran.status, ran.err.count("\n"), ran.out) == (2, 1, "")


def test_a_token_comes_from_stdin_or_from_a_file(pulsemark, tmp_path, say):
    """The options of `pulsar tokens`, in their short forms too."""
    key, file = tmp_path / "secret.key", tmp_path / "ann.token"
    pulsemark("token", "create-secret-key", "-o", str(key))
    token = pulsemark("token", "create", "-sk", str(key), "-s", "ann").out
    file.write_text(token)
    for option in ("-f", "--token-file"):
        say("not a token")
        assert pulsemark("token", "validate", "-sk", str(key), option, str(file)).out == "ann\n"
        assert '"sub":"ann"' in pulsemark("token", "show", option, str(file)).out
    for option in ("-i", "--stdin"):
        say(token)
        assert pulsemark("token", "validate", option, "-sk", str(key)).out == "ann\n"
    missing = pulsemark("token", "show", "-f", str(tmp_path / "none"))
    assert missing.status == 2
    file.write_bytes(b"\xff\xfe\x00.a.b")
    assert pulsemark("token", "validate", "-sk", str(key), "-f", str(file)).status == 2


def test_the_error_names_the_file_without_a_token(pulsemark, tmp_path):
    """Not standard input, which was not read."""
    path = tmp_path / "ann.token"
    path.write_text("none")
    assert f"{path} has no token" in pulsemark("token", "show", "--token-file", path).error()
