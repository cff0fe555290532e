"""A stream's progress as a subscription: durable cursors of the broker that has the topics.

Retention keeps what a subscription has not acknowledged, and tools that show backlogs show the
query's. A cursor follows what is in the query's checkpoint, and is never ahead of it: a place
inside of an entry is that entry. It is created and moved over the broker's REST API, pulsemark's or
Apache Pulsar's, and stays when the query ends, because the query may go on.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from urllib.parse import quote

from ..client import AdminClient, AdminError, UnreachableError
from ..ledger import Position
from .errors import JobFailedError, OptionError
from .options import ServiceOptions, SubscriptionOptions

_log = logging.getLogger(__name__)


class Subscription:
    """The cursors of one query, by topic."""

    def __init__(self, options: SubscriptionOptions) -> None:
        self._options = options
        self._admin = _client(options.service)
        self._at: dict[str, object] = {}
        """The places to which this process has moved the cursors."""

    def place(self, topic: str, place: object, find: Callable[[], Position]) -> None:
        """Set a topic's cursor to the next entry; create it if it is missing.

        ``place`` says which entry that is; ``find`` finds it, if the cursor is elsewhere.

        Raises:
            OptionError: the predefined subscription does not exist.
            JobFailedError: the broker refuses, or cannot be reached.
        """
        if self._at.get(topic) == place:
            return
        position = find()
        name = self._options.name
        try:
            there = topic in self._at or name in self._admin.subscriptions(topic)
            if not there and self._options.is_predefined:
                reason = f"{topic} has no such subscription; subscriptionName creates one"
                raise OptionError("predefinedSubscription", name, reason)
            path = f"{resource_of(topic)}/subscription/{quote(name, safe='')}"
            body = {"ledgerId": position.ledger_id, "entryId": position.entry_id}
            method, path = ("POST", f"{path}/resetcursor") if there else ("PUT", path)
            self._admin.request(method, path, body)
        except (AdminError, UnreachableError) as error:
            self._at.pop(topic, None)
            reason = f"{topic}: the subscription {name!r} cannot be moved: {error}"
            raise JobFailedError(reason) from error
        self._at[topic] = place

    def follow(self, topic: str, place: object, find: Callable[[], Position]) -> None:
        """As `place`, but a broker that is away is only logged: the next call moves it further."""
        try:
            self.place(topic, place, find)
        except JobFailedError as error:
            _log.warning("%s", error)


def _client(service: ServiceOptions) -> AdminClient:
    """A client of the REST API. Raises OptionError."""
    try:
        context = ssl.create_default_context(cafile=service.tls_ca) if service.tls else None
        if context is not None and service.tls_certificate is not None:
            context.load_cert_chain(service.tls_certificate, service.tls_key)
        return AdminClient(service.target, token=service.token_text(), ssl_context=context)
    except (OSError, ValueError) as error:
        raise OptionError("adminUrl", service.target, f"cannot be called: {error}") from error


def resource_of(topic: str) -> str:
    """A topic's place in the paths of the REST API."""
    domain, _, rest = topic.partition("://")
    return "/".join(quote(part, safe="") for part in (domain, *rest.split("/", 2)))
