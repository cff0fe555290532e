"""The version that a broker reports to its clients and operators."""

from __future__ import annotations

from .. import __version__

HTTP_SERVER = f"pulsemark({__version__})"
SERVER_VERSION = f"Pulsar Server {__version__} (pulsemark)"
