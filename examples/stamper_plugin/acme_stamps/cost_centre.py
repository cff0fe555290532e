"""The stamper `cost-centre`: who pays for an entry, and for how many bytes."""

from __future__ import annotations

from typing import Any

from pulsemark.metadata import BrokerEntryMetadata, StampContext

from . import fields_pb2

# Typed loosely because protobuf's generator does not tell type checkers whose extension it is.
_COST_CENTRE: Any = fields_pb2.cost_centre
_BILLED_SIZE: Any = fields_pb2.billed_size_bytes


class CostCentreStamper:
    """Writes Acme's fields 1000 and 1001.

    The cost centre is the property `cost-centre` that the producer was opened with: the broker
    knows it from the connection, so that nothing of the entry has to be parsed.

    Args:
        otherwise: what producers without that property are billed to; a policy gives it behind a
            colon, as in `cost-centre:overheads`.
    """

    name = "cost-centre"
    #: The numbers that it writes. Another one fails the append.
    fields = frozenset({_COST_CENTRE.number, _BILLED_SIZE.number})
    #: The broker's own entries cost nothing.
    stamps_control = False

    def __init__(self, otherwise: str = "unknown") -> None:
        self._otherwise = otherwise

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Write both fields."""
        properties = {} if context.sender is None else context.sender.properties
        centre = properties.get("cost-centre", self._otherwise)
        metadata.Extensions[_COST_CENTRE] = centre
        metadata.Extensions[_BILLED_SIZE] = len(context.body)
