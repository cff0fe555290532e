"""The stamper `cost-centre`: the cost centre that pays for an entry, and the entry's bytes."""

from __future__ import annotations

from typing import Any

from pulsemark.metadata import BrokerEntryMetadata, StampContext

from . import fields_pb2

# Typed as Any because protobuf's generator does not give the type of extensions.
_COST_CENTRE: Any = fields_pb2.cost_centre
_BILLED_SIZE: Any = fields_pb2.billed_size_bytes


class CostCentreStamper:
    """Writes Acme's fields 1000 and 1001.

    The cost centre is the property `cost-centre` that the producer was opened with: the broker
    knows it from the connection, so that nothing of the entry has to be parsed.

    Args:
        otherwise: the cost centre for producers without that property; a policy gives it after a
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
