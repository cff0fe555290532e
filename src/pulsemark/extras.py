"""How an optional part of pulsemark is installed: every error message takes it from here."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """The command that installs an extra. It names a checkout: pulsemark is on no package index."""
    return f"pip install '/path/to/checkout[{extra}]'"
