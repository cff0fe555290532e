"""The log of a serving command, on stderr: text for people, or with `json` one object per line.

An object has `time` (ISO 8601, UTC), `level`, `logger`, `message`, and `exception` with a traceback
where there is one.
"""

from __future__ import annotations

import logging
import sys
import time

from .options import json_line

__all__ = ["JsonFormatter", "set_up_logs"]

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """The object, in one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(fields)


def set_up_logs(level: str, form: str) -> None:
    """Log to stderr from now on, from this level up. May be called again to change both."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    handler = next((each for each in root.handlers if getattr(each, "is_ours", False)), None)
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.is_ours = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT_FORMAT))
