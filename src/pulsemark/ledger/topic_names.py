"""Short names of topics, as Pulsar's clients read them: `orders` is in `public/default`.

The ledger stands below the protocol, whose `TopicName` has all rules of names. Here a name is only
completed, so that a program which opens `orders` in a store gets the topic that a client calls so.
"""

from __future__ import annotations

__all__ = ["full_topic_name"]

_DEFAULT = "persistent://public/default/"


def full_topic_name(name: str) -> str:
    """The full name of a topic: `persistent://public/default/orders` for `orders`.

    `tenant/namespace/orders` is completed, too; a name with `://` stays as it is. Raises
    ValueError for a name with another number of parts. An empty name stays empty: what no topic
    may be called is said where topics are made.
    """
    if not name or "://" in name:
        return name
    parts = name.split("/")
    if not all(parts) or len(parts) not in (1, 3):
        raise ValueError(
            f"a topic's name is of the form topic, tenant/namespace/topic or "
            f"persistent://tenant/namespace/topic, not {name!r}"
        )
    return f"{_DEFAULT}{name}" if len(parts) == 1 else f"persistent://{name}"
