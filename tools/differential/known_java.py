"""Differences that the Java client sees between this broker and Pulsar, and that are intended."""

from __future__ import annotations

__all__ = ["KNOWN"]

#: A regular expression of "scenario | step: our outcome", and why the peer's outcome is different.
KNOWN: dict[str, str] = {}
