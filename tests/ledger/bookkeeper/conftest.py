"""Certificates of bookies and of their clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.certificates import Certificates


@pytest.fixture(scope="session")
def bookie_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority (ca) and another one (other), and NAME.pem and NAME.key of a
    bookie at 127.0.0.1, of bookies elsewhere and whose time is over, of a client and a stranger.
    """
    folder = tmp_path_factory.mktemp("certificates")
    certificates = Certificates(folder)
    for name in ("ca", "other"):
        certificates.authority(name)
    here, elsewhere = "IP:127.0.0.1", "DNS:bookie.example"
    for name, by, days, hosts in (
        ("bookie", "ca", 2, here),
        ("elsewhere", "ca", 2, elsewhere),
        ("expired", "ca", -1, here),
        ("client", "ca", 2, elsewhere),
        ("stranger", "other", 2, elsewhere),
    ):
        certificates.issue(name, by, hosts, days=days)
    (folder / "password").write_text("secret\n")
    certificates.run(
        "pkey", "-in", "client.key", "-aes256", "-passout", "pass:secret", "-out", "locked.key"
    )
    return folder
