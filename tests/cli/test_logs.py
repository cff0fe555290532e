"""Logs as JSON: one object per line, also with a traceback."""

from __future__ import annotations

import json
import logging
import sys

from pulsemark.cli.logs import JsonFormatter


def test_a_record():
    """Time, level, logger and message; line feeds stay inside of the object."""
    record = logging.LogRecord("pulsemark.x", logging.WARNING, "", 0, "a %s\nb", ("é",), None)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "pulsemark.x",
        "message": "a é\nb",
    }


def test_a_traceback():
    """It is a field of the same object."""
    try:
        raise ValueError("wrong")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "m", (), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: wrong")
