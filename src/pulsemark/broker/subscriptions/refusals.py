"""Why a consumer cannot connect to a subscription, in Pulsar's words: clients show these texts."""

from __future__ import annotations

from ...proto.pulsar_api_pb2 import CommandSubscribe, KeySharedMeta, KeySharedMode, ServerError
from ..errors import RefusedError

__all__ = ["check_key_shared_meta", "other_type"]

SubType = CommandSubscribe.SubType


def other_type(active: str, asked: SubType) -> RefusedError:
    """The subscription has consumers, and another type."""
    return _different(
        f"Active subscription type of '{active}' is different than the connecting consumer's type "
        f"'{SubType.Name(asked)}'."
    )


def check_key_shared_meta(active: KeySharedMeta, asked: KeySharedMeta) -> None:
    """Raise `RefusedError` if a Key_Shared consumer asks for other rules than the first one."""
    if active.keySharedMode != asked.keySharedMode:
        raise _different(
            f"Active subscription key_shared mode of '{_mode(active)}' is different than the "
            f"connecting consumer's key_shared mode '{_mode(asked)}'."
        )
    if active.allowOutOfOrderDelivery != asked.allowOutOfOrderDelivery:
        held, wanted = (
            ("allows", "does not allow")
            if active.allowOutOfOrderDelivery
            else ("does not allow", "allows")
        )
        raise _different(
            f"Active subscription {held} out of order delivery while the connecting consumer "
            f"{wanted} it."
        )


def _mode(meta: KeySharedMeta) -> str:
    return KeySharedMode.Name(meta.keySharedMode)


def _different(reason: str) -> RefusedError:
    return RefusedError(ServerError.ConsumerBusy, f"Subscription is of different type. {reason}")
