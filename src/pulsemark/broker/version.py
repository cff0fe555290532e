"""The version that a broker reports to its clients and operators."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed_version() -> str:
    try:
        return version("pulsemark")
    except PackageNotFoundError:
        return "unknown"


HTTP_SERVER = f"pulsemark({_installed_version()})"
SERVER_VERSION = f"Pulsar Server {_installed_version()} (pulsemark)"
