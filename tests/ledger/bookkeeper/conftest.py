"""Certificates of bookies and of their clients."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bookie_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority (ca) and another one (other), and NAME.pem and NAME.key of a
    bookie at 127.0.0.1, of bookies elsewhere and whose time is over, of a client and a stranger.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("making certificates takes the openssl program")
    folder = tmp_path_factory.mktemp("certificates")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        run("req", "-x509", *new_key, "-days", "2", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.pem",
            "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    here, elsewhere = "IP:127.0.0.1", "DNS:bookie.example"
    for name, by, days, san in (
        ("bookie", "ca", "2", here),
        ("elsewhere", "ca", "2", elsewhere),
        ("expired", "ca", "-1", here),
        ("client", "ca", "2", elsewhere),
        ("stranger", "other", "2", elsewhere),
    ):
        (folder / "san").write_text(f"authorityKeyIdentifier=keyid\nsubjectAltName={san}\n")
        run("req", *new_key, "-subj", f"/CN={name}", "-keyout", f"{name}.key",
            "-out", f"{name}.csr")  # fmt: skip
        run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key",
            "-CAcreateserial", "-days", days, "-extfile", "san", "-out", f"{name}.pem")  # fmt: skip
    (folder / "password").write_text("secret\n")
    run("pkey", "-in", "client.key", "-aes256", "-passout", "pass:secret", "-out", "locked.key")
    return folder
