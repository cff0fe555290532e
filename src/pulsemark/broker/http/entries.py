"""A stored entry's stamp: its position, index and tags. The payload is not read."""

from __future__ import annotations

from functools import partial

from ...ledger import CorruptEntryError, Entry, Position
from ...metadata import PrefixError, prefix_fields, printable, tags_of
from ..security import needs
from .messages import HttpError, Request, Response, UnservedError
from .names import open_one_log
from .route import Route

__all__ = ["ROUTES"]


async def stamp_of(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, ledger: str, entry: str
) -> Response:
    """The broker's stamp of one entry."""
    found = await _entry(request, domain, tenant, namespace, topic, ledger, entry)
    try:
        return Response.of_json(_shown(found))
    except PrefixError as error:
        raise HttpError(500, str(error)) from error


async def _entry(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, ledger: str, entry: str
) -> Entry:
    wanted = Position(_number(ledger), _number(entry))
    what = "GetMessageById is not allowed on partitioned-topic"
    opened = await open_one_log(request, domain, tenant, namespace, topic, what=what)
    read = partial(opened.ledger.read, wanted, max_entries=1)
    try:
        entries = await request.services.run_blocking(read)
    except CorruptEntryError as error:
        raise HttpError(500, str(error)) from error
    if not entries or entries[0].position != wanted:
        raise HttpError(404, NO_MESSAGE)
    found: Entry = entries[0]
    return found


def _shown(entry: Entry) -> dict[str, object]:
    ledger_id, entry_id = entry.position
    return {
        "ledgerId": ledger_id,
        "entryId": entry_id,
        "kind": entry.kind.name.lower(),
        "firstIndex": entry.first_index,
        "index": entry.index,
        "messageCount": entry.message_count,
        "appendTime": entry.append_time_ms,
        "brokerTimestamp": prefix_fields(entry.prefix).get("broker_timestamp"),
        "tags": {name: printable(value) for name, value in tags_of(entry.prefix).items()},
    }


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UnservedError(404)
    return int(text)


NO_MESSAGE = "Message id not found"
ENTRY = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/ledger/{ledger}/entry/{entry}"

ROUTES = (Route("GET", f"{ENTRY}/stamp", needs.topic("PEEK_MESSAGES"), None, stamp_of),)
