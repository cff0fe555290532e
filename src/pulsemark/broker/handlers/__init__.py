"""The handler of each command, in a table.

A handler is called with the session and the command's body, on the event loop, and must not block.
Every command of Pulsar's that `COMMANDS` does not have is answered with an ERROR, with its request
id if it has one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...ledger import LedgerError
from ...proto.pulsar_api_pb2 import BaseCommand, ServerError
from ...wire import Command, Unsupported, commands
from ..errors import RefusedError
from . import acknowledging, authenticating, consuming, discovery, producing, transacting
from .authorizing import authorize, check_complete
from .checks import CommandTable
from .producing import handle_sends

if TYPE_CHECKING:
    from ..connection.session import Session


__all__ = ["COMMANDS", "handle_command", "handle_sends", "handle_unsupported"]

log = logging.getLogger(__name__)


COMMANDS: CommandTable = {
    **authenticating.COMMANDS,
    **discovery.COMMANDS,
    **producing.COMMANDS,
    **consuming.COMMANDS,
    **acknowledging.COMMANDS,
    **transacting.COMMANDS,
}
check_complete(COMMANDS)


def handle_command(session: Session, event: Command) -> None:
    """Call the command's handler; a refusal is answered with an ERROR."""
    handler = COMMANDS.get(event.type)
    request_id = getattr(event.body, "request_id", commands.NO_REQUEST_ID)
    try:
        if handler is None:
            raise _not_served(event.type)
        if session.services.authorizer.is_on:
            authorize(session, event.type, event.body)
        handler(session, event.body)
    except RefusedError as refusal:
        session.refuse(request_id, refusal)
    except (LedgerError, OSError) as error:
        kind = BaseCommand.Type.Name(event.type)
        text = "%s: command %s failed unexpectedly; the client got PersistenceError"
        log.exception(text, session.address, kind)
        session.refuse(request_id, RefusedError(ServerError.PersistenceError, str(error)))


def handle_unsupported(session: Session, event: Unsupported) -> None:
    """Refuse a command of Pulsar's that the wire layer knows only by its number."""
    session.refuse(commands.NO_REQUEST_ID, _not_served(event.type))


def _not_served(kind: int) -> RefusedError:
    name = BaseCommand.Type.Name(kind)
    return RefusedError(ServerError.NotAllowedError, f"{name} is not served by this broker")
