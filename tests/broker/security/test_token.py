"""Tokens: what is accepted, and what never is."""

from __future__ import annotations

import base64
import warnings
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from pulsemark.broker import ConfigError
from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.security.authentication import AuthenticationFailed
from pulsemark.broker.security.token import MAX_TOKEN_BYTES, TokenProvider

NOW_MS = 1_800_000_000_000
NOW_S = NOW_MS // 1000
FORMATS = {
    "DER": serialization.Encoding.DER,
    "PEM": serialization.Encoding.PEM,
}
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


def public_of(private, encoding):
    """The public key of a private one."""
    return private.public_key().public_bytes(
        encoding, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def url_of(data):
    """Bytes as a setting holds them."""
    return "data:;base64," + base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def rsa_key():
    """A private key."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def provider(secret_url):
    """Makes a provider with a secret and other settings."""

    def make(**settings):
        config = SecurityConfig(**{"token_secret_key": secret_url, **settings})
        return TokenProvider(config, lambda: NOW_MS)

    return make


def test_the_role_is_the_subject(provider, token):
    """`sub` is the role; `exp` is when it ends, and a token without it does not end."""
    plain = provider().authenticate(token({"sub": "ann"}), None)
    assert (plain.role, plain.expires_at_ms, plain.method) == ("ann", None, "token")
    ending = provider().authenticate(token({"sub": "ann", "exp": NOW_S + 1.5}), None)
    assert ending.expires_at_ms == NOW_MS + 1_500


@pytest.mark.parametrize(("name", "key_size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_allows_what_it_is_long_enough_for(provider, token, name, key_size):
    """RFC 7518, 3.2: a key as long as the hash, at least."""
    digest = f"sha{name[2:]}"
    for size, fits in ((key_size, True), (key_size - 1, False)):
        key = bytes(size)
        if size < 32:
            with pytest.raises(ConfigError, match="31 bytes"):
                provider(token_secret_key=url_of(key))
            continue
        made = token({"sub": "ann"}, key=key, digest=digest, alg=name)
        if fits:
            assert provider(token_secret_key=url_of(key)).authenticate(made, None).role == "ann"
        else:
            with pytest.raises(AuthenticationFailed, match="algorithm"):
                provider(token_secret_key=url_of(key)).authenticate(made, None)


@pytest.mark.parametrize("encoding", FORMATS)
def test_public_keys_allow_their_own_algorithms(provider, rsa_key, encoding):
    """RSA keys RS* and PS*, a curve its one algorithm; DER and PEM."""
    public = url_of(public_of(rsa_key, FORMATS[encoding]))
    checking = provider(token_secret_key=None, token_public_key=public)
    for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"):
        made = jwt.encode({"sub": "ann"}, rsa_key, algorithm=name).encode()
        assert checking.authenticate(made, None).role == "ann"
    for name, curve in CURVES.items():
        private = ec.generate_private_key(curve)
        settings = {
            "token_secret_key": None,
            "token_public_key": url_of(public_of(private, FORMATS[encoding])),
        }
        made = jwt.encode({"sub": "ann"}, private, algorithm=name).encode()
        assert provider(**settings, token_public_alg=name).authenticate(made, None).role == "ann"
        with pytest.raises(ConfigError, match="token_public_alg"):
            provider(**settings, token_public_alg="RS256")


@pytest.mark.parametrize("encoding", FORMATS)
def test_a_public_key_is_never_a_secret(provider, token, rsa_key, encoding):
    """A token that is signed by HMAC with the public key's own bytes is refused."""
    public = public_of(rsa_key, FORMATS[encoding])
    checking = provider(token_secret_key=None, token_public_key=url_of(public))
    for name, digest in (("HS256", "sha256"), ("HS512", "sha512")):
        forged = token({"sub": "admin"}, key=public, digest=digest, alg=name)
        with pytest.raises(AuthenticationFailed, match="algorithm"):
            checking.authenticate(forged, None)


@pytest.mark.parametrize(
    ("claims", "header", "reason"),
    [
        ({"sub": "ann"}, {"alg": "none"}, "algorithm"),
        ({"sub": "ann"}, {"alg": "None"}, "algorithm"),
        ({"sub": "ann"}, {"alg": "RS256"}, "algorithm"),
        ({"sub": "ann"}, {"alg": ["HS256"]}, ""),
        ({"sub": "ann"}, {"crit": ["exp"], "exp": 1}, ""),
        ({"sub": "ann"}, {"crit": []}, ""),
        ({"sub": "ann"}, {"b64": False, "crit": ["b64"]}, ""),
        ({"sub": "ann"}, {"b64": False}, "not a token"),
        ({"sub": "ann", "exp": NOW_S}, {}, "expired"),
        ({"sub": "ann", "exp": -1}, {}, "expired"),
        ({"sub": "ann", "nbf": NOW_S + 1}, {}, "not valid yet"),
        ({"sub": "ann", "exp": str(NOW_S + 9)}, {}, "exp is not a time"),
        ({"sub": "ann", "exp": True}, {}, "exp is not a time"),
        ({"sub": "ann", "exp": 1e300}, {}, "exp is not a time"),
        (b'{"sub": "ann", "exp": Infinity}', {}, "exp is not a time"),
        (b'{"sub": "ann", "exp": NaN}', {}, "exp is not a time"),
        ({"sub": "ann", "nbf": {}}, {}, "nbf is not a time"),
        ({}, {}, "no role"),
        ({"sub": ""}, {}, "no role"),
        ({"sub": " "}, {}, "no role"),
        ({"sub": 7}, {}, "no role"),
        ({"sub": []}, {}, "no role"),
        ({"sub": None}, {}, "no role"),
        (["ann"], {}, "not a token"),
        (b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.xxxx", {"cty": "JWT"}, "not a token"),
        (b"[" * 9_000, {}, "not a token"),
        (b"\xff\xfe", {}, "not a token"),
    ],
)
def test_a_token_that_is_not_right_is_refused(provider, token, claims, header, reason):
    """Each with a reason, in which nothing of the token stands."""
    with pytest.raises(AuthenticationFailed) as caught:
        provider().authenticate(token(claims, **header), None)
    assert reason in caught.value.reason
    assert "ann" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b".", b"..", b"a.b.c", b"\xff" * 50, b"x" * 40_000])
