"""Whether a broker that owns a bundle still listens.

A broker that has died owns its bundles until its session ends, some seconds later. If clients were
sent to it meanwhile, each refused connection would make them wait longer before they ask again, at
last much longer than the session. So a lookup of such a bundle waits for its next owner instead.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from ..broker.ownership import Found

KNOWN_FOR_S = 2.0
CONNECT_LIMIT_S = 1.0


class Reaching:
    """Asks brokers for a connection, each at most every two seconds."""

    def __init__(self) -> None:
        self._reached_at_s: dict[str, float] = {}

    async def is_refused(self, owner: Found) -> bool:
        """Whether no process listens where the owner did. False if that is not certain."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._reached_at_s.get(owner.broker_id, -KNOWN_FOR_S) < KNOWN_FOR_S:
            return False
        place = urlsplit(owner.service_url or owner.service_url_tls)
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                _, writer = await asyncio.open_connection(place.hostname, place.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        self._reached_at_s[owner.broker_id] = now_s
        return False
