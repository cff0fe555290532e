"""Making the authenticator: providers by name, and what is imported for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pulsemark.broker import ConfigError
from pulsemark.broker.configuration.security_config import PROVIDERS, SecurityConfig
from pulsemark.broker.security.providers import make_authenticator

LIBRARIES = ("jwt", "cryptography", "passlib", "bcrypt")


def test_pulsars_class_names_are_the_providers(secret_url, passwords):
    """In their order, each once; the short names mean the same."""
    for names in (tuple(PROVIDERS), ("token", "basic", "tls", "token")):
        config = SecurityConfig(
            authentication_enabled=True,
            authentication_providers=names,
            token_secret_key=secret_url,
            basic_auth_conf=passwords,
        )
        made = make_authenticator(config, lambda: 0)
        assert made is not None
        assert made.methods == ("token", "basic", "tls")
        made.close()


def test_an_unknown_class_is_an_error():
    """Also one of Pulsar's that this broker does not have. Switched off, nothing is made."""
    name = "org.apache.pulsar.broker.authentication.AuthenticationProviderSasl"
    with pytest.raises(ConfigError, match=name):
        make_authenticator(
            SecurityConfig(authentication_enabled=True, authentication_providers=(name,)), lambda: 0
        )
    assert make_authenticator(SecurityConfig(), lambda: 0) is None


def test_a_broker_without_authentication_imports_no_library_for_it():
    """Start-up and memory stay as they are."""
    program = (
        "import sys\n"
        "from pulsemark.testing import running_broker\n"
        "with running_broker(storage='memory'):\n"
        f"    print([name for name in {LIBRARIES} if name in sys.modules])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == "[]\n"


def test_a_library_that_is_not_installed_is_named(monkeypatch, secret_url):
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "pulsemark.broker.security.token", None)
    config = SecurityConfig(
        authentication_enabled=True,
        authentication_providers=("token",),
        token_secret_key=secret_url,
    )
    with pytest.raises(ConfigError, match="pip install"):
        make_authenticator(config, lambda: 0)
