"""`pulsemark token`: make keys and tokens, as `pulsar tokens` does.

    pulsemark token create-secret-key --output secret.key
    pulsemark token create --secret-key secret.key --subject ann --expiry-time 30d
    pulsemark token show < ann.token
    pulsemark token validate --secret-key secret.key < ann.token

Keys are paths, `file:` or `data:` URLs, as in `tokenSecretKey` and `tokenPublicKey`. Files with
secrets are made readable for their owner only, and never overwritten.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from ..broker.configuration.security_config import SecurityConfig
from ..broker.errors import ConfigError
from ..broker.security.authentication import AuthenticationFailed
from ..broker.security.token import read_source
from .options import declared, positive
from .output import json_line
from .parsing import CliError

ERRORS = (ConfigError, AuthenticationFailed, OSError)

SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
CURVES = {"ES256": "SECP256R1", "ES384": "SECP384R1", "ES512": "SECP521R1"}
RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
RSA_BITS = 2048
UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}


def _given_token(args: argparse.Namespace) -> str:
    if args.token_file is None:
        return sys.stdin.read().strip()
    # A body that is not text is not a token, and is refused like a wrong one.
    return str(args.token_file.read_text("utf-8", "replace")).strip()


def _role(text: str) -> str:
    """A role's name, which brokers refuse when it is empty."""
    if not text:
        raise argparse.ArgumentTypeError("a role has a name")
    return text


def _duration(text: str) -> int:
    """Seconds."""
    match = re.fullmatch(r"([0-9]{1,9})([smhdwy])", text)
    if match is None or int(match[1]) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30d or 1y")
    return int(match[1]) * UNITS_S[match[2]]


_GIVEN = """
either:
--stdin, -i  read the token from stdin
--token-file, -f PATH  read it from this file instead
"""
add_arguments = declared(
    f"""
create-secret-key: make a secret key
--output, -o PATH  default: stdout
--base64, -b  write it as base64
--algorithm, -a {{{",".join(SECRET_BYTES)}}} [HS256]
create-key-pair: make a private and a public key (DER)
--output-private-key PATH!
--output-public-key PATH!
--algorithm, -a {{{",".join((*RSA, *CURVES))}}} [RS256]
create: print a token
exactly one of:
--secret-key, -sk KEY
--private-key, -pk KEY
and:
--subject, -s ROLE!
--algorithm, -a ALGORITHM  default: HS256, RS256, or that of the curve
--audience NAME  who may accept it (claim aud)
--expiry-time, -e TIME  such as 90s, 30d or 1y
--not-before UNIX_S  not valid earlier
show: print the token that stdin has, without checking it
{_GIVEN}
validate: check the token that stdin has, and print its role
{_GIVEN}
exactly one of:
--secret-key, -sk KEY
--public-key, -pk KEY
and:
--algorithm, -a ALGORITHM  of the public key (default: RS256)
""",
    subject=_role,
    expiry_time=_duration,
    not_before=positive,
)


def run(args: argparse.Namespace) -> int:
    """Do what is asked."""
    if args.action == "create-secret-key":
        _create_secret(args)
    elif args.action == "create-key-pair":
        _create_pair(args)
    elif args.action == "create":
        print(_token(args))
    elif args.action == "show":
        _show(args)
    else:
        _validate(args, _given_token(args))
    return 0


def _create_secret(args: argparse.Namespace) -> None:
    key = secrets.token_bytes(SECRET_BYTES[args.algorithm])
    if args.base64 or args.output is None:
        key = base64.b64encode(key)
    if args.output is None:
        print(key.decode())
    else:
        _write(args.output, key)


def _create_pair(args: argparse.Namespace) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if args.algorithm in CURVES:
        private = ec.generate_private_key(getattr(ec, CURVES[args.algorithm])())
    else:
        private = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    der = serialization.Encoding.DER
    pkcs8, no_password = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    _write(args.output_private_key, private.private_bytes(der, pkcs8, no_password))
    _write(args.output_public_key, private.public_key().public_bytes(der, info))


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:  # an empty file would be taken for a key
        path.unlink()
        raise CliError(f"{path}: {error.strerror}") from error


def _token(args: argparse.Namespace) -> str:
    import jwt

    claims: dict[str, Any] = {"sub": args.subject}
    if args.audience is not None:
        claims["aud"] = args.audience
    if args.expiry_time is not None:
        claims["exp"] = int(time.time()) + args.expiry_time
    if args.not_before is not None:
        claims["nbf"] = args.not_before
    if args.secret_key is not None:
        key: Any = read_source("secret-key", args.secret_key)
        fitting = [name for name, size in SECRET_BYTES.items() if len(key) >= size]
        if not fitting:
            raise CliError(f"the secret has {len(key)} bytes; it must have at least 32")
    else:
        key, fitting = _private_key(args.private_key)
    algorithm = args.algorithm or fitting[0]
    if algorithm not in fitting:
        raise CliError(f"--algorithm {algorithm}: the key is for {', '.join(fitting)}")
    return jwt.encode(claims, key, algorithm=algorithm)


def _private_key(source: str) -> tuple[Any, list[str]]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    data = read_source("private-key", source)
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            key = serialization.load_pem_private_key(data, None)
        else:
            key = serialization.load_der_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise CliError("--private-key is not a private key without a password") from error
    if isinstance(key, rsa.RSAPrivateKey):
        return key, list(RSA)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        fitting = [name for name, curve in CURVES.items() if curve.lower() == key.curve.name]
        if fitting:
            return key, fitting
    raise CliError("--private-key is neither an RSA key nor on a curve of ES256, ES384, ES512")


def _show(args: argparse.Namespace) -> None:
    import jwt

    token = _given_token(args)
    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise CliError(f"{args.token_file or 'stdin'} has no token (JWT)") from error
    print(json_line(header))
    print("---")
    print(json_line(claims))


def _validate(args: argparse.Namespace, token: str) -> None:
    from ..broker.security.token import TokenProvider

    config = SecurityConfig(
        token_secret_key=args.secret_key,
        token_public_key=args.public_key,
        token_public_alg=args.algorithm or "RS256",
    )
    found = TokenProvider(config, lambda: time.time_ns() // 1_000_000).authenticate(
        token.encode(), None
    )
    print(found.role)
