"""Which selector assigns the slots of a Key_Shared subscription to its consumers."""

from __future__ import annotations

from ...proto.pulsar_api_pb2 import KeySharedMeta, KeySharedMode
from ..configuration.config import BrokerConfig
from .halved_ranges import HalvedRanges
from .sticky_keys import AutoSplit, Selector, StickyRanges

__all__ = ["selector_for"]


def selector_for(meta: KeySharedMeta, config: BrokerConfig) -> Selector:
    """The selector that a subscription's first consumer asks for."""
    if meta.keySharedMode == KeySharedMode.STICKY:
        return StickyRanges()
    if config.subscription_key_shared_use_consistent_hashing:
        return AutoSplit(config.subscription_key_shared_consistent_hashing_replica_points)
    return HalvedRanges()
