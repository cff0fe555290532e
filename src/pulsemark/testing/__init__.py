"""Tools for tests: brokers, a clock that a test moves, faults, clients for raw frames.

    running_broker     a broker on free ports, in a thread (a `PulsarBroker`)
    BrokerProcess      a broker in a process of its own
    PulsarTestCase     a broker for unittest
    SettableClock      a clock that shows the time a test sets
    RawClient          Pulsar's protocol frame by frame
    RawKafka           Kafka's protocol request by request
    FaultyFiles        file access that fails on request
    StoreModel         what a store must hold, to compare it with

The pytest plugin is in `plugin`. Names are imported when they are first used, because pytest loads
this package in every run, also in runs that do not use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .broker import PulsarBroker as PulsarBroker
    from .broker import PulsarTestCase as PulsarTestCase
    from .broker import running_broker as running_broker
    from .clock import SettableClock as SettableClock
    from .faults import Faults as Faults
    from .faulty_files import FaultyFiles as FaultyFiles
    from .inspection import StoredMessage as StoredMessage
    from .process import BrokerProcess as BrokerProcess
    from .process import BrokerProcessError as BrokerProcessError
    from .raw_client import RawClient as RawClient
    from .raw_kafka import RawKafka as RawKafka
    from .store_model import StoreModel as StoreModel

_NAMES = {
    "broker": ("PulsarBroker", "PulsarTestCase", "running_broker"),
    "clock": ("SettableClock",),
    "faults": ("Faults",),
    "faulty_files": ("FaultyFiles",),
    "inspection": ("StoredMessage",),
    "process": ("BrokerProcess", "BrokerProcessError"),
    "raw_client": ("RawClient",),
    "raw_kafka": ("RawKafka",),
    "store_model": ("StoreModel",),
}

__all__ = sorted(name for names in _NAMES.values() for name in names)  # noqa: PLE0605 - the table is the list

__getattr__, __dir__ = lazy_names(__name__, _NAMES)
