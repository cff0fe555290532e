"""Several brokers that share their topics, by bundles of namespaces, as Pulsar's brokers do.

`ClusterMember` makes a `Broker` one of them. The brokers meet in a coordination service: there they
register, own bundles, and keep the settings that all share. What keeps two of them from writing to
one topic is not that service but the store, whose opening fences the owner before.
"""

from .member import ClusterMember
from .placement import Balanced, Fixed
from .store import BundleStores, OneStore

__all__ = ["Balanced", "BundleStores", "ClusterMember", "Fixed", "OneStore"]