def test_what_is_no_token_is_refused(provider, data):
    """Also what is longer than a token may be."""
    with pytest.raises(AuthenticationFailed):
        provider().authenticate(data, None)


@pytest.mark.parametrize("space", [b"\n", b"\r\n", b" ", b"\t\n"])
def test_white_space_around_a_token_does_not_count(provider, token, space):
    """As in Pulsar: a file with a token ends with a line's end."""
    good = token({"sub": "ann"})
    for data in (good + space, space + good, space + good + space):
        assert provider().authenticate(data, None).role == "ann"
    with pytest.raises(AuthenticationFailed):
        provider().authenticate(good[:-8] + space + good[-8:], None)


def test_a_wrong_signature_is_refused(provider, token):
    """Another key's, a changed token's, and none."""
    good = token({"sub": "ann"})
    head, claims, _ = good.split(b".")
    other = token({"sub": "admin"}).split(b".")[1]
    for forged in (
        token({"sub": "ann"}, key=b"y" * 32),
        b".".join((head, other, good.split(b".")[2])),
        head + b"." + claims + b".",
    ):
        with pytest.raises(AuthenticationFailed, match="signature"):
            provider().authenticate(forged, None)


def test_keys_that_a_token_names_are_not_looked_at(provider, token):
    """`kid`, `jku`, `x5u` and `jwk` change nothing, wherever they lead."""
    header: dict[str, Any] = {
        "kid": "../../etc/passwd",
        "jku": "http://127.0.0.1:1/keys",
        "x5u": "file:///etc",
    }
    header["jwk"] = {"kty": "oct", "k": "AAAA"}
    assert provider().authenticate(token({"sub": "ann"}, **header), None).role == "ann"
    with pytest.raises(AuthenticationFailed):
        provider().authenticate(token({"sub": "ann"}, key=b"\0" * 32, **header), None)


