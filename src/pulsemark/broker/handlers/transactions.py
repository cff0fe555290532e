"""The commands of transactions, answered as by a Pulsar broker that has transactions switched off.

Clients get NotAllowedError, and can go on without transactions. The two commands that only brokers
send to each other (END_TXN_ON_PARTITION, END_TXN_ON_SUBSCRIPTION) close the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...proto.pulsar_api_pb2 import BaseCommand, ServerError
from ..errors import RefusedError
from .table import CommandTable

if TYPE_CHECKING:
    from ..services import Session

__all__ = ["COMMANDS"]


def refuse(session: Session, command: Any) -> None:
    """Refuse a command of a client."""
    raise RefusedError(ServerError.NotAllowedError, "Transactions are not enabled.")


def refuse_broker(session: Session, command: Any) -> None:
    """Close the connection, which has sent a command that brokers send to each other."""
    session.close_because("a transaction's end, and transactions are not enabled")


COMMANDS: CommandTable = {
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: refuse,
    BaseCommand.NEW_TXN: refuse,
    BaseCommand.ADD_PARTITION_TO_TXN: refuse,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: refuse,
    BaseCommand.END_TXN: refuse,
    BaseCommand.END_TXN_ON_PARTITION: refuse_broker,
    BaseCommand.END_TXN_ON_SUBSCRIPTION: refuse_broker,
}
