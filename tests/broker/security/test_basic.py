"""Passwords: the hashes of .htpasswd files, broken lines, and what is remembered."""

from __future__ import annotations

import base64

import pytest

from pulsemark.broker import ConfigError
from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.security.authentication import AuthenticationFailed
from pulsemark.broker.security.providers import MAX_CREDENTIALS_BYTES, BasicProvider

#: The password "123456", by htpasswd, openssl passwd and crypt(3).
HASHES = {
    "apr1": "$apr1$FG4AO6aX$KGYPuMoLUou3i6vUkPUUf.",
    "sha": "{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=",
}


def provider_of(text):
    """A provider of a file's content."""
    encoded = base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()
    return BasicProvider(SecurityConfig(basic_auth_conf=f"data:;base64,{encoded}"))


@pytest.fixture(scope="module")
def hashes():
    """A hash of each kind, those that are costly with few rounds."""
    from passlib.hash import bcrypt, des_crypt, md5_crypt, sha256_crypt, sha512_crypt

    quick = {"bcrypt": bcrypt.using(rounds=4), "sha256": sha256_crypt.using(rounds=1000)}
    quick |= {"sha512": sha512_crypt.using(rounds=1000), "md5": md5_crypt, "des": des_crypt}
    made = {name: kind.hash("123456") for name, kind in quick.items()}
    return made | {name: HASHES[name] for name in ("apr1", "sha")}


def test_every_kind_of_hash_is_checked(hashes):
    """The right password gets the user's name as role; any other is refused."""
    provider = provider_of("\n".join(f"{name}:{hashed}" for name, hashed in hashes.items()))
    for name in hashes:
        found = provider.authenticate(f"{name}:123456".encode(), None)
        assert (found.role, found.expires_at_ms, found.method) == (name, None, "basic")
        with pytest.raises(AuthenticationFailed, match="wrong password"):
            provider.authenticate(f"{name}:1234567".encode(), None)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"sha", b"sha:", b":123456", b"nobody:123456", b"sha\0:123456", b"sha:12\x003456"),
        *(b"SHA:123456", b"\xff:\xff", b"sha: 123456", b"sha:" + b"1" * MAX_CREDENTIALS_BYTES),
    ],
)
def test_what_is_not_right_is_refused(data):
    """The reason holds neither name nor password."""
    with pytest.raises(AuthenticationFailed) as caught:
        provider_of(f"sha:{HASHES['sha']}").authenticate(data, None)
    assert "123456" not in str(caught.value)
    assert "nobody" not in str(caught.value)


def test_a_file_without_users_refuses_everyone():
    """There is then no hash to compare with."""
    with pytest.raises(AuthenticationFailed):
        provider_of("# none\n").authenticate(b"ann:x", None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ann", 1),
        (f"# ok\nann:{HASHES['sha']}\nbob:plain-password", 3),
        (f":{HASHES['sha']}", 1),
        (f"ann:{HASHES['sha']}\nann:{HASHES['apr1']}", 2),
        (b"ann:\xff\xff", 1),
        ("ann:$apr1$", 1),
    ],
)
def test_a_broken_line_stops_the_start(text, line):
    """The error names the line, and shows nothing of it."""
    with pytest.raises(ConfigError) as caught:
        provider_of(text)
    assert caught.value.field == "basic_auth_conf"
    assert f"line {line} " in caught.value.reason
    assert "plain-password" not in str(caught.value)


def test_a_file_is_needed(tmp_path):
    """Neither none nor an absent one will do."""
    for source in (None, str(tmp_path / "absent")):
        with pytest.raises(ConfigError, match="basic_auth_conf"):
            BasicProvider(SecurityConfig(basic_auth_conf=source))


def counted(monkeypatch, provider):
    """The passwords that are hashed from now on."""
    calls: list[str] = []
    verify = provider.context.verify

    def counting(password, hashed):
        calls.append(password)
        return verify(password, hashed)

    monkeypatch.setattr(provider.context, "verify", counting)
    return calls


def test_a_right_password_is_hashed_once(monkeypatch):
    """HTTP requests send it each time. A wrong one is hashed each time, and forgets nothing."""
    provider = provider_of(f"ann:{HASHES['apr1']}")
    calls = counted(monkeypatch, provider)
    for _ in range(3):
        provider.authenticate(b"ann:123456", None)
    assert len(calls) == 1
    for _ in range(2):
        with pytest.raises(AuthenticationFailed):
            provider.authenticate(b"ann:wrong", None)
    assert len(calls) == 3
    provider.authenticate(b"ann:123456", None)
    assert len(calls) == 3


def test_an_unknown_user_costs_a_hash_too(monkeypatch):
    """So time does not say which users there are."""
    provider = provider_of(f"ann:{HASHES['apr1']}")
    calls = counted(monkeypatch, provider)
    with pytest.raises(AuthenticationFailed):
        provider.authenticate(b"bob:123456", None)
    assert len(calls) == 1