def test_a_token_has_a_size(provider, token):
    """The limit is checked before anything is parsed."""
    claims = {"sub": "ann", "filler": "x" * (MAX_TOKEN_BYTES * 3 // 4 - 200)}
    assert len(token(claims)) <= MAX_TOKEN_BYTES
    assert provider().authenticate(token(claims), None).role == "ann"
    claims["filler"] += "x" * 400
    with pytest.raises(AuthenticationFailed, match="more than"):
        provider().authenticate(token(claims), None)


def test_audience_and_claim_are_those_of_the_settings(provider, token):
    """As in Pulsar: the audience is the text, or in the list; the role may be a list's first."""
    checking = provider(
        token_audience_claim="aud", token_audience="broker-1", token_auth_claim="roles"
    )
    for audience in ("broker-1", ["x", "broker-1"]):
        made = token({"roles": ["ops", "dev"], "aud": audience})
        assert checking.authenticate(made, None).role == "ops"
    for other in ("broker-2", "", ["x"], None, {"broker-1": 1}):
        with pytest.raises(AuthenticationFailed, match="audience"):
            checking.authenticate(token({"roles": "ops", "aud": other}), None)
    with pytest.raises(ConfigError, match="token_audience"):
        provider(token_audience_claim="aud")


def test_clocks_may_differ_by_the_configured_time(provider, token):
    """It holds for the end and for the beginning; the end includes it."""
    checking = provider(token_allowed_clock_skew_s=30)
    late = checking.authenticate(token({"sub": "ann", "exp": NOW_S - 29}), None)
    assert late.expires_at_ms == NOW_MS + 1_000
    assert checking.authenticate(token({"sub": "ann", "nbf": NOW_S + 30}), None).role == "ann"
    for claims in ({"exp": NOW_S - 30}, {"nbf": NOW_S + 31}):
        with pytest.raises(AuthenticationFailed):
            checking.authenticate(token({"sub": "ann", **claims}), None)


def test_keys_that_cannot_be_used_stop_the_start(provider, tmp_path):
    """Missing, too short, no key at all: ConfigError names the setting and shows no key."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cryptography warns of such a short key
        short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    small = url_of(public_of(short, FORMATS["DER"]))
    for settings, field in (
        ({"token_secret_key": None}, "token_secret_key"),
        ({"token_secret_key": str(tmp_path / "absent")}, "token_secret_key"),
        ({"token_secret_key": f"file://{tmp_path}"}, "token_secret_key"),
        ({"token_secret_key": "data:;base64,###"}, "token_secret_key"),
        ({"token_secret_key": "hush"}, "token_secret_key"),
        ({"token_secret_key": None, "token_public_key": small}, "token_public_key"),
        ({"token_secret_key": None, "token_public_key": url_of(b"?")}, "token_public_key"),
    ):
        with pytest.raises(ConfigError) as caught:
            provider(**settings)
        assert caught.value.field == field
        assert "hush" not in str(caught.value)


def test_keys_may_be_files_urls_or_base64(provider, token, secret_url, tmp_path):
    """The forms that Pulsar's settings have."""
    path = tmp_path / "a key"
    path.write_bytes(bytes(range(32)))
    encoded = base64.b64encode(bytes(range(32))).decode()
    quoted = str(path).replace(" ", "%20")
    for source in (str(path), f"file://{quoted}", f"file:{quoted}", encoded, secret_url):
        checking = provider(token_secret_key=source)
        assert checking.authenticate(token({"sub": "ann"}), None).role == "ann"
