"""The error that a wrong command line ends in."""

from __future__ import annotations


class CliError(Exception):
    """Input that cannot be used; the message is the line that the user gets to see."""
