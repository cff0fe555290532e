"""Keys and certificates for tests, made by the openssl program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["Certificates"]

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificates:
    """The certificates in a folder, each with its key. Without the program the test is skipped.

    They have what Python 3.13 wants of them: an authority says that it may sign, and what it has
    signed for a server names the key of the authority.
    """

    def __init__(self, folder: Path) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("making certificates takes the openssl program")
        self._openssl, self.folder = openssl, folder

    def run(self, *arguments: str) -> None:
        """Run the program in the folder."""
        command = [self._openssl, *arguments]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def self_signed(self, name: str, key: str, certificate: str, *extensions: str) -> None:
        """A certificate that is its own authority, and its key, under these file names."""
        added = [part for each in extensions for part in ("-addext", each)]
        files = ("-keyout", key, "-out", certificate)
        self.run("req", "-x509", *NEW_KEY, "-days", "2", "-subj", f"/CN={name}", *files, *added)

    def authority(self, name: str) -> None:
        """NAME.pem and NAME.key of an authority."""
        may_sign = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign")
        self.self_signed(name, f"{name}.key", f"{name}.pem", *may_sign)

    def issue(
        self, name: str, by: str, hosts: str = "", *, subject: str = "", days: int = 2
    ) -> None:
        """NAME.pem and NAME.key, signed by an authority.

        Without `hosts`, such as `IP:127.0.0.1`, it is of X.509 version 1, as old ones are.
        """
        request = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
        self.run("req", *NEW_KEY, "-subj", subject or f"/CN={name}", *request)
        extensions: tuple[str, ...] = ()
        if hosts:
            text = f"authorityKeyIdentifier=keyid\nsubjectAltName={hosts}\n"
            (self.folder / "san").write_text(text)
            extensions = ("-extfile", "san")
        signed = ("-CA", f"{by}.pem", "-CAkey", f"{by}.key", "-CAcreateserial", *extensions)
        files = ("-in", f"{name}.csr", "-out", f"{name}.pem")
        self.run("x509", "-req", *files, *signed, "-days", str(days))
