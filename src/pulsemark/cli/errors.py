"""The error for bad input on the command line."""

from __future__ import annotations


class CliError(Exception):
    """Bad input. The message is the line that the user sees."""
