"""Settings that change while the broker runs: over REST, and by reading the file again (SIGHUP).

A setting that is changed over REST (Pulsar's dynamic configuration) is stored in the catalog and
overrides the configuration file, also after a restart. One that is declared `reloadable` is in
force at once; others that are `dynamic` from the broker's next start on. Settings that this broker
does not have, or that Pulsar cannot change while it runs, are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from .config import BrokerConfig
from .settings import SettingError, parse_settings, pulsar_settings, setting_fields

if TYPE_CHECKING:
    from ...ledger.store import MetadataStore

log = logging.getLogger(__name__)


def dynamic_names() -> list[str]:
    """The names of the settings that can be changed over REST, sorted."""
    return sorted(key for key, spec in pulsar_settings().items() if spec.declaration.dynamic)


def changed_fields(before: BrokerConfig, after: BrokerConfig) -> list[str]:
    """The fields whose values differ, without those that a file cannot set."""
    skipped = ("clock", "memory")
    return [
        spec.name
        for spec in fields(BrokerConfig)
        if spec.name not in skipped and getattr(before, spec.name) != getattr(after, spec.name)
    ]


DYNAMIC_KIND = "dynamic-setting"


def stored_settings(catalog: MetadataStore) -> dict[str, str]:
    """The changed settings of a data folder. Blocks."""
    return {name: value.decode() for name, value in catalog.items(DYNAMIC_KIND)}


def with_settings(config: BrokerConfig, changed: Mapping[str, str]) -> BrokerConfig:
    """A configuration with changed settings. Invalid ones are logged and left out."""
    for name, value in changed.items():
        try:
            config = replace(config, **parse_settings({name: value}).of(""))
        except SettingError as error:
            log.error("a setting that was changed over REST is not used: %s", error)
    return config


#: Stores a value of a kind under a key (None removes it), then calls. Raises CatalogError.
Put = Callable[[str, str, bytes | None, Callable[[], object]], Awaitable[None]]


class DynamicSettings:
    """The configuration in force, and the settings that were changed while the broker ran."""

    def __init__(self, configured: BrokerConfig, changed: dict[str, str], put: Put) -> None:
        """`changed`: the stored settings, by Pulsar's names. They apply from now on."""
        #: The configuration of file, environment and command line.
        self.configured = configured
        self.changed = changed
        #: The configuration in force.
        self.in_force = with_settings(configured, changed)
        #: Called with the configuration in force after each change.
        self.on_change: list[Callable[[BrokerConfig], None]] = []
        self._put = put

    def configure(self, configured: BrokerConfig) -> list[str]:
        """Apply a configuration as far as possible now. Return what needs a restart."""
        self.configured = configured
        wanted = self._put_in_force()
        return changed_fields(self.in_force, wanted)

    def _put_in_force(self) -> BrokerConfig:
        """Apply what can change now. Return the configuration that is wanted."""
        wanted = with_settings(self.configured, self.changed)
        known = setting_fields()
        names = [
            name
            for name in changed_fields(self.in_force, wanted)
            if name in known and known[name].declaration.reloadable
        ]
        self.in_force = replace(self.in_force, **{name: getattr(wanted, name) for name in names})
        for taken in self.on_change:
            taken(self.in_force)
        return wanted

    async def change(self, name: str, value: str | None) -> None:
        """Store a setting and apply it; None: the configuration file's value applies again.

        As in Pulsar an invalid value is stored, too. It has no effect, and is logged.

        Raises `KeyError` for a setting that is not one of `dynamic_names`, and `LedgerError`.
        """
        if name not in dynamic_names():
            raise KeyError(name)

        def show() -> None:
            if value is None:
                self.changed.pop(name, None)
            else:
                self.changed[name] = value
            self._put_in_force()

        stored = None if value is None else value.encode()
        await self._put(DYNAMIC_KIND, name, stored, show)
