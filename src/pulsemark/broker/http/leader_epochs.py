"""The leader epochs of a topic."""

from __future__ import annotations

from ..security import needs
from .messages import Request, Response
from .names import open_one_log
from .route import Route

__all__ = ["ROUTES"]


async def epochs_of(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Where each leader epoch of a topic begins, oldest first, and where the last one ends."""
    opened = await open_one_log(request, domain, tenant, namespace, topic, what="Get epochs")
    history = await request.services.run_blocking(opened.ledger.epoch_history)
    starts = [
        {
            "epoch": start.epoch,
            "firstIndex": start.first_index,
            "ledgerId": start.position.ledger_id,
            "entryId": start.position.entry_id,
            "leader": start.leader,
        }
        for start in history.starts
    ]
    return Response.of_json({"epochs": starts, "nextIndex": history.next_index})


ROUTES = (
    Route(
        "GET",
        "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/epochs",
        needs.topic("GET_METADATA"),
        None,
        epochs_of,
    ),
)
